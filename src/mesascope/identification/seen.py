"""Predictions of a learner on the tasks of `identify`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import nn

from mesascope.adapters.calls import UnusableModelError
from mesascope.adapters.text import REASONS, TextLearner
from mesascope.errors import ArgumentError, MesascopeError, require_double
from mesascope.identification.answering import LARGEST, Answers, answers, bounded, size, sizes, squared_differences
from mesascope.identification.conditions import OWN
from mesascope.identification.verdict import EXACT, FARTHEST
from mesascope.lenses.needs import predict_in_eval
from mesascope.progress import tracked
from mesascope.shapes import Float, Tensor
from mesascope.streams import generator_on, stream
from mesascope.tasks import Context, Episode, Learner
from mesascope.tasks.calling import check_answer, label, predict

# Minimum number of tasks per condition for a confidence interval.
LEAST = 8
# Number of further tasks in one call of the learner.
_AT_ONCE = 100


class Answered(NamedTuple):
    """Predictions of a learner on tasks of one condition, with their variance and noise as in `Seen`."""

    tasks: Episode
    answer: Float[Tensor, "tasks m dy"]
    size: Float[Tensor, "tasks dy"]
    noise: Float[Tensor, " tasks"]


class Seen:
    """Predictions of a learner for fitting, for testing, and repeated for the noise.

    Repeated predictions differ if the learner is random. In double precision, `LEAST` tasks of each condition are
    repeated, and the others only if these predictions differ. In single precision, all tasks are repeated with inputs
    perturbed by rounding, so that the noise includes the effect of rounding.

    Args:
        tasks: tasks by part (``fit`` and ``test``) and condition, in float64.
        seed: seed of these perturbations.

    Attributes:
        fit, test: predictions ``(tasks, m, dy)`` by condition.
        tasks: the answered tasks.
        size: variance of predictions, by condition, test task and output, as in `sizes`.
        noise: variance between calls and of rounding to ``resolution``, divided by ``size``, by condition and task.
        pooled: True if answers differ between calls, so that all tasks of a condition have one size.
        missed: description of missing answers, by condition.
    """

    def __init__(self, learner: Learner, tasks: Mapping[str, Mapping[str, Episode]], seed: int) -> None:
        self.dtype = precision(learner, tasks["fit"][OWN].part(0, 1))
        read = getattr(learner, "as_written", lambda episode: episode)
        own = {part: {name: read(one.to(self.dtype)) for name, one in some.items()} for part, some in tasks.items()}
        self._draw = stream(seed, "identify-rounding")
        again = {name: self._again(one) for name, one in own["test"].items()}
        few = {name: one.part(0, LEAST) for name, one in again.items()}
        asking = iter(tracked((own["fit"], own["test"], few), "rounds of questions"))
        fitting = answers(learner, next(asking), partly=True)
        _require_answers(learner, fitting)  # before further calls, which may cost money
        first, second = (answers(learner, part, partly=True) for part in asking)
        self._repeats = self.dtype == torch.float64 and all(
            torch.allclose(one, first[name][: len(one)], rtol=0, atol=0, equal_nan=True) for name, one in second.items()
        )
        second = first if self._repeats else _continued(learner, second, again)
        self.tasks: dict[str, dict[str, Episode]] = {"fit": {}, "test": {}}
        self.fit: dict[str, Tensor] = {}
        self.test: dict[str, Tensor] = {}
        self.noise: dict[str, Tensor] = {}
        self.missed: dict[str, str] = {}
        self.resolution: float = getattr(learner, "resolution", 0.0)
        for name in own["test"]:
            if not all(name in one for one in (fitting, first, second)):
                self.missed[name] = "the learner does not answer these contexts"
                continue
            fit, test = bounded(fitting[name]), bounded(first[name], second[name])
            kept, all_ = int(fit.sum() + test.sum()), len(fit) + len(test)
            if kept < all_:
                self.missed[name] = f"{kept} of {all_} tasks were answered with numbers"
            if min(fit.sum(), test.sum()) < LEAST:
                continue
            for part, mask in (("fit", fit), ("test", test)):
                self.tasks[part][name] = own[part][name].to(torch.float64).map(lambda one, mask=mask: one[mask])
            self.fit[name], self.test[name] = fitting[name][fit], first[name][test]
            second[name] = second[name][test]
        if OWN not in self.test:
            _require_answers(learner, first, second)
        own_sizes = size(self.tasks["test"][OWN], self.test[OWN])
        self.pooled = float(squared_differences(self.test[OWN], second[OWN], own_sizes).mean()) > EXACT
        self.size = sizes(self.tasks["test"], self.test, self.pooled)
        self.noise = {name: self._noise(one, second[name], self.size[name]) for name, one in self.test.items()}

    def tested(self, condition: str, most: int) -> Answered:
        """At most ``most`` test tasks of a condition."""
        parts = (self.test, self.size, self.noise)
        return Answered(self.tasks["test"][condition].part(0, most), *(part[condition][:most] for part in parts))

    def further(self, learner: Learner, tasks: Episode) -> Answered:
        """Predictions on further tasks of the family, asked as test tasks are; those without an answer are left out."""
        own = tasks.to(self.dtype)
        first = _in_parts(learner, own)
        second = first if self._repeats else _in_parts(learner, self._again(own))
        kept = bounded(first, second)
        own, first, second = own.to(torch.float64).map(lambda one: one[kept]), first[kept], second[kept]
        divisors = size(own, first, self.pooled)
        return Answered(own, first, divisors, self._noise(first, second, divisors))

    def _again(self, tasks: Episode) -> Episode:
        """Tasks for repeated predictions; perturbed by rounding in single precision."""
        return _rounded_otherwise(tasks, self._draw) if self.dtype == torch.float32 else tasks

    def _noise(
        self, first: Float[Tensor, "tasks m dy"], second: Float[Tensor, "tasks m dy"], size: Float[Tensor, "tasks dy"]
    ) -> Float[Tensor, " tasks"]:
        """Noise by task; it has the maximum of differences, so that both are equal in mean for the true algorithm."""
        varying = (first - second).square().mean(-2) / 2
        return ((varying + self.resolution**2 / 12) / size).mean(-1).clamp_max(FARTHEST)


def _require_answers(learner: Learner, *given: Answers) -> None:
    """Raise if fewer than `LEAST` of the family's own tasks have finite answers."""
    found = int(bounded(*(one[OWN] for one in given)).sum()) if all(OWN in one for one in given) else 0
    if found >= LEAST:
        return
    counts = learner.table()[0] if isinstance(learner, TextLearner) else {}
    why = ", ".join(f"{count} {reason}" for reason, count in counts.items() if reason in REASONS and count)
    read = f": of {counts['asked']} answers {counts['read']} were numbers ({why})" if counts else ""
    other = "choose another format" if counts else "mend it, choose another family,"
    raise ArgumentError(
        f"a learner must answer {LEAST} of the family's own tasks with finite numbers below {LARGEST:g}, but "
        f"{label(learner)} answers {found}{read}: {other} or a larger budget."
    )


def _continued(learner: Learner, few: Mapping[str, Tensor], tasks: Mapping[str, Episode]) -> dict[str, Tensor]:
    """Add predictions on the remaining tasks to those on the first few."""
    left = {name: one.part(LEAST, None) for name, one in tasks.items() if name in few and len(one.xq) > LEAST}
    rest = answers(learner, left, partly=True)
    return {name: torch.cat([few[name], rest[name]]) for name in rest} if left else dict(few)


def _in_parts(learner: Learner, tasks: Episode) -> Float[Tensor, "tasks m dy"]:
    """Predictions in float64, `_AT_ONCE` tasks in a call; NaN where the learner raises."""
    parts = [tasks.part(start, start + _AT_ONCE) for start in range(0, len(tasks.xq), _AT_ONCE)]
    found = [answers(learner, {OWN: one}, partly=True).get(OWN, torch.full_like(one.yq, torch.nan)) for one in parts]
    return torch.cat([one.double() for one in found])


def precision(learner: Learner, task: Episode) -> torch.dtype:
    """Precision of the learner: double if the learner accepts float64, otherwise single."""
    errors: list[MesascopeError] = []
    for dtype in (torch.float64, torch.float32):
        try:
            own = task.to(dtype)
            check_answer(learner, predict_in_eval(learner, own.context, own.xq), own.yq.shape)
        except UnusableModelError:
            raise
        except MesascopeError as error:
            errors.append(error)
        else:
            return dtype
    raise next((one for one in errors if not isinstance(one, TypeError)), errors[0])


class Placed(nn.Module):
    """A learner on any device; tasks are moved to the device, and predictions back.

    Attributes:
        asked: number of predictions made.
    """

    def __init__(self, learner: Learner, device: torch.device | str) -> None:
        super().__init__()
        self.learner, self.device, self.asked = learner, device, 0

    def __repr__(self) -> str:
        return label(self.learner)

    def forward(self, context: Context, xq: Float[Tensor, "*batch m dx"]) -> Any:
        if xq.dtype == torch.float64:
            require_double(self.device)
        there = Context(*(part.to(self.device) for part in context))
        answer = predict(self.learner, there, xq.to(self.device))
        self.asked += xq[..., 0].numel()
        return answer.to(xq.device) if isinstance(answer, Tensor) else answer


def placed(learner: Learner, device: torch.device | str | None = None) -> Placed | TextLearner:
    """Wrap a learner so that its predictions are counted and tasks are moved to ``device``.

    By default, the device is that of the learner's weights. Language models need no wrapper.
    """
    if isinstance(learner, TextLearner):
        return learner
    if device is None and isinstance(learner, nn.Module):
        device = next((weight.device for weight in learner.parameters()), None)
    if device is not None and not str(device).startswith("mps"):  # `generator_on` refuses mps, which has no float64
        generator_on(device)
    return Placed(learner, device or "cpu")


def _rounded_otherwise(tasks: Episode, generator: torch.Generator) -> Episode:
    """Perturb every number by about one unit in the last place, with random sign."""

    def moved(part: Tensor) -> Tensor:
        signs = torch.randint(0, 2, part.shape, generator=generator).to(part) * 2 - 1
        return part * (1 + torch.finfo(part.dtype).eps * signs)

    return tasks.map(moved)
