"""Recorded predictions of a learner, for learners that are expensive or run in another program."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from mesascope.errors import ArgumentError, refuse, require_callable, require_instance, require_number
from mesascope.shapes import Float, Tensor
from mesascope.tasks import Context, Learner, check_inputs
from mesascope.tasks.calling import check_answer, display_name, predict


def record(learner: Learner, path: str | Path) -> Recorder:
    """A learner that also appends its predictions to a file, one line of JSON per query.

    A line has the context ``x`` and ``y``, the query ``xq``, and the prediction ``answer``, null where it is
    not finite. Other programs can write the same format. `replay` reads the file and returns nan for null.
    """
    require_callable("learner", learner)
    try:
        Path(path).open("ab").close()
    except OSError as error:
        refuse("path", f"be a file that can be written ({type(error).__name__})", str(path), "make its folder, say")
    return Recorder(learner, Path(path))


def replay(path: str | Path) -> Replayed:
    """A learner that returns recorded predictions from a file.

    If a query was recorded several times, calls return its answers in turn.

    Raises:
        ArgumentError: the file is missing, or a line is not a recorded call. From a call, if a task is not in the file.
    """
    path = Path(path)
    if not path.is_file():
        refuse("path", "be a file of recorded calls", str(path), "make one with record(learner, path)")
    return Replayed(path, _read(path))


class Recorder:
    """Return type of `record`."""

    def __init__(self, learner: Learner, path: Path) -> None:
        self.learner, self.path = learner, path
        self.__name__ = display_name(learner)

    def __repr__(self) -> str:
        return f"record({self.learner!r}, {str(self.path)!r})"

    def __call__(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        answer = check_answer(self.learner, predict(self.learner, context, xq), (*xq.shape[:-1], context.y.shape[-1]))
        with self.path.open("a", encoding="utf-8") as file:
            for (x, y, query), one in zip(_queries(context, xq), answer.detach().flatten(0, -2).tolist(), strict=True):
                numbers = [value if math.isfinite(value) else None for value in one]
                file.write(json.dumps({"x": x, "y": y, "xq": query, "answer": numbers}) + "\n")
        return answer


class Replayed:
    """Return type of `replay`."""

    def __init__(self, path: Path, calls: dict[str, list[list[float]]]) -> None:
        self.path, self.calls = path, calls
        self.given: dict[str, int] = {}
        self.__name__ = path.stem

    def __repr__(self) -> str:
        return f"replay({str(self.path)!r})"

    def __call__(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Float[Tensor, "*batch m dy"]:
        check_inputs(context, xq)
        answers = [self._answer(_key(*query)) for query in _queries(context, xq)]
        shape = (*xq.shape[:-1], context.y.shape[-1])
        return torch.tensor(answers, dtype=torch.float64).reshape(shape).to(xq) if answers else xq.new_zeros(shape)

    def _answer(self, key: str) -> list[float]:
        if key not in self.calls:
            raise ArgumentError(
                f"each task of a replayed learner must be in its recording, but {self.path} lacks one: record with the "
                "same family, budget and seed."
            )
        answers, given = self.calls[key], self.given.get(key, 0)
        self.given[key] = given + 1
        return answers[given % len(answers)]


def _queries(context: Context, xq: Tensor) -> Iterator[tuple[list, list, list]]:
    """Context and query as lists, one query at a time."""
    x, y, queries = (part.detach().reshape(-1, *part.shape[-2:]).tolist() for part in (*context, xq))
    for pairs, labels, several in zip(x, y, queries, strict=True):
        for query in several:
            yield pairs, labels, query


def _key(x: Any, y: Any, xq: Any) -> str:
    return json.dumps([x, y, xq])


def _read(path: Path) -> dict[str, list[list[float]]]:
    """Answers to each query, in the order of the file."""
    calls: dict[str, list[list[float]]] = {}
    *lines, last = path.read_text(encoding="utf-8").split("\n")
    with contextlib.suppress(ValueError):  # incomplete if the recording program was killed
        json.loads(last)
        lines.append(last)
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line, parse_int=float)
            require_instance("a line", row, dict)
            require_instance("answer", row["answer"], list)
            key = _key(row["x"], row["y"], row["xq"])
            answer = [math.nan if value is None else require_number("answer", value) for value in row["answer"]]
        except (ValueError, KeyError, TypeError):
            raise ArgumentError(
                f"each line must hold x, y, xq and answer, but line {number} of {path} does not: remove or mend it."
            ) from None
        calls.setdefault(key, []).append(answer)
    return calls
