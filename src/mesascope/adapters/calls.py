"""Cached, budgeted and concurrent calls of a language model. Imports no torch."""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import functools
import hashlib
import inspect
import json
import os
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from mesascope.errors import ArgumentError, MesascopeError, one_line, refuse, require_count, require_instance, shown
from mesascope.progress import tracked

CHARACTERS = 3  # characters per token, roughly, in numbers and English
_LAST = 5  # number of error messages to keep
_HOPELESS = 8  # number of failures, without any answer, after which calls stop
_LOCK = threading.Lock()  # for counts and files; a module global, so that models can be pickled


class UnusableModelError(ArgumentError):
    """The model cannot answer any prompt; no more prompts are sent."""


class UnansweredPrompt(MesascopeError, RuntimeError):
    """The model did not answer one prompt; it may answer others."""

    reason = "failed"


class RefusedPrompt(UnansweredPrompt, ArgumentError):
    """The model refused one prompt, for example because it is too long or its content is filtered."""

    reason = "refused"


class _RaisedError(UnansweredPrompt, ArgumentError):
    """The model raised an error, or did not return text."""


class TruncatedAnswer(str):
    """An answer that was cut at the token limit; its last line may be incomplete."""


class CachedModel:
    """A language model with a cache and a budget.

    All answers to a repeated prompt are stored in order, so that a second run of a program gets the same answers from
    the file. Empty answers are not stored, and cut ones only if their first line is a complete number.

    Args:
        model: maps a prompt to a text; may be asynchronous, or map a list to a list (``batched``). Its attribute
            ``settings``, if it has one, is part of the key of each answer.
        name: name of the model, part of the key. A model without ``settings`` needs a new name when they
            change.
        cache: JSON Lines file to which answers are appended; no file if None.
        most_calls, most_tokens: budget for prompts whose answers are not in the file; prompts beyond the budget are not
            sent. Tokens are estimated as a third of the characters of prompt and answer.
        concurrency: prompts sent at the same time, or per batch. Unless ``batched``, the first is sent alone.

    Raises:
        ArgumentError: the file is not a writable cache. From `ask`, if a batched model returns another number of texts.
        UnusableModelError: from `ask`, if the model raises it. Also if the model has never answered, and fails on eight
            prompts or on all prompts of a call.
    """

    def __init__(
        self, model: Callable[[Any], Any], name: str, *, cache: str | Path | None = None, most_calls: int | None = None,
        most_tokens: int | None = None, concurrency: int = 8, batched: bool = False,
    ) -> None:  # fmt: skip
        for argument, value in (("most_calls", most_calls), ("most_tokens", most_tokens)):
            if value is not None:
                require_count(argument, value, least=0)
        concurrency = require_count("concurrency", concurrency)
        self.model, self.name, self.batched, self.concurrency = model, name, batched, concurrency
        self.most_calls, self.most_tokens = most_calls, most_tokens
        self.cache = None if cache is None else Path(cache)
        self._kept = {} if self.cache is None else _opened(self.cache)
        self._times: Counter[str] = Counter()
        self.calls = self.tokens = self.from_file = self.answered = 0
        self.unanswered: Counter[str] = Counter()
        self.failures: list[str] = []
        self._error: UnansweredPrompt | None = None

    def ask(self, prompts: Sequence[str]) -> list[str | None]:
        """Return the answer to each prompt, None if there is none; ``unanswered`` counts these by reason."""
        keys = [self._key(prompt) for prompt in prompts]
        left = [(key, prompt) for key, prompt in zip(keys, prompts, strict=True) if key not in self._kept]
        self.from_file += len(prompts) - len(left)
        # Send the first prompt alone: it tests that the model answers, and which parameters it takes.
        first = 0 if self.batched or self.answered else 1
        starts = range(first, len(left), self.concurrency)
        for part in tracked([left[:first], *(left[start : start + self.concurrency] for start in starts)], "prompts"):
            self._ask([(key, prompt) for key, prompt in part if self._affords(prompt)])
        if left and (not self.from_file or isinstance(self._error, ArgumentError)):
            self._give_up()
        return [self._kept.get(key) for key in keys]

    def _key(self, prompt: str) -> str:
        """Key of the next answer to this prompt: a hash of everything that determines the answer."""
        time = self._times[prompt]
        self._times[prompt] += 1
        parts = [self.name, None if self.cache is None else getattr(self.model, "settings", None), prompt, time]
        return hashlib.sha256(json.dumps(parts, sort_keys=True, default=repr).encode()).hexdigest()

    def _affords(self, prompt: str) -> bool:
        tokens = len(prompt) // CHARACTERS + 1
        most = ((self.calls + 1, self.most_calls), (self.tokens + tokens, self.most_tokens))
        if any(bound is not None and spent > bound for spent, bound in most):
            self.unanswered["beyond the budget"] += 1
            return False
        self.calls, self.tokens = self.calls + 1, self.tokens + tokens
        return True

    def _ask(self, part: list[tuple[str, str]]) -> None:
        """Send prompts concurrently, and store each answer when it arrives."""
        if self.batched and part:
            self._ask_together(part)
        elif part:
            with ThreadPoolExecutor(len(part)) as pool:
                list(pool.map(self._ask_together, ([one] for one in part)))
        if sum(self.unanswered[reason] for reason in ("failed", "refused")) >= _HOPELESS:
            self._give_up()

    def _ask_together(self, part: list[tuple[str, str]]) -> None:
        """Call the model once; if a batch of prompts fails, send each prompt alone."""
        try:
            answers = self._called([prompt for _, prompt in part])
        except UnansweredPrompt as error:
            if len(part) == 1:
                self._count(error)
                return
            for one in part:
                self._ask([one])
            return
        for (key, prompt), answer in zip(part, answers, strict=True):
            self._keep(key, prompt, answer)

    def _called(self, prompts: list[str]) -> Sequence[Any]:
        """Call the model; convert its errors to one-sentence messages."""
        try:
            found = self.model(prompts if self.batched else prompts[0])
            found = _awaited(found) if inspect.isawaitable(found) else found
        except (UnusableModelError, UnansweredPrompt):
            raise
        except MesascopeError as error:
            raise _RaisedError(str(error)) from error
        except Exception as error:
            said = f"{type(error).__name__} ({one_line(error)})"
            raise _RaisedError(f"model must answer, but raised {said}: mend it.") from error
        if not self.batched:
            return [found]
        found = found.tolist() if hasattr(found, "tolist") else found
        if not isinstance(found, list | tuple) or len(found) != len(prompts):
            refuse("the answer of a batched model", f"be {len(prompts)} texts", found, "return one text per prompt")
        return found

    def _keep(self, key: str, prompt: str, answer: Any) -> None:
        if not isinstance(answer, str):
            said = f"an answer must be a text, but is {shown(answer)}: return a string, or pass batched=True."
            self._count(_RaisedError(said))
            return
        if isinstance(answer, TruncatedAnswer):  # a complete first line without letters is the number
            first, ended, _ = answer.lstrip().partition("\n")
            kept = first if ended and not any(map(str.isalpha, first)) else None
        else:
            kept = answer if answer.strip() else None
        with _LOCK:
            self.answered += 1
            self.tokens += len(answer) // CHARACTERS
            if kept is None:
                self.unanswered["cut" if isinstance(answer, TruncatedAnswer) else "empty"] += 1
                return
            self._kept[key] = kept
            if self.cache is not None:
                row = {"key": key, "model": self.name, "prompt": prompt, "answer": kept}
                with _alone(self.cache), self.cache.open("a", encoding="utf-8") as file:
                    file.write(json.dumps(row) + "\n")

    def _count(self, error: UnansweredPrompt) -> None:
        with _LOCK:
            self.unanswered[error.reason] += 1
            self.failures, self._error = [*self.failures, str(error)][-_LAST:], error

    def _give_up(self) -> None:
        """Raise `UnusableModelError` with the last error's message if the model never answered."""
        if self._error is not None and not self.answered:
            raise UnusableModelError(str(self._error)) from self._error


@functools.cache
def _loop() -> asyncio.AbstractEventLoop:
    """Event loop of all asynchronous models, in a separate thread.

    Notebooks already run a loop in the main thread, and a client works only in the first loop that uses it.
    """
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever, name="mesascope models", daemon=True)
    thread.start()

    def close() -> None:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()

    atexit.register(close)
    return loop


def _awaited(answer: Any) -> Any:
    async def wait() -> Any:
        return await answer

    return asyncio.run_coroutine_threadsafe(wait(), _loop()).result()


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keep other processes of this machine from reading or writing a cache, if its temporary folder has locks."""
    from filelock import FileLock

    name = hashlib.sha256(os.fsencode(os.path.realpath(path))).hexdigest()[:16]
    lock = FileLock(Path(tempfile.gettempdir()) / f"mesascope-{name}.lock")
    with contextlib.suppress(OSError, NotImplementedError):
        lock.acquire()
    try:
        yield
    finally:
        lock.release()


def _opened(path: Path) -> dict[str, str]:
    """Read the answers in a cache by key, and remove an incomplete last line."""
    try:
        with _alone(path), path.open("a+b") as file:
            file.seek(0)
            whole, ended, torn = file.read().rpartition(b"\n")
            begun = torn[:6] == b'{"key"'[: len(torn)]  # False for a file of another format
            found = dict(_read(path, whole if begun else whole + ended + torn))
            file.truncate(len(whole + ended))
    except OSError as error:
        refuse("cache", f"be a file that can be written ({type(error).__name__})", str(path), "make its folder, say")
    return found


def _read(path: Path, lines: bytes) -> Iterator[tuple[str, str]]:
    for number, line in enumerate(lines.splitlines(), 1):
        try:
            row = json.loads(line)
            require_instance("answer", row["answer"], str)
            yield str(row["key"]), row["answer"]
        except (ValueError, KeyError, TypeError):
            raise ArgumentError(
                f"each line of a cache must hold a key and an answer, but line {number} of {path} does not: remove it."
            ) from None
