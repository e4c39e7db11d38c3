"""What the few-shot studies share: settings, how meta-learners train, their accuracy and what they close."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from mesascope import nets, tasks
from mesascope.errors import require_count, require_number
from mesascope.evidence import Arrays
from mesascope.training import ParameterGroup, Training

if TYPE_CHECKING:
    from mesascope.meta import MetaLearnerConfig
    from mesascope.nets import ClassifierConfig
    from mesascope.studies.lab import Lab
    from mesascope.tasks import FewShotImages

THESIS = "von Oswald's thesis"
# Methods, with a name to show.
METHODS = {
    "maml": "MAML", "anil": "ANIL", "boil": "BOIL", "meta-sgd": "Meta-SGD", "exp-maml": "exp-MAML",
    "sparse-relu-maml": "sparse-ReLU-MAML", "sparse-maml": "sparse-MAML",
}  # fmt: skip
# Inner learning rates that told most of other tasks of training characters after 400 outer steps from another seed, of
# two to four each; of methods that learn them, where they start.
TUNED = {
    "maml": 0.1, "anil": 2.0, "boil": 0.2, "meta-sgd": 0.2, "exp-maml": 0.1, "sparse-relu-maml": 0.2,
    "sparse-maml": 0.4, "sparse-maml-plus": 0.4,
}  # fmt: skip
# Methods whose rates are learned, at `rate_lr`; the others learn masks, at `mask_lr`.
_RATES = ("meta-sgd", "exp-maml", "sparse-relu-maml")
# The embedded digits and a network of three layers: seconds, and no download.
QUICK: dict[str, Any] = {
    "dataset": "digits", "ways": 5, "queries": 5, "architecture": "mlp", "width": 32, "size": 8,
    "training": Training(200, 4, learning_rate=3e-3, schedule="constant", evaluate_every=50),
    "inner_lr": 0.5, "tasks": 200, "watch_tasks": 20,
}  # fmt: skip
# The thesis' own setting, for whoever has the images: see `mesascope.data.images`.
MINI_IMAGENET: dict[str, Any] = {
    "dataset": "mini-imagenet", "ways": 5, "shots": 5, "queries": 15, "width": 64, "in_channels": 3, "size": 84,
    "training": Training(40_000, 2, learning_rate=1e-3, schedule="constant", evaluate_every=4000),
    "inner_lr": 0.25, "inner_steps": 35,
}  # fmt: skip


@dataclass(frozen=True)
class FewShot:
    """Settings of a few-shot study."""

    dataset: str = "omniglot"
    """Images of the tasks: omniglot, digits, or another dataset."""
    ways: int = 20
    """Classes of a task."""
    shots: int = 1
    """Images of each class in a context."""
    queries: int = 2
    """Images of each class that are asked about."""
    architecture: str = "convnet4"
    """The network that adapts: convnet4, resnet12 or mlp."""
    width: int = 32
    """Its filters, or units of each hidden layer."""
    in_channels: int = 1
    """Of the images, three of colours."""
    size: int = 28
    """Pixels of a side."""
    inner_lr: float | None = None
    """Of the inner steps; each method's own, found on other tasks, if None."""
    inner_steps: int = 5
    """Steps on a context."""
    mask_lr: float = 0.0075
    """Of the masks."""
    rate_lr: float = 0.003
    """Of learned rates, and of their exponents."""
    training: Training = field(
        default_factory=lambda: Training(1500, 2, learning_rate=1e-3, schedule="constant", evaluate_every=150)
    )
    """Of the outer loop."""
    tasks: int = 400
    """Tasks of new classes that accuracy is measured on."""
    watch_tasks: int = 40
    """Those that it is watched on."""
    seeds: int = 8
    """Networks trained, one a seed."""

    def __post_init__(self) -> None:
        for name in ("ways", "shots", "queries", "width", "in_channels", "size", "inner_steps", "tasks", "watch_tasks"):
            require_count(name, getattr(self, name))
        for name in ("inner_lr", "mask_lr", "rate_lr"):
            if getattr(self, name) is not None:
                require_number(name, getattr(self, name), above=0)

    def family(self, part: str = "train") -> FewShotImages:
        """Tasks of the classes of a part."""
        return tasks.FewShotImages(self.dataset, self.ways, self.shots, self.queries, self.size, part)

    def network(self) -> ClassifierConfig:
        """The network before meta-learning."""
        return nets.ClassifierConfig(self.architecture, self.width, self.in_channels, self.size, self.ways)

    def learner(self, method: str) -> MetaLearnerConfig:
        """The network and a method of its inner steps."""
        from mesascope.meta import MetaLearnerConfig

        rate = TUNED[method] if self.inner_lr is None else self.inner_lr
        return MetaLearnerConfig(self.network(), method, rate, self.inner_steps)


def meta_trained(lab: Lab, name: str, settings: FewShot, method: str, **changes: Any) -> list[Any]:
    """Networks that a method meta-learned, one a seed; stage ``name`` has accuracy and closed shares by step."""
    from mesascope.meta import outer_loss

    config = dataclasses.replace(settings.learner(method), **changes)
    learns = method not in ("maml", "anil", "boil")
    rate = settings.rate_lr if method in _RATES else settings.mask_lr
    return lab.train(
        name, config, settings.family(), settings.training, loss=outer_loss,
        parameter_groups=[ParameterGroup(("method.*",), learning_rate=rate)] if learns else [],
        watch=watched(lab.draw(settings.family("test"), settings.watch_tasks, "watch")),
    )  # fmt: skip


def untrained(lab: Lab, settings: FewShot, method: str) -> list[Any]:
    """The networks and their methods before any training, one a seed."""
    from mesascope.streams import stream

    return [settings.learner(method).build(stream(seed, "init")).to(lab.device) for seed in lab.seeds]


def watched(drawn: Any) -> Callable[[Any], dict[str, float]]:
    """Accuracy on tasks, and of methods that learn masks or rates the share closed, by layer from 0, and of all."""

    def look(learner: Any) -> dict[str, float]:
        accuracy = {"accuracy": float(hits(learner, drawn).mean())}
        if not learner.method.numbers:
            return accuracy
        weights = [name for name, one in learner.model.named_parameters() if "weight" in name and one.ndim > 1]
        shares = learner.gradient_sparsity()
        closed = {f"closed {place}": shares[name] for place, name in enumerate(weights)}
        return {**accuracy, **closed, "closed": learner.closed()}

    return look


def hits(learner: Any, drawn: Any, at_once: int = 20) -> np.ndarray:
    """The share of queries that are told, by task, among the classes that are asked about."""
    import torch

    from mesascope.training.randomness import drawing_from

    found = []
    for start in range(0, len(drawn.xq), at_once):
        part = drawn.map(lambda tensor, start=start: tensor[start : start + at_once])
        with drawing_from(0, "hits", start, part.xq.device):  # what a method draws to adapt
            scores = learner(part.context, part.xq)[..., : part.yq.shape[-1]]
        found.append(tasks.accuracy(scores, part.yq))
    return torch.cat(found).cpu().numpy()


def accuracies(lab: Lab, stage: str, groups: Mapping[str, Sequence[Any]], drawn: Any) -> Any:
    """Percent of queries told by each seed's network, the same tasks for all."""
    return lab.stage(
        stage,
        lambda: Arrays(
            {name: np.array([100 * hits(one, drawn).mean() for one in learners]) for name, learners in groups.items()},
            **dict.fromkeys(groups, "seed"),
        ),
    )


def layers_closed(r: Any, name: str) -> np.ndarray:
    """Percent closed at the end of a training, by seed and layer."""
    return 100 * np.stack([np.asarray(one)[:, -1] for one in closed_by_layer(r[name])], axis=1)


def closed_by_layer(curves: Any) -> list[Any]:
    """The share of each layer's weights that is closed, by seed and evaluation."""
    count = sum(key.startswith("closed ") for key in curves)
    return [curves[f"closed {layer}"] for layer in range(count)]
