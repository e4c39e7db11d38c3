"""Which algorithm does a language model run that predicts numbers in text?

Vacareanu et al. (2024, From Words to Numbers) measure how well language models regress in context, and leave the
mechanism open. Here small language models are trained on text of linear problems, compared with regressors that read
the same rounded numbers, and asked with `identify`. With --model and --base-url, a model behind a server of OpenAI's
protocol takes their place.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np

from mesascope import adapters, identification, study
from mesascope.errors import refuse
from mesascope.studies.common import converged, plan, returning
from mesascope.studies.icl_gd import bugs
from mesascope.studies.identifying import regressors
from mesascope.studies.identifying.calibration import budget
from mesascope.studies.identifying.regressors import COUNTS, LABELS, MODEL, PAIRS, SHOWN, SLOW, family
from mesascope.study import Arrays, Claim, Count, Figure, Line, Lines, Mutation, Reading, Training, above, below, ours

PAPER = "Vacareanu et al., From Words to Numbers (COLM 2024)"
# Source of claims about models trained here, which the paper states of large pretrained ones.
TRAINED = study.derived(f"{PAPER}, on large pretrained models")
# Mean absolute error of the posterior mean, with all pairs and exact numbers, on a million tasks.
BAYES = 0.02748
# Smallest number of pairs in the fit of the regret's growth.
GROWN = 4
# Training settings that all presets share.
USUAL: dict[str, Any] = {"schedule": "cosine", "optimizer": "adamw", "weight_decay": 0.05, "clip": 1.0}


@study.frozen
class LanguageRegression:
    training: Training = plan(1500, 2e-3, batch=64, warmup_steps=100, **USUAL)
    """Training of the language models, which predict each label of a text from the text before it."""
    width: Count = 64  # Width of the language models.
    layers: Count = 4  # Layers, each of softmax attention and an MLP.
    seeds: Count = 8  # Language models, or sets of tasks for a served model.
    tasks: Count = 1000  # Tasks for errors with each number of pairs.
    slow_tasks: Count = 300  # Number of these tasks for slow regressors, such as forests, with all pairs.
    identify_tasks: Count = 100  # Tasks of each condition for `identify`.
    identify_seeds: Count = 8  # Language models to identify.
    model: str = ""  # Model on a server, in place of models trained here.
    base_url: str = ""  # Address of the server.

    def __post_init__(self) -> None:
        if bool(self.model) != bool(self.base_url):
            refuse("model", "be named if and only if base_url is", self.model, "pass --model and --base-url")


def measure(lab: study.Lab, settings: LanguageRegression) -> None:
    served = adapters.openai_model(settings.model, base_url=settings.base_url) if settings.model else None
    models = _trained(lab, settings) if served is None else [
        adapters.from_text(served, "words-to-numbers", decimals=1, cache=lab.run.path / f"answers-{seed}.jsonl")
        for seed in lab.seeds
    ]  # fmt: skip
    asked = dict(zip(lab.seeds, models, strict=True))
    by_pairs, whole = regressors.errors_by_pairs, regressors.errors_with_all
    lab.stage("errors", _by_task, asked, settings, by_pairs, "seed pairs task", settings.tasks)
    lab.stage("whole", _by_task, asked, settings, whole, "seed task", settings.slow_tasks)
    few = {seed: asked[seed] for seed in lab.seeds[: settings.identify_seeds]}
    lab.stage("identified", _identified, few, budget(settings.identify_tasks))
    if served is not None:
        lab.stage("names", _by_names, lab, served, settings.slow_tasks)


def _trained(lab: study.Lab, settings: LanguageRegression) -> list[Any]:
    watched = lab.draw(family(), settings.tasks, "watch")
    models = lab.train(
        "language", regressors.network(settings.width, settings.layers), family(), settings.training,
        loss=regressors.label_loss, watch=lambda model: {"loss": regressors.label_loss(model, watched).item()},
    )  # fmt: skip
    return [regressors.reader(model) for model in models]


def _by_names(lab: study.Lab, served: Callable[[str], str], count: int) -> Arrays:
    """Errors on rows of a real table: with names of features, without names, and with exchanged names."""
    caches = {seed: lab.run.path / f"names-{seed}.jsonl" for seed in lab.seeds}
    found = [adapters.names_matter(served, None, count, seed, cache=cache) for seed, cache in caches.items()]
    arrays = {name: [[row[name].value for row in one] for one in found] for name in ("error", "more than without")}
    return Arrays(arrays, **dict.fromkeys(arrays, "seed names"))


def _by_task(models: Mapping[int, Any], settings: Any, errors: Callable[..., Any], axes: str, most: int) -> Arrays:
    """Errors by seed; ``errors`` takes a model, the exact tasks, and the tasks as the model reads them."""
    rows = []
    for seed, model in models.items():
        tasks = regressors.drawn(family(), settings.tasks, seed, "llm-regression").part(0, most)
        rows.append(errors(model, tasks, model.as_written(tasks)))
    found = {name: np.stack([row[name] for row in rows]).astype(np.float32) for name in rows[0]}
    return Arrays(found, **dict.fromkeys(found, axes))


def _identified(models: Mapping[int, Any], most: int) -> Arrays:
    """Distance of each candidate from each model on the family's own tasks; largest lower bound over conditions."""
    catalogue = identification.candidates(family(), sklearn=False)
    found: dict[str, list[Any]] = {"own": [], "worst": []}
    for seed, model in models.items():
        answer = identification.identify(model, family(), catalogue, most, seed, tolerance=1.0)  # compares all in full
        rows = {row.candidate: row for row in answer.rows}
        found["own"].append([rows[one.name].own_difference.mean.value for one in catalogue])
        found["worst"].append([max(x.low for x in rows[one.name].differences.values()) for one in catalogue])
    axes = {"own": "seed candidate", "worst": "seed candidate", "candidate": "candidate"}
    return Arrays(found | {"candidate": [one.name for one in catalogue]}, **axes)


def _answered(r: Any, name: str) -> np.ndarray:
    """Absolute errors ``(seeds, pairs, tasks)`` of a regressor on tasks that the model answered; nan on others."""
    errors = r["errors"]
    return np.where(np.isfinite(errors[MODEL]), np.abs(errors[name].astype(float)), np.nan)


def _error(name: str, count: int = PAIRS) -> Reading:
    """Mean absolute error ``(seeds,)`` over tasks that the model answered."""
    of = {"unrounded": "ridge on exact numbers"} | SHOWN
    words = f"error of {of[name]}" + (f" with pairs: {count}" if count != PAIRS else "")
    return Reading(words, lambda r: np.nanmean(_answered(r, name)[:, count - 1], 1))


def _regret(r: Any) -> np.ndarray:
    """Cumulative mean absolute error of the model, minus the best reference's, on tasks that the model answered."""
    means = {name: np.nanmean(_answered(r, name), -1) for name in SHOWN}
    best = min(LABELS, key=lambda name: means[name].sum())
    return np.cumsum(means[MODEL] - means[best], 1)


def _growth(regret: np.ndarray) -> np.ndarray:
    """Exponent a of a fit T^a to the regret from `GROWN` pairs on; nan where the regret is not positive."""
    late = regret[:, GROWN - 1 :]
    logs = np.log(np.where(late > 0, late, np.nan))
    return np.array([np.polyfit(np.log(COUNTS[GROWN - 1 :]), row, 1)[0] for row in logs])


def _table(r: Any) -> dict[str, np.ndarray]:
    """Absolute errors, squared errors / labels' variance, and ranks, with all pairs: ``(seeds, regressors, tasks)``.

    Errors are nan on tasks that the model did not answer; it has the last rank there.
    """
    from scipy.stats import rankdata

    count = r["whole"]["forest"].shape[1]
    errors = [np.abs(r["errors"][name][:, -1, :count]) for name in SHOWN]
    absolute = np.stack([*errors, *(np.abs(r["whole"][name]) for name in SLOW)], 1).astype(float)
    labels = r["errors"]["label"][:, -1, :count].astype(float)
    paired = absolute + 0 * absolute[:, :1]
    return {
        "errors": paired,
        "squares": paired**2 / labels.var(1)[:, None, None],
        "ranks": rankdata(np.nan_to_num(absolute, nan=np.inf), axis=1),
    }


def _pooled(values: np.ndarray) -> np.ndarray:
    """Mean over all tasks with its standard error, as a single replicate."""
    from uncertainties import ufloat

    values = values[np.isfinite(values)].astype(float)
    return np.array([ufloat(values.mean(), values.std(ddof=1) / np.sqrt(len(values)))])


def _costs(r: Any, name: str, other: str) -> np.ndarray:
    """Error of a regressor with all pairs, minus that of another."""
    own, than = (np.abs(r["errors"][one][:, -1].astype(float)) for one in (name, other))
    return _pooled(own - than)


def _nearer_to_own(r: Any) -> np.ndarray:
    """Mean distance of answers from labels of the next task, minus that from their own labels, for each model."""
    own, label = r["errors"][MODEL][:, -1].astype(float), r["errors"]["label"][:, -1]
    return np.concatenate([_pooled(one) for one in np.abs(own + label - np.roll(label, -1, 1)) - np.abs(own)])


def _zeros(r: Any) -> np.ndarray:
    """Share of tasks that each model answers with 0; nan if no answer has more than one decimal.

    Answers of one decimal are often 0 because they are rounded.
    """
    errors = r["errors"]
    answers = errors[MODEL].astype(float) + errors["label"]
    whole = np.nanmax(np.abs(answers - answers.round(1))) < 1e-4
    return np.where(whole, np.nan, (np.abs(answers) < 1e-6).mean((1, 2)))


def _explained(r: Any) -> np.ndarray:
    """R^2 of each model with all pairs, over the tasks that it answered."""
    errors, labels = (r["errors"][name][:, -1].astype(float) for name in (MODEL, "label"))
    return 1 - np.nanmean(errors**2, 1) / np.nanvar(np.where(np.isnan(errors), np.nan, labels), 1)


def _shuffled(r: Any) -> np.ndarray:
    """Error of each model with its context's labels in reverse order / in order, on the same tasks."""
    turned = np.abs(r["whole"]["shuffled"].astype(float))
    errors = np.abs(r["errors"][MODEL][:, -1, : turned.shape[1]].astype(float))
    return np.nanmean(turned, 1) / np.nanmean(errors, 1)


regret, found = Reading("regret", _regret), study.stage("identified")


def _nearest(name: str, words: str) -> Reading:
    return found[name].map(lambda distances: distances.min(1), words)


_claim = partial(Claim, source=TRAINED, quantifier="median")


def _control(id: str, sentence: str, words: str, read: Any, bound: study.Bound, why: str, **changes: Any) -> Claim:
    usual = {"over": "algorithms", "at_least": 1, "about": "algorithms"}
    return Claim(id, f"control: {sentence}", Reading(words, read), bound, ours(f"control: {why}"), **usual | changes)


def _curves() -> list[Line]:
    shades: Mapping[str, Any] = dict(zip(SHOWN, np.linspace(0, 1, len(SHOWN)), strict=True))
    roles = {**shades, MODEL: "trained", "bayes": "limit", "linear": "gd"}
    each = {name: study.beside([_error(name, count) for count in COUNTS], name) for name in SHOWN}
    return [Line(COUNTS, each[name], roles[name], label) for name, label in SHOWN.items()]


def _bars(name: str, labels: Sequence[str | None] = (None,) * len((*SHOWN, *SLOW))) -> Callable[[Any], list[Line]]:
    """Means over tasks and seeds by regressor, the best first, with bootstrap intervals at 95 % over tasks."""

    def read(r: Any) -> list[Line]:
        table = _table(r)
        order = np.argsort(table["ranks"].mean((0, 2)))
        values = table[name].transpose(1, 0, 2).reshape(len(order), -1)
        draws = np.random.default_rng(0).integers(values.shape[1], size=(1000, values.shape[1]))
        means = np.nanmean(values, 1)
        low, high = np.quantile([np.nanmean(row[draws], 1) for row in values], (0.025, 0.975), axis=1)
        return [
            Line([place], [means[one]], "trained" if one == 0 else place / len(order), labels[one], marks="o",
                 error=[[means[one] - low[one]], [high[one] - means[one]]])
            for place, one in enumerate(order)
        ]  # fmt: skip

    return read


def _distances(r: Any) -> list[study.Grid]:
    means = {name: found(r)[name].mean(0) for name in ("own", "worst")}
    order = np.argsort(means["own"])[:12]
    values = 100 * np.stack([means["own"][order], means["worst"][order]], 1)
    return [study.Grid(values, [str(name) for name in found(r)["candidate"][order]], ["own tasks", "worst condition"])]


def _every_fiftieth(number: Any) -> Any:
    """Read every fiftieth answer as 0."""
    calls = itertools.count()
    return lambda self, text: 0.0 if next(calls) % 50 == 0 else number(self, text)


_LEARNER = "mesascope.adapters.text:TextLearner"

STUDY = study.Study(
    name="llm-regression",
    source=PAPER,
    presets={
        "quick": LanguageRegression(
            plan(400, 3e-3, batch=32, **USUAL), width=32, layers=3, tasks=100, slow_tasks=30, identify_tasks=8, seeds=3
        ),
        "paper": LanguageRegression(),
    },
    measure=measure, trainings=lambda settings: int(not settings.model), premises=("learns-in-context",),
    claims=(
        replace(converged("language", quantity="loss", most=0.02, at_least=3), premises=()),
        _control("bayes-error", "the error of ridge regression with the true noise on exact numbers is half to one and "
                 "a half times the posterior mean's", "error of ridge on exact numbers / of the posterior mean",
                 lambda r: _pooled(np.abs(r["errors"]["unrounded"][:, -1])) / BAYES, study.two_sided(0.5),
                 "tasks are those of the family"),
        _control("repeats-err", "the errors of repeating the last label and of the nearest neighbour are larger than "
                 "that of ridge regression", "error of last label, of nearest neighbour - of ridge regression",
                 lambda r: np.stack([_costs(r, name, "bayes") for name in ("last", "neighbour")], 1), above(0.0),
                 "queries are in no context"),
        _control("rounding-costs", "rounding to one decimal raises the error of ridge regression", "error of ridge on "
                 "rounded numbers - on exact ones", lambda r: _costs(r, "bayes", "unrounded"), above(0.0),
                 "regressors read what models read"),
        _control("own-labels", "answers of each language model are nearer to their own labels than to those of the "
                 "next task", "distance from labels of the next task - from their own", _nearer_to_own,
                 above(0.0), "answers are to their prompts", over="seeds", at_least=3),
        _control("no-zeros", "fewer than 0.5 % of answers are exactly 0, where they are means over numbers",
                 "share of answers that are 0", _zeros, below(0.005), "a missing answer is none, never 0",
                 quantifier="exact", exact_because="answers to given prompts are counted", over="seeds", at_least=3),
    ),
    figures=(
        Figure("errors", "Mean absolute errors by number of pairs, of language models and of regressors that read the "
               "same rounded numbers; regrets of each language model beyond the best of them.", (
            Lines("", "pairs", "mean absolute error", _curves(), log="y",
                  limits={"ylim": (0.005, 1.1), "xticks": range(0, PAIRS + 1, 5)}),
            Lines("", "pairs", "sum of excess absolute errors",
                  [Line(COUNTS, regret, "trained", "language model", each=True)],
                  limits={"xticks": range(0, PAIRS + 1, 5)}),
        ), size=(10, 4.2), claims=(
            _claim("learns-in-context", "with all pairs the median language model's error is smaller than with one "
                   "pair", _error(MODEL) / _error(MODEL, 1), below(1.0), former="printed, < 0.5"),
            _claim("better-than-neighbours", "the median language model's error is smaller than that of three "
                   "neighbours",
                   _error(MODEL) / _error("neighbours"), below(1.0), former="printed, held"),
            _claim("as-good-as-linear", "the median language model's error is at most 5 % above that of "
                   "LinearRegression on the same rounded numbers", _error(MODEL) / _error("linear"), below(1.05),
                   former="printed, undecided"),
            _claim("not-optimal", "the median language model's error is larger than that of ridge regression with the "
                   "true noise", _error(MODEL) / _error("bayes"), above(1.0), source=ours("the limit")),
            _claim("regret", "the regret of the median language model grows more slowly than the number of pairs",
                   regret.map(_growth, "exponent of the regret's growth"), below(1.0),
                   former="printed, undecided"),
            _claim("rounding", "the median language model's error exceeds that of ridge regression by more than "
                   "rounding to one decimal costs ridge regression",
                   _error(MODEL) - _error("bayes") - (_error("bayes") - _error("unrounded")), above(0.0),
                   source=ours("the rounding floor"), former="the ratio of the two < 1, held"),
        )),
        Figure("ranks", "With all pairs: mean absolute errors, unexplained share of the labels' variance, and mean "
               "ranks by errors, the best first, with bootstrap intervals at 95 % over tasks of all language models.", (
            Lines("", "", "mean absolute error", _bars("errors"), log="y", limits={"xticks": []}),
            Lines("", "", "1 - R^2", _bars("squares"), log="y", limits={"xticks": []}),
            Lines("", "", "mean rank", _bars("ranks", [*SHOWN.values(), *SLOW.values()]),
                  limits={"xticks": [], "xlim": (-1, 22)}),
        ), size=(13, 4.5), claims=(
            _claim("explains", "the median language model explains more than 90 % of the labels' variance",
                   Reading("R^2", _explained), above(0.9), former="printed, undecided"),
            _claim("rank", "among twelve regressors, the mean rank of the median language model is better than the "
                   "middle",
                   Reading("mean rank by absolute error", lambda r: _table(r)["ranks"][:, 0].mean(-1)), below(6.5),
                   former="printed, held"),
        )),
        Figure("identified", "Normalised squared differences, in percent, from the twelve candidates nearest to the "
               "language models: on the tasks they were trained for, and lower bounds under the condition "
               "with the largest. Means over models.", (Lines("", "", "", _distances),), size=(6, 6), claims=(
            _claim("on-its-tasks", "on tasks like those of training, some candidate is within 1 % of the median "
                   "language model's predictions",
                   _nearest("own", "normalised squared difference from the nearest"), below(0.01),
                   source=ours("identify")),
            _claim("elsewhere", "the median language model runs no candidate: from each, its lower confidence bound "
                   "of the difference is above 0.5 % under some condition",
                   _nearest("worst", "largest lower bound of any condition, least of all candidates"), above(0.005),
                   source=ours("identify")),
            _claim("shuffled", "with the labels of a context in reverse order, the median language model's error at "
                   "least doubles", Reading("error with reversed labels / in order", _shuffled), above(2.0),
                   source=ours("a null control")),
        )),
    ),
    deviations=(
        "Language models of some 200,000 weights whose tokens are numbers of one decimal, trained on linear problems "
        "alone, in place of large ones that were trained on text of all kinds.",
    ),
    mutations=(
        bugs.SHIFTED_TARGETS,
        Mutation(bugs.LEAK.bug, "mesascope.studies.identifying.regressors:drawn", bugs.LEAK.wrong),
        Mutation("regressors read exact numbers", f"{_LEARNER}.as_written", lambda written: lambda self, tasks: tasks),
        Mutation("2 % of answers are read as 0", f"{_LEARNER}._number", _every_fiftieth),
        Mutation("answers are to the prompt before", f"{_LEARNER}.__call__", returning(lambda found: found.roll(1, 0))),
    ),
    mutated={
        "training": plan(150, 1e-2, batch=16, **USUAL), "layers": 2, "tasks": 100, "slow_tasks": 3,
        "identify_tasks": 8, "identify_seeds": 1,
    },
)  # fmt: skip
