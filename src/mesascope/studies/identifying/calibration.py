"""Does `identify` name planted algorithms, without false names?

Each candidate of the whole catalogue is planted in turn, with parameters drawn at random, behind one of five adapters;
every sixth answers with noise. Learners of other people (`aliens`) follow, most of which no candidate equals. A name is
false if it is not the truth, and if the fitted candidate's predictions on fresh tasks differ from the learner's by more
than the answer states.
"""

from __future__ import annotations

import functools
import math
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any

import msgspec
import numpy as np

from mesascope import adapters, identification, learners, study, tasks
from mesascope.streams import stream
from mesascope.studies.common import returning
from mesascope.studies.identifying.aliens import alien, aliens
from mesascope.study import Arrays, Bound, Claim, Count, Figure, Grid, Lines, Reading, Study, above, below, frozen, ours
from mesascope.text import percent_text

# Interfaces of planted learners: torch function, NumPy function, scikit-learn regressor, text model.
ADAPTERS = ("torch", "NumPy", "scikit-learn", "text")
# All interfaces, including recorded calls. Aliens have their own adapters.
WAYS = (*ADAPTERS, "replay", "alien")
# Decimals in prompts and answers of text models.
DECIMALS = 3
# Standard deviation of the noise on the answers of every sixth planted learner.
NOISE = 0.1
# Fresh tasks of each condition for checking a name.
FRESH = 40
SENSES = (
    "none of the candidates", "approximates on the family's own tasks", "approximates", "runs",
    "not measured well enough",
)  # fmt: skip
# Trials between two saves.
PART = 4
# Controls: noise of the learners, number of learners per seed, and tasks of each condition.
LOUD, CONTROLS, CONTROL_TASKS = 0.15, 8, 16
# Bounds of the controls: |``left``| is below the first, and ``unrelated`` above the second: see `_controls`.
LEFT, UNRELATED = 0.09, 0.8


@frozen
class Calibration:
    trials: Count = 1_000  # Maximum number of trials per seed; all trials are spread evenly over the subjects.
    tasks: Annotated[int, msgspec.Meta(ge=8)] = 24  # Tasks of each condition and part.
    seeds: Count = 2  # Sets of trials, each with its own tasks.


def _families() -> list[Any]:
    return [
        tasks.LinearRegression(n_context=12, d_in=3, noise=0.3),
        tasks.LinearRegression(n_context=20, d_in=5, noise=0.5),
        tasks.LinearRegression(n_context=12, d_in=3, d_out=2, noise=0.3, pool=8),  # for candidates that need these
    ]


def _subjects() -> list[str]:
    """Names of the catalogue's candidates and of aliens."""
    first, _, last = ([one.name for one in identification.candidates(family)] for family in _families())
    return [*dict.fromkeys([*first, *last]), *aliens()]


def _noisy(learner: Any, generator: Any, noise: float = NOISE) -> Any:
    """The learner with Gaussian noise on its answers, new at each call."""
    import torch

    def answered(context: Any, xq: Any) -> Any:
        answer = learner(context, xq).detach()
        return answer + noise * torch.randn(answer.shape, generator=generator, dtype=torch.float64).to(answer)

    return answered


class Planted:
    """A learner with the methods of scikit-learn's regressors."""

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
    """Predictions for one task, given as arrays."""
    import torch

    context = tasks.Context(*(torch.as_tensor(part)[None] for part in (x, y)))
    return learner(context, torch.as_tensor(xq)[None]).detach()[0].numpy()


def _read_and_answered(learner: Any, prompt: str) -> str:
    """Answer of a text model that runs the learner on the numbers of a prompt in format compact."""
    rows = [[float(number) for number in line.replace("->", ",").split(",") if number.strip()]
            for line in prompt.splitlines()]  # fmt: skip
    pairs, query = np.array(rows[:-1]), np.array(rows[-1:])
    return f"{_answered(learner, pairs[:, :-1], pairs[:, -1:], query).item():.{DECIMALS}f}"


def behind(adapter: str, learner: Any) -> Any:
    """The learner behind one of the `ADAPTERS`."""
    if adapter == "NumPy":
        return adapters.from_numpy(lambda x, y, xq: _answered(learner, x, y, xq))
    if adapter == "scikit-learn":
        return adapters.from_sklearn(Planted(learner))
    if adapter == "text":
        asked = functools.partial(_read_and_answered, learner)
        return adapters.from_text(asked, "compact", decimals=DECIMALS, concurrency=1)
    return learner


def budget(tasks: int) -> int:
    """Budget of `identify` for ``tasks`` tasks of each condition, or fewer where it also measures behaviour."""
    return 3 * tasks * (1 + len(identification.CONDITIONS)) + 3


def value_at(one: learners.Range, share: float) -> Any:
    """Value at a share of a range; whole numbers are at most 6."""
    if one.scale == "integer":
        return round(one.low + share * (min(one.high, 6) - one.low))
    if one.scale == "log":
        return math.exp(math.log(one.low) + share * (math.log(one.high) - math.log(one.low)))
    return one.low + share * (one.high - one.low)


def _drawn(candidate: identification.Candidate, generator: Any) -> dict[str, Any]:
    """Random parameters from the middle half of each range; one per step if steps have separate sizes."""
    import torch

    def drawn(one: learners.Range) -> Any:
        return value_at(one, 0.25 + 0.5 * torch.rand((), generator=generator).item())

    if candidate.name.endswith("sizes"):
        steps = int(candidate.name.split()[-2])
        return {name: [drawn(one) for _ in range(steps)] for name, one in candidate.free.items()}
    return {name: drawn(one) for name, one in candidate.free.items()}


def _asked(seed: int, index: int, count: int) -> dict[str, Any]:
    """One trial: identify a subject among the whole catalogue."""
    name, families = _subjects()[index], _families()
    family = families[index // 3 % 2]
    known = {one.name: one for one in identification.candidates(family)}
    if name not in (*known, *aliens()):
        family, known = families[2], {one.name: one for one in identification.candidates(families[2])}
    way, noise = WAYS[-1], 0.0
    if name in aliens():
        learner, truth = alien(name, family)
        asked: Any = learner
    else:
        way = WAYS[index % len(WAYS[:-1]) if family.d_out == 1 else 0]  # the other adapters have one target
        noise, truth = NOISE * (index % 6 == 5), name
        learner = known[name].build(**_drawn(known[name], stream(seed, "planted", index)))
        asked = _noisy(learner, stream(seed, "noise", index)) if noise else learner
    start = time.process_time()
    with tempfile.TemporaryDirectory() as folder:
        asked = _recorded(asked, family, count, seed, Path(folder)) if way == "replay" else behind(way, asked)
        found = identification.identify(asked, family, budget=budget(count), seed=seed, name=name)
    seconds = time.process_time() - start
    own = None if truth is None else known[truth.removeprefix("clipped ")].family
    return {
        "subject": index, "way": WAYS.index(way), "noise": noise, "seconds": seconds, "has_truth": truth is not None,
        "sense": SENSES.index(found.standing.kind), "named": truth in found.names,
        "left_out": truth in found.standing.ruled_out,
        "false": len(_false_names(found, learner, truth, known, family)),
        "right_family": truth is not None and found.shares[0].family == own,
    }  # fmt: skip


def _recorded(learner: Any, family: Any, count: int, seed: int, folder: Path) -> Any:
    """Learner that replays the recorded answers of ``learner``."""
    mean = [one for one in identification.candidates(family, sklearn=False) if one.name == "mean"]
    calls = folder / "calls.jsonl"
    identification.identify(adapters.record(learner, calls), family, mean, budget(count), seed)
    return adapters.replay(calls)


def _false_names(
    found: identification.Identification, learner: Any, truth: str | None, known: Mapping[str, Any], family: Any
) -> list[str]:
    """Wrong names in an answer: fresh predictions differ from the learner's by more than the answer states."""
    import torch

    from mesascope.identification.answering import answers, sizes, squared_differences
    from mesascope.identification.verdict import EXACT, OWN_TASKS, RUNS

    kind, wrong = found.standing.kind, []
    bound = EXACT if kind == RUNS else found.tolerance
    fresh = identification.battery(family, FRESH, found.seed, "fresh")
    fresh = {name: fresh[name] for name in (["own"] if kind == OWN_TASKS else fresh)}
    for name in (one for one in found.names if one != truth):
        single = {key: one.to(torch.float32) for key, one in fresh.items()}
        expected = answers(learner, fresh) or answers(learner, single)
        predicted = answers(_built(name, found.parameters(name), known), fresh)
        size = sizes(fresh, expected)
        far = [float(squared_differences(one, predicted[key], size[key]).mean()) for key, one in expected.items()]
        wrong += [name] if max(far) > bound else []
    return wrong


def _built(name: str, parameters: Mapping[str, Any], known: Mapping[str, Any]) -> Any:
    from mesascope.identification.catalogue import FORMS

    if "matrix" in parameters:
        return learners.PreconditionedGradientDescent(parameters["matrix"])
    form, _, inner = name.partition(" ")
    return FORMS[form](known[inner].build(**parameters)) if form in FORMS else known[name].build(**parameters)


def measure(lab: study.Lab, settings: Calibration) -> None:
    every = len(_subjects())
    trials = min(settings.trials, math.ceil(every / settings.seeds))
    spread = np.linspace(0, every - 1, trials * settings.seeds).round().astype(int).reshape(trials, settings.seeds)
    saved: list[Any] = [
        lab.stage(f"trials-{place}", _part, lab.seeds, spread[start : start + PART], settings.tasks)
        for place, start in enumerate(range(0, trials, PART))
    ]
    lab.stage("trials", _trials, {name: np.concatenate([one[name] for one in saved], axis=1) for name in saved[0]})
    lab.stage("controls", _controls, lab.seeds)


def _controls(seeds: list[int]) -> Arrays:
    """Answers about noisy gradient descent of one step, and about a function of the query alone.

    ``left`` is the difference from the truth minus noise, averaged over conditions, and ``kept`` is true if an answer
    compares all candidates, does not rule the truth out, and puts its family first. ``unrelated`` is the difference of
    the function from a candidate with a matrix of parameters, on the family's own tasks.
    """
    family = _families()[0]
    known = {one.name: one for one in identification.candidates(family, sklearn=False)}
    rivals = [known[name] for name in ("gradient-descent", "gradient-descent of 2 sizes", "mean")]
    matrix = [known["one-step preconditioned-gradient-descent"]]
    found: dict[str, list[list[float]]] = {name: [[] for _ in seeds] for name in ("left", "unrelated", "kept")}
    for place, seed in enumerate(seeds):
        for index in range(CONTROLS):
            asked = _noisy(learners.GradientDescent(1, 1.5), stream(seed, "control", index), LOUD)
            plan = budget(CONTROL_TASKS), CONTROLS * seed + index
            answer = identification.identify(asked, family, rivals, *plan)
            truth = next((row for row in answer.rows if row.candidate == rivals[0].name), answer.rows[0])
            kept = truth.candidate not in answer.standing.ruled_out and answer.shares[0].family == truth.family
            found["left"][place].append(float(np.mean([one.mean.value for one in truth.differences.values()])))
            found["kept"][place].append(kept and len(answer.rows) == len(rivals))
            other = identification.identify(_of_query, family, matrix, *plan)
            found["unrelated"][place].append(other.rows[0].own_difference.mean.value)
    return Arrays(found, **dict.fromkeys(found, "seed control"))


def _of_query(context: Any, xq: Any) -> Any:
    """A function of the query alone, which no regressor learns from the context."""
    return (5 * xq).sin().sum(-1, keepdim=True)


def _trials(arrays: Mapping[str, Any]) -> Arrays:
    return Arrays(arrays, **dict.fromkeys(arrays, "seed trial"))


def _part(seeds: list[int], indices: np.ndarray, count: int) -> Arrays:
    """Trials of each seed; ``indices`` of subjects are ``(trials, seeds)``."""
    rows = [[_asked(seed, int(index), count) for index in own] for seed, own in zip(seeds, indices.T, strict=True)]
    return _trials({name: [[one[name] for one in row] for row in rows] for name in rows[0][0]})


def _of(r: Any, name: str, **said: bool) -> np.ndarray:
    """Values of all trials, or of the trials selected by ``truth``, ``noise`` and ``alien`` (each True or False)."""
    trials = r["trials"]
    are = {"truth": trials["has_truth"].astype(bool), "noise": trials["noise"] > 0,
           "alien": trials["way"] == WAYS.index("alien")}  # fmt: skip
    which = [are[key] == value for key, value in said.items()]
    return trials[name][np.all(which, axis=0)] if which else trials[name].ravel()


def _share(id: str, sentence: str, read: Any, bound: Bound, why: str, at_least: int = 50) -> Claim:
    """A claim about the share of trials for which ``read`` is true."""
    return Claim(id, sentence, Reading("share of trials", read), bound, ours(why), over="draws", quantifier="share",
                 at_least=at_least, about="algorithms")  # fmt: skip


def _room(r: Any) -> np.ndarray:
    """Distance of both differences of each control from their bounds; positive if the control holds."""
    found = study.stage("controls")(r)
    return np.stack([LEFT - np.abs(found["left"].ravel()), found["unrelated"].ravel() - UNRELATED], 1)


def _shares(r: Any) -> list[Grid]:
    """Percent by adapter: named, ruled out, family first (of trials with a truth); false name (of all trials)."""
    way, truth = _of(r, "way"), _of(r, "has_truth").astype(bool)
    rows = []
    for index in range(len(WAYS)):
        own = [_of(r, name)[(way == index) & truth] for name in ("named", "left_out", "right_family")]
        own.append(_of(r, "false")[way == index] > 0)
        rows.append([100 * one.mean() if len(one) else math.nan for one in own])
    return [Grid(np.array(rows), WAYS, ("named", "ruled out", "right family", "false name"))]


def _senses(r: Any) -> list[Grid]:
    """Number of trials by kind of subject (rows) and sense of the answer (columns)."""
    said = {
        "planted": {"alien": False, "noise": False}, "planted, with noise": {"alien": False, "noise": True},
        "aliens that a candidate equals": {"alien": True, "truth": True},
        "other aliens": {"alien": True, "truth": False},
    }  # fmt: skip
    counts = [[(_of(r, "sense", **one) == index).sum() for index in range(len(SENSES))] for one in said.values()]
    return [Grid(np.array(counts, dtype=float), [*said], SENSES)]


_NAMING = "mesascope.identification.naming"


def _with_noise(factor: float) -> Callable[[Any], Any]:
    """Measurements that subtract ``factor`` times the learner's noise."""

    def wrong(init: Any) -> Any:
        def measured(self: Any, *arguments: Any) -> None:
            init(self, *arguments)
            self.noise = {name: factor * one for name, one in self.noise.items()}

        return measured

    return wrong


MUTATIONS = (
    study.Mutation("noise is doubled", "mesascope.identification.seen:Seen.__init__", _with_noise(2.0)),
    study.Mutation("noise is tenfold", "mesascope.identification.seen:Seen.__init__", _with_noise(10.0)),
    study.Mutation("no noise is removed", "mesascope.identification.seen:Seen.__init__", _with_noise(0.0)),
    study.Mutation("tasks of the fit are those of the test", f"{_NAMING}:battery", lambda battery: (
                   lambda family, count, seed, part: battery(family, count, seed, "fit" if part == "test" else part))),
    study.Mutation("one candidate of a family is compared, the nearest", f"{_NAMING}:_all", lambda every: (
                   lambda chosen, seen, levels, name, most, *rest: every(chosen, seen, levels, name, 1, *rest))),
    study.Mutation("the level is ignored", f"{_NAMING}:Levels", lambda levels: SimpleNamespace(
                   of=lambda tolerance, level, candidates: levels.of(tolerance, 1.0, 1))),
    study.Mutation("families are in reverse order", f"{_NAMING}:shares", returning(lambda found: found[::-1])),
)  # fmt: skip

STUDY = Study(
    name="identify-calibration",
    source="ours",
    presets={"quick": Calibration(trials=4), "paper": Calibration(trials=77), "small": Calibration(trials=20)},
    measure=measure, mutations=MUTATIONS, mutated={"trials": 1, "tasks": 8, "seeds": 1},
    claims=(
        Claim("control-differences", "control: without the noise, the difference of noisy learners from their own "
              f"algorithm is below {percent_text(LEFT)} of the variance of their answers, and that of a function of "
              f"the query alone from a candidate with a matrix of parameters is above {percent_text(UNRELATED)}",
              Reading(f"{LEFT:g} - |difference from the truth|; difference of the function - {UNRELATED:g}", _room),
              above(0.0), ours("control: a planted truth"), over="draws", quantifier="median", about="algorithms"),
        _share("control-coverage", "control: most answers about noisy learners compare all candidates, do not rule the "
               "learner's own algorithm out, and put its family first",
               lambda r: study.stage("controls")(r)["kept"].ravel().astype(bool), above(0.5),
               "control: a planted truth", 8),
    ),
    figures=(
        Figure("shares", "Percent of trials by adapter (rows), of learners that a candidate equals: the learner's "
               "algorithm is named, is ruled out, and its family comes first. Last: percent of all trials with a false "
               "name. Every sixth planted learner has noise.", (Lines("", "", "", _shares),), size=(6, 3.6), claims=(
            _share("false-names", "at most 1 % of answers name an algorithm whose predictions differ from the "
                   "learner's by more than the answer states",
                   lambda r: _of(r, "false") > 0, below(0.01), "the level of identify"),
            _share("truth-named", "without noise at least 99 % of answers name the learner's own algorithm, if it is a "
                   "candidate",
                   lambda r: _of(r, "named", truth=True, noise=False), above(0.99), "what a user asks for"),
            _share("coverage", "at most 1 % of answers rule the learner's own algorithm out, with noise and without",
                   lambda r: _of(r, "left_out", truth=True), below(0.01), "the level of identify"),
            _share("right-family", "in at least 90 % of answers the family of the learner's own algorithm comes first",
                   lambda r: _of(r, "right_family", truth=True), above(0.9), "the first sentence of an answer"),
        )),
        Figure("senses", "Number of trials by what the answer says (columns), of planted candidates and of aliens.",
               (Lines("", "", "", _senses),), size=(8, 3.6), claims=(
            _share("aliens", "at most 1 % of answers about learners that equal no candidate state that the learner "
                   "runs a candidate",
                   lambda r: _of(r, "sense", truth=False) == SENSES.index("runs"), below(0.01), "a null control", 30),
        )),
    ),
)  # fmt: skip
