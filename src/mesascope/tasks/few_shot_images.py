"""Telling classes of images apart from a few examples of each."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import NamedTuple

import torch

from mesascope.data import PARTS, Images, images
from mesascope.errors import refuse, require_choice, require_count, require_instance
from mesascope.records import register
from mesascope.shapes import Float, Int, Tensor
from mesascope.tasks.draws import check_draw
from mesascope.tasks.episodes import Context, Episode

__all__ = ["ByClass", "FewShotImages", "accuracy", "sorted_images"]


@register("family", "few-shot-images")
@dataclass(frozen=True)
class FewShotImages:
    """``ways`` classes of a dataset a task, drawn at random and numbered at random; a context of ``shots`` images each.

    Inputs are pixels from 0 to 1 in a row, ``channels * size * size``, channels first: `torch.nn.Unflatten` makes
    images of them, and `ConvNet4` takes them as they are. Targets have a 1 at the class and 0 elsewhere, width
    ``ways``. No image is in a context and among the queries, and their order is random.

    Args:
        dataset: digits, mnist, fashion-mnist, omniglot, or a folder, by name or path: see `mesascope.data.images`.
        queries: images of each class that are asked about.
        size: pixels of a side; as they are if None.
        part: train, validation or test.
        rotations: whether images turned by 90, 180 and 270 degrees are classes of their own.

    >>> from mesascope.streams import stream
    >>> episode = FewShotImages(ways=3, shots=2, queries=4).sample(2, stream(0, "doc"))
    >>> [tuple(t.shape) for t in (episode.context.x, episode.context.y, episode.xq, episode.yq)]
    [(2, 6, 64), (2, 6, 3), (2, 12, 64), (2, 12, 3)]
    """

    dataset: str = "digits"
    ways: int = 5
    shots: int = 1
    queries: int = 15
    size: int | None = None
    part: str = "train"
    rotations: bool = False

    def __post_init__(self) -> None:
        require_instance("dataset", self.dataset, str, "pass a name, or a path as text, such as './split'")
        for name, least in (("ways", 2), ("shots", 1), ("queries", 1)):
            require_count(name, getattr(self, name), least=least)
        if self.size is not None:
            require_count("size", self.size)
        require_choice("part", self.part, PARTS)
        require_instance("rotations", self.rotations, bool)

    def sample(self, batch: int, generator: torch.Generator) -> Episode:
        """Draw ``batch`` tasks on the generator's device, in float32."""
        check_draw(batch, generator)
        found, by_class = self._images()
        chosen, turns = self._classes(batch, len(found.classes), generator)
        rows = by_class.drawn(chosen, self.shots + self.queries, generator)
        pixels = found.pixels[rows.flatten(0, 1).cpu()].to(generator.device)  # (batch * ways, shots + queries, c, s, s)
        if self.rotations:
            pixels = _turned(pixels, turns.flatten())
        x = pixels.unflatten(0, (batch, self.ways)).flatten(-3).float().div_(255)
        y = torch.eye(self.ways, device=x.device)[:, None].expand(batch, -1, x.shape[2], -1)
        cut = self.shots
        context = _shuffled(x[:, :, :cut], y[:, :, :cut], generator)
        return Episode(Context(*context), *_shuffled(x[:, :, cut:], y[:, :, cut:], generator))

    @property
    def _turns(self) -> int:
        return 4 if self.rotations else 1

    def _images(self) -> tuple[Images, ByClass]:
        found, by_class = sorted_images(self.dataset, self.part, self.size)
        fewest = int(by_class.counts.min())
        if self.shots + self.queries > fewest:
            rule = f"be at most {fewest} together with queries, the images of {found.classes[by_class.counts.argmin()]}"
            refuse("shots", rule, self.shots + self.queries, "lower shots or queries")
        kinds = self._turns * len(found.classes)
        if self.ways > kinds:
            refuse("ways", f"be at most {kinds}, the classes of {self.dataset}", self.ways, "lower it")
        return found, by_class

    def _classes(self, batch: int, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """Classes ``(batch, ways)`` and quarters of a turn."""
        scores = torch.rand(batch, self._turns * count, generator=generator, device=generator.device)
        drawn = scores.topk(self.ways).indices
        return drawn % count, drawn // count


class ByClass(NamedTuple):
    """Images sorted by class, the place of the first of each, and how many there are."""

    order: Int[Tensor, " images"]
    starts: Int[Tensor, " classes"]
    counts: Int[Tensor, " classes"]

    def drawn(
        self, chosen: Int[Tensor, "batch ways"], count: int, generator: torch.Generator
    ) -> Int[Tensor, "batch ways count"]:
        """Images of each class ``chosen``, none twice."""
        order, starts, counts = (part.to(chosen.device) for part in self)
        scores = torch.rand(*chosen.shape, int(counts.max()), generator=generator, device=chosen.device)
        scores[torch.arange(scores.shape[-1], device=chosen.device) >= counts[chosen][..., None]] = -1
        places = scores.topk(count).indices
        return order[starts[chosen][..., None] + places]


def sorted_images(dataset: str, part: str, size: int | None) -> tuple[Images, ByClass]:
    """The images of a dataset, and where those of each class are."""
    found = images(dataset, part, size)
    return found, _by_class(found.labels)


@functools.lru_cache(16)
def _by_class(labels: Int[Tensor, " images"]) -> ByClass:
    counts = labels.bincount()
    return ByClass(labels.argsort(stable=True), counts.cumsum(0) - counts, counts)


def _turned(pixels: Tensor, turns: Tensor) -> Tensor:
    """Each class by its quarters of a turn."""
    return torch.stack([one.rot90(int(turn), (-2, -1)) for one, turn in zip(pixels, turns, strict=True)])


def _shuffled(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images and targets ``(batch, ways, count, d)`` in one random order a task."""
    x, y = x.flatten(1, 2), y.flatten(1, 2)
    order = torch.rand(x.shape[:2], generator=generator, device=x.device).argsort(-1)[..., None]
    return torch.take_along_dim(x, order, 1), torch.take_along_dim(y, order, 1)


def accuracy(
    scores: Float[Tensor, "*batch m classes"], targets: Float[Tensor, "*batch m classes"]
) -> Float[Tensor, "*batch"]:
    """The share of queries whose class has the largest score; targets are 1 at their class.

    >>> accuracy(torch.tensor([[0.2, 0.8], [0.6, 0.4]]), torch.tensor([[0.0, 1.0], [0.0, 1.0]]))
    tensor(0.5000)
    """
    return (scores.argmax(-1) == targets.argmax(-1)).float().mean(-1)
