"""One differentiable solve for all tokens of a chunk: x_t = (H_0 + sum_{i<=t} k_i k_i^T)^{-1} q_t.

See `mesascope.ops.mesa_chunks` for the equations. Tokens are rows, ``(batch, chunks, size, d)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, NoReturn

import torch

from mesascope.errors import NumericalError
from mesascope.ops.chunks import causal
from mesascope.shapes import Float, Tensor

__all__ = [
    "MOST_DECAY",
    "Factor",
    "condition_seen",
    "factorise",
    "fold",
    "refuse_singular",
    "solve_chunks",
    "substitute",
]

# Decay up to which keys may be scaled by its inverse: rounding grows in proportion to exp(decay).
MOST_DECAY = 4.0
# Condition numbers below it cost so few digits that a correction would add none.
_BENIGN = 30.0
# Factor by which what the state before a chunk would answer may shrink, at a cost of as many units of rounding.
_SHRUNK = 10.0
# Relative size of a correction that leaves an error of its square, about the rounding of float32 at condition 1e4.
_LARGE = 0.03


class Factor(NamedTuple):
    """What every right-hand side of a chunk shares: P, P K, R^{-1}, and how many digits that may have cost.

    The condition number of H_0 is a lower bound by diagonals, too small by d^2 at most; growth is the largest factor by
    which one token grows what is known in a direction. The former is infinite where a factorisation failed.
    """

    start: Float[Tensor, "batch chunks dk dk"]
    keys: Float[Tensor, "batch chunks size dk"]
    inner: Float[Tensor, "batch chunks size size"]
    condition: Float[Tensor, "batch chunks"]
    growth: Float[Tensor, "batch chunks"]


def solve_chunks(
    q: Float[Tensor, "batch chunks size dk"],
    keys: Float[Tensor, "batch chunks size dk"],
    H: Float[Tensor, "batch chunks dk dk"],
    log_decay: Float[Tensor, "batch chunks size 1"],
    heads: int,
) -> Float[Tensor, "batch chunks size dk"]:
    """x. ``keys`` have been scaled for ``log_decay``, which only checks read; ``heads`` is what errors count in.

    Raises:
        NumericalError: a matrix is singular to the precision at hand.
    """
    if torch.compiler.is_compiling():
        return _compiled(q, keys, H, log_decay.detach(), heads)
    return _Solve.apply(q, keys, H, heads, True)[0]


class _Solve(torch.autograd.Function):
    """x_t = (H_0 + sum_{i<=t} k_i k_i^T)^{-1} q_t, and the factor that found it.

    Derivatives follow from the equation itself (the implicit function theorem), with M_t the matrix in brackets:

        dx_t = M_t^{-1} (dq_t - dM_t x_t),    grad q_t = u_t = M_t^{-1} grad x_t,    grad M_t = -u_t x_t^T.

    The factor of the forward pass serves the backward one. It is no function of the inputs to autograd, so a backward
    pass that is itself differentiated solves again through `_Solve` instead.
    """

    @staticmethod
    def forward(q: Tensor, keys: Tensor, H: Tensor, heads: int, strict: bool) -> tuple[Tensor, ...]:
        factor = factorise(keys, H)
        return _solved(factor, keys, H, q, heads, q.dtype, strict), *factor

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        _, keys, H, ctx.heads, ctx.strict = inputs
        x, *factor = output
        ctx.mark_non_differentiable(*factor)
        ctx.save_for_backward(x, keys, H, *factor)
        ctx.save_for_forward(x, keys, H)

    @staticmethod
    def backward(ctx, grad_x: Tensor, *_):
        x, keys, H, *factor = ctx.saved_tensors
        if torch.is_grad_enabled():
            u = _Solve.apply(grad_x, keys, H, ctx.heads, ctx.strict)[0]
        else:
            u = _solved(Factor(*factor), keys, H, grad_x, ctx.heads, grad_x.dtype, ctx.strict)
        return *_gradients(x, u, keys), None, None

    @staticmethod
    def jvp(ctx, q: Tensor | None, keys: Tensor | None, H: Tensor | None, *_):
        x, own, start = ctx.saved_tensors
        change = torch.zeros_like(x) if q is None else q
        if H is not None:
            change = change - x @ H.mT
        if keys is not None:
            change = change - causal(x @ own.mT) @ keys - causal(x @ keys.mT) @ own
        return _Solve.apply(change, own, start, ctx.heads, ctx.strict)[0], *(None for _ in Factor._fields)

    @staticmethod
    def vmap(info, in_dims, q: Tensor, keys: Tensor, H: Tensor, heads: int, strict: bool):
        """The mapped axis becomes part of the batch, whose heads still come in turn."""
        outputs = _Solve.apply(*fold(info.batch_size, in_dims, (q, keys, H)), heads, False)
        return tuple(output.unflatten(0, (info.batch_size, -1)) for output in outputs), (0,) * len(outputs)


def _gradients(x: Tensor, u: Tensor, keys: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Of q, keys and H."""
    outer = u.mT @ x
    grad_keys = -(causal(x @ keys.mT).mT @ u + causal(u @ keys.mT).mT @ x)
    return u, grad_keys, -0.5 * (outer + outer.mT)


@torch.library.custom_op(
    "mesascope::solve_chunks",
    mutates_args=(),
    schema="(Tensor q, Tensor keys, Tensor H, Tensor log_decay, int heads) -> Tensor",
)
def _compiled(q, keys, H, log_decay, heads):
    """The same solve as one node of a graph, for `torch.compile`, which cannot look at values as `_Solve` does."""
    if log_decay.numel() and not float(log_decay.min()) >= -MOST_DECAY:
        raise NumericalError(
            f"log_forget must not add up to less than {-MOST_DECAY:g} in a chunk under torch.compile, but does to "
            f"{float(log_decay.min()):.3g}: pass a smaller chunk, or leave mesa_attention out of the compiled function."
        )
    return _solved(factorise(keys, H), keys, H, q, heads, q.dtype, strict=True).contiguous()


@_compiled.register_fake
def _(q, keys, H, log_decay, heads):
    return q.new_empty(q.shape)


def _remember(ctx, inputs, output) -> None:
    _, keys, H, log_decay, ctx.heads = inputs
    ctx.save_for_backward(keys, H, log_decay, output)


def _backward(ctx, grad_x):
    keys, H, log_decay, x = ctx.saved_tensors
    u = _compiled(grad_x, keys, H, log_decay, ctx.heads)
    return *_gradients(x, u, keys), None, None


_compiled.register_autograd(_backward, setup_context=_remember)


def fold(size: int, axes: Sequence[int | None], tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors with a mapped axis of ``size``, or none, with that axis as the outer part of their first one."""
    return [
        (tensor.expand(size, *tensor.shape) if axis is None else tensor.movedim(axis, 0)).flatten(0, 1)
        for tensor, axis in zip(tensors, axes, strict=False)
    ]


def factorise(keys: Float[Tensor, "batch chunks size dk"], H: Float[Tensor, "batch chunks dk dk"]) -> Factor:
    """The factor of every chunk, whether or not it has any digits: see its condition."""
    root, broken = torch.linalg.cholesky_ex(H)
    if bool(broken.any()):  # torch refuses to invert them; their condition says that they are none
        root[broken != 0] = torch.eye(H.shape[-1], dtype=H.dtype, device=H.device)
    start = torch.cholesky_inverse(root)
    solved = keys @ start
    gram = keys @ solved.mT
    gram.diagonal(dim1=-2, dim2=-1).add_(1)
    inner, too_broken = torch.linalg.cholesky_ex(gram)
    growth = inner.diagonal(dim1=-2, dim2=-1).amax(-1).square()
    condition = H.diagonal(dim1=-2, dim2=-1).amax(-1) * start.diagonal(dim1=-2, dim2=-1).amax(-1)
    condition = condition.masked_fill((broken + too_broken) != 0, torch.inf).nan_to_num(nan=torch.inf)
    identity = torch.eye(keys.shape[-2], dtype=keys.dtype, device=keys.device).expand_as(inner)
    inverse = torch.linalg.solve_triangular(inner, identity, upper=False)
    return Factor(start, solved, inverse, condition, growth)


def substitute(factor: Factor, rows: Tensor) -> Tensor:
    """Every row through the inverse of its own matrix."""
    return rows @ factor.start - _taken_off(factor, rows)


def _taken_off(factor: Factor, rows: Tensor) -> Tensor:
    """What a chunk's own keys take off what the state before it would answer."""
    return causal(causal(rows @ factor.keys.mT) @ factor.inner.mT) @ factor.inner @ factor.keys


def refuse_singular(condition: Tensor, heads: int, size: int, dtype: torch.dtype) -> NoReturn:
    """Raise an error that names where the largest condition number stands."""
    row, chunk = divmod(int(condition.argmax()), condition.shape[1])
    where = f"token {chunk}" if size == 1 else f"chunk {chunk} (tokens {chunk * size} to {(chunk + 1) * size - 1})"
    wider = "" if dtype == torch.float64 else ", or float64"
    raise NumericalError(
        f"H must stay positive definite, but is singular to {dtype} in head {row % heads}, {where}: use a larger "
        f"ridge, less forgetting, ridge_decays=False, shorter keys{wider}."
    )


def _solved(
    factor: Factor, keys: Tensor, H: Tensor, rows: Tensor, heads: int, dtype: torch.dtype, strict: bool
) -> Tensor:
    """A solution, with one correction by its residual where rounding would tell.

    Without it, the gradient of keys loses a thousand times as many digits at a condition number of 3,000. Where a
    correction is so large that another would tell too, everything is done again in float64. What is singular to
    ``dtype`` is refused, or NaN where not ``strict``.
    """
    first = rows @ factor.start
    x = first - _taken_off(factor, rows)
    if not factor.condition.numel() or _benign(factor, first, x):
        return x
    correction = substitute(factor, rows - x @ H - causal(x @ keys.mT) @ keys)
    settled = (correction.norm(dim=-1) <= _LARGE * x.norm(dim=-1)).all(-1) & (factor.condition < torch.inf)
    if rows.dtype != torch.float64 and not bool(settled.all()):
        keys, H, rows = keys.double(), H.double(), rows.double()
        return _solved(factorise(keys, H), keys, H, rows, heads, dtype, strict).to(dtype)
    x = x + correction
    diagonal = H.diagonal(dim1=-2, dim2=-1)[..., None, :] + keys.square().cumsum(-2)
    condition = condition_seen(x, rows, diagonal).amax(-1).masked_fill(~settled, torch.inf)
    singular = ~(condition <= 1 / torch.finfo(dtype).eps)
    if bool(singular.any()):
        if strict:
            refuse_singular(condition, heads, keys.shape[-2], dtype)
        x = x.masked_fill(singular[..., None, None], torch.nan)
    return x


def _benign(factor: Factor, first: Tensor, x: Tensor) -> bool:
    """Whether neither the matrices nor the difference that ``x`` is have cost digits that a correction gives back.

    ``first`` is what the state before a chunk would answer. Where the chunk knows much more than it, as where it has
    forgotten much, little of it is left.
    """
    left = x.norm(dim=-1)
    shrunk = first.norm(dim=-1) / left.where(left > 0, 1)
    worst = torch.maximum(factor.condition, factor.growth).max() / _BENIGN
    return float(torch.maximum(worst, shrunk.max().nan_to_num(nan=0.0) / _SHRUNK)) < 1


def condition_seen(x: Tensor, q: Tensor, diagonal: Tensor) -> Tensor:
    """A lower bound of H_t's condition number: |x| |H| / |q| with x = H^{-1} q and |H| from H's diagonal.

    What follows multiplies x with keys, and loses digits in proportion to it.
    """
    size = q.norm(dim=-1)
    return x.norm(dim=-1) * diagonal.amax(-1) / size.where(size > 0, 1)
