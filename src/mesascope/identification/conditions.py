"""Tasks that separate algorithms: a family's own tasks, shorter contexts, and distorted tasks.

On the family's own tasks many algorithms nearly agree. Scaled, ill-conditioned and duplicated inputs separate them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mesascope.errors import refuse, require_count
from mesascope.identification.answering import joined
from mesascope.shapes import Float, Int, Tensor
from mesascope.streams import stream
from mesascope.tasks import Context, Episode
from mesascope.tasks.calling import check_tasks, label, require_labels, sample_tasks
from mesascope.tasks.draws import orders

# A distortion of tasks; None if their shape does not allow it.
Change = Callable[[Episode, torch.Generator], Episode | None]

OWN, HALF, QUARTER, SHUFFLED = "own", "half of the pairs", "a quarter of the pairs", "shuffled labels"
# Number of tasks per draw.
_BLOCK = 8
_SHIFT, _OUTLIER = 1.0, 10.0
# Smallest scale factor of ill-conditioned inputs.
_NARROW = 0.05


def battery(family: Any, tasks: int, seed: int, part: str) -> dict[str, Episode]:
    """Draw tasks for each condition that the family allows, in float64; the first condition is the family's own tasks.

    All other conditions change the same second draw of tasks. Changed inputs keep their labels: an algorithm applies to
    any context. A larger battery begins with the tasks of a smaller one, so that cached answers can be reused.

    Args:
        tasks: number of tasks per condition.
        part: name of the random stream; tasks to fit and to test on have different streams.
    """
    tasks = require_count("tasks", tasks)
    blocks = [_block(family, f"identify-{part}-{start}", seed) for start in range(0, tasks, _BLOCK)]
    if any(block.keys() != blocks[0].keys() for block in blocks):
        refuse("family", "draw contexts of one length", label(family), "keep its number of pairs constant")
    return {name: joined([block[name] for block in blocks]).part(0, tasks) for name in blocks[0]}


def _block(family: Any, name: str, seed: int) -> dict[str, Episode]:
    own = sample_tasks(family, _BLOCK, stream(seed, name))
    if not isinstance(own, Episode):
        refuse(
            "family", "draw episodes", label(family), "choose one of contexts and queries, such as LinearRegression()"
        )
    check_tasks(own)
    own = own.to(torch.float64)
    require_labels(family, own)
    plain = sample_tasks(family, _BLOCK, stream(seed, name, 1)).to(torch.float64)
    found = {OWN: own}
    for index, (condition, change) in enumerate(CONDITIONS.items()):
        changed = change(plain, stream(seed, name, 2 + index))
        if changed is not None:
            found[condition] = changed
    return found


def with_labels(tasks: Episode, labels: Float[Tensor, "*batch n dy"]) -> Episode:
    return tasks._replace(context=Context(tasks.context.x, labels))


def with_inputs(tasks: Episode, change: Callable[[Tensor], Tensor]) -> Episode:
    return tasks._replace(context=Context(change(tasks.context.x), tasks.context.y), xq=change(tasks.xq))


def random_orders(tasks: Episode, generator: torch.Generator) -> Int[Tensor, "tasks n 1"]:
    """A random order of the pairs of each task."""
    return orders(tasks.context.x.shape[:2], generator)[..., None].to(tasks.xq.device)


def random_bases(tasks: Episode, generator: torch.Generator) -> Float[Tensor, "tasks d d"]:
    """Random orthonormal basis of the input space, one for each task."""
    shape = (len(tasks.xq), tasks.xq.shape[-1], tasks.xq.shape[-1])
    draw = torch.randn(shape, generator=generator, dtype=tasks.xq.dtype, device=generator.device)
    return torch.linalg.qr(draw.to(tasks.xq)).Q


def _shorter(share: float) -> Change:
    """Keep the first pairs."""

    def change(tasks: Episode, generator: torch.Generator) -> Episode | None:
        n = tasks.context.x.shape[-2]
        kept = round(share * n)
        return _rows(tasks, slice(kept)) if 0 < kept < n else None

    return change


def _rows(tasks: Episode, rows: slice | Tensor) -> Episode:
    return tasks._replace(context=Context(*(part[..., rows, :] for part in tasks.context)))


def _shifted(tasks: Episode, generator: torch.Generator) -> Episode:
    size = torch.cat([tasks.context.x, tasks.xq], -2).square().mean((-2, -1), keepdim=True).sqrt()
    return with_inputs(tasks, lambda x: x + _SHIFT * size)


def _ill_conditioned(tasks: Episode, generator: torch.Generator) -> Episode | None:
    """Scale the coordinates in a random basis by factors from 1 down to `_NARROW`."""
    d = tasks.xq.shape[-1]
    if d == 1:
        return None
    basis = random_bases(tasks, generator)
    factors = torch.logspace(0, torch.log10(torch.tensor(_NARROW)).item(), d, dtype=torch.float64).to(basis)
    return with_inputs(tasks, lambda x: x @ (basis * factors) @ basis.mT)


def _duplicated(tasks: Episode, generator: torch.Generator) -> Episode | None:
    """Replace the second half of the context by the first half."""
    n = tasks.context.x.shape[-2]
    return None if n < 2 else _rows(tasks, torch.arange(n) % ((n + 1) // 2))


def _outlier(tasks: Episode, generator: torch.Generator) -> Episode:
    """Multiply the first label by `_OUTLIER`."""
    labels = tasks.context.y.clone()
    labels[..., 0, :] *= _OUTLIER
    return with_labels(tasks, labels)


def _shuffled(tasks: Episode, generator: torch.Generator) -> Episode | None:
    """Shuffle the labels of each context."""
    labels = tasks.context.y
    if labels.shape[-2] < 2:
        return None
    return with_labels(tasks, torch.take_along_dim(labels, random_orders(tasks, generator), -2))


# Distortions of a family's tasks, by name.
CONDITIONS: dict[str, Change] = {
    HALF: _shorter(0.5),
    QUARTER: _shorter(0.25),
    "inputs twice as large": lambda tasks, generator: with_inputs(tasks, lambda x: 2 * x),
    "ill-conditioned inputs": _ill_conditioned,
    "duplicated pairs": _duplicated,
    "shifted inputs": _shifted,
    "an outlier": _outlier,
    SHUFFLED: _shuffled,
}
