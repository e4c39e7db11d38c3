"""Streams of image tasks for continual learning: rotated and permuted digits, and tasks that switch unannounced."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch.nn import functional

from mesascope.data import Images, images
from mesascope.errors import refuse, require_count
from mesascope.modes import guarded
from mesascope.records import register
from mesascope.shapes import Float, Int, Tensor
from mesascope.streams import stream
from mesascope.tasks.draws import check_draw
from mesascope.tasks.episodes import Context, Episode
from mesascope.tasks.few_shot_images import Part, Ways, sorted_images
from mesascope.validate import Count, Share, frozen


@dataclass(frozen=True)
class _Digits:
    """Ten-class tasks, each with its own transformation of the images."""

    samples: Count = 1000
    queries: Count = 400
    dataset: str = "digits"
    size: Count | None = None

    def sample(self, batch: int, generator: torch.Generator) -> Episode:
        """Draw ``batch`` tasks in their order, on the generator's device, in float32."""
        check_draw(batch, generator)
        parts, sets = [], {part: images(self.dataset, part, self.size) for part in ("train", "test")}
        if sets["train"].classes != sets["test"].classes:
            refuse("dataset", "have the same classes to train and to test", self.dataset, "pass mnist, say")
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
    """Digits rotated by one angle for each task: for task t of T, drawn from [180 t / T, 180 (t + 1) / T] degrees.

    A batch is a stream of tasks in order. Inputs are flat rows of pixels from 0 to 1, targets one-hot classes.

    Args:
        samples: number of images in a context, from the training part.
        queries: number of images to classify, from the test part.
        dataset, size: see `mesascope.data.images`; "mnist" is the benchmark.

    Source: Lopez-Paz and Ranzato (2017); thesis, section 4.4.1.

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
    """Digits whose pixels are permuted, in one random order for each task. Otherwise like `RotatedDigits`.

    Source: Goodfellow et al. (2013), Lopez-Paz and Ranzato (2017); thesis, section 4.4.1.

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

    Source: Caccia et al. (2020); thesis, section 4.4.2.

    >>> found = SwitchingImages(ways=3, shots=2, domains=("digits",), size=8).stream(5, seed=0)
    >>> found(4).x.shape, found(4).y.shape
    (torch.Size([6, 64]), torch.Size([6, 3]))
    """

    stay: Share = 0.9
    ways: Ways = 10
    shots: Count = 5
    domains: tuple[str, ...] = ("omniglot", "omniglot", "mnist", "fashion-mnist")
    size: Count = 28
    part: Part = "train"

    def __post_init__(self) -> None:
        if not self.domains:
            refuse("domains", "be names", self.domains, "pass ('mnist',), say")

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
