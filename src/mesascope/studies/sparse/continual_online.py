"""Do masks help on a stream whose tasks switch unannounced, and return?

Thesis: section 4.4.2 and Table 4.6. Each batch is evaluated before the learner trains on it. At random steps a new
task starts: a randomly drawn dataset and a random choice of its classes. The three continual-MAML variants (no masks,
masks, rectified rates) start from weights that the same method meta-learned on other classes. Fine-tuning starts from
MAML's meta-learned weights. Online SGD, Adam and Bayesian gradient descent start from random weights.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

import numpy as np
from msgspec import Meta

from mesascope import meta, nets, study, tasks
from mesascope.studies.sparse.few_shot import SORTED, UNMASKED, no_gradient, points_above
from mesascope.studies.sparse.following import follow_batches
from mesascope.study import Arrays, Claim, Count, Figure, Line, Mutation, Positive, Reading, Training, above, ours

SECTION = "section 4.4.2"
METHODS = {
    "online-sgd": "online SGD", "online-adam": "online Adam", "fine-tuning": "fine-tuning", "bgd": "BGD",
    "maml": "C-MAML", "sparse-maml": "sparse-C-MAML", "sparse-relu-maml": "sparse-ReLU-C-MAML",
}  # fmt: skip
BASELINES, MASKED = ("online-sgd", "online-adam", "fine-tuning", "bgd"), ("sparse-maml", "sparse-relu-maml")
# Optimisers and learning rates of the baselines: the best on streams of other seeds.
DESCENT: dict[str, tuple[Any, float]] = {
    "online-sgd": ("sgd", 0.2), "online-adam": ("adam", 3e-3), "fine-tuning": ("sgd", 0.1),
}  # fmt: skip
# Initial standard deviation, learning rate and draws of the weights of Bayesian gradient descent; and, for each
# variant of continual MAML, inner learning rate and learning rate of masks or rates. All are tuned likewise.
BAYES = (0.02, 500.0, 2)
TUNED = {"maml": (0.1, 0.0075), "sparse-maml": (0.2, 0.02), "sparse-relu-maml": (0.05, 0.003)}
# Number of parts of a stream; curves show the mean of each part.
PARTS = 20
BEFORE = Training(500, 2, learning_rate=1e-3, schedule="constant", evaluate_every=500)


@study.frozen
class ContinualOnline:
    domains: study.NonEmpty[str] = ("omniglot", "omniglot", "mnist", "fashion-mnist")
    """Datasets of the tasks; a dataset named twice is twice as likely."""
    stays: study.NonEmpty[study.Share] = (0.9, 0.98)  # Probabilities that a task continues, one per kind of stream.
    steps: Annotated[int, Meta(ge=PARTS)] = 1000  # Batches of a stream.
    ways: Count = 10  # Classes of a task.
    shots: Count = 5  # Images of each class in a batch.
    architecture: Literal["convnet4", "resnet12", "mlp"] = "convnet4"  # Network: convnet4, resnet12 or mlp.
    width: Count = 16  # Filters, or units, of the network.
    size: Count = 28  # Pixels of a side.
    inner_lr: Positive | None = None  # Learning rate of the fast weights; each method's tuned rate if None.
    inner_steps: Count = 5  # Steps of the fast weights on a batch.
    threshold: Positive = 1.5  # A new task is detected if a restart lowers the loss by this.
    before: str = "omniglot"  # Dataset for meta-learning before the stream (training part).
    pretraining: Training = BEFORE  # Meta-learning before the stream.
    seeds: Count = 8  # Streams and networks.

    def source(self, stay: float) -> Any:
        """Streams whose tasks continue at each step with probability ``stay``."""
        return tasks.SwitchingImages(stay, self.ways, self.shots, self.domains, self.size, "test")

    def network(self) -> nets.ClassifierConfig:
        """The network of all methods."""
        return nets.ClassifierConfig(self.architecture, self.width, size=self.size, classes=self.ways)

    def learner(self, method: str) -> meta.MetaLearnerConfig:
        """Config of the network and the method of its inner steps."""
        rate = TUNED[method][0] if self.inner_lr is None else self.inner_lr
        return meta.MetaLearnerConfig(self.network(), method, rate, self.inner_steps)


def measure(lab: study.Lab, settings: ContinualOnline) -> None:
    streams = {  # before anything trains, as a dataset may be missing
        stay: [settings.source(stay).stream(settings.steps, seed) for seed in lab.seeds] for stay in settings.stays
    }
    learned = {name: _before(lab, settings, name) for name in TUNED}
    starts = {name: (f"before {name}", [one.state_dict() for one in group]) for name, group in learned.items()}
    starts["fine-tuning"] = "before maml", [one.model.state_dict() for one in learned["maml"]]
    for stay, own in streams.items():
        first = np.stack([np.diff(one.tasks.numpy(), prepend=-1) > 0 for one in own])
        for name in METHODS:
            method, network = _method(settings, name)
            metrics = follow_batches(lab, f"{name} {stay}", method, network, own, *starts.get(name, ("", None)))
            lab.stage(f"{name} {stay}", _percent, metrics, first, settings.ways)


def _before(lab: study.Lab, settings: ContinualOnline, name: str) -> list[Any]:
    """Learners of a method that meta-learned on other classes, one per seed."""
    family = tasks.FewShotImages(settings.before, settings.ways, 1, 4, settings.size)
    groups = [study.ParameterGroup(("method.*",), learning_rate=TUNED[name][1])] if name in MASKED else []
    plan, loss = settings.pretraining, meta.outer_loss
    return lab.train(f"before {name}", settings.learner(name), family, plan, loss=loss, parameter_groups=groups)


def _method(settings: ContinualOnline, name: str) -> tuple[Any, Any]:
    """A method of online learning, and the config of what it trains."""
    if name in TUNED:
        learner = settings.learner(name)
        return meta.ContinualMAML(learner, mask_lr=TUNED[name][1], threshold=settings.threshold), learner
    if name == "bgd":
        return meta.BayesianDescent(settings.network(), *BAYES, settings.inner_steps), settings.network()
    optimizer, rate = DESCENT[name]
    plan = Training(learning_rate=rate, optimizer=optimizer, schedule="constant")
    return meta.OnlineDescent(settings.network(), plan, steps=settings.inner_steps), settings.network()


def _percent(metrics: Mapping[str, np.ndarray], first: np.ndarray, ways: int) -> Arrays:
    """Accuracy before learning and closed share of learned masks or rates, by part of a stream, in percent.

    ``total`` is the accuracy on the whole stream, ``surprised`` that on first batches of tasks minus chance.
    ``detected`` is the percentage of first batches (from the second task on) that a method detects as a new task, minus
    that of other batches.
    """
    accuracy = metrics["accuracy"]
    parts = {
        key: 100 * np.stack([one.mean(1) for one in np.array_split(metrics[key], PARTS, 1)], 1)
        for key in ("accuracy", "closed") if key in metrics
    }  # fmt: skip
    whole = {"total": 100 * accuracy.mean(1), "surprised": 100 * (accuracy.mean(1, where=first) - 1 / ways)}
    if "switch" in metrics:
        found, starts = metrics["switch"][:, 1:], first[:, 1:]
        whole["detected"] = 100 * (found.mean(1, where=starts) - found.mean(1, where=~starts))
    return Arrays(parts | whole, **dict.fromkeys(parts, "seed part"), **dict.fromkeys(whole, "seed"))


def _stays(r: Any) -> list[str]:
    return [name.removeprefix("maml ") for name in r if name.startswith("maml ")]


def _totals(r: Any, names: Iterable[str] = METHODS) -> dict[str, dict[str, np.ndarray]]:
    """Accuracies on a whole stream by method, for each kind of stream."""
    return {stay: {name: r[f"{name} {stay}"]["total"] for name in names} for stay in _stays(r)}


def _each(key: str, words: str, *names: str) -> Reading:
    """Numbers of methods, ``(seeds, streams * methods)``."""
    return Reading(words, lambda r: np.stack(
        [r[f"{name} {stay}"][key] for stay in _stays(r) for name in names], axis=1))  # fmt: skip


def _early(name: str) -> Reading:
    """Accuracy of a method in the first quarter of a stream, ``(seeds, streams)``."""
    words = f"accuracy of {METHODS[name]} in the first quarter of a stream"
    return _each("accuracy", words, name).map(lambda parts: parts[..., : PARTS // 4].mean(-1), words)


def _above(name: str, *others: str) -> Reading:
    return points_above(name, *others, of=lambda r: _totals(r, (name, *others)).values(), names=METHODS)


def _closed(r: Any) -> list[Line]:
    shown, along = [(name, stay) for name in MASKED for stay in _stays(r)], np.arange(1, PARTS + 1) / PARTS
    return [Line(along, r[f"{name} {stay}"]["closed"], index / len(shown), f"{METHODS[name]}, {stay}")
            for index, (name, stay) in enumerate(shown)]  # fmt: skip


_ONLINE = "mesascope.meta.online"


def _judged_late(update: Any) -> Any:
    """Show each batch to learners twice, and judge them the second time."""

    def twice(self: Any, batches: Any) -> Any:
        for state, batch in zip(self.states, batches, strict=True):
            state.update(batch)
        return update(self, batches)

    return twice


def _one_task(call: Any) -> Any:
    def wrong(self: Any, step: int) -> Any:
        switching, self.tasks = self.tasks, np.zeros(len(self.tasks), dtype=int)
        try:
            return call(self, step)
        finally:
            self.tasks = switching

    return wrong


STUDY = study.Study(
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
    measure=measure, trainings=lambda settings: len(TUNED) + len(METHODS) * len(settings.stays),
    premises=("surprised",), quantifier="median", claims=(),
    figures=(
        Figure("accuracy", "Accuracy on each batch before it is learned from, mean over a stream, each seed. Thesis: "
               "Table 4.6.", (
            study.strip("accuracy (%)", METHODS,
                        lambda r: {
                            f"tasks stay with probability {stay}": totals for stay, totals in _totals(r).items()}),
        ), size=(10, 3.6), claims=(
            Claim("learns", "continual MAML's accuracy along a stream is above 40 %, where chance is at most 20 %",
                  _each("total", "accuracy before learning in percent, mean over a stream", "maml"), above(40.0),
                  ours("premise"), premises=()),
            Claim("surprised", "on a task's first batch, the accuracy of every method is near chance, within 10 points "
                  "(20 for the few first batches of quick)",
                  _each("surprised", "points of accuracy above chance, mean over first batches", *METHODS),
                  {"quick": study.two_sided(20.0, around=0.0), "paper": study.two_sided(10.0, around=0.0)},
                  ours("a null control: how a task numbers its classes is random"), premises=("learns",),
                  former="bound in [-20, 20], undecided"),
            Claim("baselines-learn", "each baseline's accuracy along a stream is above 30 %, where chance is at most "
                  "20 %",
                  _each("total", "accuracy before learning in percent, mean over a stream", *BASELINES), above(30.0),
                  ours("premise"), premises=()),
            Claim("starts-help", "in the first quarter of a stream, fine-tuning from meta-learned weights is more "
                  "accurate than online SGD from random ones",
                  _early("fine-tuning") - _early("online-sgd"), above(0.0),
                  ours("control: networks start from meta-learned weights"), premises=()),
            Claim("detects", "continual MAML flags a larger share of the first batches of tasks than of other batches "
                  "as the start of a new task",
                  _each("detected", "percent of first batches flagged - of other batches", *TUNED), above(0.0),
                  ours("control: restarts follow the tasks"), premises=("learns",)),
            Claim("above-online", "continual MAML is more accurate than online SGD",
                  _above("maml", "online-sgd"), above(0.0), study.printed(SECTION),
                  premises=("surprised", "baselines-learn"), former="also than online Adam and fine-tuning, held"),
            Claim("above-others", "continual MAML is more accurate than online Adam and fine-tuning",
                  _above("maml", "online-adam", "fine-tuning"), above(0.0), ours("further baselines"),
                  premises=("surprised", "baselines-learn")),
            Claim("above-bgd", "continual MAML is more accurate than Bayesian gradient descent",
                  _above("maml", "bgd"), above(0.0), study.derived(f"{SECTION}: algorithms for such streams"),
                  premises=("surprised", "baselines-learn"), former="printed, held"),
            Claim("masks-help", "continual MAML is more accurate with masks than without",
                  _above("sparse-maml", "maml"), above(0.0), study.printed(SECTION)),
            Claim("masks-cost-little", "continual MAML's accuracy with masks is within 2 points of that without",
                  _above("sparse-maml", "maml"), study.two_sided(2.0, around=0.0),
                  ours("equivalence: nearly half of the entries are closed")),
            Claim("relu-helps", "continual MAML is more accurate with rectified rates than without",
                  _above("sparse-relu-maml", "maml"), above(0.0), study.printed("Table 4.6, caption")),
            Claim("relu-as-masks", "continual MAML's accuracies with rectified rates and with masks differ by at most "
                  "one point", _above("sparse-relu-maml", "sparse-maml"), study.two_sided(1.0, around=0.0),
                  study.printed(SECTION)),
        )),
        Figure("closed", "Percent of entries that inner steps do not change, along a stream; mean and range over "
               "seeds.", (study.Lines("", "share of the stream", "closed (%)", _closed),), size=(7, 3.4), claims=(
            Claim("masks-learn", "control: the share of closed entries changes along some stream",
                  _each("closed", "percent closed", "sparse-maml").map(
                      lambda closed: np.abs(closed[..., -1] - closed[..., 0]).max(0),
                      "largest change of the percent closed, in points, for each kind of stream"),
                  above(0.0), ours("control: masks are applied"), quantifier="exact",
                  exact_because="shares of the same masks are compared", at_least=1, over="learners",
                  about="algorithms"),
            Claim("closes", "a larger share of entries is closed by masks in the last part of a stream than in the "
                  "first",
                  _each("closed", "percent closed", "sparse-maml").map(
                      lambda closed: closed[..., -1] - closed[..., 0], "points closed more in the last part"),
                  above(0.0), study.printed(SECTION), former="ours: more than 52 % closed at the end, failed"),
        )),
    ),
    mutations=(
        Mutation("batches are judged after they were learned from",
                 "mesascope.studies.sparse.following:Streams.update", _judged_late, anew=True),
        Mutation("all tasks of a stream are its first", "mesascope.tasks.image_tasks:ImageStream.__call__", _one_task,
                 anew=True),
        SORTED,
        Mutation("Bayesian gradient descent changes nothing", f"{_ONLINE}:BayesianDescentState._learn",
                 lambda learn: lambda self, batch: None, anew=True),
        Mutation("no task is taken for a new one", f"{_ONLINE}:ContinualMAMLState._is_new",
                 lambda is_new: lambda self, batch, loss: False, anew=True),
        UNMASKED,
        Mutation("labels are those of other images", f"{_ONLINE}:accuracy",
                 lambda accuracy: lambda scores, targets: accuracy(scores, targets.roll(1, -2)), anew=True),
        Mutation("fast weights restart at each batch", f"{_ONLINE}:ContinualMAMLState._adapted",
                 lambda adapted: lambda self, batch, start: adapted(self, batch, None), anew=True),
        Mutation("each batch is taken for the first of a task", f"{_ONLINE}:ContinualMAMLState._is_new",
                 lambda is_new: lambda self, batch, loss: True, anew=True),
        Mutation("networks are untrained", "mesascope.meta.maml:MAML._gradients", no_gradient, anew=True),
        Mutation("first batches of tasks are counted a step late", f"{__name__}:_percent",
                 lambda percent: lambda metrics, first, *rest: percent(metrics, np.roll(first, 1, 1), *rest)),
    ),
    mutated={
        "steps": 60, "stays": (0.8,), "inner_steps": 3,
        "pretraining": Training(40, 4, learning_rate=3e-3, schedule="constant", evaluate_every=40),
    },
    unlike="10,000 batches a stream, and wider networks",
    deviations=(
        "Streams of 1,000 batches in place of 10,000, of networks of 16 filters.",
        "Five inner steps on each batch in place of sixteen, and one threshold for both kinds of stream.",
        "Bayesian gradient descent updates its posterior five times on each batch.",
        "Numbers of Table 4.6 are lost in the thesis' text: claims are about the order of methods.",
    ),
)  # fmt: skip
