"""Do masks help a learner that meets tasks which switch unannounced, and return?

Thesis: section 4.4.2 and Table 4.6. Each batch of a stream is judged before it is learned from; now and then the task
switches from one dataset to another. Continual MAML, with and without masks and rectified rates, starts from what its
method learned before on other classes, fine-tuning from what MAML learned there, and online descent afresh.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mesascope import meta, nets, tasks
from mesascope.errors import ArgumentTypeError, require_count, require_number, shown
from mesascope.evidence import Arrays, Claim, above, ours, printed, two_sided
from mesascope.reports import Figure, Line, Lines
from mesascope.study import Study, strip
from mesascope.training import ParameterGroup, Training

if TYPE_CHECKING:
    from mesascope.studies.lab import Lab

TABLE = "Table 4.6"
METHODS = {
    "online-sgd": "online SGD", "online-adam": "online Adam", "fine-tuning": "fine-tuning", "maml": "C-MAML",
    "sparse-maml": "sparse-C-MAML", "sparse-relu-maml": "sparse-ReLU-C-MAML",
}  # fmt: skip
CONTINUAL = ("maml", "sparse-maml", "sparse-relu-maml")
# Optimisers of baselines and their rates, and inner rates of the others and those of what they learn besides, that told
# most on streams of other seeds.
DESCENT: dict[str, tuple[Any, float]] = {
    "online-sgd": ("sgd", 0.2),
    "online-adam": ("adam", 3e-3),
    "fine-tuning": ("sgd", 0.1),
}
TUNED = {"maml": (0.1, 0.0075), "sparse-maml": (0.2, 0.02), "sparse-relu-maml": (0.05, 0.003)}
# Parts of a stream that are averaged over.
PARTS = 20


@dataclass(frozen=True)
class ContinualOnline:
    """Settings of the study."""

    domains: tuple[str, ...] = ("omniglot", "omniglot", "mnist", "fashion-mnist")
    """Datasets that tasks are of, named as often as they are likely."""
    stays: tuple[float, ...] = (0.9, 0.98)
    """Probabilities that a task goes on."""
    steps: int = 1000
    """Batches of a stream."""
    ways: int = 10
    """Classes of a task."""
    shots: int = 5
    """Images of each class in a batch."""
    architecture: str = "convnet4"
    """The network: convnet4 or mlp."""
    width: int = 16
    """Its filters, or units."""
    size: int = 28
    """Pixels of a side."""
    inner_lr: float | None = None
    """Of the fast weights; each method's own, found on other streams, if None."""
    inner_steps: int = 5
    """Steps of the fast weights on a batch."""
    threshold: float = 1.5
    """Loss above that of fresh weights by which a switch is told."""
    before: str = "omniglot"
    """Dataset whose training part weights are meta-learned on before."""
    pretraining: Training = field(
        default_factory=lambda: Training(500, 2, learning_rate=1e-3, schedule="constant", evaluate_every=500)
    )
    """How."""
    seeds: int = 6
    """Streams and networks."""

    def __post_init__(self) -> None:
        for name in ("steps", "ways", "shots", "width", "size", "inner_steps"):
            require_count(name, getattr(self, name))
        require_number("threshold", self.threshold, above=0)
        if self.inner_lr is not None:
            require_number("inner_lr", self.inner_lr, above=0)
        if isinstance(self.stays, float) or not self.stays:
            raise ArgumentTypeError(f"stays must be probabilities, but is {shown(self.stays)}: pass (0.9,), say.")

    def source(self, stay: float) -> tasks.SwitchingImages:
        """Streams of tasks that go on with a probability."""
        return tasks.SwitchingImages(stay, self.ways, self.shots, self.domains, self.size, "test")

    def network(self) -> Any:
        """The network of all methods."""
        return nets.ClassifierConfig(self.architecture, self.width, size=self.size, classes=self.ways)

    def learner(self, method: str) -> Any:
        """The network and a method of its inner steps."""
        rate = TUNED[method][0] if self.inner_lr is None else self.inner_lr
        return meta.MetaLearnerConfig(self.network(), method, rate, self.inner_steps)


def measure(lab: Lab, settings: ContinualOnline) -> None:
    """Learn on other classes first, then follow streams of each probability with each method."""
    for stay in settings.stays:  # before anything trains, as a dataset may be missing
        settings.source(stay).stream(settings.steps, lab.seeds[0])
    learned = {name: _before(lab, settings, name) for name in CONTINUAL}
    starts: dict[str, list[Any]] = {name: [one.state_dict() for one in group] for name, group in learned.items()}
    starts["fine-tuning"] = [one.model.state_dict() for one in learned["maml"]]
    for stay in settings.stays:
        for name in METHODS:
            given = starts.get(name, [None] * len(lab.seeds))
            lab.stage(f"{name} {stay}", lambda name=name, stay=stay, given=given: _followed(
                lab, settings, name, stay, given))  # fmt: skip


def _before(lab: Lab, settings: ContinualOnline, name: str) -> list[Any]:
    """Learners of a method, one a seed, that meta-learned on other classes."""
    family = tasks.FewShotImages(settings.before, settings.ways, 1, 4, settings.size)
    groups = [] if name == "maml" else [ParameterGroup(("method.*",), learning_rate=TUNED[name][1])]
    return lab.train(
        f"before {name}", settings.learner(name), family, settings.pretraining, loss=meta.outer_loss,
        parameter_groups=groups,
    )  # fmt: skip


def _method(settings: ContinualOnline, name: str) -> Any:
    if name in CONTINUAL:
        return meta.ContinualMAML(settings.learner(name), mask_lr=TUNED[name][1], threshold=settings.threshold)
    optimizer, rate = DESCENT[name]
    plan = Training(learning_rate=rate, optimizer=optimizer, schedule="constant")
    return meta.OnlineDescent(settings.network(), plan, steps=settings.inner_steps)


def _followed(lab: Lab, settings: ContinualOnline, name: str, stay: float, starts: list[Any]) -> Arrays:
    """In percent, by seed: accuracy before learning, and share closed where masks are learned, over parts of a stream.

    Besides the accuracy on all of it, and on first batches of tasks less what guesses would tell.
    """
    from mesascope.training import ProgressBar, fit

    source = settings.source(stay)
    rows: list[list[Any]] = []
    first = np.ones((len(lab.seeds), settings.steps), dtype=bool)
    for index, (seed, start) in enumerate(zip(lab.seeds, starts, strict=True)):
        state, batches = _method(settings, name).state(seed, start, lab.device), source.stream(settings.steps, seed)
        first[index, 1:] = (batches.tasks[1:] != batches.tasks[:-1]).numpy()
        plan, seen = Training(settings.steps), []
        with ProgressBar(f"{name} {stay}, seed {seed}", settings.steps) as bar:

            def told(step: int, metrics: Any, seen: list[Any] = seen, bar: Any = bar) -> None:
                seen.append(metrics)
                bar(step, metrics)

            def drawn(step: int, batches: Any = batches) -> Any:
                return tasks.Context(*(part.to(lab.device) for part in batches(step)))

            fit(state, drawn, plan, observe=told)
        rows.append(seen)
    keys = ["accuracy", *(["closed"] if name.startswith("sparse") else [])]
    numbers = {key: np.array([[one[key] for one in row] for row in rows]) for key in keys}
    parts = {key: 100 * np.stack([one.mean(1) for one in np.array_split(array, PARTS, 1)], 1)
             for key, array in numbers.items()}  # fmt: skip
    whole = {
        "total": 100 * numbers["accuracy"].mean(1),
        "surprised": 100 * (numbers["accuracy"].mean(1, where=first) - 1 / settings.ways),
    }
    return Arrays(parts | whole, **dict.fromkeys(keys, "seed part"), **dict.fromkeys(whole, "seed"))


def _stays(r: Any) -> list[str]:
    return [name.removeprefix("maml ") for name in r if name.startswith("maml ")]


def _above(name: str, *others: str) -> Any:
    """Points of cumulative accuracy above others, by seed, and stream and other."""
    return lambda r: np.stack(
        [r[f"{name} {stay}"]["total"] - r[f"{other} {stay}"]["total"] for stay in _stays(r) for other in others], axis=1
    )


POINTS = "points of accuracy before learning, mean over a stream: mean over seeds of each kind of stream"
CLAIMS = (
    Claim(
        "learns", "continual MAML tells more than guesses would, by far",
        lambda r: np.stack([r[f"maml {stay}"]["total"] for stay in _stays(r)], axis=1), above(40.0), ours("premise"),
        measures="percent of images before learning from " "them, mean over a stream: mean over seeds of each kind of stream",
        quantifier="mean",
    ),
    Claim(
        "surprised", "no method tells more or less of a task's first batch than guesses would, within 20 points",
        lambda r: np.stack([r[f"{name} {stay}"]["surprised"] for stay in _stays(r) for name in METHODS], axis=1),
        two_sided(20.0, around=0.0), ours("a null control: nobody knows how a task numbers its classes"),
        measures="points above guesses, mean over first batches: mean over seeds of each method and stream",
        quantifier="mean", premises=("learns",),
    ),
    Claim(
        "above-online", "continual MAML tells more than online SGD, online Adam and fine-tuning",
        _above("maml", "online-sgd", "online-adam", "fine-tuning"), above(0.0), printed(TABLE), measures=POINTS,
        quantifier="mean", premises=("surprised",),
    ),
    Claim(
        "masks-help", "with masks it tells more than without", _above("sparse-maml", "maml"), above(0.0),
        printed(TABLE), measures=POINTS, quantifier="mean", premises=("surprised",),
    ),
    Claim(
        "relu-helps", "and so it does with rectified rates", _above("sparse-relu-maml", "maml"), above(0.0),
        printed(TABLE), measures=POINTS, quantifier="mean", premises=("surprised",),
    ),
    Claim(
        "closes", "masks that start half closed close further",
        lambda r: np.stack([r[f"sparse-maml {stay}"]["closed"][:, -1] for stay in _stays(r)], axis=1), above(52.0),
        ours("whether sparsity emerges"), measures="percent closed in the last part of a stream: mean over seeds",
        quantifier="mean", premises=("surprised",),
    ),
)  # fmt: skip


def _totals(r: Any) -> dict[str, Any]:
    return {
        f"tasks stay with probability {stay}": {name: r[f"{name} {stay}"]["total"] for name in METHODS}
        for stay in _stays(r)
    }


def _closed(r: Any) -> list[Line]:
    shown = [(name, stay) for name in ("sparse-maml", "sparse-relu-maml") for stay in _stays(r)]
    return [
        Line(np.arange(1, PARTS + 1) / PARTS, r[f"{name} {stay}"]["closed"], index / len(shown),
             f"{METHODS[name]}, {stay}")
        for index, (name, stay) in enumerate(shown)
    ]  # fmt: skip


FIGURES = (
    Figure(
        "accuracy",
        "Accuracy on each batch before it is learned from, mean over a stream, each seed. Thesis: Table 4.6.",
        (strip("accuracy (%)", METHODS, _totals),),
        columns=1, size=(10, 3.6), claims=("learns", "surprised", "above-online", "masks-help", "relu-helps"),
    ),
    Figure(
        "closed", "Percent of entries that inner steps do not change, along a stream; mean and range over seeds.",
        (Lines("", "share of the stream", "closed (%)", _closed),), columns=1, size=(7, 3.4), claims=("closes",),
    ),
)  # fmt: skip

STUDY = Study(
    name="continual-online",
    source="von Oswald's thesis, section 4.4.2",
    presets={
        "quick": ContinualOnline(
            domains=("digits",), stays=(0.9,), steps=150, ways=5, architecture="mlp", width=32, size=8,
            inner_lr=0.5, before="digits",
            pretraining=Training(50, 4, learning_rate=3e-3, schedule="constant", evaluate_every=50),
        ),
        "paper": ContinualOnline(),
    },
    measure=measure,
    trainings=3,
    claims=CLAIMS,
    figures=FIGURES,
    deviations=(
        "Streams of 1,000 batches in place of 10,000, of networks of 16 filters.",
        "Numbers of Table 4.6 are lost in the thesis' text: claims are of the order of methods.",
    ),
)  # fmt: skip
