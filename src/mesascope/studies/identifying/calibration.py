"""Does identify name the algorithms that are planted, and none where none is?

Trials plant a learner with parameters drawn at random, behind one adapter or another, some with noise in their
answers, and ask which of the candidates it is; every fifth learner is an alien, which is none of them. The level of
error that an answer states is compared with how often the planted algorithm is left out.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mesascope.errors import require_count
from mesascope.evidence import Arrays, Claim, above, below, ours
from mesascope.records import register
from mesascope.reports import Figure, Grid, Line, Lines
from mesascope.studies.study import Study

if TYPE_CHECKING:
    import torch

    from mesascope.identification import Candidate, Identification
    from mesascope.learners import Range
    from mesascope.studies.lab import Lab

# What is planted, and what answers are chosen from: algorithms of all kinds, near neighbours among them.
PLANTED = (
    "gradient-descent", "gradient-descent of 2 sizes", "gradient-descent-plus-plus", "ridge least-squares",
    "minimum-norm least-squares", "ridge with-intercept", "lasso", "newton", "averaging", "mean",
    "gaussian kernel-smoother", "gaussian kernel-ridge", "nearest-neighbours",
)  # fmt: skip
# How learners are asked: as they are, as functions of arrays, as regressors of scikit-learn, as models of text.
ADAPTERS = ("torch", "NumPy", "scikit-learn", "text")
# Decimals that models of text read and answer.
DECIMALS = 3
# Standard deviation of what answers differ by from call to call.
NOISES = (0.0, 0.01, 0.1)
# Tasks of each condition.
COUNTS = (8, 24)
SENSES = (
    "none of the candidates", "approximates on the family's own tasks", "approximates", "runs",
    "not measured well enough",
)  # fmt: skip
# Trials between two saves.
PART = 20


@dataclass(frozen=True)
class Calibration:
    """Settings of the study."""

    trials: int = 500
    """Trials a seed."""
    seeds: int = 4
    """Sets of trials."""

    def __post_init__(self) -> None:
        require_count("trials", self.trials)
        require_count("seeds", self.seeds)


def _families() -> list[Any]:
    from mesascope.tasks import LinearRegression

    return [
        LinearRegression(n_context=12, d_in=3, noise=0.3),
        LinearRegression(n_context=20, d_in=5, noise=0.5),
        LinearRegression(n_context=6, d_in=4),
    ]


def _aliens() -> list[Callable[[Any, Any], Any]]:
    """Learners that no candidate is equal to."""
    import torch

    from mesascope.learners import LeastSquares, NearestNeighbours

    ridge = LeastSquares(0.5)
    return [
        lambda context, xq: torch.sin(3 * ridge(context, xq)),
        lambda context, xq: ridge(context, xq).sign(),
        lambda context, xq: 0.5 * (ridge(context, xq) + NearestNeighbours(1)(context, xq)),
        lambda context, xq: torch.full_like(xq[..., :1], 3.0),
    ]


class Noisy:
    """A learner whose answers differ from call to call."""

    def __init__(self, learner: Any, noise: float, generator: torch.Generator) -> None:
        self.learner, self.noise, self.generator = learner, noise, generator

    def __call__(self, context: Any, xq: Any) -> Any:
        import torch

        answer = self.learner(context, xq).detach()
        drawn = torch.randn(answer.shape, generator=self.generator, dtype=torch.float64)
        return answer + self.noise * drawn.to(answer)


class Planted:
    """A learner with what scikit-learn asks of a regressor."""

    def __init__(self, learner: Any) -> None:
        self.learner = learner

    def __sklearn_clone__(self) -> Planted:
        return Planted(self.learner)

    def get_params(self, deep: bool = True) -> dict[str, Any]:
        return {"learner": self.learner}

    def fit(self, x: np.ndarray, y: np.ndarray) -> Planted:
        self.pairs = x, y.reshape(len(x), -1)
        return self

    def predict(self, xq: np.ndarray) -> np.ndarray:
        return _answered(self.learner, *self.pairs, xq)[:, 0]


def _answered(learner: Any, x: np.ndarray, y: np.ndarray, xq: np.ndarray) -> np.ndarray:
    """To one task of arrays."""
    import torch

    from mesascope.tasks import Context

    context = Context(*(torch.as_tensor(part)[None] for part in (x, y)))
    return learner(context, torch.as_tensor(xq)[None]).detach()[0].numpy()


def _read_and_answered(learner: Any, prompt: str) -> str:
    """What a model of text says that runs an algorithm on the numbers of a prompt in format compact."""
    rows = [[float(number) for number in line.replace("->", ",").split(",") if number.strip()]
            for line in prompt.splitlines()]  # fmt: skip
    pairs, query = np.array(rows[:-1]), np.array(rows[-1:])
    return f"{_answered(learner, pairs[:, :-1], pairs[:, -1:], query).item():.{DECIMALS}f}"


def behind(adapter: str, learner: Any) -> Any:
    """A learner asked as one of `ADAPTERS`."""
    from mesascope.adapters import from_numpy, from_sklearn, from_text

    if adapter == "NumPy":
        return from_numpy(lambda x, y, xq: _answered(learner, x, y, xq))
    if adapter == "scikit-learn":
        return from_sklearn(Planted(learner))
    if adapter == "text":
        return from_text(
            lambda prompt: _read_and_answered(learner, prompt), "compact", decimals=DECIMALS, concurrency=1
        )
    return learner


def budget(tasks: int) -> int:
    """Predictions that are asked for where so many tasks of each condition are put to a learner three times."""
    from mesascope.identification import CONDITIONS

    return 3 * tasks * (1 + len(CONDITIONS)) + 3


def along(one: Range, share: float) -> Any:
    """The value at a share of a range; six is the largest whole number."""
    if one.scale == "integer":
        return round(one.low + share * (min(one.high, 6) - one.low))
    if one.scale == "log":
        return math.exp(math.log(one.low) + share * (math.log(one.high) - math.log(one.low)))
    return one.low + share * (one.high - one.low)


def _drawn(candidate: Candidate, generator: torch.Generator) -> dict[str, Any]:
    """Parameters from the middle half of each range, two of each where steps have sizes of their own."""
    import torch

    def drawn(one: Range) -> Any:
        return along(one, 0.25 + 0.5 * torch.rand((), generator=generator).item())

    if candidate.own_sizes:
        return {name: [drawn(one), drawn(one)] for name, one in candidate.free.items()}
    return {name: drawn(one) for name, one in candidate.free.items()}


def _trial(lab: Lab, seed: int, index: int) -> dict[str, Any]:
    """One learner, planted and asked for."""
    import torch

    from mesascope.identification import candidates, identify
    from mesascope.streams import stream

    generator = stream(seed, "trial", index)

    def pick(count: int) -> int:
        return int(torch.randint(count, (), generator=generator))

    family, noise, count, adapter = _families()[pick(3)], NOISES[pick(3)], COUNTS[pick(2)], pick(len(ADAPTERS))
    known = {one.name: one for one in candidates(family, sklearn=False) if one.name in PLANTED}
    if index % 5 == 4:
        truth, parameters, learner = -1, {}, _aliens()[pick(4)]
    else:
        truth = pick(len(PLANTED))
        parameters = _drawn(known[PLANTED[truth]], generator)
        learner = known[PLANTED[truth]].build(**parameters)
    planted: Any = Noisy(learner, noise, stream(seed, "noise", index)) if noise else learner
    planted = behind(ADAPTERS[adapter], planted)
    found = identify(planted, family, [known[name] for name in PLANTED], budget(count), seed=index)
    return {"truth": truth, "noise": noise, "count": count, "adapter": adapter} | _outcome(
        found, truth, parameters, known
    )


def _outcome(
    found: Identification, truth: int, parameters: dict[str, Any], known: dict[str, Candidate]
) -> dict[str, Any]:
    left = [name not in found.standing.ruled_out for name in PLANTED]
    error = math.nan
    if truth >= 0 and left[truth] and parameters and not known[PLANTED[truth]].own_sizes:
        fitted = found.parameters(PLANTED[truth])
        error = max(abs(fitted[name] / value - 1) for name, value in parameters.items())
    first = PLANTED.index(found.names[0]) if found.names else -1
    return {"left": left, "first": first, "error": error, "sense": SENSES.index(found.standing.kind)}


def measure(lab: Lab, settings: Calibration) -> None:
    """Plant and ask, a few trials at a time."""
    for start in range(0, settings.trials, PART):
        indices = range(start, min(start + PART, settings.trials))
        lab.stage(f"trials-{start}", lambda indices=indices: _part(lab, indices))
    parts: list[Any] = [lab.run.results[f"trials-{start}"] for start in range(0, settings.trials, PART)]
    axes = {name: " ".join(parts[0].axes[name]) for name in parts[0]}
    joined = {name: np.concatenate([np.asarray(part[name]) for part in parts], axis=1) for name in axes}
    lab.stage("trials", lambda: Arrays(joined, **axes))


def _part(lab: Lab, indices: range) -> Arrays:
    rows = [[_trial(lab, seed, index) for index in indices] for seed in lab.seeds]
    arrays = {name: np.array([[one[name] for one in row] for row in rows]) for name in rows[0][0]}
    return Arrays(arrays, **dict.fromkeys(arrays, "seed trial") | {"left": "seed trial candidate"})


def _planted(r: Any, name: str) -> np.ndarray:
    """Of all trials whose learner is a candidate."""
    trials = r["trials"]
    return np.asarray(trials[name])[np.asarray(trials["truth"]) >= 0]


def _missed(r: Any) -> np.ndarray:
    truth, left = _planted(r, "truth"), _planted(r, "left")
    return ~np.take_along_axis(left, truth[:, None], 1)[:, 0]


def _exact(r: Any) -> np.ndarray:
    """Trials without noise or rounding."""
    return (_planted(r, "noise") == 0) & (_planted(r, "adapter") != ADAPTERS.index("text"))


def _named_first(r: Any) -> np.ndarray:
    return (_planted(r, "first") == _planted(r, "truth"))[_exact(r)]


def _errors(r: Any) -> np.ndarray:
    """Largest relative error of a parameter, without noise and where there are any."""
    errors = _planted(r, "error")[_exact(r)]
    return errors[np.isfinite(errors)]


def _alien_sense(r: Any) -> np.ndarray:
    trials = r["trials"]
    return np.asarray(trials["sense"])[np.asarray(trials["truth"]) < 0]


CLAIMS = (
    Claim(
        "coverage", "the planted algorithm is left out of the answer in less than one trial of a hundred, as it "
        "states", "share of trials", ours("the level of identify"), _missed, below(0.01), over="draws",
        quantifier="share", at_least=500, about="algorithms",
    ),
    Claim(
        "through-text", "so it is in less than one of twenty where learners are models of text that read and answer "
        "three decimals", "share of trials", ours("the adapter that distorts most"),
        lambda r: _missed(r)[_planted(r, "adapter") == ADAPTERS.index("text")], below(0.05), over="draws",
        quantifier="share", at_least=100, about="algorithms",
    ),
    Claim(
        "first", "without noise or rounding the planted algorithm comes first in more than nine trials of ten",
        "share of trials",
        ours("what a user reads"), _named_first, above(0.9), over="draws", quantifier="share", at_least=100,
        about="algorithms",
    ),
    Claim(
        "parameters", "without noise or rounding its parameters are found to 5 % in more than 19 trials of 20",
        "share of trials",
        ours("what a user reads"), lambda r: _errors(r) < 0.05, above(0.95), over="draws", quantifier="share",
        at_least=100, about="algorithms",
    ),
    Claim(
        "aliens", "less than one alien of twenty is said to run a candidate", "share of trials", ours("a null control"),
        lambda r: _alien_sense(r) == SENSES.index("runs"), below(0.05), over="draws", quantifier="share",
        at_least=100, about="algorithms",
    ),
    Claim(
        "aliens-are-none", "more than nine of ten are called none of the candidates", "share of trials",
        ours("a null control"), lambda r: _alien_sense(r) == 0, above(0.9), over="draws", quantifier="share",
        at_least=100, about="algorithms",
    ),
)  # fmt: skip


def _power(r: Any, which: np.ndarray) -> list[Grid]:
    """How often each candidate is left where each algorithm is planted, in percent of ``which`` trials."""
    truth, left = _planted(r, "truth"), _planted(r, "left")
    rows = [left[(truth == index) & which] for index in range(len(PLANTED))]
    shares = [100 * own.mean(0) if len(own) else np.full(len(PLANTED), np.nan) for own in rows]
    return [Grid(np.array(shares), PLANTED, PLANTED)]


def _sizes(r: Any) -> list[Line]:
    """Mean number of candidates left by noise, a line a number of tasks."""
    level, count, sizes = _planted(r, "noise"), _planted(r, "count"), _planted(r, "left").sum(1)
    means = [[sizes[(level == noise) & (count == own)] for noise in NOISES] for own in COUNTS]
    return [
        Line(
            range(len(NOISES)), [np.mean(one) if len(one) else np.nan for one in row], float(place),
            f"{own} tasks a condition", marks="o-",
        )
        for place, (own, row) in enumerate(zip(COUNTS, means, strict=True))
    ]  # fmt: skip


FIGURES = (
    Figure(
        "power", "How often a candidate (columns) is left where an algorithm (rows) is planted, in percent of trials "
        "without noise or rounding.", (Lines("", "", "", lambda r: _power(r, _exact(r))),), size=(9.5, 7),
        claims=("coverage", "through-text", "first", "parameters"),
    ),
    Figure(
        "power-with-noise", "The same where answers differ from call to call by a standard deviation of 0.1.",
        (Lines("", "", "", lambda r: _power(r, _planted(r, "noise") == 0.1)),), size=(9.5, 7),
    ),
    Figure(
        "sizes", "Candidates left, mean over trials, by the noise of answers.",
        (Lines("", "standard deviation of answers", "candidates left", _sizes,
               limits={"xticks": range(len(NOISES)), "xticklabels": [f"{noise:g}" for noise in NOISES]}),),
        size=(6, 3.2), claims=("aliens", "aliens-are-none"),
    ),
)  # fmt: skip

STUDY = register("study", "identify-calibration")(
    Study(
        name="identify-calibration",
        question="Does identify name the algorithms that are planted, and none where none is?",
        source="ours",
        presets={"quick": Calibration(trials=10, seeds=2), "paper": Calibration()},
        measure=measure,
        claims=CLAIMS,
        figures=FIGURES,
    )
)
