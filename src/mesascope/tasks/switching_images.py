"""A stream of images whose task switches at times that nobody tells."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from mesascope.data import PARTS
from mesascope.errors import ArgumentTypeError, refuse, require_choice, require_count, require_number, shown
from mesascope.modes import guarded
from mesascope.shapes import Int, Tensor
from mesascope.streams import stream
from mesascope.tasks.episodes import Context
from mesascope.tasks.few_shot_images import sorted_images
from mesascope.validate import frozen

__all__ = ["ImageStream", "SwitchingImages"]


@frozen
class SwitchingImages:
    """Batches of ``shots`` images of each of ``ways`` classes, of one task for a while and then of another.

    At each step a new task begins with probability 1 - ``stay``: a domain, ``ways`` of its classes, and an order to
    number them in, all drawn at random. Images are drawn anew at each step.

    Args:
        domains: datasets of `mesascope.data.images`, one as likely as another; named twice it is twice as likely.
        size, part: see there.

    Source: Caccia et al. (2020); thesis, section 4.4.2.

    >>> found = SwitchingImages(ways=3, shots=2, domains=("digits",), size=8).stream(5, seed=0)
    >>> found(4).x.shape, found(4).y.shape
    (torch.Size([6, 64]), torch.Size([6, 3]))
    """

    stay: float = 0.9
    ways: int = 10
    shots: int = 5
    domains: Sequence[str] = ("omniglot", "omniglot", "mnist", "fashion-mnist")
    size: int = 28
    part: str = "train"

    def __post_init__(self) -> None:
        require_number("stay", self.stay, least=0, most=1)
        for name, least in (("ways", 2), ("shots", 1), ("size", 1)):
            require_count(name, getattr(self, name), least=least)
        if isinstance(self.domains, str) or not self.domains or not all(isinstance(one, str) for one in self.domains):
            raise ArgumentTypeError(f"domains must be names, but is {shown(self.domains)}: pass ('mnist',), say.")
        object.__setattr__(self, "domains", tuple(self.domains))
        require_choice("part", self.part, PARTS)

    def stream(self, steps: int, seed: int) -> ImageStream:
        """The stream of a seed, so many steps of it."""
        return ImageStream(self, steps, seed)


class ImageStream:
    """The steps of a `SwitchingImages`, each drawn when it is asked for: ``stream(step)`` is a `Context`.

    Inputs are pixels from 0 to 1 in a row; targets have a 1 at the class.
    """

    tasks: Int[Tensor, " steps"]
    """Which task each step is of, counted from 0."""
    domains: Int[Tensor, " tasks"]
    """Which of the domains each task is of."""

    @guarded
    def __init__(self, settings: SwitchingImages, steps: int, seed: int) -> None:
        steps = require_count("steps", steps)
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
            refuse("domains", "have as many channels as each other", channels, "leave some out")

    def __len__(self) -> int:
        return len(self.tasks)

    @guarded
    def __call__(self, step: int) -> Context:
        """The images of a step and their classes, in random order."""
        step = require_count("step", step, least=0)
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
