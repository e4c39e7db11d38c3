"""Tasks that separate algorithms: a family's own tasks, shorter contexts, and distorted tasks.

On the family's own tasks many algorithms nearly agree. Scaled, ill-conditioned and duplicated inputs separate them.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from mesascope.errors import refuse
from mesascope.identification.answering import joined
from mesascope.shapes import Float, Tensor
from mesascope.streams import stream
from mesascope.tasks import Context, Episode
from mesascope.tasks.calling import check_tasks, label, require_labels, sample_tasks

OWN, HALF, QUARTER, SHUFFLED = "own", "half of the pairs", "a quarter of the pairs", "shuffled labels"
# Number of tasks per draw.
_BLOCK = 8
_SCALE, _SHIFT, _OUTLIER = 2.0, 1.0, 10.0
# Smallest scale factor of ill-conditioned inputs.
_NARROW = 0.05


def battery(family: Any, tasks: int, seed: int, part: str) -> dict[str, Episode]:
    """Draw tasks for each condition that the family allows, in float64; the first condition is the family's own tasks.

    All conditions except ``OWN`` distort the same tasks. Labels are not recomputed: an algorithm can be applied to any
    context. A larger battery begins with the tasks of a smaller one, so that cached answers can be reused.

    Args:
        part: name of the random stream; tasks to fit and to test on have different streams.
    """
    blocks = [_block(family, f"identify-{part}-{start}", seed) for start in range(0, tasks, _BLOCK)]
    if any(block.keys() != blocks[0].keys() for block in blocks):
        refuse("family", "draw contexts of one length", label(family), "fix its number of pairs")
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


def _shorter(share: float) -> Callable[[Episode, torch.Generator], Episode | None]:
    def change(tasks: Episode, generator: torch.Generator) -> Episode | None:
        n = tasks.context.x.shape[-2]
        kept = round(share * n)
        return _first(tasks, kept) if 0 < kept < n else None

    return change


def _first(tasks: Episode, kept: int) -> Episode:
    (x, y), xq, yq = tasks
    return Episode(Context(x[..., :kept, :], y[..., :kept, :]), xq, yq)


def _scaled(tasks: Episode, generator: torch.Generator) -> Episode:
    return _inputs(tasks, lambda x: _SCALE * x)


def _shifted(tasks: Episode, generator: torch.Generator) -> Episode:
    size = tasks.context.x.square().mean((-2, -1), keepdim=True).sqrt()
    return _inputs(tasks, lambda x: x + _SHIFT * size)


def _ill_conditioned(tasks: Episode, generator: torch.Generator) -> Episode | None:
    """Scale the coordinates in a random basis by factors from 1 down to `_NARROW`."""
    d = tasks.xq.shape[-1]
    if d == 1:
        return None
    draw = torch.randn(len(tasks.xq), d, d, generator=generator, dtype=torch.float64, device=generator.device)
    basis, _ = torch.linalg.qr(draw.to(tasks.xq))
    factors = torch.logspace(0, torch.log10(torch.tensor(_NARROW)).item(), d, dtype=torch.float64).to(basis)
    return _inputs(tasks, lambda x: x @ (basis * factors) @ basis.mT)


def _duplicated(tasks: Episode, generator: torch.Generator) -> Episode | None:
    """Replace the second half of the context by the first half."""
    (x, y), xq, yq = tasks
    n = x.shape[-2]
    if n < 2:
        return None
    rows = torch.arange(n) % ((n + 1) // 2)
    return Episode(Context(x[..., rows, :], y[..., rows, :]), xq, yq)


def _outlier(tasks: Episode, generator: torch.Generator) -> Episode:
    """Multiply one label by `_OUTLIER`."""
    (x, y), xq, yq = tasks
    factor = y.new_ones(y.shape[-2], 1)
    factor[0] = _OUTLIER
    return Episode(Context(x, y * factor), xq, yq)


def _shuffled(tasks: Episode, generator: torch.Generator) -> Episode | None:
    """Shuffle the labels of each context."""
    (x, y), xq, yq = tasks
    n = y.shape[-2]
    if n < 2:
        return None
    order = torch.rand(len(y), n, generator=generator, device=generator.device).argsort(-1)[..., None]
    return Episode(Context(x, torch.take_along_dim(y, order.to(y.device), -2)), xq, yq)


def _inputs(tasks: Episode, change: Callable[[Tensor], Float[Tensor, "*batch n dx"]]) -> Episode:
    (x, y), xq, yq = tasks
    return Episode(Context(change(x), y), change(xq), yq)


# Distortions of a family's tasks, by name; they return None if the tasks' shape does not allow it.
CONDITIONS: dict[str, Callable[[Episode, torch.Generator], Episode | None]] = {
    HALF: _shorter(0.5),
    QUARTER: _shorter(0.25),
    "inputs twice as large": _scaled,
    "ill-conditioned inputs": _ill_conditioned,
    "duplicated pairs": _duplicated,
    "shifted inputs": _shifted,
    "an outlier": _outlier,
    SHUFFLED: _shuffled,
}
