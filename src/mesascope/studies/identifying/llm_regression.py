"""Which algorithm does a language model run that predicts numbers in text?

From Words to Numbers (Vacareanu et al., 2024) measures how well language models regress in context, and says of the
mechanism that it does not explain it. Here small language models are trained on text of linear problems, put beside
regressors that read the same rounded numbers, and asked with `identify`. A model behind a server of OpenAI's protocol
takes their place with --model and --base-url.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mesascope.errors import refuse, require_count, require_instance
from mesascope.evidence import Arrays, Claim, above, below, ours, printed
from mesascope.reports import Figure, Grid, Line, Lines
from mesascope.studies.common import converged, plan
from mesascope.studies.identifying.calibration import budget
from mesascope.studies.identifying.regression_text import family, label_loss, network, reader
from mesascope.studies.identifying.regressors import (
    COUNTS,
    LABELS,
    MODEL,
    PAIRS,
    SLOW,
    errors_by_pairs,
    errors_with_all,
)
from mesascope.study import Study
from mesascope.training import Training

if TYPE_CHECKING:
    from mesascope.identification import Identification
    from mesascope.studies.lab import Lab

PAPER = "Vacareanu et al., From Words to Numbers (COLM 2024)"
# From where on the regret's growth is fitted.
GROWN = 4


# How language models train, but for lengths and rates.
USUAL: dict[str, Any] = {
    "schedule": "cosine", "optimizer": "adamw", "weight_decay": 0.05, "clip": 1.0,
}  # fmt: skip


@dataclass(frozen=True)
class LanguageRegression:
    """Settings of the study."""

    training: Training = field(default_factory=lambda: plan(1500, 2e-3, batch=64, warmup_steps=100, **USUAL))
    """How language models train: to predict the labels of each text, each from the lines before."""
    width: int = 64
    """Of their transformers."""
    layers: int = 4
    """Of softmax attention and an MLP each."""
    seeds: int = 5
    """Language models, or sets of tasks for a served one."""
    tasks: int = 1000
    """Tasks that errors are measured on, with each number of pairs."""
    slow_tasks: int = 300
    """Of these, those that forests and boosting are fitted to, with all pairs."""
    identify_tasks: int = 100
    """Tasks of each condition that `identify` asks for."""
    model: str = ""
    """A model behind a server, in place of ones that are trained here."""
    base_url: str = ""
    """Of the server."""

    def __post_init__(self) -> None:
        require_instance("training", self.training, Training)
        for name in ("width", "layers", "seeds", "tasks", "slow_tasks", "identify_tasks"):
            require_count(name, getattr(self, name))
        for name in ("model", "base_url"):
            require_instance(name, getattr(self, name), str)
        if bool(self.model) != bool(self.base_url):
            refuse("model", "be named if and only if base_url is", self.model, "pass --model and --base-url")


def measure(lab: Lab, settings: LanguageRegression) -> None:
    """Train language models, compare their errors with regressors', and ask which algorithm they run."""
    served = _server(settings) if settings.model else None
    models = _trained(lab, settings) if served is None else _readers(lab, served)
    lab.stage("errors", lambda: _by_task(lab, settings, models, errors_by_pairs, "pairs task", settings.tasks))
    lab.stage("whole", lambda: _by_task(lab, settings, models, errors_with_all, "task", settings.slow_tasks))
    lab.stage("identified", lambda: _identified(lab, settings, models))
    if served is not None:
        lab.stage("names", lambda: _by_names(lab, served, settings.slow_tasks))


def _trained(lab: Lab, settings: LanguageRegression) -> list[Any]:
    watched = lab.draw(family(), settings.tasks, "watch")
    models = lab.train(
        "language", network(settings.width, settings.layers), family(), settings.training, loss=label_loss,
        watch=lambda model: {"loss": label_loss(model, watched).item()},
    )  # fmt: skip
    return [reader(model) for model in models]


def _server(settings: LanguageRegression) -> Callable[[str], str]:
    from mesascope.adapters import openai_model

    return openai_model(settings.model, base_url=settings.base_url)


def _readers(lab: Lab, served: Callable[[str], str]) -> list[Any]:
    """The same model for each set of tasks; what it answered is kept in the run's folder."""
    from mesascope.adapters import from_text

    return [
        from_text(served, "words-to-numbers", decimals=1, cache=lab.run.path / f"answers-{seed}.jsonl")
        for seed in lab.seeds
    ]


def _by_names(lab: Lab, served: Callable[[str], str], tasks: int) -> Arrays:
    """Errors on rows of a real table with names of features, without, and with names exchanged."""
    from mesascope.adapters import names_matter

    found = [names_matter(served, None, tasks, seed, cache=lab.run.path / f"names-{seed}.jsonl") for seed in lab.seeds]
    arrays = {name: [[row[name].value for row in one] for one in found] for name in ("error", "more than without")}
    return Arrays(arrays, **dict.fromkeys(arrays, "seed names"))


def _by_task(
    lab: Lab,
    settings: LanguageRegression,
    models: list[Any],
    errors: Callable[..., Mapping[str, np.ndarray]],
    axes: str,
    most: int,
) -> Arrays:
    """What ``errors`` says of a model, of tasks as they are and of the same as the model reads them, for each seed."""
    import torch

    from mesascope.streams import stream

    rows = []
    for seed, model in zip(lab.seeds, models, strict=True):
        tasks = family().sample(settings.tasks, stream(seed, "llm-regression")).to(torch.float64).part(0, most)
        rows.append(errors(model, tasks, model.as_written(tasks)))
    return Arrays(
        {name: np.stack([row[name] for row in rows]).astype(np.float32) for name in rows[0]},
        **dict.fromkeys(rows[0], f"seed {axes}"),
    )


def _identified(lab: Lab, settings: LanguageRegression, models: list[Any]) -> Arrays:
    """Of each model's answer: distances of candidates on the family's own tasks, and the worst bound on one."""
    from mesascope.identification import candidates, identify

    catalogue = candidates(family(), sklearn=False)
    names, most = [one.name for one in catalogue], budget(settings.identify_tasks)
    rows = [
        _told(identify(model, family(), catalogue, most, seed), names)
        for seed, model in zip(lab.seeds, models, strict=True)
    ]
    return Arrays(
        {name: np.stack([row[name] for row in rows]) for name in rows[0]} | {"candidate": np.array(names)},
        own="seed candidate", worst="seed candidate", sense="seed", candidate="candidate",
    )  # fmt: skip


def _told(answer: Identification, names: list[str]) -> dict[str, Any]:
    rows = {row.candidate: row for row in answer.rows}
    return {
        "own": np.array([rows[name].own_difference.mean.value for name in names]),
        "worst": np.array([max(one.low for one in rows[name].differences.values()) for name in names]),
        "sense": np.array(answer.standing.kind),
    }


def _answered(r: Any, name: str) -> np.ndarray:
    """Absolute errors ``(seeds, pairs, tasks)`` of a regressor on tasks that the model answered; nan on others."""
    errors = r["errors"]
    return np.where(np.isfinite(errors[MODEL]), np.abs(errors[name].astype(float)), np.nan)


def _errs(r: Any, name: str, count: int = PAIRS) -> np.ndarray:
    """Mean absolute errors ``(seeds,)`` over tasks that the model answered."""
    return np.nanmean(_answered(r, name)[:, count - 1], 1)


def _regret(r: Any) -> np.ndarray:
    """Sums of mean absolute errors beyond those of the reference with the least, on tasks that the model answered."""
    means = {name: np.nanmean(_answered(r, name), -1) for name in (MODEL, *LABELS)}
    best = min(LABELS, key=lambda name: means[name].sum())
    return np.cumsum(means[MODEL] - means[best], 1)


def _growth(r: Any) -> np.ndarray:
    """The exponent a of a regret like T^a from `GROWN` pairs on; nan where there is none."""
    regret = _regret(r)[:, GROWN - 1 :]
    logs = np.log(np.where(regret > 0, regret, np.nan))
    return np.array([np.polyfit(np.log(COUNTS[GROWN - 1 :]), row, 1)[0] for row in logs])


def _nearest(r: Any, name: str) -> np.ndarray:
    """By candidate, the least of a seed."""
    return np.asarray(r["identified"][name]).min(1)


# Of a model that does not regress, and of one that has not been trained, the rest says nothing.
PREMISES = ("learns-in-context",)

CLAIMS = (
    converged("language", quantity="loss", most=0.02, at_least=3),
    Claim(
        "learns-in-context", "with all pairs each language model errs less than half as much as with one",
        lambda r: _errs(r, MODEL) / _errs(r, MODEL, 1), below(0.5), printed(PAPER),
        measures="mean absolute error with 20 pairs / with one", quantifier="mean", at_least=3,
    ),
    Claim(
        "better-than-neighbours", "it errs less than three neighbours do",
        lambda r: _errs(r, MODEL) / _errs(r, "neighbours"), below(1.0), printed(PAPER),
        measures="mean absolute error / of three neighbours", quantifier="mean", at_least=3, premises=PREMISES,
    ),
    Claim(
        "as-good-as-linear", "it errs no more than LinearRegression on the same rounded numbers, within 5 %",
        lambda r: _errs(r, MODEL) / _errs(r, "linear"), below(1.05), printed(PAPER),
        measures="mean absolute error / of LinearRegression", quantifier="mean", at_least=3, premises=PREMISES,
    ),
    Claim(
        "not-optimal", "it errs more than ridge regression that knows the noise",
        lambda r: _errs(r, MODEL) / _errs(r, "bayes"), above(1.0), ours("the limit"),
        measures="mean absolute error / of tuned ridge regression", quantifier="mean", at_least=3, premises=PREMISES,
    ),
    Claim(
        "explains", "it explains more than nine tenths of the labels' variance",
        lambda r: 1 - np.nanmean(_table(r)["squares"][:, 0], -1), above(0.9), printed(PAPER), measures="R^2",
        quantifier="mean", at_least=3, premises=PREMISES,
    ),
    Claim(
        "rank", "among twelve regressors its mean rank is better than the middle",
        lambda r: _table(r)["ranks"][:, 0].mean(-1), below(6.5), printed(PAPER), measures="mean rank by absolute error",
        quantifier="mean", at_least=3, premises=PREMISES,
    ),
    Claim(
        "regret", "its regret grows more slowly than the number of pairs", _growth, below(1.0), printed(PAPER),
        measures="exponent of the regret's growth", quantifier="mean", at_least=3, premises=PREMISES,
    ),
    Claim(
        "rounding", "rounding to one decimal costs tuned ridge regression less than the model loses to it",
        lambda r: (_errs(r, "bayes") - _errs(r, "unrounded")) / (_errs(r, MODEL) - _errs(r, "bayes")), below(1.0),
        ours("the rounding floor"),
        measures="(error of ridge on rounded - on exact numbers) / (error of the model - of ridge on rounded)",
        quantifier="mean", at_least=3, premises=PREMISES,
    ),
    Claim(
        "shuffled", "with shuffled labels it errs at least twice as much as without",
        lambda r: np.nanmean(np.abs(r["whole"]["shuffled"]), 1) / _errs(r, MODEL), above(2.0), ours("a null control"),
        measures="mean absolute error with shuffled labels / without", quantifier="mean", at_least=3, premises=PREMISES,
    ),
    Claim(
        "on-its-tasks", "on the tasks it was trained for some candidate is within 1 % of its predictions",
        lambda r: _nearest(r, "own"), below(0.01), ours("identify"),
        measures="normalised squared difference from the nearest", quantifier="mean", at_least=3, premises=PREMISES,
    ),
    Claim(
        "elsewhere", "under some condition each candidate is beyond half of that at the level which an answer states: "
        "it runs no algorithm of the catalogue", lambda r: _nearest(r, "worst"), above(0.005), ours("identify"),
        measures="what the difference exceeds, least of all candidates", quantifier="mean", at_least=3,
        premises=PREMISES,
    ),
)  # fmt: skip


def _curves(r: Any) -> list[Line]:
    roles: Mapping[str, Any] = {MODEL: "trained", "bayes": "limit", "linear": "gd"}
    shades = iter(np.linspace(0, 1, len(LABELS) + 1))
    rows = {name: np.stack([_errs(r, name, count) for count in COUNTS], 1) for name in (MODEL, *LABELS)}
    shown = {MODEL: "language model", **LABELS}
    return [Line(COUNTS, rows[name], roles.get(name, next(shades)), shown[name]) for name in shown]


def _regrets(r: Any) -> list[Line]:
    return [Line(COUNTS, _regret(r), "trained", "language model", each=True)]


def _table(r: Any) -> dict[str, np.ndarray]:
    """With all pairs ``(seeds, regressors, tasks)``: absolute errors, ranks, and squares over the labels' variance.

    Errors are nan on tasks that the model did not answer; it has the last rank there.
    """
    from scipy.stats import rankdata

    tasks = r["whole"]["forest"].shape[1]
    errors = [np.abs(r["errors"][name][:, -1, :tasks]) for name in (MODEL, *LABELS)]
    absolute = np.stack([*errors, *(np.abs(r["whole"][name]) for name in SLOW)], 1).astype(float)
    labels = r["errors"]["label"][:, -1].astype(float)
    paired = absolute + 0 * absolute[:, :1]
    return {
        "errors": paired,
        "squares": paired**2 / labels.var(1)[:, None, None],
        "ranks": rankdata(np.nan_to_num(absolute, nan=np.inf), axis=1),
    }


def _bars(name: str, labelled: bool = False) -> Callable[[Any], list[Line]]:
    """Means over tasks and seeds by regressor, the best first, with bootstrap intervals at 95 % over tasks."""

    def read(r: Any) -> list[Line]:
        table = _table(r)
        order = np.argsort(table["ranks"].mean((0, 2)))
        values = table[name].transpose(1, 0, 2).reshape(len(order), -1)
        draws = np.random.default_rng(0).integers(values.shape[1], size=(1000, values.shape[1]))
        means = np.nanmean(values, 1)
        low, high = np.quantile([np.nanmean(row[draws], 1) for row in values], (0.025, 0.975), axis=1)
        labels = ["language model", *LABELS.values(), *SLOW.values()]
        return [
            Line([place], [means[one]], "trained" if one == 0 else place / len(order),
                 labels[one] if labelled else None, marks="o",
                 error=[[means[one] - low[one]], [high[one] - means[one]]])
            for place, one in enumerate(order)
        ]  # fmt: skip

    return read


def _distances(r: Any) -> list[Grid]:
    """In percent."""
    found = r["identified"]
    order = np.argsort(found["own"].mean(0))[:12]
    values = 100 * np.stack([found["own"].mean(0)[order], found["worst"].mean(0)[order]], 1)
    return [Grid(values, [str(name) for name in found["candidate"][order]], ["own tasks", "worst condition"])]


FIGURES = (
    Figure(
        "errors", "Mean absolute errors by number of pairs, of language models and of regressors that read the "
        "same rounded numbers; regrets of each language model beyond the best of them.",
        (
            Lines("", "pairs", "mean absolute error", _curves, log="y",
                  limits={"ylim": (0.005, 1.1), "xticks": range(0, PAIRS + 1, 5)}),
            Lines("", "pairs", "sum of excess absolute errors", _regrets,
                  limits={"xticks": range(0, PAIRS + 1, 5)}),
        ),
        columns=2, size=(10, 4.2),
        claims=("learns-in-context", "better-than-neighbours", "as-good-as-linear", "not-optimal", "regret",
                "rounding"),
    ),
    Figure(
        "ranks", "With all pairs: mean absolute errors, what is left of the labels' variance, and mean ranks by "
        "errors, the best first, with bootstrap intervals at 95 % over tasks of all language models.",
        (
            Lines("", "", "mean absolute error", _bars("errors"), log="y", limits={"xticks": []}),
            Lines("", "", "1 - R^2", _bars("squares"), log="y", limits={"xticks": []}),
            Lines("", "", "mean rank", _bars("ranks", labelled=True), limits={"xticks": [], "xlim": (-1, 22)}),
        ),
        columns=3, size=(13, 4.5), claims=("explains", "rank"),
    ),
    Figure(
        "identified", "Normalised squared differences, in percent, from the twelve candidates nearest to the language "
        "models: on the tasks they were trained for, and at least, under the condition that parts them most. Means "
        "over models.",
        (Lines("", "", "", _distances),), size=(6, 6),
        claims=("on-its-tasks", "elsewhere", "shuffled"),
    ),
)  # fmt: skip

STUDY = Study(
    name="llm-regression",
    source=PAPER,
    presets={
        "quick": LanguageRegression(
            plan(400, 3e-3, batch=32, **USUAL),
            width=32,
            layers=3,
            tasks=100,
            slow_tasks=30,
            identify_tasks=8,
            seeds=3,
        ),
        "paper": LanguageRegression(),
    },
    measure=measure,
    trainings=lambda settings: int(not settings.model),
    claims=CLAIMS,
    figures=FIGURES,
    deviations=(
        "Language models of some 200,000 weights whose tokens are numbers of one decimal, trained on linear "
        "problems alone, in place of large ones that were trained on text of all kinds.",
    ),
)
