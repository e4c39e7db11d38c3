"""Tasks of images: few-shot classification, and streams for continual learning."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch.nn import functional

from mesascope.data import Images, images, images_of
from mesascope.data.folders import warn_of_shared_classes
from mesascope.data.image_sets import DATASETS
from mesascope.errors import refuse, require_count, require_instance
from mesascope.modes import guarded
from mesascope.records import register
from mesascope.shapes import Float, Int, Tensor
from mesascope.streams import stream
from mesascope.tasks.draws import check_draw, orders
from mesascope.tasks.episodes import Context, Episode
from mesascope.validate import Count, NonEmpty, Several, Share, frozen

Part = Literal["train", "validation", "test"]


class _FewShot:
    """Few-shot tasks from the images that `_found` returns."""

    dataset: str
    ways: int
    shots: int
    queries: int
    rotations: bool

    def _found(self) -> tuple[Images, ByClass]:
        raise NotImplementedError

    def sample(self, batch: int, generator: torch.Generator) -> Episode:
        check_draw(batch, generator)
        found, by_class = self._images()
        kinds = torch.rand(batch, self._turns * len(found.classes), generator=generator, device=generator.device)
        drawn = kinds.topk(self.ways).indices
        chosen, turns = drawn % len(found.classes), drawn // len(found.classes)  # rotations in quarter turns
        rows = by_class.draw(chosen, self.shots + self.queries, generator)
        pixels = found.pixels[rows.flatten(0, 1).cpu()].to(generator.device)  # (batch * ways, shots + queries, c, s, s)
        if self.rotations:
            each = zip(pixels, turns.flatten().tolist(), strict=True)
            pixels = torch.stack([one.rot90(turn, (-2, -1)) for one, turn in each])
        x = pixels.unflatten(0, (batch, self.ways)).flatten(-3)
        x = x if x.is_floating_point() else x.float().div_(255)
        y = torch.eye(self.ways, dtype=x.dtype, device=x.device)[:, None].expand(batch, -1, x.shape[2], -1)
        context = _shuffled(x[:, :, : self.shots], y[:, :, : self.shots], generator)
        return Episode(Context(*context), *_shuffled(x[:, :, self.shots :], y[:, :, self.shots :], generator))

    @property
    def _turns(self) -> int:
        return 4 if self.rotations else 1

    def _images(self) -> tuple[Images, ByClass]:
        found, by_class = self._found()
        fewest = int(by_class.counts.min())
        if self.shots + self.queries > fewest:
            smallest = found.classes[by_class.counts.argmin()]
            rule = f"be at most {fewest} together with queries, the images of class {smallest}"
            refuse("shots", rule, self.shots + self.queries, "lower shots or queries")
        kinds = self._turns * len(found.classes)
        if self.ways > kinds:
            refuse("ways", f"be at most {kinds}, the classes of {self.dataset}", self.ways, "lower it")
        return found, by_class


@register("family", "few-shot-images")
@dataclass(frozen=True)
class FewShotImages(_FewShot):
    """Tasks of ``ways`` random classes of a dataset, in random order; a context has ``shots`` images of each class.

    Inputs are flat rows of pixels from 0 to 1, ``channels * size * size``, channels first. `torch.nn.Unflatten`
    reshapes them to images; `ConvNet4` accepts them directly. Targets are one-hot classes of width ``ways``. No query
    is in the context, and the order of images is random.

    Args:
        dataset: digits, mnist, fashion-mnist, omniglot, or a folder, by name or path: see `mesascope.data.images`.
        queries: number of queries of each class.
        size: side of the images in pixels; if None, the files' side.
        part: train, validation or test.
        rotations: if True, images rotated by 90, 180 and 270 degrees are additional classes. A task can hold several
            rotations of one class, and of one image, as often as it draws the class twice.

    >>> episode = FewShotImages(ways=3, shots=2, queries=4).sample(2, stream(0, "doc"))
    >>> [tuple(t.shape) for t in (episode.context.x, episode.context.y, episode.xq, episode.yq)]
    [(2, 6, 64), (2, 6, 3), (2, 12, 64), (2, 12, 3)]
    """

    dataset: str = "digits"
    ways: Several = 5
    shots: Count = 1
    queries: Count = 15
    size: Count | None = None
    part: Part = "train"
    rotations: bool = False

    @property
    def images_checksum(self) -> str:
        """Checksum of the images."""
        return self._found()[0].checksum

    def _found(self) -> tuple[Images, ByClass]:
        found = sorted_images(self.dataset, self.part, self.size)
        if self.dataset not in DATASETS:
            warn_of_shared_classes(self.dataset, self.part)
        return found


class FewShotArrays(_FewShot):
    """Few-shot tasks like those of `FewShotImages`, from your own images.

    Args:
        images: array or tensor ``(n, channels, size, size)`` or ``(n, size, size)`` of bytes or floats; the path of an
            .npy file with an array; or a dataset of pairs (image, label), such as torchvision's, or of mappings with
            these keys, such as Hugging Face's. Tasks are float32.
            Pictures of Pillow are read as those of folders.
        labels: class of each image, ``(n,)`` whole numbers or names; None for a dataset of pairs.
        ways, shots, queries, rotations: see `FewShotImages`.

    Raises:
        ArgumentError: images or labels do not have these shapes, or there are too few of them.

    >>> import numpy as np
    >>> images = np.random.default_rng(0).random((30, 8, 8), dtype=np.float32)
    >>> family = FewShotArrays(images, np.repeat(["cat", "dog", "owl"], 10), ways=2, queries=5)
    >>> family.sample(1, stream(0, "doc")).xq.shape
    torch.Size([1, 10, 64])
    """

    dataset = "these images"

    def __init__(
        self, images: Any, labels: Any = None, *, ways: int = 5, shots: int = 1, queries: int = 15,
        rotations: bool = False,
    ) -> None:  # fmt: skip
        self.ways, self.shots = require_count("ways", ways, least=2), require_count("shots", shots)
        require_instance("rotations", rotations, bool)
        self.queries, self.rotations = require_count("queries", queries), rotations
        self._data = images_of(images, labels)
        self._images()

    def _found(self) -> tuple[Images, ByClass]:
        return self._data, _by_class(self._data.labels)


class ByClass(NamedTuple):
    """Indices of images sorted by class, and the start and number of images of each class."""

    order: Int[Tensor, " images"]
    starts: Int[Tensor, " classes"]
    counts: Int[Tensor, " classes"]

    def draw(
        self, chosen: Int[Tensor, "batch ways"], count: int, generator: torch.Generator
    ) -> Int[Tensor, "batch ways count"]:
        """Indices of ``count`` different images of each class in ``chosen``."""
        order, starts, counts = (part.to(chosen.device) for part in self)
        scores = torch.rand(*chosen.shape, int(self.counts.max()), generator=generator, device=chosen.device)
        missing = torch.arange(scores.shape[-1], device=chosen.device) >= counts[chosen][..., None]
        scores = scores.masked_fill(missing, -1)
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


def _shuffled(x: Tensor, y: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Images and targets ``(batch, ways, count, d)`` as rows, in one random order for each task."""
    x, y = x.flatten(1, 2), y.flatten(1, 2)
    order = orders(x.shape[:2], generator)[..., None]
    return torch.take_along_dim(x, order, 1), torch.take_along_dim(y, order, 1)


def accuracy(
    scores: Float[Tensor, "*batch m classes"], targets: Float[Tensor, "*batch m classes"] | Int[Tensor, "*batch m"]
) -> Float[Tensor, "*batch"]:
    """Share of queries whose class has the largest score; targets are one-hot, or indices of classes.

    It is nan where a score is nan.

    >>> accuracy(torch.tensor([[0.2, 0.8], [0.6, 0.4]]), torch.tensor([[0.0, 1.0], [0.0, 1.0]]))
    tensor(0.5000)
    """
    indices = targets.ndim == scores.ndim - 1 and not targets.is_floating_point()
    if targets.shape != (scores.shape[:-1] if indices else scores.shape):
        rule = f"be one-hot of the shape {tuple(scores.shape)} of scores, or indices without its last axis"
        refuse("targets", rule, f"{targets.dtype} {tuple(targets.shape)}", "pass the class of each query")
    right = (scores.argmax(-1) == (targets if indices else targets.argmax(-1))).float()
    return right.where(~scores.isnan().any(-1), torch.nan).mean(-1)


@dataclass(frozen=True)
class _Digits:
    """Ten-class tasks, each with its own transformation of the images."""

    samples: Count = 1000
    queries: Count = 400
    dataset: str = "digits"
    size: Count | None = None

    @property
    def images_checksum(self) -> str:
        """Checksum of the images of both parts."""
        return "".join(images(self.dataset, part, self.size).checksum for part in ("train", "test"))

    def sample(self, batch: int, generator: torch.Generator) -> Episode:
        """Draw ``batch`` tasks in their order, on the generator's device, in float32."""
        check_draw(batch, generator)
        parts, sets = [], {part: images(self.dataset, part, self.size) for part in ("train", "test")}
        if sets["train"].classes != sets["test"].classes:
            refuse("dataset", "have the same classes to train and to test", self.dataset, "pass mnist, for example")
        for name, part in (("samples", "train"), ("queries", "test")):
            found, count = sets[part], getattr(self, name)
            if count > len(found.labels):
                refuse(name, f"be at most the {len(found.labels)} images of {self.dataset}", count, "lower it")
            parts.append([_drawn(found, count, generator) for _ in range(batch)])
        pairs = []
        for task, (learned, asked) in enumerate(zip(*parts, strict=True)):
            pixels = self._changed(torch.cat([learned[0], asked[0]]), task, batch, generator).flatten(1)
            pairs.append((*pixels.split([self.samples, self.queries]), learned[1], asked[1]))
        if not pairs:
            return self.sample(1, generator).map(lambda tensor: tensor[:0])
        x, xq, y, yq = map(torch.stack, zip(*pairs, strict=True))
        return Episode(Context(x, y), xq, yq)

    def _changed(
        self, pixels: Float[Tensor, "n channels size size"], task: int, tasks: int, generator: torch.Generator
    ) -> Tensor:
        raise NotImplementedError


@register("family", "rotated-digits")
@dataclass(frozen=True)
class RotatedDigits(_Digits):
    """Digits rotated by one random angle per task, in [180 t / T, 180 (t + 1) / T] degrees for task t = 0, ..., T - 1.

    A batch is a stream of tasks in order. Inputs are flat rows of pixels from 0 to 1, targets one-hot classes.

    Args:
        samples: number of images in a context, from the training part.
        queries: number of images to classify, from the test part.
        dataset, size: see `mesascope.data.images`; the source uses "mnist".

    Source: Lopez-Paz and Ranzato (2017); von Oswald (2024), section 4.4.1.

    >>> episode = RotatedDigits(samples=50, queries=20).sample(3, stream(0, "doc"))
    >>> episode.context.x.shape, episode.yq.shape
    (torch.Size([3, 50, 64]), torch.Size([3, 20, 10]))
    """

    def _changed(self, pixels: Tensor, task: int, tasks: int, generator: torch.Generator) -> Tensor:
        share = torch.rand((), generator=generator, device=generator.device).item()
        angle = math.pi * (task + share) / tasks
        turn = torch.tensor([[math.cos(angle), -math.sin(angle), 0.0], [math.sin(angle), math.cos(angle), 0.0]])
        grid = functional.affine_grid(turn.to(pixels).expand(len(pixels), -1, -1), list(pixels.shape), False)
        return functional.grid_sample(pixels, grid, align_corners=False)


@register("family", "permuted-digits")
@dataclass(frozen=True)
class PermutedDigits(_Digits):
    """Digits with permuted pixels, one random permutation per task. Otherwise like `RotatedDigits`.

    Source: Goodfellow et al. (2013), Lopez-Paz and Ranzato (2017); von Oswald (2024), section 4.4.1.

    >>> PermutedDigits(samples=50, queries=20).sample(3, stream(0, "doc")).context.x.shape
    torch.Size([3, 50, 64])
    """

    def _changed(self, pixels: Tensor, task: int, tasks: int, generator: torch.Generator) -> Tensor:
        rows = pixels.flatten(1)
        return rows[:, torch.randperm(rows.shape[1], generator=generator, device=generator.device)]


def _drawn(found: Images, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Pixels and targets of images drawn without replacement, in random order."""
    device = generator.device
    chosen = torch.randperm(len(found.labels), generator=generator, device=device)[:count].cpu()
    pixels = found.pixels[chosen].to(device).float() / 255
    return pixels, torch.eye(len(found.classes), device=device)[found.labels[chosen].to(device)]


@frozen
class SwitchingImages:
    """A stream of batches with ``shots`` images of each of ``ways`` classes, from a sequence of tasks.

    At each step a new task starts with probability 1 - ``stay``: a random domain, and ``ways`` of its classes in random
    order. Each step draws new images.

    Args:
        domains: datasets of `mesascope.data.images`, equally likely; a dataset named twice is twice as likely.
        size, part: see `mesascope.data.images`.

    Source: Caccia et al. (2020); von Oswald (2024), section 4.4.2.

    >>> found = SwitchingImages(ways=3, shots=2, domains=("digits",), size=8).stream(5, seed=0)
    >>> found(4).x.shape, found(4).y.shape
    (torch.Size([6, 64]), torch.Size([6, 3]))
    """

    stay: Share = 0.9
    ways: Several = 10
    shots: Count = 5
    domains: NonEmpty[str] = ("omniglot", "omniglot", "mnist", "fashion-mnist")
    size: Count = 28
    part: Part = "train"

    def stream(self, steps: int, seed: int) -> ImageStream:
        """Stream of ``steps`` steps for a seed."""
        return ImageStream(self, steps, seed)


class ImageStream:
    """The steps of a `SwitchingImages` stream, drawn on demand: ``stream(step)`` is a `Context`.

    Inputs are flat rows of pixels from 0 to 1, targets one-hot classes.
    """

    tasks: Int[Tensor, " steps"]
    """Index of the task of each step."""
    domains: Int[Tensor, " tasks"]
    """Index of the domain of each task."""

    @guarded
    def __init__(self, settings: SwitchingImages, steps: int, seed: int) -> None:
        require_count("steps", steps)
        self.settings, self.seed = settings, seed
        generator = stream(seed, "switches")
        switches = torch.rand(steps, generator=generator) >= settings.stay
        switches[0] = False
        self.tasks = switches.cumsum(0)
        self.domains = torch.randint(len(settings.domains), (int(self.tasks[-1]) + 1,), generator=generator)
        self._sorted = [sorted_images(name, settings.part, settings.size) for name in settings.domains]
        for name, (found, by_class) in zip(settings.domains, self._sorted, strict=True):
            for argument, most in (("ways", len(found.classes)), ("shots", int(by_class.counts.min()))):
                if getattr(settings, argument) > most:
                    refuse(argument, f"be at most {most} for {name}", getattr(settings, argument), "lower it")
        channels = {name: one.pixels.shape[1] for name, (one, _) in zip(settings.domains, self._sorted, strict=True)}
        if len(set(channels.values())) > 1:
            refuse("domains", "have equally many channels", channels, "leave some out")

    def __len__(self) -> int:
        return len(self.tasks)

    @guarded
    def __call__(self, step: int) -> Context:
        """Images of a step and their classes, in random order."""
        require_count("step", step, least=0)
        if step >= len(self):
            refuse("step", f"be below the {len(self)} steps of the stream", step, "make a longer one")
        settings, task = self.settings, int(self.tasks[step])
        found, by_class = self._sorted[int(self.domains[task])]
        scores = torch.rand(1, len(found.classes), generator=stream(self.seed, "classes", task))
        generator = stream(self.seed, "images", step)
        rows = by_class.draw(scores.topk(settings.ways).indices, settings.shots, generator).flatten()
        order = torch.randperm(len(rows), generator=generator)
        labels = torch.arange(settings.ways).repeat_interleave(settings.shots)[order]
        return Context(found.pixels[rows[order]].flatten(1).float() / 255, torch.eye(settings.ways)[labels])
