"""Few-shot classification of images."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import msgspec
import torch

from mesascope.data import Images, images
from mesascope.errors import refuse
from mesascope.records import register
from mesascope.shapes import Float, Int, Tensor
from mesascope.tasks.draws import check_draw
from mesascope.tasks.episodes import Context, Episode
from mesascope.validate import Count

Ways = Annotated[int, msgspec.Meta(ge=2)]
Part = Literal["train", "validation", "test"]


@register("family", "few-shot-images")
@dataclass(frozen=True)
class FewShotImages:
    """Tasks of ``ways`` random classes of a dataset, in random order; a context has ``shots`` images of each class.

    Inputs are flat rows of pixels from 0 to 1, ``channels * size * size``, channels first. `torch.nn.Unflatten`
    reshapes them to images; `ConvNet4` accepts them directly. Targets are one-hot classes of width ``ways``. No query
    is in the context, and the order of images is random.

    Args:
        dataset: digits, mnist, fashion-mnist, omniglot, or a folder, by name or path: see `mesascope.data.images`.
        queries: queries of each class.
        size: side of the images in pixels; that of the files if None.
        part: train, validation or test.
        rotations: True to count images rotated by 90, 180 and 270 degrees as further classes.

    >>> from mesascope.streams import stream
    >>> episode = FewShotImages(ways=3, shots=2, queries=4).sample(2, stream(0, "doc"))
    >>> [tuple(t.shape) for t in (episode.context.x, episode.context.y, episode.xq, episode.yq)]
    [(2, 6, 64), (2, 6, 3), (2, 12, 64), (2, 12, 3)]
    """

    dataset: str = "digits"
    ways: Ways = 5
    shots: Count = 1
    queries: Count = 15
    size: Count | None = None
    part: Part = "train"
    rotations: bool = False

    def sample(self, batch: int, generator: torch.Generator) -> Episode:
        check_draw(batch, generator)
        found, by_class = self._images()
        chosen, turns = self._classes(batch, len(found.classes), generator)
        rows = by_class.draw(chosen, self.shots + self.queries, generator)
        pixels = found.pixels[rows.flatten(0, 1).cpu()].to(generator.device)  # (batch * ways, shots + queries, c, s, s)
        if self.rotations:
            pixels = _turned(pixels, turns.flatten())
        x = pixels.unflatten(0, (batch, self.ways)).flatten(-3).float().div_(255)
        y = torch.eye(self.ways, device=x.device)[:, None].expand(batch, -1, x.shape[2], -1)
        context = _shuffled(x[:, :, : self.shots], y[:, :, : self.shots], generator)
        return Episode(Context(*context), *_shuffled(x[:, :, self.shots :], y[:, :, self.shots :], generator))

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
        """Classes ``(batch, ways)`` and their rotations in quarter turns."""
        scores = torch.rand(batch, self._turns * count, generator=generator, device=generator.device)
        drawn = scores.topk(self.ways).indices
        return drawn % count, drawn // count


class ByClass(NamedTuple):
    """Indices of images sorted by class, and the start and number of images of each class."""

    order: Int[Tensor, " images"]
    starts: Int[Tensor, " classes"]
    counts: Int[Tensor, " classes"]

    def draw(
        self, chosen: Int[Tensor, "batch ways"], count: int, generator: torch.Generator
    ) -> Int[Tensor, "batch ways count"]:
        """Indices of ``count`` different images of each class ``chosen``."""
        order, starts, counts = (part.to(chosen.device) for part in self)
        scores = torch.rand(*chosen.shape, int(counts.max()), generator=generator, device=chosen.device)
        scores[torch.arange(scores.shape[-1], device=chosen.device) >= counts[chosen][..., None]] = -1
        places = scores.topk(count).indices
        return order[starts[chosen][..., None] + places]


def sorted_images(dataset: str, part: str, size: int | None) -> tuple[Images, ByClass]:
    """The images of a dataset, and their indices by class."""
    found = images(dataset, part, size)
    return found, _by_class(found.labels)


@functools.lru_cache(16)
def _by_class(labels: Int[Tensor, " images"]) -> ByClass:
    counts = labels.bincount()
    return ByClass(labels.argsort(stable=True), counts.cumsum(0) - counts, counts)


def _turned(pixels: Tensor, turns: Tensor) -> Tensor:
    return torch.stack([one.rot90(int(turn), (-2, -1)) for one, turn in zip(pixels, turns, strict=True)])


def _shuffled(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images and targets ``(batch, ways, count, d)`` as rows, in one random order for each task."""
    x, y = x.flatten(1, 2), y.flatten(1, 2)
    order = torch.rand(x.shape[:2], generator=generator, device=x.device).argsort(-1)[..., None]
    return torch.take_along_dim(x, order, 1), torch.take_along_dim(y, order, 1)


def accuracy(
    scores: Float[Tensor, "*batch m classes"], targets: Float[Tensor, "*batch m classes"]
) -> Float[Tensor, "*batch"]:
    """Share of queries whose class has the largest score; targets are one-hot.

    >>> accuracy(torch.tensor([[0.2, 0.8], [0.6, 0.4]]), torch.tensor([[0.0, 1.0], [0.0, 1.0]]))
    tensor(0.5000)
    """
    return (scores.argmax(-1) == targets.argmax(-1)).float().mean(-1)
