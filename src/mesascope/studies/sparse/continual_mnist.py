"""Do learned rates and masks keep what was learned, and do they become 0?

Thesis: Table 4.5 and Figs. 4.3 and 4.4. A network of two hidden layers learns one task after another: rotated images,
or images with permuted pixels. A method sees each batch of ten images once (in one comparison, ten times), and may
store up to 1,000 past images.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mesascope import meta, nets, study, tasks
from mesascope.streams import stream
from mesascope.studies.sparse import continual_bugs as bugs
from mesascope.studies.sparse.following import follow
from mesascope.study import Arrays, Claim, Count, Figure, Line, Lines, Reading, Study, above, below, beside, ours, stage

STREAMS = ("rotations", "permutations", "many permutations")
METHODS = ("SGD", "replay", "GEM", "MER", "Sync", "La-MAML", "sparse-La-MAML")
LEARNED = ("La-MAML", "sparse-La-MAML")
ROTATIONS = tuple(f"rotations {method}" for method in LEARNED)
# Parameters of the network in the order of its state, and layer by layer.
PARAMETERS = ("W1", "b1", "W2", "b2", "W3", "b3")
# Evaluations during a task that is seen several times.
LOOKS = 10
TABLE, LEFT, RIGHT = map(study.printed, ("Table 4.5", "Fig. 4.3 left, centre", "Fig. 4.3 right"))
# Retained accuracy, and backward transfer and interference, in percent, by stream: Table 4.5.
PRINTED = {
    "SGD": {"retained": (53.38, 55.42, 32.62), "transfer": (-5.44, -13.76, -19.06)},
    "GEM": {"retained": (67.38, 55.42, 32.14), "transfer": (-18.02, -24.42, -23.52)},
    "MER": {"retained": (77.42, 73.46, 47.40), "transfer": (-5.60, -9.96, -17.78)},
    "La-MAML": {"retained": (77.42, 74.34, 48.46), "transfer": (-8.64, -7.60, -12.96)},
    "sparse-La-MAML": {"retained": (77.77, 76.88, 50.81), "transfer": (-8.16, -8.39, -13.73)},
}
WORDS = {"retained": "retained accuracy", "transfer": "backward transfer and interference"}
# Standard deviations of these over five seeds, and half the width of a mean's 99 % interval relative to them.
SPREADS = {
    "La-MAML": {"retained": (0.65, 0.67, 0.45), "transfer": (0.40, 0.51, 0.07)},
    "sparse-La-MAML": {"retained": (0.58, 0.72, 0.79), "transfer": (0.61, 0.63, 0.73)},
}
OF_FIVE = 4.604 / 5**0.5  # Student's t at 0.995 with 4 degrees of freedom
# Best learning rates on streams of other seeds: SGD, replay (with its number of glances), GEM, Sync's outer step, and
# alpha_0 of sparse-La-MAML, whose masks have the learning rate 1.
TUNED = {
    "rotations": (0.01, (0.3, 1), 0.1, 0.3, 0.15),
    "permutations": (0.03, (0.1, 5), 0.1, 0.03, 0.08),
    "many permutations": (0.03, (0.1, 5), 0.01, 0.1, 0.1),
}


@study.frozen
class ContinualMnist:
    dataset: str = "mnist"  # Dataset: mnist, or digits, which needs no download.
    size: Count = 28  # Pixels of a side.
    tasks: Count = 20  # Tasks of rotations and permutations.
    many_tasks: Count = 100  # Tasks of many permutations.
    samples: Count = 1000  # Training images of a task.
    many_samples: Count = 200  # Training images of a task of many permutations.
    queries: Count = 1000  # Test images of a task.
    width: Count = 100  # Units of each hidden layer.
    widths: study.NonEmpty[Count] = (25, 50, 100, 200)  # Units of each hidden layer, in the comparison of sizes.
    mer_batches: Count = 5  # Number of passes of MER over each image.
    passes: Count = 10  # Passes over a task in the training with several passes.
    pass_tasks: Count = 5  # Tasks of the training with several passes.
    seeds: Count = 16  # Streams and networks.
    side_seeds: Count = 8  # Streams and networks for the comparison of sizes and for several passes.


def methods(stream: str, mer_batches: int) -> dict[str, Any]:
    """Methods for a stream, as in Gupta et al. (2020) and von Oswald (2024); rates are tuned on other seeds."""
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


def measure(lab: study.Lab, settings: ContinualMnist) -> None:
    images = {"queries": settings.queries, "dataset": settings.dataset, "size": settings.size}
    turned = tasks.RotatedDigits(settings.samples, **images)
    streams = {
        "rotations": (turned, settings.tasks),
        "permutations": (tasks.PermutedDigits(settings.samples, **images), settings.tasks),
        "many permutations": (tasks.PermutedDigits(settings.many_samples, **images), settings.many_tasks),
    }

    def net(width: int) -> nets.ClassifierConfig:
        return nets.ClassifierConfig("mlp", width, size=settings.size, classes=10)

    found = {
        (stream, name): follow(lab, f"{stream} {name}", net(settings.width), method, family, count)
        for stream, (family, count) in streams.items()
        for name, method in methods(stream, settings.mer_batches).items()
    }
    lab.stage("table", _table, found)
    lab.stage("overlap", _overlap, lab, streams)
    own, seeds = methods("rotations", settings.mer_batches), lab.seeds[: settings.side_seeds]
    masked, rates, passes = own["sparse-La-MAML"], own["La-MAML"], settings.passes
    by_width = [follow(lab, f"width {width}", net(width), masked, turned, settings.tasks, seeds=seeds)
                for width in settings.widths]  # fmt: skip
    lab.stage("widths", _widths, settings, by_width)
    small = net(settings.width)
    follow(lab, "passes", small, rates, turned, settings.pass_tasks, seeds=seeds, passes=passes, looks=LOOKS)


def _table(found: Mapping[tuple[str, str], Any]) -> Arrays:
    """Retained accuracy, and retained accuracy minus that just after each task, in percent; means over tasks."""

    def mean(less: float) -> np.ndarray:
        rows = [[found[stream, method] for method in METHODS] for stream in STREAMS]
        means = [[(one["retained"] - less * one["learned"]).mean(1) for one in row] for row in rows]
        return 100 * np.array(means).transpose(2, 0, 1)

    arrays = {"retained": mean(0.0), "transfer": mean(1.0)}
    return Arrays(arrays, **dict.fromkeys(arrays, "seed stream method"))


def _overlap(lab: study.Lab, streams: Mapping[str, tuple[Any, int]]) -> Arrays:
    """Percent of the test images of a stream that are among the training images of their task."""
    from mesascope.training.family import stacked

    def share(family: Any, count: int, seed: int) -> float:
        drawn = stacked([family.sample(count, stream(seed, "tasks", device=lab.device))])
        assert isinstance(drawn, tasks.Episode)
        seen, asked = (images[0].flatten(2).cpu().numpy() for images in (drawn.context.x, drawn.xq))
        known = [{image.tobytes() for image in task} for task in seen]
        return 100 * float(
            np.mean([[image.tobytes() in own for image in task] for own, task in zip(known, asked, strict=True)])
        )

    found = [[share(*one, seed) for one in streams.values()] for seed in lab.seeds]
    return Arrays({"overlap": np.array(found)}, overlap="seed stream")


def _widths(settings: ContinualMnist, found: Sequence[Any]) -> Arrays:
    """Percent of all weights closed at the end, and retained accuracy, by width."""
    closed = []
    for width, one in zip(settings.widths, found, strict=True):
        sizes = np.array([settings.size**2 * width, width * width, 10 * width])
        closed.append(100 * one["closed"][:, -1, ::2] @ sizes / sizes.sum())
    retained = [100 * one["retained"].mean(1) for one in found]
    arrays = {"width": settings.widths, "closed": np.array(closed).T, "retained": np.array(retained).T}
    return Arrays(arrays, width="width", closed="seed width", retained="seed width")


widths = stage("widths")


def _by_width(y: str, quantity: str, role: str) -> Lines:
    return study.sweep("width", y, widths["width"], {widths[quantity]: (role, quantity)}, marks="o-", log="x")


def _of(quantity: str, method: str) -> Reading:
    """A quantity of a method by seed and stream, in percent."""
    place, words = METHODS.index(method), f"{WORDS[quantity]} of {method}"
    return stage("table")[quantity].map(lambda table: table[:, :, place], words)


def _above(methods: Sequence[str], others: Sequence[str]) -> Reading:
    """Retained accuracy of each of ``methods`` minus each of ``others`` (points), by seed, pair and stream."""
    pairs = [_of("retained", method) - _of("retained", other) for method in methods for other in others]
    return beside(pairs, f"points of retained accuracy of {' and '.join(methods)} above {' and '.join(others)}")


def _closed(training: str, of: str = "weights") -> Reading:
    """Percent of each layer's weights or biases that are closed at the end of a training, by seed and layer."""
    first = PARAMETERS.index("W1" if of == "weights" else "b1")
    return stage(training)["closed"].map(
        lambda shares: 100 * shares[:, -1, first::2], f"percent of {of} closed in {training}"
    )


def _deeper(of: str, *trainings: str) -> Reading:
    """Points of closed weights or biases of each layer above the layer before, by seed."""
    rises = [_closed(training, of).map(lambda shares: np.diff(shares, axis=1), training) for training in trainings]
    return beside(rises, f"points of closed {of} of a layer above the one before")


def _quarters(shares: np.ndarray) -> np.ndarray:
    """Points by which more of each parameter is closed after each quarter of the tasks, by seed."""
    ends = np.linspace(0, shares.shape[1] - 1, 5).round().astype(int)
    return np.diff(100 * shares[:, ends], axis=1)


def _late(shares: np.ndarray) -> np.ndarray:
    """Rise of the closed percentage in the last tenth of a task - a tenth of the task's; mean over layers and tasks."""
    steps = _steps(shares)
    return (steps[..., -1] - steps.mean(-1)).mean(1)


def _steps(shares: np.ndarray) -> np.ndarray:
    """Rise of the closed percentage of weights in each tenth of each task, mean over layers."""
    return np.diff(100 * shares[:, :, ::2].mean(2), axis=1).reshape(len(shares), -1, LOOKS)


def _at_switches(shares: np.ndarray) -> np.ndarray:
    """Rise of the closed percentage in the first tenth of a task, minus that in the last tenth of the task before.

    Means over layers, and over all tasks but the first. A share that rises more and more slowly has a negative value.
    """
    steps = _steps(shares)
    return (steps[:, 1:, 0] - steps[:, :-1, -1]).mean(1)


def _printed(quantity: str, method: str, name: str, verdict: str = "undecided") -> Claim:
    values, spread = np.array(PRINTED[method][quantity]), OF_FIVE * np.array(SPREADS[method][quantity])
    return Claim(name, f"{method}'s {WORDS[quantity]} is within 1.5 points of the thesis' 99 % interval over its five "
                 "seeds, on each stream",
                 _of(quantity, method).map(lambda found: found - np.clip(found, values - spread, values + spread),
                                           f"{WORDS[quantity]} - the nearest within the thesis' interval"),
                 study.two_sided(1.5, around=0.0), TABLE, at_least=10, reported=study.Reported(tuple(values.tolist())),
                 former=f"compared with the thesis' mean alone, {verdict}")  # fmt: skip


def _bar(quantity: str, stream: str) -> Lines:
    """Values of each seed, and the printed values."""
    place = STREAMS.index(stream)
    known = {METHODS.index(name): numbers[quantity][place] for name, numbers in PRINTED.items()}
    label = {"retained": "retained accuracy (%)", "transfer": "backward transfer (points)"}[quantity]
    own, places = stage("table")[quantity].at((slice(None), place), stream), range(len(METHODS))
    lines = [
        Line(places, own, "trained", "each seed", each=True, marks="o"),
        Line([*known], [*known.values()], "gd", "thesis", marks="_"),
    ]
    names = [name.replace("sparse-", "sparse-\n") for name in METHODS]
    return Lines(stream, "", label, lines, limits={"xticks": places, "xticklabels": names})


def _shares(training: str, title: str = "", looks: int = 1) -> Lines:
    """Percent of each parameter's entries that are closed, along tasks."""
    shares = stage(training)["closed"].map(lambda shares: 100 * shares, "percent closed")
    along = shares.map(lambda shares: np.arange(shares.shape[1]) / looks, "tasks")
    shades = np.linspace(0, 1, len(PARAMETERS))
    lines = [Line(along, shares.at((..., i), name), shades[i], name) for i, name in enumerate(PARAMETERS)]
    return Lines(title, "tasks", "closed (%)", lines)


def _transfer_error(r: Any) -> np.ndarray:
    """Largest |table's transfer - mean change of accuracy| over seeds, by stream and method."""
    ends = [[r[f"{stream} {method}"] for method in METHODS] for stream in STREAMS]
    change = 100 * np.array([[(one["retained"] - one["learned"]).mean(1) for one in row] for row in ends])
    return np.abs(r["table"]["transfer"] - change.transpose(2, 0, 1)).max(0).ravel()


def _last_change(r: Any) -> np.ndarray:
    """Largest change of accuracy on the last task, in points, by stream and method."""
    ends = [[r[f"{stream} {method}"] for method in METHODS] for stream in STREAMS]
    return (
        100 * np.array([[np.abs(one["retained"] - one["learned"])[:, -1].max() for one in row] for row in ends]).ravel()
    )


EXACT: dict[str, Any] = {
    "quantifier": "exact", "exact_because": "the same networks and images are compared", "at_least": 3,
    "over": "learners", "about": "algorithms",
}  # fmt: skip


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
    measure=measure, trainings=lambda settings: 22 + len(settings.widths), quantifier="median",
    claims=(
        Claim("transfer-is-change", "control: backward transfer equals the accuracy at the end minus the accuracy "
              "just after each task",
              Reading("|transfer - change of accuracy|, points", _transfer_error), below(1e-3),
              ours("control: sign and order of the differences"), **EXACT),
        Claim("last-task-is-last", "control: accuracy on the last task of a stream is the same just after it and at "
              "the end", Reading("points of change on the last task", _last_change), below(1e-3),
              ours("control: tasks keep their order"), **EXACT),
        Claim("unseen-images", "control: less than 1 % of the test images of each stream are among the training images "
              "of their task", stage("overlap")["overlap"], below(1.0), ours("control: training and test images"),
              **{**EXACT, "over": "seeds"}),
    ),
    figures=(
        Figure("table", "Retained accuracy on all tasks at the end, and the change of each task's accuracy since it "
               "was learned: one mark a seed, and the means of Table 4.5 of the thesis.",
               tuple(_bar(quantity, stream) for quantity in WORDS for stream in STREAMS), size=(13, 6.5),
               shared_legend=True, claims=(
            Claim("learns", "La-MAML's retained accuracy is above 30 % on each stream, where chance is 10 %",
                  _of("retained", "La-MAML"), above(30.0), ours("premise")),
            Claim("replay-helps", "control: experience replay retains more accuracy than descent without memory, on "
                  "each stream", _above(("replay",), ("SGD",)), above(0.0), ours("control: past images are replayed")),
            _printed("retained", "La-MAML", "la-maml-retains"),
            _printed("transfer", "La-MAML", "la-maml-forgets"),
            _printed("retained", "sparse-La-MAML", "sparse-retains", "failed"),
            _printed("transfer", "sparse-La-MAML", "sparse-forgets"),
            Claim("above-baselines", "La-MAML and sparse-La-MAML retain more accuracy than descent without memory and "
                  "than GEM, on each stream", _above(LEARNED, ("SGD", "GEM")), above(0.0), TABLE),
            Claim("above-replay", "La-MAML and sparse-La-MAML retain more accuracy than experience replay with the "
                  "same memory", _above(LEARNED, ("replay",)), above(0.0), ours("whether looking ahead helps")),
            Claim("above-mer", "La-MAML and sparse-La-MAML retain at most half a point less accuracy than MER, on each "
                  "stream", _above(LEARNED, ("MER",)), above(-0.5), TABLE, premises=("learns",)),
            Claim("masks-are-enough", "masks alone retain at most half a point less accuracy than learned rates, on "
                  "each stream", _above(("sparse-La-MAML",), ("La-MAML",)), above(-0.5), TABLE, premises=("learns",)),
            Claim("masks-forget-no-more", "with masks alone accuracy falls by at most a point more after each task "
                  "than with learned rates, on each stream",
                  _of("transfer", "sparse-La-MAML") - _of("transfer", "La-MAML"), above(-1.0), TABLE,
                  premises=("learns",), reported=study.Reported((0.48, -0.79, -0.77))),
        )),
        Figure("closed", "Percent of each parameter's entries that do not change while a network learns turned images; "
               "mean and range over seeds. Thesis: Fig. 4.3, left and centre.",
               tuple(_shares(f"rotations {method}", method) for method in LEARNED), shared_legend=True, claims=(
            Claim("closes", "in the mean over layers, more than a tenth of a layer's weights are closed at the end of "
                  "rotations, with rates and with masks",
                  beside([_closed(one).map(lambda shares: shares.mean(1), one) for one in ROTATIONS],
                         "percent of a layer's weights closed at the end of rotations"), above(10.0), LEFT,
                  former="of the last layer alone, held"),
            Claim("rates-close-more", "on rotations, learned rates close a larger share of each layer's weights than "
                  "masks",
                  _closed(ROTATIONS[0]) - _closed(ROTATIONS[1]), above(0.0), study.printed("section 4.4.1")),
            Claim("closes-with-tasks", "on rotations, the share of closed weights of each layer grows in each quarter "
                  "of the tasks, with rates and with masks",
                  beside([stage(one)["closed"].map(
                      lambda shares: _quarters(shares)[..., ::2].reshape(len(shares), -1), one) for one in ROTATIONS],
                         "points of a layer's weights closed in a quarter of the tasks"), above(0.0), LEFT),
            Claim("biases-close-with-tasks", "on rotations, in the mean over layers, the share of closed biases grows "
                  "in each quarter of the tasks, with rates and with masks",
                  beside([stage(one)["closed"].map(lambda shares: _quarters(shares)[..., 1::2].mean(2), one)
                          for one in ROTATIONS],
                         "points of a layer's biases closed in a quarter of the tasks, mean over layers"),
                  above(0.0), LEFT),
            Claim("closes-towards-output", "on rotations, the share of closed weights grows from layer to layer",
                  _deeper("weights", *ROTATIONS), above(0.0), LEFT),
            Claim("biases-close-towards-output", "on rotations, the share of closed biases grows from layer to layer",
                  _deeper("biases", *ROTATIONS), above(0.0), LEFT),
        )),
        Figure("widths", "Percent of all weights that no longer change after turned images, and retained accuracy, "
               "by the width of a network that learns masks; mean and range over seeds. Thesis: Fig. 4.3, "
               "right.", (
            _by_width("closed (%)", "closed", "gd"),
            _by_width("retained accuracy (%)", "retained", "trained"),
        ), claims=(
            Claim("less-in-large", "the widest networks close a smaller share of their weights than the narrowest",
                  widths["closed"].map(lambda closed: closed[:, 0] - closed[:, -1],
                                       "percent closed of the narrowest - of the widest"),
                  above(0.0), RIGHT, former="less than half"),
            Claim("more-retained-in-large", "the widest networks retain more accuracy than the narrowest",
                  widths["retained"].map(lambda retained: retained[:, -1] - retained[:, 0],
                                         "points of retained accuracy of the widest above the narrowest"),
                  above(0.0), RIGHT),
        )),
        Figure("passes", "Percent of entries that do not change where La-MAML sees each task several times; mean and "
               "range over seeds. Thesis: Fig. 4.4.", (_shares("passes", looks=LOOKS),), size=(7, 3.5), claims=(
            Claim("closes-at-switches", "in several passes, a larger share of a layer's weights closes in the first "
                  "tenth of a task than in the last tenth of the task before, in the mean over layers",
                  stage("passes")["closed"].map(
                      _at_switches, "points closed in the first tenth of a task - in the last tenth before it"),
                  above(0.0), study.printed("Fig. 4.4"),
                  former="in place of the last tenth of the same task, which closes least on any curve that flattens"),
            Claim("settles-within-tasks", "in several passes, less than a tenth of a task's rise in the share of "
                  "closed weights falls in the task's last tenth, in the mean over layers",
                  stage("passes")["closed"].map(
                      _late, "points closed in the last tenth of a task - a tenth of those in the task"),
                  below(0.0), study.printed("Fig. 4.4")),
            Claim("passes-close-towards-output", "in several passes, the share of closed weights grows from layer to "
                  "layer", _deeper("weights", "passes"), above(0.0), study.printed("Fig. 4.4")),
            Claim("passes-close-biases", "in several passes, the share of closed biases grows from layer to layer",
                  _deeper("biases", "passes"), above(0.0), study.printed("Fig. 4.4")),
        )),
    ),
    mutations=bugs.ALL,
    mutated={
        "tasks": 2, "many_tasks": 20, "samples": 200, "many_samples": 50, "queries": 200, "widths": (8, 40),
        "passes": 1, "seeds": 8,
    },
    deviations=(
        "Sixteen seeds train in place of five, and eight for widths and passes in place of three: a median needs "
        "eight.",
        "With several passes, five tasks turn images by up to 36 degrees each, in place of twenty by up to 9.",
        "The learning rates of SGD, experience replay and GEM are tuned by us.",
        "The outer loss of La-MAML is the mean over its inner steps, as in the code that the numbers are of.",
        "Accuracy is measured on 1,000 test images of each task, in place of all 10,000.",
    ),
)  # fmt: skip
