"""Do learned rates and masks keep what was learned, and do they close?

Thesis: Table 4.5 and Figs. 4.3 and 4.4. A network of two hidden layers meets tasks one after another: images turned, or
with their pixels permuted. A method sees each batch of ten images once, and may keep some hundred of the past.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from mesascope.errors import require_count
from mesascope.evidence import Arrays, Claim, Reported, above, ours, printed, two_sided
from mesascope.reports import Figure, Line, Lines
from mesascope.study import Study

if TYPE_CHECKING:
    from mesascope.studies.lab import Lab

STREAMS = ("rotations", "permutations", "many permutations")
METHODS = ("SGD", "replay", "GEM", "MER", "Sync", "La-MAML", "sparse-La-MAML")
LEARNED = ("La-MAML", "sparse-La-MAML")
# Parameters of the network in the order of its state, and layer by layer.
PARAMETERS = ("W1", "b1", "W2", "b2", "W3", "b3")
TABLE = "Table 4.5"
# Looks at a task that is seen several times.
LOOKS = 10
# Retained accuracy, and backward transfer and interference, in percent, by stream: Table 4.5.
PRINTED = {
    "SGD": ((53.38, 55.42, 32.62), (-5.44, -13.76, -19.06)),
    "GEM": ((67.38, 55.42, 32.14), (-18.02, -24.42, -23.52)),
    "MER": ((77.42, 73.46, 47.40), (-5.60, -9.96, -17.78)),
    "La-MAML": ((77.42, 74.34, 48.46), (-8.64, -7.60, -12.96)),
    "sparse-La-MAML": ((77.77, 76.88, 50.81), (-8.16, -8.39, -13.73)),
}


# Rates that retained most on streams of other seeds: of SGD, of replay with its glances, of GEM, of Sync's outer step,
# and alpha_0 of sparse-La-MAML, whose masks learn at 1.
TUNED = {
    "rotations": (0.01, (0.3, 1), 0.1, 0.3, 0.15),
    "permutations": (0.03, (0.1, 5), 0.1, 0.03, 0.08),
    "many permutations": (0.03, (0.1, 5), 0.01, 0.1, 0.1),
}


@dataclass(frozen=True)
class ContinualMnist:
    """Settings of the study."""

    dataset: str = "mnist"
    """Digits: mnist, or digits, which need no download."""
    size: int = 28
    """Pixels of a side."""
    tasks: int = 20
    """Tasks of rotations and permutations."""
    many_tasks: int = 100
    """Tasks of many permutations."""
    samples: int = 1000
    """Images of a task that are learned from."""
    many_samples: int = 200
    """Those of many permutations."""
    queries: int = 1000
    """Images of a task that accuracy is measured on."""
    width: int = 100
    """Units of each hidden layer."""
    widths: tuple[int, ...] = (25, 50, 100, 200)
    """Those of networks of several sizes."""
    mer_batches: int = 5
    """Times that MER goes over each image."""
    passes: int = 10
    """How often a task is seen in the study of several passes."""
    pass_tasks: int = 5
    """Its tasks."""
    seeds: int = 10
    """Streams and networks."""
    side_seeds: int = 5
    """How many of them networks of several sizes and several passes are studied on."""

    def __post_init__(self) -> None:
        for name in ("tasks", "many_tasks", "samples", "many_samples", "queries", "width", "mer_batches", "passes",
                     "pass_tasks", "seeds", "side_seeds"):  # fmt: skip
            require_count(name, getattr(self, name))
        for width in self.widths:
            require_count("widths", width)


def methods(stream: str, mer_batches: int) -> dict[str, Any]:
    """With the settings of a stream: those of Gupta et al. (2020) and the thesis, and rates found on other seeds."""
    from mesascope import meta

    many = stream == "many permutations"
    memory, glances = (500, 10) if many else (200, 5)
    look_ahead: dict[str, Any] = {"memory": memory, "glances": glances}
    rates = {"learning_rate": 0.1, "rate": 0.1} if many else {"learning_rate": 0.3, "rate": 0.15}
    descent, replay, past, outer, masked = TUNED[stream]
    return {
        "SGD": meta.OnlineSGD(descent),
        "replay": meta.ExperienceReplay(replay[0], glances=replay[1], memory=memory),
        "GEM": meta.GEM(past, memory=10),
        "MER": meta.MER(0.1, within=0.01, batches=mer_batches, memory=memory),
        "Sync": meta.Sync(**rates, **look_ahead, outer_rate=outer),
        "La-MAML": meta.LaMAML(**rates, **look_ahead),
        "sparse-La-MAML": meta.SparseLaMAML(learning_rate=1.0, rate=masked, **look_ahead),
    }


def measure(lab: Lab, settings: ContinualMnist) -> None:
    """Every method on three streams; learned rates in networks of several sizes, and in several passes."""
    from mesascope.nets import ClassifierConfig
    from mesascope.tasks import PermutedDigits, RotatedDigits

    images = {"queries": settings.queries, "dataset": settings.dataset, "size": settings.size}
    streams = {
        "rotations": (RotatedDigits(settings.samples, **images), settings.tasks),
        "permutations": (PermutedDigits(settings.samples, **images), settings.tasks),
        "many permutations": (PermutedDigits(settings.many_samples, **images), settings.many_tasks),
    }

    def net(width: int) -> ClassifierConfig:
        return ClassifierConfig("mlp", width, size=settings.size, classes=10)

    found = {}
    for stream, (family, tasks) in streams.items():
        for name, method in methods(stream, settings.mer_batches).items():
            found[stream, name] = lab.follow(f"{stream} {name}", net(settings.width), method, family, tasks)
    lab.stage("table", lambda: _table(found))
    family, tasks = streams["rotations"]
    own, seeds = methods("rotations", settings.mer_batches), lab.seeds[: settings.side_seeds]
    by_width = [
        lab.follow(f"width {width}", net(width), own["sparse-La-MAML"], family, tasks, seeds=seeds)
        for width in settings.widths
    ]
    lab.stage("widths", lambda: _widths(settings, by_width))
    lab.follow(
        "passes", net(settings.width), own["La-MAML"], family, settings.pass_tasks, seeds=seeds,
        passes=settings.passes, looks=LOOKS,
    )  # fmt: skip


def _table(found: dict[tuple[str, str], Any]) -> Arrays:
    """In percent: accuracy at the end, and the same less that just after each task; means over tasks."""

    def percent(one: Any, less: float) -> np.ndarray:
        return 100 * (np.asarray(one["retained"]) - less * np.asarray(one["learned"])).mean(1)

    arrays = {
        name: np.array([[percent(found[stream, method], less) for method in METHODS] for stream in STREAMS])
        for name, less in (("retained", 0.0), ("transfer", 1.0))
    }
    arrays = {name: array.transpose(2, 0, 1) for name, array in arrays.items()}
    return Arrays(arrays, **dict.fromkeys(arrays, "seed stream method"))


def _widths(settings: ContinualMnist, found: list[Any]) -> Arrays:
    """Percent of all weights closed at the end, and retained accuracy."""
    closed = []
    for width, one in zip(settings.widths, found, strict=True):
        sizes = np.array([settings.size**2 * width, width * width, 10 * width])
        closed.append(100 * np.asarray(one["closed"])[:, -1, ::2] @ sizes / sizes.sum())
    retained = [100 * np.asarray(one["retained"]).mean(1) for one in found]
    return Arrays(
        {"width": np.array(settings.widths), "closed": np.array(closed).T, "retained": np.array(retained).T},
        width="width", closed="seed width", retained="seed width",
    )  # fmt: skip


def _of(r: Any, quantity: str, method: str) -> np.ndarray:
    """By seed and stream."""
    return np.asarray(r["table"][quantity])[:, :, METHODS.index(method)]


def _beside(quantity: str, method: str) -> Any:
    """Points above what the table prints, by seed and stream."""
    return lambda r: _of(r, quantity, method) - np.array(PRINTED[method][quantity == "transfer"])


def _above(method: str, *others: str) -> Any:
    """Points of retained accuracy above others, by seed, and stream and other."""
    return lambda r: np.concatenate(
        [_of(r, "retained", method) - _of(r, "retained", other) for other in others], axis=1
    )


def _closed(r: Any, method: str) -> np.ndarray:
    """Percent of weights, without biases, that are closed at the end of rotations, by seed and layer."""
    return 100 * np.asarray(r[f"rotations {method}"]["closed"])[:, -1, ::2]


def _by_layer(r: Any) -> np.ndarray:
    """Points by which each layer is more closed than the one before, of both methods, by seed."""
    return np.concatenate([np.diff(_closed(r, method), axis=1) for method in LEARNED], axis=1)


def _within(r: Any) -> np.ndarray:
    """Points that close in the first tenth of a task, less those in the last, mean over tasks but the first."""
    closed = 100 * np.asarray(r["passes"]["closed"])[:, :, ::2].mean(2)
    steps = np.diff(closed, axis=1).reshape(len(closed), -1, LOOKS)
    return (steps[:, 1:, 0] - steps[:, 1:, -1]).mean(1)


def _printed(quantity: str, method: str, name: str) -> Claim:
    words = {"retained": "retained accuracy", "transfer": "backward transfer and interference"}
    return Claim(
        name, f"{words[quantity]} of {method} is what the thesis has, within 1.5 points, on each stream",
        _beside(quantity, method), two_sided(1.5, around=0.0), printed(TABLE),
        measures=f"percent, less {', '.join(map(str, PRINTED[method][quantity == 'transfer']))}: mean over seeds of each stream",
        quantifier="mean", at_least=10, reported=Reported(PRINTED[method][quantity == "transfer"]),
    )  # fmt: skip


CLAIMS = (
    Claim(
        "learns", "La-MAML tells more of all tasks at the end than guesses would, by far",
        lambda r: _of(r, "retained", "La-MAML"), above(30.0), ours("premise"),
        measures="percent retained: mean over seeds of each stream", quantifier="mean",
    ),
    _printed("retained", "La-MAML", "la-maml-retains"),
    _printed("transfer", "La-MAML", "la-maml-forgets"),
    _printed("retained", "sparse-La-MAML", "sparse-retains"),
    _printed("transfer", "sparse-La-MAML", "sparse-forgets"),
    Claim(
        "above-baselines",
        "La-MAML and sparse-La-MAML retain more than descent without memory and than GEM, on each " "stream",
        lambda r: np.concatenate([_above(method, "SGD", "GEM")(r) for method in LEARNED], axis=1), above(0.0),
        printed(TABLE), measures="points of retained accuracy above each: mean over seeds of each stream",
        quantifier="mean",
    ),
    Claim(
        "above-replay", "both retain more than experience replay, which keeps the same memory",
        lambda r: np.concatenate([_above(method, "replay")(r) for method in LEARNED], axis=1), above(0.0),
        ours("whether looking ahead helps"),
        measures="points of retained accuracy above it: mean over seeds of each stream", quantifier="mean",
    ),
    Claim(
        "above-mer", "both retain as much as MER or more, on each stream",
        lambda r: np.concatenate([_above(method, "MER")(r) for method in LEARNED], axis=1), above(-0.5), printed(TABLE),
        measures="points of retained accuracy above it: mean over seeds of each stream", quantifier="mean",
        premises=("learns",),
    ),
    Claim(
        "masks-are-enough", "masks alone retain as much as learned rates or more, on each stream",
        _above("sparse-La-MAML", "La-MAML"), above(-0.5), printed(TABLE),
        measures="points of retained accuracy of sparse-La-MAML above La-MAML: mean over seeds of each stream",
        quantifier="mean", premises=("learns",),
    ),
    Claim(
        "closes", "a tenth of the last layer's weights close or more, with rates and with masks alike",
        lambda r: np.stack([_closed(r, method)[:, 2] for method in LEARNED], axis=1), above(10.0),
        printed("Fig. 4.3 left, centre"), measures="percent closed at the end of rotations: mean over seeds",
        quantifier="mean",
    ),
    Claim(
        "closes-towards-output", "each layer closes more than the one before it", _by_layer, above(0.0),
        printed("Fig. 4.3 left, centre"),
        measures="points of closed weights, layer above the one before: mean over seeds", quantifier="mean",
    ),
    Claim(
        "less-in-large", "the widest networks close less than half of what the narrowest do",
        lambda r: r["widths"]["closed"][:, 0] - 2 * r["widths"]["closed"][:, -1], above(0.0), printed("Fig. 4.3 right"),
        measures="percent closed of the narrowest less twice that of the widest: mean over seeds", quantifier="mean",
    ),
    Claim(
        "more-retained-in-large", "and retain more",
        lambda r: r["widths"]["retained"][:, -1] - r["widths"]["retained"][:, 0], above(0.0), printed("Fig. 4.3 right"),
        measures="points of retained accuracy above the narrowest: mean over seeds", quantifier="mean",
    ),
    Claim(
        "closes-at-switches", "in several passes more closes at the start of a task than at its end", _within,
        above(0.0), printed("Fig. 4.4"),
        measures="points closed in the first tenth of a task less those in its last, mean over tasks and seeds",
        quantifier="mean",
    ),
)  # fmt: skip


def _bars(quantity: str, stream: int) -> Any:
    """Each seed's number, and what the table prints."""

    def lines(r: Any) -> list[Line]:
        own = np.asarray(r["table"][quantity])[:, stream]
        known = [(index, PRINTED[name][quantity == "transfer"][stream])
                 for index, name in enumerate(METHODS) if name in PRINTED]  # fmt: skip
        return [
            Line(np.arange(len(METHODS)), own, "trained", "each seed", each=True, marks="o"),
            Line([place for place, _ in known], [value for _, value in known], "gd", "thesis", marks="_"),
        ]

    return lines


def _bar(quantity: str, stream: int) -> Lines:
    label = {"retained": "retained accuracy (%)", "transfer": "backward transfer (points)"}[quantity]
    limits = {"xticks": range(len(METHODS)), "xticklabels": [name.replace("sparse-", "sparse-\n") for name in METHODS]}
    return Lines(STREAMS[stream], "", label, _bars(quantity, stream), limits=limits)


def _shares(method: str) -> Any:
    def lines(r: Any) -> list[Line]:
        shares = 100 * np.asarray(r[f"rotations {method}"]["closed"])
        return [
            Line(range(shares.shape[1]), shares[:, :, index], index / (len(PARAMETERS) - 1), name)
            for index, name in enumerate(PARAMETERS)
        ]

    return lines


def _sizes(quantity: str, role: str) -> Any:
    return lambda r: [Line(r["widths"]["width"], r["widths"][quantity], role, quantity, marks="o-")]


def _passes(r: Any) -> list[Line]:
    shares = 100 * np.asarray(r["passes"]["closed"])
    tasks = np.arange(shares.shape[1]) / LOOKS
    return [
        Line(tasks, shares[:, :, index], index / (len(PARAMETERS) - 1), name) for index, name in enumerate(PARAMETERS)
    ]


FIGURES = (
    Figure(
        "table", "What methods retain of all tasks at the end, and that less what they knew of each task just after "
        "it: each seed, and the means that the thesis prints in Table 4.5.",
        tuple(_bar(quantity, stream) for quantity in ("retained", "transfer") for stream in range(3)), size=(13, 6.5),
        shared_legend=True, claims=(
            "learns", "la-maml-retains", "la-maml-forgets", "sparse-retains", "sparse-forgets", "above-baselines",
            "above-replay", "above-mer", "masks-are-enough",
        ),
    ),
    Figure(
        "closed", "Percent of each parameter's entries that do not change while a network learns turned images; mean "
        "and range over seeds. Thesis: Fig. 4.3, left and centre.",
        tuple(Lines(method, "tasks", "closed (%)", _shares(method)) for method in LEARNED), columns=2,
        shared_legend=True, claims=("closes", "closes-towards-output"),
    ),
    Figure(
        "widths", "Percent of all weights that no longer change after turned images, and what is retained of them, by "
        "the width of a network that learns masks; mean and range over seeds. Thesis: Fig. 4.3, right.",
        (
            Lines("", "width", "closed (%)", _sizes("closed", "gd"), log="x"),
            Lines("", "width", "retained accuracy (%)", _sizes("retained", "trained"), log="x"),
        ), columns=2, claims=("less-in-large", "more-retained-in-large"),
    ),
    Figure(
        "passes", "Percent of entries that do not change where La-MAML sees each task several times; mean and range "
        "over seeds. Thesis: Fig. 4.4.", (Lines("", "tasks", "closed (%)", _passes),), columns=1, size=(7, 3.5),
        claims=("closes-at-switches",),
    ),
)  # fmt: skip

STUDY = Study(
    name="continual-mnist",
    source="von Oswald's thesis, section 4.4.1",
    presets={
        "quick": ContinualMnist(
            dataset="digits", size=8, tasks=5, many_tasks=10, samples=200, many_samples=60, queries=400, width=50,
            widths=(10, 50), mer_batches=1, passes=3, pass_tasks=2, seeds=5,
        ),
        "paper": ContinualMnist(),
    },
    measure=measure,
    trainings=lambda settings: 22 + len(settings.widths),
    claims=CLAIMS,
    figures=FIGURES,
    deviations=(
        "Ten seeds in place of five: the intervals are of Student's t at 99.9 %.",
        "The outer loss of La-MAML is the mean over its inner steps, as in the code that the numbers are of.",
        "Accuracy is measured on 1,000 test images of each task, in place of all 10,000.",
    ),
)  # fmt: skip
