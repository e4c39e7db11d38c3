"""Prompts to a model and its answers: kept on file, within a budget, several at once. Imports no torch."""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from mesascope.errors import ArgumentError, MesascopeError, refuse, require_count, require_package
from mesascope.progress import tracked

__all__ = ["CHARACTERS", "Calls", "UnansweredPrompt", "openai_model"]

# Characters of a token, roughly: of numbers and English.
CHARACTERS = 3
# Failures whose sentences are kept.
_LAST = 5


class UnansweredPrompt(MesascopeError, RuntimeError):
    """A model gave no answer to one prompt; others may be answered."""


class Calls:
    """A model's answers to prompts.

    The n-th answer to the same prompt is kept as such, so that how much answers differ can be told, and the same
    program gets the same answers from the file without asking again.

    Args:
        model: takes a prompt and returns a text; may be asynchronous, or take a list and return one (``batched``).
        name: of the model and its settings, part of what answers are kept under.
        cache: a file of JSON lines that answers are kept in as they come; none if None.
        most_calls, most_tokens: what may be spent on answers that are not in the file. Tokens are estimated, a third
            of the characters of prompt and answer. What is beyond is left unanswered.
        concurrency: prompts asked at the same time.
    """

    def __init__(
        self,
        model: Callable[[Any], Any],
        name: str,
        *,
        cache: str | Path | None = None,
        most_calls: int | None = None,
        most_tokens: int | None = None,
        concurrency: int = 8,
        batched: bool = False,
    ) -> None:
        for argument, value in (("most_calls", most_calls), ("most_tokens", most_tokens)):
            if value is not None:
                require_count(argument, value, least=0)
        concurrency = require_count("concurrency", concurrency)
        self.model, self.name, self.batched, self.concurrency = model, name, batched, concurrency
        self.most_calls, self.most_tokens = most_calls, most_tokens
        self.cache = None if cache is None else Path(cache)
        self._kept = {} if self.cache is None else _read(self.cache)
        self._times: Counter[str] = Counter()
        self.calls = self.tokens = self.from_file = self.unaffordable = 0
        self.failures: list[str] = []
        self.failed = 0
        self._lock = threading.Lock()

    def ask(self, prompts: Sequence[str]) -> list[str | None]:
        """An answer to each prompt, None where there is none."""
        keys = [self._key(prompt) for prompt in prompts]
        left = [(key, prompt) for key, prompt in zip(keys, prompts, strict=True) if key not in self._kept]
        self.from_file += len(prompts) - len(left)
        parts = [left[start : start + self.concurrency] for start in range(0, len(left), self.concurrency)]
        for part in tracked(parts, "prompts"):
            self._ask([(key, prompt) for key, prompt in part if self._affords(prompt)])
        return [self._kept.get(key) for key in keys]

    def _key(self, prompt: str) -> str:
        """Of the next answer to this prompt."""
        time = self._times[prompt]
        self._times[prompt] += 1
        return hashlib.sha256(json.dumps([self.name, prompt, time]).encode()).hexdigest()

    def _affords(self, prompt: str) -> bool:
        tokens = len(prompt) // CHARACTERS + 1
        most = ((self.calls + 1, self.most_calls), (self.tokens + tokens, self.most_tokens))
        if any(bound is not None and spent > bound for spent, bound in most):
            self.unaffordable += 1
            return False
        self.calls, self.tokens = self.calls + 1, self.tokens + tokens
        return True

    def _ask(self, part: list[tuple[str, str]]) -> None:
        """Ask at once; each answer is kept when it comes."""
        if self.batched:
            found = self.model([prompt for _, prompt in part]) if part else []
            if len(found) != len(part):
                refuse("what a batched model returns", f"hold {len(part)} texts", len(found), "return one a prompt")
            for (key, prompt), answer in zip(part, found, strict=True):
                self._keep(key, prompt, answer)
        elif inspect.iscoroutinefunction(self.model) or inspect.iscoroutinefunction(type(self.model).__call__):
            asyncio.run(self._at_once(part))
        else:
            with ThreadPoolExecutor(self.concurrency) as pool:
                list(pool.map(self._one, *zip(*part, strict=True)) if part else ())

    async def _at_once(self, part: list[tuple[str, str]]) -> None:
        async def one(key: str, prompt: str) -> None:
            with self._failures_counted():
                self._keep(key, prompt, await self.model(prompt))

        await asyncio.gather(*(one(key, prompt) for key, prompt in part))

    def _one(self, key: str, prompt: str) -> None:
        with self._failures_counted():
            self._keep(key, prompt, self.model(prompt))

    @contextmanager
    def _failures_counted(self) -> Iterator[None]:
        try:
            yield
        except UnansweredPrompt as error:
            with self._lock:
                self.failed += 1
                self.failures = [*self.failures, str(error)][-_LAST:]

    def _keep(self, key: str, prompt: str, answer: Any) -> None:
        if not isinstance(answer, str):
            refuse("what a model returns", "be a text", answer, "return a string")
        line = json.dumps({"key": key, "model": self.name, "prompt": prompt, "answer": answer})
        with self._lock:
            self.tokens += len(answer) // CHARACTERS
            self._kept[key] = answer
            if self.cache is not None:
                with self.cache.open("a", encoding="utf-8") as file:
                    file.write(line + "\n")


def _read(path: Path) -> dict[str, str]:
    """Answers by key; a last line that was being written when its program was stopped is cut off."""
    if not path.exists():
        return {}
    text = path.read_text(encoding="utf-8")
    whole = text[: text.rfind("\n") + 1]
    if whole != text:
        path.write_text(whole, encoding="utf-8")
    found = {}
    for number, line in enumerate(whole.splitlines(), 1):
        try:
            row = json.loads(line)
            found[str(row["key"])] = str(row["answer"])
        except (ValueError, KeyError, TypeError):
            raise ArgumentError(
                f"each line of a cache must hold a key and an answer, but line {number} of {path} does not: remove it."
            ) from None
    return found


def openai_model(
    model: str,
    *,
    base_url: str | None = None,
    temperature: float = 0.0,
    timeout: float = 60.0,
    retries: int = 5,
    max_tokens: int = 32,
) -> Callable[[str], str]:
    """A model behind a server that speaks OpenAI's protocol: a prompt is one message of a user.

    The key is read from the environment variable OPENAI_API_KEY, and neither written nor logged; servers that ask for
    none take any. Overload (429), errors of the server (5xx) and broken connections are tried again after a growing
    while. Needs ``pip install 'mesascope[llm]'``.

    Args:
        model: its name, as the server knows it.
        base_url: of the server, such as http://localhost:8000/v1; OpenAI's own if None.
        timeout: seconds that an answer may take.
        max_tokens: the length of an answer.

    Raises:
        MissingPackageError: the package openai is not installed.
        ArgumentError: when asked, if the server refuses the key, the model, or a prompt that is too long.
        UnansweredPrompt: when asked, if it gives no answer after all tries.
    """
    openai: Any = require_package("openai", "openai_model", "'mesascope[llm]'")
    if not os.environ.get("OPENAI_API_KEY") and base_url is None:
        raise ArgumentError("OPENAI_API_KEY must be set in the environment, but is not: export it, or pass base_url.")
    client = openai.OpenAI(
        api_key=os.environ.get("OPENAI_API_KEY") or "none", base_url=base_url, timeout=timeout, max_retries=retries
    )
    place = f"{model} at {base_url or 'OpenAI'}"

    def ask(prompt: str) -> str:
        try:
            answer = client.chat.completions.create(
                model=model, temperature=temperature, max_tokens=max_tokens,
                messages=[{"role": "user", "content": prompt}],
            )  # fmt: skip
            return _content(answer)
        except openai.APIStatusError as error:
            status = error.status_code
            if status < 500 and status not in (408, 409, 429):
                raise ArgumentError(
                    f"{place} must take the prompt, but refuses it ({_said(error)}): {_remedy(status)}."
                ) from None
            raise UnansweredPrompt(f"{place} must answer, but does not ({_said(error)}): try again later.") from None
        except (openai.OpenAIError, ValueError, TypeError, AttributeError, IndexError) as error:
            raise UnansweredPrompt(f"{place} must answer, but does not ({_said(error)}): see that it runs.") from None

    ask.__name__ = model
    return ask


def _content(answer: Any) -> str:
    text = answer.choices[0].message.content
    if not isinstance(text, str):
        raise ValueError("its message has no text")
    return text


def _remedy(status: int) -> str:
    remedies = {401: "check OPENAI_API_KEY", 403: "check OPENAI_API_KEY", 404: "check the names of model and base_url"}
    return remedies.get(status, "use fewer pairs, or a model of a longer window")


def _said(error: Exception) -> str:
    """The kind of an error and its first words, without what a server may echo of a key."""
    status = getattr(error, "status_code", None)
    code = getattr(error, "code", None)
    return ", ".join(str(part) for part in (type(error).__name__, status, code) if part)
