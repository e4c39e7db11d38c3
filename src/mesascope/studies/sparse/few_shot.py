"""Shared parts of the few-shot studies: settings, meta-training, and accuracy on new classes."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import numpy as np
from msgspec import Meta

from mesascope import meta, nets, study, tasks
from mesascope.errors import refuse
from mesascope.streams import stream
from mesascope.studies.common import returning
from mesascope.study import Arrays, Claim, Count, Mutation, Positive, Reading, Training, above, ours, stage, two_sided

THESIS = "von Oswald's thesis"
# Methods, with a name to show.
METHODS = {
    "maml": "MAML", "anil": "ANIL", "boil": "BOIL", "meta-sgd": "Meta-SGD", "exp-maml": "exp-MAML",
    "sparse-relu-maml": "sparse-ReLU-MAML", "sparse-maml": "sparse-MAML",
}  # fmt: skip
# Further methods of Table 4.1.
OTHERS = {"meta-curvature": "meta-curvature", "mt-net": "MT-net", "shrinkage": "shrinkage"}
# Inner learning rates, the best of two to four each on other tasks of training characters, after 400 outer steps from
# another seed. Methods that learn their rates start from these. Those of `OTHERS` are MAML's.
TUNED = {
    "maml": 0.1, "anil": 2.0, "boil": 0.2, "meta-sgd": 0.2, "exp-maml": 0.1, "sparse-relu-maml": 0.2,
    "sparse-maml": 0.4, "sparse-maml-plus": 0.4, **dict.fromkeys(OTHERS, 0.1),
}  # fmt: skip
# Methods that learn only initial weights, and methods that learn rates or matrices with `rate_lr`. Others learn masks.
_FIXED = ("maml", "anil", "boil")
_RATES = ("meta-sgd", "exp-maml", "sparse-relu-maml", *OTHERS)
# Tasks whose accuracies are computed together; a bound on memory.
_AT_ONCE = 20
OUTER = Training(1500, 2, learning_rate=1e-3, schedule="constant", evaluate_every=150)
# Digits and a network of three layers: takes seconds and needs no download.
QUICK: dict[str, Any] = {
    "dataset": "digits", "ways": 5, "queries": 5, "architecture": "mlp", "width": 32, "size": 8,
    "training": Training(200, 4, learning_rate=3e-3, schedule="constant", evaluate_every=50),
    "inner_lr": 0.5, "tasks": 200, "watch_tasks": 20,
}  # fmt: skip
# The settings of von Oswald (2024), with each method's own recipe. Images: see `mesascope.data.images`.
MINI_IMAGENET: dict[str, Any] = {
    "dataset": "mini-imagenet", "ways": 5, "shots": 5, "queries": 15, "width": 64, "in_channels": 3, "size": 84,
    "training": Training(40_000, 2, learning_rate=1e-3, schedule="constant", evaluate_every=4000),
    "recipes": "published", "inner_lr": None, "inner_steps": None, "order": None,
}  # fmt: skip
RESNET12: dict[str, Any] = {
    **MINI_IMAGENET, "architecture": "resnet12", "mask_lr": 0.01, "rate_lr": 0.01,
    "training": Training(40_000, 1, learning_rate=1e-3, schedule="constant", evaluate_every=4000, clip=10.0),
}  # fmt: skip


# The source's setting that small presets lack, and the deviations of presets with its images.
UNLIKE = dict.fromkeys(("quick", "paper"), "miniImageNet, five classes, 35 inner and 40,000 outer steps")
MINI_DEVIATIONS = (
    "Eight networks of each method train, in place of five (three with ResNet-12); each is judged on 400 tasks.",
    "The settings of meta-curvature, MT-net, shrinkage and exp-MAML are ours, and so are the outer learning rates of "
    "learned inner rates, 0.003 with ConvNets and 0.01 with ResNet-12.",
    "Tasks have five examples of each class; numbers that are printed for one example stand beside them.",
)


class Recipe(NamedTuple):
    """Inner learning rate, steps and order of a method."""

    inner_lr: float
    steps: int = 5
    order: int = 1


def recipe_of(method: str, settings: FewShot) -> Recipe:
    """Recipe of a method: published for miniImageNet, or tuned by us on Omniglot (see ``settings.recipes``).

    Of the published ones, sparse methods, and all methods with ResNet-12, have the recipe of von Oswald (2024). MAML,
    ANIL and Meta-SGD have those of Finn et al. and Li et al., and BOIL that of Oh et al. with the rate of von Oswald
    (2024). Meta-SGD, meta-curvature and MT-net are of second order, as in von Oswald (2024). All others are ours.
    """
    if settings.recipes == "tuned":
        return Recipe(TUNED[method])
    one_shot = settings.shots == 1
    if settings.architecture == "resnet12":
        rate = 0.01 if one_shot and method == "sparse-relu-maml" else 0.05
        return Recipe(0.5, 1) if method == "boil" else Recipe(rate, 35)
    sparse = Recipe(0.1 if one_shot else 0.25, 35)
    return {
        "maml": Recipe(0.01), "anil": Recipe(0.01), "boil": Recipe(0.5, 1), "meta-sgd": Recipe(0.01, 1, 2),
        "exp-maml": Recipe(0.01, 5, 2), "meta-curvature": Recipe(0.1, 5, 2), "mt-net": Recipe(0.1, 5, 2),
        "shrinkage": Recipe(0.1), "sparse-maml-plus": Recipe(0.1, 35),
    }.get(method, sparse)  # fmt: skip


@study.frozen
class FewShot:
    dataset: str = "omniglot"  # Images of the tasks: omniglot, digits, or another dataset.
    ways: Count = 20  # Classes of a task.
    shots: Count = 1  # Images of each class in a context.
    queries: Count = 2  # Query images of each class.
    architecture: Literal["convnet4", "resnet12", "mlp"] = "convnet4"  # Network that adapts: convnet4, resnet12 or mlp.
    width: Count = 32  # Filters, or units of each hidden layer.
    in_channels: Count = 1  # Channels of the images: 3 for colours.
    size: Count = 28  # Pixels of a side.
    recipes: Literal["published", "tuned"] = "tuned"  # Each method's own settings: for miniImageNet, or ours.
    inner_lr: Positive | None = None  # Inner learning rate; each method's own if None.
    inner_steps: Count | None = 5  # Gradient steps on a context; each method's own if None.
    order: Annotated[int, Meta(ge=1, le=2)] | None = 1  # Order of outer gradients; each method's own if None.
    mask_lr: Positive = 0.0075  # Learning rate of the masks.
    rate_lr: Positive = 0.003  # Learning rate of learned rates, exponents, matrices and shrinkage.
    training: Training = OUTER  # Training of the outer loop.
    tasks: Count = 400  # Tasks for measuring accuracy: of new classes, or for digits of new images.
    watch_tasks: Count = 40  # Tasks for evaluations during training.
    seeds: Count = 8  # Networks trained, one per seed.

    def family(self, part: Literal["train", "validation", "test"] = "train") -> Any:
        """Tasks with the classes of a part of the dataset."""
        return tasks.FewShotImages(self.dataset, self.ways, self.shots, self.queries, self.size, part)

    def learner(self, method: str) -> meta.MetaLearnerConfig:
        """Config of the network and the method of its inner steps."""
        network = nets.ClassifierConfig(self.architecture, self.width, self.in_channels, self.size, self.ways)
        rate, steps, order = recipe_of(method, self)
        return meta.MetaLearnerConfig(
            network, method, self.inner_lr or rate, self.inner_steps or steps, self.order or order,
            norms=self.architecture != "resnet12",
        )  # fmt: skip

    def outer(self, method: str) -> Training:
        """Training of the outer loop; with published recipes, sparse-MAML+ has 1.5 times the steps, by SGD."""
        if method == "sparse-maml-plus" and self.recipes == "published":
            plan = {"optimizer": "sgd", "momentum": 0.9, "learning_rate": 0.0075}
            return dataclasses.replace(self.training, steps=self.training.steps * 3 // 2, **plan)
        return self.training


def meta_trained(lab: study.Lab, name: str, settings: FewShot, method: str, **changes: Any) -> list[Any]:
    """Networks meta-learned by a method, one per seed; stage ``name`` has accuracy and closed shares by step."""
    drawn = lab.draw(settings.family("test"), settings.watch_tasks, "watch")
    channels = drawn.xq.shape[-1] // settings.size**2
    if channels != settings.in_channels:
        refuse(
            "in_channels", f"be {channels}, as the images of {settings.dataset} have", settings.in_channels, "set it"
        )
    rate = settings.rate_lr if method in _RATES else settings.mask_lr
    groups = [] if method in _FIXED else [study.ParameterGroup(("method.*",), learning_rate=rate)]
    return lab.train(
        name, dataclasses.replace(settings.learner(method), **changes), settings.family(), settings.outer(method),
        loss=meta.outer_loss, parameter_groups=groups,
        watch=watched(drawn),
    )  # fmt: skip


def untrained(lab: study.Lab, settings: FewShot, method: str) -> list[Any]:
    """Untrained networks with their methods, one per seed."""
    return [settings.learner(method).build(stream(seed, "init")).to(lab.device) for seed in lab.seeds]


def watched(drawn: tasks.Episode) -> Callable[[Any], dict[str, float]]:
    """Function that returns the accuracy, closed shares for learned masks or rates, and exp-MAML's mean rates.

    ``closed 0`` is the closed share of the first layer's weights, and so on, ``closed bias`` that of the last bias, and
    ``closed`` that of all entries that the method may adapt. See `layers_of` for layers.
    """
    import torch

    def look(learner: Any) -> dict[str, float]:
        accuracy = {"accuracy": float(accuracy_by_task(learner, drawn).mean())}
        if not learner.method.numbers:
            return accuracy
        adapted, layers = learner.method.adapted(learner.model), layers_of(learner.model)
        shares = learner.sparsity_by_parameter()

        def mean(of: Mapping[str, float], names: Iterable[str]) -> float:
            return float(np.average([of[name] for name in names], weights=[adapted[name].numel() for name in names]))

        found = {f"closed {place}": mean(shares, names) for place, names in enumerate(layers)}
        if isinstance(learner.method, meta.ExpMAML):
            factors = learner.method.factors(learner.model)
            rates = {name: float(torch.as_tensor(factors[name]).detach().mean()) for name in adapted}
            found |= {f"rate {place}": mean(rates, names) for place, names in enumerate(layers)}
        return {**accuracy, **found, "closed bias": shares[[*adapted][-1]], "closed": mean(shares, adapted)}

    return look


def layers_of(model: Any) -> list[list[str]]:
    """Names of each layer's weights; of a residual block, those of its three convolutions, not of the path beside."""
    layers: dict[tuple[str, ...], list[str]] = {}
    for name, one in model.named_parameters():
        if one.ndim > 1 and "beside" not in name:
            layers.setdefault(tuple(name.split(".")[:2]), []).append(name)
    return list(layers.values())


def accuracy_by_task(learner: Any, drawn: tasks.Episode) -> np.ndarray:
    """Accuracy by task, among the classes of the task."""
    import torch

    from mesascope.training.randomness import drawing_from

    found = []
    for start in range(0, len(drawn.xq), _AT_ONCE):
        part = drawn.part(start, start + _AT_ONCE)
        with drawing_from(0, "hits", start, part.xq.device):  # for methods that draw random numbers
            scores = learner(part.context, part.xq)[..., : part.yq.shape[-1]]
        found.append(tasks.accuracy(scores, part.yq))
    return torch.cat(found).cpu().numpy()


def own_tasks(lab: study.Lab, family: Any, count: int, name: str = "eval") -> Callable[[int], tasks.Episode]:
    """Function that draws test tasks for a network by its place in a group; tasks differ, so errors are independent."""
    return lambda place: lab.draw(family, count, f"{name} {place}")


def accuracies(groups: Mapping[str, Sequence[Any]], fresh: Callable[[int], tasks.Episode]) -> dict[str, list[float]]:
    """Accuracy of each network in percent, on the tasks that ``fresh`` draws for its place in each group."""
    found: dict[str, list[float]] = {name: [] for name in groups}
    for place, learners in enumerate(zip(*groups.values(), strict=True)):
        drawn = fresh(place)
        for name, one in zip(groups, learners, strict=True):
            found[name].append(100 * accuracy_by_task(one, drawn).mean())
    return found


def learns(accuracy: Reading) -> Claim:
    """Premise: meta-learned networks adapt to new classes."""
    return Claim("learns", "the median accuracy of adapted networks on new classes is above 50 %",
                 accuracy, above(50.0), ours("premise"))  # fmt: skip


def points_above(name: str, *others: str, of: Any = lambda r: [r["accuracy"]], names: Any = METHODS) -> Reading:
    """Accuracy of a method minus that of each other (points): rows are seeds, columns task kinds and other methods.

    ``of`` takes the results and returns the accuracies by method for each kind of task; ``names`` are labels.
    """
    words = f"points of accuracy of {names.get(name, name)} above {' and '.join(names.get(own, own) for own in others)}"
    return Reading(words, lambda r: np.stack([one[name] - one[own] for one in of(r) for own in others], axis=1))


def controls(settings: FewShot, learners: Sequence[Any], fresh: Callable[[int], tasks.Episode]) -> Arrays:
    """Points of accuracy above chance with permuted context labels, by seed; and ``seen`` and ``ordered``, in percent.

    All learners have the first one's tasks. The labels of task i are shifted by i: a learner that uses only its
    context is as accurate as chance. ``seen`` is the percentage of query images in their context or in the training
    images, ``ordered`` that of pairs of labels in the order of their classes.
    """
    import torch

    from mesascope.data import images

    drawn = fresh(0)
    y = torch.stack([one.roll(task, -1) for task, one in enumerate(drawn.context.y)])
    permuted = drawn._replace(context=drawn.context._replace(y=y))
    found = [100 * accuracy_by_task(one, permuted).mean() - 100 / drawn.yq.shape[-1] for one in learners]
    train, test = (images(settings.dataset, part, settings.size) for part in ("train", "test"))
    known, new = (dict(zip(_hashes(one.pixels), one.labels.tolist(), strict=True)) for one in (train, test))
    classes = known | new
    seen, ordered = [], []
    for x, y, xq in zip(drawn.context.x, drawn.context.y, drawn.xq, strict=True):
        context, asked = (_hashes((255 * one).round().byte()) for one in (x, xq))
        seen.append(np.mean([row in known or row in context for row in {*asked}]))
        own = {label: classes[row] for label, row in zip(y.argmax(-1).tolist(), context, strict=True)}
        by_label = [own[label] for label in sorted(own)]
        ordered += [first < second for first, second in itertools.combinations(by_label, 2)]
    arrays = {"permuted": found, "seen": [100 * np.mean(seen)], "ordered": [100 * np.mean(ordered)]}
    return Arrays(arrays, permuted="seed", seen="number", ordered="number")


def _hashes(pixels: Any) -> list[int]:
    """Hash of each image, whose pixels are bytes."""
    return [hash(one.tobytes()) for one in pixels.flatten(1).cpu().numpy()]


PERMUTED = Claim(
    "permuted-labels", "control: with permuted labels in contexts, accuracy is within 10 points of chance",
    stage("controls", permuted="points of accuracy above chance with permuted context labels")["permuted"],
    two_sided(10.0, around=0.0), ours("control: labels of queries are hidden"),
)  # fmt: skip
UNSEEN = Claim(
    "unseen-images", "control: fewer than 5 % of the query images are in their context or among training images",
    stage("controls", seen="percent of query images seen before")["seen"], study.below(5.0),
    ours("control: test images are new"), quantifier="exact", exact_because="images are compared, not estimated",
    at_least=1, about="algorithms",
)  # fmt: skip


SHUFFLED = Claim(
    "classes-shuffled", "control: 40 to 60 % of the pairs of classes in a context have labels in the order of the data "
    "set", stage("controls", ordered="percent of pairs in that order")["ordered"],
    two_sided(10.0, around=50.0), ours("control: labels do not depend on classes"), quantifier="exact",
    exact_because="pairs of the tasks at hand are counted", at_least=1, about="algorithms",
)  # fmt: skip


def masks_learn(*trainings: str) -> Claim:
    """Control: closed shares change in trainings with these names; masks that are not applied get no gradient."""

    def moved(r: Any) -> np.ndarray:
        closed = [r[name]["closed"] for name in r if name.split()[0] in trainings]
        return 100 * np.stack([np.abs(one[:, -1] - one[:, 0]) for one in closed], axis=1)

    return Claim(
        "masks-learn", "control: the share of closed entries changes during meta-learning",
        Reading("points of change, by seed and training", moved), above(0.0), ours("control: masks are applied"),
        quantifier="exact", exact_because="shares of the same masks are compared", about="algorithms",
    )  # fmt: skip


def _answers_in_context(accuracy: Any) -> Any:
    """Adapt learners to the queries and their labels."""
    from torch.nn.functional import pad

    def wrong(learner: Any, drawn: tasks.Episode, *arguments: Any) -> np.ndarray:
        y = pad(drawn.yq, (0, drawn.context.y.shape[-1] - drawn.yq.shape[-1]))
        return accuracy(learner, drawn._replace(context=tasks.Context(drawn.xq, y)), *arguments)

    return wrong


def _without_masks(factors: Any) -> Any:
    """Inner steps of sparse-MAML that change all entries."""

    def wrong(self: Any, model: Any, tasks: int) -> Any:
        found = factors(self, model, tasks)
        return dict.fromkeys(found, self.inner_lr) if isinstance(self, meta.SparseMAML) else found

    return wrong


def _frozen(rate: str) -> Callable[[Any], Any]:
    """Meta-learning at a learning rate too small to change a mask or a rate."""
    return lambda train: (
        lambda lab, name, settings, *given, **changes: train(
            lab, name, dataclasses.replace(settings, **{rate: 1e-12}), *given, **changes
        )
    )


@returning
def no_gradient(gradients: Any) -> Any:
    """Set the gradients of inner steps to 0."""
    return {name: 0 * one for name, one in gradients.items()}


# Bugs that few-shot studies must detect.
LEAK = Mutation("queries are the images of the context", "mesascope.studies.lab:Lab.draw",
                returning(lambda drawn: drawn._replace(xq=drawn.context.x, yq=drawn.context.y)))  # fmt: skip
TRAINING_PART = Mutation("test tasks are of training images", f"{__name__}:FewShot.family",
                         lambda family: lambda self, part="train": family(self))  # fmt: skip
ANSWERS = Mutation("networks adapt to queries with their labels", f"{__name__}:accuracy_by_task", _answers_in_context)
LABELS = Mutation("labels of queries are shifted by one", f"{__name__}:accuracy_by_task", lambda accuracy: (
                  lambda learner, drawn: accuracy(learner, drawn._replace(yq=drawn.yq.roll(1, -2)))))  # fmt: skip
AVERAGED = Mutation("accuracy is averaged over seeds", f"{__name__}:accuracies", returning(
                    lambda found: {name: [np.mean(one)] * len(one) for name, one in found.items()}))  # fmt: skip
UPHILL = Mutation(
    "inner steps go up the gradient", "mesascope.meta.maml:MAML._gradients",
    returning(lambda gradients: {name: -one for name, one in gradients.items()}),
)  # fmt: skip
SORTED = Mutation(
    "labels are in the order of classes", "mesascope.tasks.image_tasks:ByClass.draw",
    lambda draw: lambda self, chosen, *rest: draw(self, chosen.sort(-1).values, *rest), anew=True,
)  # fmt: skip
UNADAPTED = Mutation("inner steps change nothing", "mesascope.meta.maml:MAML._gradients", no_gradient)
UNMASKED = Mutation("masks are not applied", "mesascope.meta.maml:MAML._factors_of_tasks", _without_masks, anew=True)
FROZEN = Mutation("masks are frozen", f"{__name__}:meta_trained", _frozen("mask_lr"), anew=True)
FROZEN_RATES = Mutation("learned rates are frozen", f"{__name__}:meta_trained", _frozen("rate_lr"), anew=True)
# Bugs of all four studies.
BUGS = (LEAK, TRAINING_PART, ANSWERS, LABELS, UNMASKED, SORTED, FROZEN)
# Settings at which networks learn within seconds.
SMALL: dict[str, Any] = {
    "ways": 3, "shots": 3, "inner_steps": 2, "tasks": 40, "watch_tasks": 5,
    "training": Training(30, 16, learning_rate=1e-2, schedule="constant", evaluate_every=30),
}  # fmt: skip
