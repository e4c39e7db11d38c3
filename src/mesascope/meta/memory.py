"""Example memories for continual learning, one for each member of an ensemble."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch

from mesascope.errors import require_count
from mesascope.shapes import Float, Int, Tensor


class Reservoir:
    """Reservoir sampling: a uniform sample of all examples so far.

    Args:
        size: number of examples kept for each member.

    >>> memory = Reservoir(2)
    >>> memory.add(torch.zeros(1, 5, 3), torch.arange(5)[None], [torch.Generator()])
    >>> memory.draw(10, [torch.Generator()])[0].shape, memory.seen
    (torch.Size([1, 2, 3]), 5)
    """

    def __init__(self, size: int) -> None:
        self.size, self.seen = require_count("size", size), 0
        self.x, self.y = torch.empty(0), torch.empty(0)

    def add(
        self, x: Float[Tensor, "members n d"], y: Int[Tensor, "members n"], generators: Sequence[torch.Generator]
    ) -> None:
        """Add ``n`` examples of each member, one after another."""
        if not self.seen:
            self.x, self.y = x.new_zeros(len(x), self.size, x.shape[2]), y.new_zeros(len(y), self.size)
        chance = torch.stack([torch.rand(x.shape[1], generator=generator) for generator in generators])
        for index in range(x.shape[1]):
            self.seen += 1
            full = self.seen > self.size
            slots = (chance[:, index] * self.seen).int().tolist() if full else [self.seen - 1] * len(x)
            for member, slot in enumerate(slots):
                if slot < self.size:
                    self.x[member, slot], self.y[member, slot] = x[member, index], y[member, index]

    def draw(
        self, count: int, generators: Sequence[torch.Generator]
    ) -> tuple[Float[Tensor, "members m d"], Int[Tensor, "members m"]]:
        """Draw ``count`` different examples of each member, or all if fewer are kept."""
        kept = min(self.seen, self.size)
        rows = torch.stack([torch.randperm(kept, generator=generator)[:count] for generator in generators])
        members = torch.arange(len(rows))[:, None]
        return self.x[members, rows], self.y[members, rows]

    def tensors(self) -> dict[str, Tensor]:
        """Contents for a checkpoint; none before the first examples."""
        return {"x": self.x, "y": self.y, "seen": torch.tensor(self.seen)} if self.seen else {}

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        self.seen = int(tensors.get("seen", 0))
        if self.seen:
            self.x, self.y = tensors["x"].clone(), tensors["y"].clone()


class TaskMemory:
    """The last examples of each task.

    Args:
        size: number of examples kept of each task, for each member.
    """

    def __init__(self, size: int) -> None:
        self.size = require_count("size", size)
        self.kept: dict[int, tuple[Tensor, Tensor]] = {}

    def add(self, x: Float[Tensor, "members n d"], y: Int[Tensor, "members n"], task: int) -> None:
        if task in self.kept:
            x, y = torch.cat([self.kept[task][0], x], 1), torch.cat([self.kept[task][1], y], 1)
        self.kept[task] = x[:, -self.size :].contiguous(), y[:, -self.size :].contiguous()

    def before(self, task: int) -> list[tuple[Tensor, Tensor]]:
        """Examples of each other task."""
        return [pairs for other, pairs in self.kept.items() if other != task]

    def tensors(self) -> dict[str, Tensor]:
        return {
            f"{task}/{part}": one for task, pairs in self.kept.items() for part, one in zip("xy", pairs, strict=True)
        }

    def load(self, tensors: Mapping[str, Tensor]) -> None:
        tasks = sorted({int(name.split("/")[0]) for name in tensors})
        self.kept = {task: (tensors[f"{task}/x"].clone(), tensors[f"{task}/y"].clone()) for task in tasks}
