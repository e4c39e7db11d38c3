"""Bugs planted one at a time, and the claims that each of them turns: ``make mutations``, a quarter of an hour.

Each bug is planted while a study measures networks that were trained without it, at the smallest settings that decide
its claims; one of learning itself, while they train. A claim turns if it holds without the bug and does not with it.
Prints a table and writes it to docs/mutations.md; exits with 1 if a bug turns no claim.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock

import torch

from mesascope import learners, lenses, meta, records, tasks
from mesascope.evidence import judge_all
from mesascope.learners.descent import GradientDescent, GradientDescentPlusPlus
from mesascope.lenses import access, reading
from mesascope.measurement import Measurement
from mesascope.runs import Run, open_run
from mesascope.studies import Lab, new_run
from mesascope.training import keep_freed_memory

ABOUT = (
    "Each bug is planted while a study measures networks that were trained without it, at its quick preset. A claim "
    "turns if it holds without the bug and does not with it: it *fails*, or is *undecided* because its premise no "
    "longer holds. Written by `make mutations`."
)
Patch = Callable[[], contextlib.AbstractContextManager]


@dataclass(frozen=True)
class Mutation:
    """A bug, where it is planted, and how; one of training is planted while networks train, ``anew``."""

    bug: str
    study: str
    plant: Patch
    anew: bool = False


def with_steps(change: Callable[[Any], None], only: type = GradientDescentPlusPlus) -> Patch:
    """Descent that predicts with other step sizes, or another clip, than its own."""
    predict = GradientDescentPlusPlus._predictions

    def wrong(self: Any, context: Any, xq: torch.Tensor) -> list[torch.Tensor]:
        other = self
        if type(self) is only:
            other = copy.copy(self)
            other._parameters = dict(self._parameters)
            change(other)
        return predict(other, context, xq)

    return lambda: mock.patch.object(GradientDescentPlusPlus, "_predictions", wrong)


def scaled_eta(factor: float) -> Patch:
    def change(descent: Any) -> None:
        descent._parameters["eta"] = factor * descent.eta

    return with_steps(change, GradientDescent)


def flip_gamma(descent: Any) -> None:
    descent._parameters["gamma"] = -descent.gamma


def unclipped(descent: Any) -> None:
    """Clipped so far out that only what would overflow is."""
    if descent.token_clip is not None:
        descent.token_clip = 1e4


def poor_optimum() -> contextlib.AbstractContextManager:
    """Tuning of GD++ that ends where gamma is 0."""
    tune = learners.tune_spectral

    def poor(learner: Any, family: Any, **options: Any) -> Any:
        if type(learner) is not GradientDescentPlusPlus:
            return tune(learner, family, **options)
        plain = tune(GradientDescent(learner.steps, learner.eta.tolist()), family, **options)
        stuck = GradientDescentPlusPlus(learner.steps, plain.learner.eta.tolist(), 0.0)
        return dataclasses.replace(
            plain, learner=stuck, step_sizes=plain.step_sizes | {"gamma": [Measurement(0, 0, 1)]}
        )

    return mock.patch.object(learners, "tune_spectral", poor)


def one_end() -> contextlib.AbstractContextManager:
    interpolate = lenses.interpolate
    return mock.patch.object(lenses, "interpolate", lambda a, b, t=0.5: interpolate(a, b, 0.0))


def raw_products() -> contextlib.AbstractContextManager:
    return mock.patch.object(reading, "rescaled_products", lambda network: [
        type(layer)(*(part.detach() for part in layer)) for layer in network.products()
    ])  # fmt: skip


def shifted_targets() -> contextlib.AbstractContextManager:
    sample = tasks.LinearRegression.sample

    def shifted(self: Any, batch: int, generator: torch.Generator) -> tasks.Episode:
        (x, y), xq, yq = sample(self, batch, generator)
        return tasks.Episode(tasks.Context(x, y.roll(1, dims=1)), xq, yq)

    return mock.patch.object(tasks.LinearRegression, "sample", shifted)


def other_queries() -> contextlib.AbstractContextManager:
    """Derivatives at the query of the task before."""
    true = access.sensitivities

    def wrong(learner: Any, episode: tasks.Episode) -> Iterator[Any]:
        elsewhere = true(learner, episode._replace(xq=episode.xq.roll(1, dims=0)))
        for (answers, prediction, _), (_, _, sensitivity) in zip(true(learner, episode), elsewhere, strict=True):
            yield answers, prediction, sensitivity

    return mock.patch.object(access, "sensitivities", wrong)


def equal_seeds() -> contextlib.AbstractContextManager:
    train = Lab.train

    def equal(self: Any, *arguments: Any, **options: Any) -> list[Any]:
        networks = train(self, *arguments, **options)
        return [networks[0]] * len(networks)

    return mock.patch.object(Lab, "train", equal)


def half_step_and_one_end() -> contextlib.AbstractContextManager:
    stack = contextlib.ExitStack()
    for plant in (scaled_eta(0.5), one_end):
        stack.enter_context(plant())
    return stack


def training_tasks() -> contextlib.AbstractContextManager:
    """Fresh tasks that are the 2048 that the first seed was trained on."""
    draw = Lab.draw

    def seen(self: Any, family: Any, tasks: int, name: str) -> Any:
        if name != "eval":
            return draw(self, family, tasks, name)
        return dataclasses.replace(family, pool=2048).seeded(self.seed).sample(2048, self.stream(name))

    return mock.patch.object(Lab, "draw", seen)


def judged_late() -> contextlib.AbstractContextManager:
    """Batches of a stream that are learned from before they are judged."""
    stack = contextlib.ExitStack()
    for state in (meta.ContinualMAMLState, meta.OnlineDescentState):

        def twice(self: Any, batch: Any, update: Any = state.update) -> Any:
            update(self, batch)
            return update(self, batch)

        stack.enter_context(mock.patch.object(state, "update", twice))
    return stack


@contextlib.contextmanager
def no_bug() -> Iterator[None]:
    yield


MUTATIONS = (
    Mutation("gradient descent takes half its step", "one-step", scaled_eta(0.5)),
    Mutation("gradient descent takes twice its step", "one-step", scaled_eta(2.0)),
    Mutation("gradient descent takes half its step", "two-steps", scaled_eta(0.5)),
    Mutation("gradient descent takes twice its step", "two-steps", scaled_eta(2.0)),
    Mutation("interpolation returns its first end", "one-step", one_end),
    Mutation("interpolation returns its first end", "two-steps", one_end),
    Mutation("both: half the step, and interpolation's first end", "two-steps", half_step_and_one_end),
    Mutation("GD++ is tuned to a poor local optimum", "two-steps", poor_optimum),
    Mutation("gamma has the wrong sign", "two-steps", with_steps(flip_gamma)),
    Mutation("weight products are not rescaled", "one-step", raw_products),
    Mutation("weight products are not rescaled", "two-steps", raw_products),
    Mutation("targets are shifted against inputs", "one-step", shifted_targets),
    Mutation("all seeds are equal", "one-step", equal_seeds),
    Mutation("all seeds are equal", "two-steps", equal_seeds),
    Mutation("sensitivities are taken at another query", "softmax", other_queries),
    Mutation("the reference's tokens are not clipped", "deep", with_steps(unclipped)),
    Mutation("fresh tasks are those of the first seed's training", "finite-tasks", training_tasks),
    Mutation("batches are judged after they were learned from", "continual-online", judged_late, anew=True),
)
# What decides the claims soonest, by study.
CHANGES: dict[str, dict[str, Any]] = {"deep": {"tasks": 5000, "sweep_tasks": 200, "tune_tasks": 200}}


def measured(study: Any, settings: Any, run: Run, plant: Patch = no_bug) -> dict[str, str]:
    """Verdicts of a run measured with a bug in place."""
    with plant():
        study.measure(Lab(run, settings.seeds), settings)
        return {record["id"]: record["verdict"] for record in judge_all(study.claims, "quick", run.results)}


def without_results(run: Run, folder: Path) -> Run:
    """A copy of a run with its networks and nothing measured."""
    shutil.copytree(run.path, folder, ignore=shutil.ignore_patterns("results", "figures", ".lock"))
    return open_run(folder)


def stale(study: Any, settings: Any, run: Run, folder: Path) -> dict[str, str]:
    """Verdicts of a run whose files are those of another run, begun with another seed."""
    other = new_run(study, "quick", settings, seed=1, out=folder / "other")
    shutil.copytree(run.path / "results", other.path / "results")
    found = judge_all(study.claims, "quick", open_run(other.path).results)
    return {record["id"]: record["verdict"] for record in found}


def turned(before: dict[str, str], after: dict[str, str]) -> list[str]:
    return [f"{name} ({after[name]})" for name, verdict in before.items() if verdict == "holds" != after[name]]


def main() -> int:
    keep_freed_memory()
    chosen = set(sys.argv[1:]) or {mutation.study for mutation in MUTATIONS}
    rows: list[tuple[str, str, list[str]]] = []
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        known = records.registered("study")
        for study in (known[name] for name in dict.fromkeys(m.study for m in MUTATIONS) if name in chosen):
            settings = dataclasses.replace(study.presets["quick"], **CHANGES.get(study.name, {}))
            sound = new_run(study, "quick", settings, out=root / study.name)
            before = measured(study, settings, sound)
            print(
                f"{study.name}: {sum(v == 'holds' for v in before.values())} of {len(before)} claims hold", flush=True
            )
            for index, mutation in enumerate(m for m in MUTATIONS if m.study == study.name):
                folder = root / f"{study.name}-{index}"
                anew = new_run(study, "quick", settings, out=folder) if mutation.anew else None
                run = anew or without_results(sound, folder)
                found = measured(study, settings, run, mutation.plant)
                rows.append((mutation.bug, study.name, turned(before, found)))
                print(f"  {rows[-1][0]}: {', '.join(rows[-1][2]) or 'NOTHING'}", flush=True)
                shutil.rmtree(run.path)
            rows.append(("results of another run lie in the folder", study.name,
                         turned(before, stale(study, settings, sound, root / f"{study.name}-stale"))))  # fmt: skip
    page = ["# Bugs and the claims they turn", "", ABOUT, ""]
    page += ["| bug | study | claims that no longer hold |", "|---|---|---|"]
    page += [f"| {bug} | {study} | {', '.join(claims) or '**none**'} |" for bug, study, claims in rows]
    if not sys.argv[1:]:
        Path(__file__).parent.parent.joinpath("docs", "mutations.md").write_text("\n".join(page) + "\n")
    print("\n".join(page))
    return int(any(not claims for _, _, claims in rows))


if __name__ == "__main__":
    sys.exit(main())
