"""Language models on a server with OpenAI's protocol. Imports no torch."""

from __future__ import annotations

import functools
import json
import logging
import os
import re
import threading
from typing import Any

from mesascope import errors
from mesascope.adapters.calls import RefusedPrompt, TruncatedAnswer, UnansweredPrompt, UnusableModelError
from mesascope.errors import ArgumentError, MesascopeError, refuse, shown

# Patterns in the codes and messages of server errors.
_QUOTA = re.compile(
    r"insufficient.{0,9}(quota|balance|credit|funds)|not.enough.(balance|credit)|credit balance|all available credits"
    r"|spending limit|key limit exceeded|exceeded.current.quota|exceeded your current quota(?!.*retry in)"
    r"|account is suspended|billing_(hard_limit|not_active)",
    re.IGNORECASE | re.DOTALL,
)
_FILTERED = re.compile(
    r"content.{0,4}(filter|policy|management|exists risk)|ResponsibleAI|invalid_prompt|moderation|flagged|guardrail"
    r"|unsafe|safety (system|filter|setting|reason)|inappropriate|data_inspection"
    r"|(sensitive|prohibited|harmful) content|(you have been |request (was |has been |is )?)blocked",
    re.IGNORECASE,
)
_NO_KEY = re.compile(r"api.?key|credential", re.IGNORECASE)
_NO_MODEL = re.compile(
    r"model_not_found|invalid model|chat.template|not a chat model"
    r"|model.{0,60}(not exist|not found|not a valid|no access|not have access|retired|deprecated)",
    re.IGNORECASE,
)
_TOO_LONG = re.compile("context|too long|maximum.{0,9}length|must be <=|tokens per", re.IGNORECASE)
_UNSUPPORTED = re.compile(
    r"unsupported|not support|unrecogni[sz]ed|unknown_param|extra_forbidden|not permitted", re.IGNORECASE
)
_RENAMED = re.compile(r"\buse\b.{0,20}max_completion_tokens|max_completion_tokens.{0,5}instead", re.IGNORECASE)
# Name of a field in a message, in quotes or after a word such as "invalid".
_ABOUT = r"(?:[\"'`]{0}[\"'`]|\b(?:invalid|parameter|field|argument):? {0}\b)"
# HTTP statuses of permanent errors: of the prompt or a field; of the key, the model or the address.
_OF_REQUEST, _OF_ALL = (400, 413, 422, 451), (401, 403, 404, 405, 410)
# Finish reasons of complete answers.
_WHOLE = ("stop", "eos", "eos_token", "end_turn", "stop_sequence", "complete", "completed", "none")
_SECRET = re.compile(r"(?<=//)[^/]*@|[?#].*")  # user, password and query string of an address
_ANOTHER = "choose another format of prompts, or another family of tasks"
_LOCK = threading.Lock()  # for fields; a module global, so that models can be pickled


def openai_model(
    model: str, *, base_url: str | None = None, temperature: float = 0.0, timeout: float = 60.0, retries: int = 5,
    max_tokens: int = 32, **fields: Any,
) -> ServedModel:  # fmt: skip
    """A language model on a server with OpenAI's protocol; a prompt is one user message.

    The key is read from the environment variable OPENAI_API_KEY, and is neither written nor logged. Overload (429),
    server errors (5xx) and broken connections are retried up to ``retries`` times with growing delays. A field that the
    model does not support is left out, or renamed (max_tokens), with a logged warning. Needs ``pip install '.[llm]'``.

    Args:
        model: name of the model on the server.
        base_url: address of the server, such as http://localhost:8000/v1; if None, OPENAI_BASE_URL or OpenAI's own.
        timeout: maximum seconds per attempt of a request.
        max_tokens: maximum number of tokens in an answer; a cut answer is nan unless its first line is a complete
            number.
        fields: additional fields of each request, such as ``stop=["\\n"]`` or ``reasoning_effort="low"``.

    Raises:
        MissingPackageError: the package openai is not installed.
        ArgumentError: an argument is not valid, or neither OPENAI_API_KEY nor the server's address is set.
        UnusableModelError: from a call, if the server refuses the key, the model or a field, or the quota is used up.
        RefusedPrompt: from a call, if the prompt is too long or filtered.
        UnansweredPrompt: from a call, if there is no answer after all retries.
    """
    errors.require_package("openai", "openai_model", "llm")
    base_url = base_url or os.environ.get("OPENAI_BASE_URL")
    if not os.environ.get("OPENAI_API_KEY") and base_url is None:
        raise ArgumentError("OPENAI_API_KEY must be set in the environment, but is not: export it, or pass base_url.")
    errors.require_instance("model", model, str)
    errors.require_instance("base_url", base_url, str | None)
    if base_url is not None and not re.match("https?://.", base_url):
        refuse("base_url", "begin with http:// or https://", base_url, "pass http://localhost:8000/v1, say")
    timeout = errors.require_number("timeout", timeout, above=0)
    retries = errors.require_count("retries", retries, least=0)
    temperature = errors.require_number("temperature", temperature, least=0)
    max_tokens = errors.require_count("max_tokens", max_tokens)
    fields = {"temperature": temperature, "max_tokens": max_tokens, **fields}
    for name, value in fields.items():
        if name in ("messages", "stream"):
            refuse(name, "be left out, as each prompt is one message with one answer", value, "change the format, say")
        try:
            json.dumps(value, allow_nan=False)
        except (TypeError, ValueError):
            refuse(name, "be a value of JSON", value, "pass a number, a text or a list")
    return ServedModel(model, base_url, fields, timeout, retries)


class ServedModel:
    """Return type of `openai_model`: takes a prompt, returns a text."""

    def __init__(self, model: str, base_url: str | None, fields: dict[str, Any], timeout: float, retries: int) -> None:
        self.__name__, self.base_url, self.timeout, self.retries = model, base_url, timeout, retries
        self.settings = {"model": model, "base_url": base_url, **fields}
        self.fields = fields
        self.place = f"{model} at {_SECRET.sub('', base_url) if base_url else 'OpenAI'}"

    def __repr__(self) -> str:
        return f"openai_model({self.place})"

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "client"}

    @functools.cached_property
    def client(self) -> Any:
        import openai

        http = openai.DefaultHttpxClient(event_hooks={"response": [_retry_no_quota]})
        return openai.OpenAI(
            api_key=os.environ.get("OPENAI_API_KEY") or "none", base_url=self.base_url, timeout=self.timeout,
            max_retries=self.retries, http_client=http,
        )  # fmt: skip

    def __call__(self, prompt: str) -> str:
        import openai

        try:
            return self._content(self._created(prompt).choices[0])
        except UnansweredPrompt:
            raise
        except openai.APIStatusError as error:
            if "output limit was reached" in _whole(error):  # the reasoning was cut
                return TruncatedAnswer()
            raise self._refusal(error) from None
        except (openai.OpenAIError, ValueError, TypeError, AttributeError, LookupError) as error:
            raise UnansweredPrompt(
                f"{self.place} must answer, but does not ({_said(error)}): check that it runs there."
            ) from None

    def _created(self, prompt: str) -> Any:
        """Request an answer, dropping fields that the model does not support."""
        import openai

        while True:
            fields = dict(self.fields)
            try:
                return self.client.chat.completions.create(
                    model=self.__name__, messages=[{"role": "user", "content": prompt}], extra_body=fields
                )
            except (openai.BadRequestError, openai.UnprocessableEntityError) as error:
                name = _field(error, fields)
                renamed = name == "max_tokens" and _RENAMED.search(_whole(error))
                if name is None or not (renamed or _UNSUPPORTED.search(_whole(error))):
                    raise
                self._leave_out(name)

    def _leave_out(self, name: str) -> None:
        with _LOCK:
            if name not in self.fields:  # already removed by another thread
                return
            value = self.fields.pop(name)
            if name == "max_tokens":
                self.fields["max_completion_tokens"] = value
        instead = "sent as max_completion_tokens" if name == "max_tokens" else "left out"
        # Logged, because `identify` suppresses Python warnings of learners.
        logging.getLogger(__name__).warning(
            "%s does not support %s = %s; it is %s from now on.", self.place, name, shown(value), instead
        )

    def _content(self, choice: Any) -> str:
        text, reason = choice.message.content, str(choice.finish_reason).lower()
        if re.search("filter|safety|refusal|prohibited", reason) or getattr(choice.message, "refusal", None):
            raise RefusedPrompt(f"{self.place} must answer the prompt, but its filter stops it: {_ANOTHER}.")
        if isinstance(text, list):  # Mistral's models return reasoning and text
            text = "".join(part["text"] for part in text if part["type"] == "text")
        if not isinstance(text, str | None):
            raise ValueError("its message has no text")
        thinks = any(getattr(choice.message, name, None) for name in ("reasoning_content", "reasoning"))
        return TruncatedAnswer(text or "") if reason not in _WHOLE or (thinks and not text) else text or ""

    def _refusal(self, error: Any) -> MesascopeError:
        """Convert a server's error to an exception: for all prompts, for this prompt, or for a temporary failure."""
        status, whole, said = error.status_code, _whole(error), f"({_said(error)})"
        if status == 402 or _QUOTA.search(whole):
            return UnusableModelError(
                f"{self.place} must have quota left, but has none {said}: add credit, or use another key."
            )
        if status not in (*_OF_REQUEST, *_OF_ALL):
            return UnansweredPrompt(f"{self.place} must answer, but does not {said}: try again later.")
        if status in (400, 403, 422, 451) and _FILTERED.search(whole):
            return RefusedPrompt(f"{self.place} must take the prompt, but its filter refuses it {said}: {_ANOTHER}.")
        name = _field(error, self.fields, _ABOUT)
        if status in _OF_REQUEST and name is not None and not _TOO_LONG.search(whole):
            value = shown(self.fields[name])
            return UnusableModelError(
                f"{name} must be a value that {self.place} takes, but is {value} {said}: change it."
            )
        no_model = error.param == "model" or _NO_MODEL.search(whole)
        if status in _OF_ALL or no_model or _NO_KEY.search(whole):
            of_key = status in (401, 403) or _NO_KEY.search(whole)
            remedy = "the names of model and base_url" if no_model or not of_key else "OPENAI_API_KEY"
            return UnusableModelError(f"{self.place} must take the request, but refuses it {said}: check {remedy}.")
        remedy = "or a model with a longer window" if _TOO_LONG.search(whole) else "or see the log of the server"
        return RefusedPrompt(f"{self.place} must take the prompt, but refuses it {said}: use fewer pairs, {remedy}.")


def _retry_no_quota(response: Any) -> None:
    """Stop the client from retrying a request when the quota is used up."""
    if response.status_code == 429 and _QUOTA.search(response.read().decode(errors="replace")):
        response.headers["x-should-retry"] = "false"


def _field(error: Any, fields: dict[str, Any], about: str = r"\b{0}\b") -> str | None:
    """Name of the field that an error refers to: its ``param``, or a name in its message that matches ``about``."""
    if "max_tokens" in fields and _RENAMED.search(_whole(error)):
        return "max_tokens"
    if error.param:
        return error.param if error.param in fields else None
    return next((name for name in fields if re.search(about.replace("{0}", re.escape(name)), _whole(error))), None)


def _whole(error: Any) -> str:
    """Message and body of an error, to search for codes; never shown, as they may contain a key."""
    return f"{error} {error.body}"


def _said(error: Exception) -> str:
    """Class, status and code of an error, without its message, which may contain a key."""
    parts = (type(error).__name__, getattr(error, "status_code", None), getattr(error, "code", None))
    return ", ".join(str(part) for part in parts if part)
