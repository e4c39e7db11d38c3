"""Tasks on workers that may die: each task ends as done or failed. Tasks and outcomes are small records."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import sys
import threading
import time
import traceback
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from mesascope.errors import MesascopeError, one_line
from mesascope.progress import STOP, tell
from mesascope.runs.locks import BusyError

# Longest wait for an event, and delay before a task whose folder is in use is tried again, in seconds.
_EVERY, _LATER = 0.5, 1.0
# A task fails if this many workers in a row die on it without progress.
_DEATHS = 10
# Environment variables for the number of threads of torch and numpy.
THREADS = ("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS")
# Topics of the crews that asked this worker process to stop.
_STOPPED: set[str] = set()


class Task(NamedTuple):
    """A piece of work.

    Args:
        label: name in messages.
        record: JSON argument of the work.
        folder: folder that the work writes to; new files, and more metrics, are progress.
        log: file for the printed output of the work.
    """

    label: str
    record: dict[str, Any]
    folder: Path
    log: Path


@dataclass
class Crew:
    """Tasks and their state: keys that are waiting, running or done, and an error message for each that has failed.

    Args:
        work: function of a task's record; workers must be able to import it.
        tasks: the tasks by key.
        retries: number of times that a failed task is tried again.
        threads: number of torch threads of each worker.
        show: called with this object after each event, and at least twice a second.
    """

    work: Callable[[Any], None]
    tasks: Mapping[str, Task]
    retries: int = 1
    threads: int = 1
    show: Callable[[Crew], None] = lambda crew: None
    waiting: set[str] = field(default_factory=set)
    running: set[str] = field(default_factory=set)
    done: list[str] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)
    stopping: bool = False

    def __post_init__(self) -> None:
        self.topic = f"mesascope-{uuid.uuid4().hex}"
        self._heard: queue.SimpleQueue[Any] = queue.SimpleQueue()  # finished futures, and keys of started tasks
        self._futures: dict[Any, str] = {}
        self._queue = [(0.0, key) for key in self.tasks]  # each task with its earliest start time
        self.waiting |= {*self.tasks}
        self._tries = dict.fromkeys(self.tasks, 0)
        self._deaths = dict.fromkeys(self.tasks, 0)
        self._before: dict[str, Any] = {}

    def work_on(self, client: Any) -> None:
        """Do all tasks on the client's workers.

        Raises:
            KeyboardInterrupt: after Ctrl-C, once running tasks have reached a checkpoint; after a second one, at once.
            MesascopeError: the connection to the scheduler is lost.
        """
        client.subscribe_topic(self.topic, lambda event: self._heard.put(event[1]))  # called in another thread
        try:
            while self._futures or self._queue:
                try:
                    self._feed(client)
                    self._step(client)
                except KeyboardInterrupt:
                    if self.stopping:
                        raise
                    self._stop(client)
            if self.stopping:
                raise KeyboardInterrupt
        finally:
            client.unsubscribe_topic(self.topic)
            self.show(self)

    def _feed(self, client: Any) -> None:
        """Submit one task per free thread; dask would assign further tasks to busy workers."""
        room = max(sum(client.nthreads().values()), 1) - len(self._futures)
        for due, key in self._queue[:]:
            if room > 0 and time.monotonic() >= due:
                self._queue.remove((due, key))
                self._submit(client, key)
                room -= 1

    def _submit(self, client: Any, key: str) -> None:
        task = self.tasks[key]
        self._before[key] = _files(task.folder)
        future = client.submit(
            attempt, self.work, key, task.record, str(task.log), self.topic, self.threads,
            key=f"{key}-{uuid.uuid4().hex}", pure=False,
        )  # fmt: skip
        self._futures[future] = key
        future.add_done_callback(self._heard.put)

    def _step(self, client: Any) -> None:
        """Wait for the next event, at most half a second, and handle it."""
        try:
            heard = self._heard.get(timeout=_EVERY)
        except queue.Empty:
            if client.status not in ("running", "connecting"):
                raise MesascopeError(
                    "the scheduler must run until all points are done, but its connection is lost: start it, and "
                    "repeat the command, which continues unfinished points."
                ) from None
            return self.show(self)
        if isinstance(heard, str):
            self.waiting.discard(heard)
            self.running.add(heard)
        elif heard in self._futures:
            self._handle(self._futures.pop(heard), heard)
        return self.show(self)

    def _handle(self, key: str, future: Any) -> None:
        self.waiting.discard(key)
        self.running.discard(key)
        outcome, sentence = self._outcome(key, future)
        if outcome == "done":
            self.done.append(key)
        elif outcome in ("again", "busy"):
            self._again(key, _LATER if outcome == "busy" else 0.0)
        elif outcome == "dead":
            self.failed[key] = sentence
        elif outcome == "stopped" and not self.stopping:
            self.failed[key] = f"{self.tasks[key].label} must finish, but raises KeyboardInterrupt: raise an error."
        elif outcome == "failed":
            self._tries[key] += 1
            if self._tries[key] <= self.retries:
                self._again(key)
            else:
                self.failed[key] = sentence

    def _again(self, key: str, seconds: float = 0.0) -> None:
        if not self.stopping:
            self.waiting.add(key)
            self._queue.append((time.monotonic() + seconds, key))

    def _outcome(self, key: str, future: Any) -> tuple[str, str]:
        """Outcome of an attempt: done, failed or dead (with a message), again, busy or stopped."""
        from distributed import KilledWorker

        if future.status == "finished":
            return tuple(future.result())
        if future.cancelled():
            return ("stopped", "") if self.stopping else ("again", "")
        error = future.exception()
        if not isinstance(error, KilledWorker):
            return "failed", _sentence(error)
        task = self.tasks[key]
        self._deaths[key] = 0 if _files(task.folder) != self._before[key] else self._deaths[key] + 1
        if self._deaths[key] < _DEATHS:
            return "again", ""
        return "dead", (
            f"{task.label} must make progress, but {_DEATHS} workers in a row died without any (out of memory?): give "
            f"them more memory, or read {task.log}."
        )

    def _stop(self, client: Any) -> None:
        """Let running tasks reach a checkpoint, and start no others."""
        self.stopping = True
        self._queue.clear()
        tell("mesascope: running points stop at their next checkpoint; Ctrl-C ends them now.")
        client.run(_ask_to_stop, self.topic, on_error="ignore")


def attempt(
    work: Callable[[Any], None], key: str, record: dict[str, Any], log: str, topic: str, threads: int
) -> tuple[str, str]:
    """Do a task in a worker process; return its outcome and, if it failed, an error message."""
    from distributed import get_worker

    if topic in _STOPPED:
        return "stopped", ""
    STOP.clear()
    get_worker().log_event(topic, key)
    os.environ.update(dict.fromkeys(THREADS, str(threads)))  # torch reads them if it is imported later
    if "torch" in sys.modules:
        sys.modules["torch"].set_num_threads(threads)
    Path(log).parent.mkdir(parents=True, exist_ok=True)
    with open(log, "a") as said, contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            work(record)
        except KeyboardInterrupt:
            return "stopped", ""
        except BusyError:
            return "busy", ""
        except Exception as error:
            traceback.print_exc()
            return "failed", _sentence(error)
    return "done", ""


def dask_setup(worker: Any) -> None:
    """Prepare a worker on this machine: it ignores Ctrl-C, and ends when the process that started it ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def end() -> None:
        sys.stdin.read()  # returns once the other end of the pipe is closed
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


def _ask_to_stop(topic: str) -> None:
    _STOPPED.add(topic)
    STOP.set()


def _sentence(error: BaseException) -> str:
    return str(error) if isinstance(error, MesascopeError) else f"it raises {type(error).__name__}: {one_line(error)}."


def _files(folder: Path) -> Any:
    """Names of a folder's files, and the size of its metrics.jsonl; a change in either is progress."""
    names = {str(file.relative_to(folder)) for file in folder.rglob("*")}
    metrics = folder / "metrics.jsonl"
    with contextlib.suppress(OSError):
        return names, metrics.stat().st_size
    return names, 0
