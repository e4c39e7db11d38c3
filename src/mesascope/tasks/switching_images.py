"""A stream of images whose task switches at unannounced times."""

from __future__ import annotations

import torch

from mesascope.errors import refuse, require_count
from mesascope.modes import guarded
from mesascope.shapes import Int, Tensor
from mesascope.streams import stream
from mesascope.tasks.episodes import Context
from mesascope.tasks.few_shot_images import Part, Ways, sorted_images
from mesascope.validate import Count, Share, frozen

__all__ = ["ImageStream", "SwitchingImages"]


@frozen
class SwitchingImages:
    """Batches of ``shots`` images of each of ``ways`` classes, of tasks that follow one another.

    At each step a new task begins with probability 1 - ``stay``: a random domain, and ``ways`` of its classes in random
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
        """``steps`` steps of the stream of a seed."""
        return ImageStream(self, steps, seed)


class ImageStream:
    """The steps of a `SwitchingImages`, each drawn on demand: ``stream(step)`` is a `Context`.

    Inputs are rows of pixels from 0 to 1, targets one-hot classes.
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
        """The images of a step and their classes, in random order."""
        require_count("step", step, least=0)
        if step >= len(self):
            refuse("step", f"be below the {len(self)} steps of the stream", step, "make a longer one")
        settings, task = self.settings, int(self.tasks[step])
        found, by_class = self._sorted[int(self.domains[task])]
        scores = torch.rand(1, len(found.classes), generator=stream(self.seed, "classes", task))
        generator = stream(self.seed, "images", step)
        rows = by_class.drawn(scores.topk(settings.ways).indices, settings.shots, generator).flatten()
        order = torch.randperm(len(rows), generator=generator)
        labels = torch.arange(settings.ways).repeat_interleave(settings.shots)[order]
        return Context(found.pixels[rows[order]].flatten(1).float() / 255, torch.eye(settings.ways)[labels])
