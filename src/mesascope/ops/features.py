"""Features of keys, queries and positions: DPFP, rotary and sinusoidal."""

from __future__ import annotations

import torch

from mesascope.errors import refuse, require_count, require_instance
from mesascope.shapes import Float, Int, Tensor


def dpfp(x: Float[Tensor, "*batch d"], nu: int) -> Float[Tensor, "*batch features"]:
    """Deterministic parameter-free projection to 2 d nu features: r_i r_{i-j} for j = 1 ... nu, with r = relu([x, -x]).

    Source: Schlag, Irie and Schmidhuber (2021); von Oswald (2024), section 3.5.3.

    >>> dpfp(torch.tensor([1.0, -2.0]), 1)
    tensor([2., 0., 0., 0.])
    """
    require_instance("x", x, Tensor)
    if not x.ndim or not x.is_floating_point():
        refuse("x", "be vectors of floating-point numbers", f"{x.dtype} {tuple(x.shape)}", "convert it")
    nu = require_count("nu", nu)
    if nu >= 2 * x.shape[-1]:
        refuse("nu", f"be less than twice the width {x.shape[-1]}, or features repeat", nu, "pass fewer")
    positive = torch.relu(torch.cat([x, -x], -1))
    return torch.cat([positive * positive.roll(shift, -1) for shift in range(1, nu + 1)], -1)


def sinusoidal(positions: Tensor, size: int) -> Float[Tensor, "*count size"]:
    """Sinusoidal encoding of positions p: entries 2i and 2i + 1 are sin and cos of p / 10000^(2i/size), in float64."""
    require_instance("positions", positions, Tensor)
    size = require_count("size", size)
    pairs = torch.arange((size + 1) // 2, dtype=torch.float64, device=positions.device)
    angles = positions[..., None] * 10_000.0 ** (-pairs * 2 / size)
    return torch.stack([angles.sin(), angles.cos()], dim=-1).flatten(-2)[..., :size]


def rotated(
    vectors: Float[Tensor, "*batch heads t d"], times: Int[Tensor, "*times t"]
) -> Float[Tensor, "*batch heads t d"]:
    """Rotary encoding of times t: entries i and i + d/2 are rotated by t / 10000^(2i/d), in float32 or wider.

    >>> turned = rotated(torch.tensor([[[1.0, 0.0]]]), torch.tensor([1]))
    >>> torch.allclose(turned, torch.tensor([0.5403, 0.8415]), atol=1e-4)
    True
    """
    for name, part in (("vectors", vectors), ("times", times)):
        require_instance(name, part, Tensor)
        if not part.ndim:
            refuse(name, "have an axis", (), "pass a vector")
    half, odd = divmod(vectors.shape[-1], 2)
    if odd:
        refuse("vectors", "have an even width", vectors.shape[-1], "add an entry")
    if vectors.ndim < 2 or times.shape[-1:] != vectors.shape[-2:-1]:
        refuse("times", f"have {vectors.shape[-2:-1]} entries, one per token", tuple(times.shape), "pass each token's")
    speeds = 10_000.0 ** (-torch.arange(half, dtype=torch.float64, device=vectors.device) / half)
    angles = times[..., None, :, None] * speeds
    one, other = vectors.to(torch.promote_types(vectors.dtype, torch.float32)).chunk(2, -1)
    cos, sin = angles.cos().to(one), angles.sin().to(one)
    return torch.cat([one * cos - other * sin, one * sin + other * cos], -1).to(vectors)
