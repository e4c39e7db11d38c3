"""One differentiable solve for all tokens of chunks, x_t = A_t^{-1} q_t, whatever finds it.

Derivatives follow from the equation itself (the implicit function theorem), not from how x was found:

    A_t dx_t = dq_t - dA_t x_t,    grad q_t = u_t = A_t^{-1} grad x_t,    grad A_t = -u_t x_t^T,

and A_t is linear in everything that it is made of: see `mesascope.ops.mesa_normal`.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn

import torch

from mesascope.errors import NumericalError
from mesascope.ops.chunks import decays
from mesascope.ops.mesa_answers import Answer, Plan, answer, fits, gradients_of, tolerance_of
from mesascope.ops.mesa_normal import Factor, Normal, factorise
from mesascope.ops.products import product
from mesascope.shapes import Float, Tensor

__all__ = ["refuse_singular", "solve_chunks"]


def solve_chunks(
    normal: Normal, q: Float[Tensor, "batch chunks size dk"], plan: Plan, heads: int
) -> tuple[Float[Tensor, "batch chunks size dk"], int]:
    """x, and how many products with A it took; ``heads`` is what errors count in.

    Raises:
        NumericalError: a matrix is singular to the precision at hand, or conjugate gradients did not arrive.
    """
    if torch.compiler.is_compiling():
        return _compiled(q, *normal, *plan, heads), 0
    x, products, *_ = _Solve.apply(q, *normal, plan, heads, True)
    return x, int(products)


class _Solve(torch.autograd.Function):
    """x, the number of products, and the factor where all chunks have one, which then serves the backward pass.

    It is no function of the inputs to autograd, so a backward pass that is itself differentiated solves again.
    """

    @staticmethod
    def forward(q, keys, weights, log_forget, H, ridge, plan: Plan, heads: int, strict: bool) -> tuple[Tensor, ...]:
        normal = Normal(keys, weights, log_forget, H, ridge)
        whole = plan.method == "chunk" and q.numel() > 0 and (not plan.check or fits(normal))
        factor = factorise(normal) if whole else None
        found = answer(normal, q, plan, factor)
        x = _required(found, q, plan, heads) if strict and plan.check else _marked(found)
        return x, torch.tensor(found.products, device="cpu"), *(factor or ())

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        _, *normal, ctx.plan, ctx.heads, ctx.strict = inputs
        x, *rest = output
        ctx.mark_non_differentiable(*rest)
        ctx.save_for_backward(x, *normal, *rest[1:])
        ctx.save_for_forward(x, *normal)

    @staticmethod
    def backward(ctx, grad_x: Tensor, *_):
        x, *saved = ctx.saved_tensors
        normal, factor = Normal(*saved[:5]), saved[5:]
        if torch.is_grad_enabled() or not factor:
            u = _Solve.apply(grad_x, *normal, ctx.plan, ctx.heads, ctx.strict)[0]
        else:
            found = answer(normal, grad_x, ctx.plan, Factor(*factor))
            u = _required(found, grad_x, ctx.plan, ctx.heads) if ctx.strict and ctx.plan.check else _marked(found)
        work = gradients_of if ctx.plan.method == "fused" and not torch.is_grad_enabled() else _gradients
        return u, *work(normal, x, u), None, None, None

    @staticmethod
    def jvp(ctx, q: Tensor | None, keys, weights, log_forget, H, ridge, *_):
        x, *parts = ctx.saved_tensors
        normal = Normal(*parts)
        scores, left = product(x, normal.keys.mT), decays(normal.log_forget)
        change = torch.zeros_like(x) if q is None else q
        if keys is not None:
            change = change - product(normal.weights * product(x, keys.mT), normal.keys)
            change = change - product(normal.weights * scores, keys)
        if weights is not None:
            change = change - product(weights * scores, normal.keys)
        if log_forget is not None:
            change = change - log_forget.cumsum(-2) * left * product(x, normal.H)
        if H is not None:
            change = change - left * product(x, H.mT)
        if ridge is not None:
            change = change - ridge * x
        moved, _, *factor = _Solve.apply(change, *normal, ctx.plan, ctx.heads, ctx.strict)
        return moved, None, *(None for _ in factor)

    @staticmethod
    def vmap(info, in_dims, *inputs):
        """The mapped axis becomes part of the batch, whose heads still come in turn."""
        folded = _fold(info.batch_size, in_dims[:6], inputs[:6])
        x, products, *factor = _Solve.apply(*folded, *inputs[6:8], False)
        apart = [part.unflatten(0, (info.batch_size, -1)) for part in (x, *factor)]
        return (apart[0], products, *apart[1:]), (0, None, *(0 for _ in factor))


def _gradients(normal: Normal, x: Tensor, u: Tensor) -> tuple[Tensor, ...]:
    """Of keys, weights, log_forget, H and ridge, from x and u."""
    left, scores, others = decays(normal.log_forget), product(x, normal.keys.mT), product(u, normal.keys.mT)
    grad_keys = -(product((normal.weights * scores).mT, u) + product((normal.weights * others).mT, x))
    grad_decay = -left * (u * product(x, normal.H)).sum(-1, keepdim=True)
    grad_log_forget = grad_decay.flip(-2).cumsum(-2).flip(-2)
    outer, grad_ridge = product((left * u).mT, x), -u * x
    if normal.ridge.shape[-2] == 1:
        grad_ridge = grad_ridge.sum(-2, keepdim=True)
    return grad_keys, -scores * others, grad_log_forget, -0.5 * (outer + outer.mT), grad_ridge


@torch.library.custom_op(
    "mesascope::solve_chunks",
    mutates_args=(),
    schema="(Tensor q, Tensor keys, Tensor weights, Tensor log_forget, Tensor H, Tensor ridge, str method, "
    "float? tolerance, int? iterations, bool check, int heads) -> Tensor",
)
def _compiled(q, keys, weights, log_forget, H, ridge, method, tolerance, iterations, check, heads):
    """The same solve as one node of a graph, for `torch.compile`, which cannot look at values as `_Solve` does."""
    plan = Plan(method, tolerance, iterations, check)
    found = answer(Normal(keys, weights, log_forget, H, ridge), q, plan)
    return (_required(found, q, plan, heads) if check else _marked(found)).contiguous()


@_compiled.register_fake
def _(q, keys, weights, log_forget, H, ridge, method, tolerance, iterations, check, heads):
    return q.new_empty(q.shape)


def _remember(ctx, inputs, output) -> None:
    _, *normal = inputs[:6]
    ctx.options = inputs[6:]
    ctx.save_for_backward(output, *normal)


def _backward(ctx, grad_x):
    x, *normal = ctx.saved_tensors
    u = _compiled(grad_x, *normal, *ctx.options)
    return u, *_gradients(Normal(*normal), x, u), *(None for _ in ctx.options)


_compiled.register_autograd(_backward, setup_context=_remember)


def _fold(size: int, axes: Sequence[int | None], tensors: Sequence[Any]) -> list[Tensor]:
    """Tensors with a mapped axis of ``size``, or none, with that axis as the outer part of their first one."""
    return [
        (tensor.expand(size, *tensor.shape) if axis is None else tensor.movedim(axis, 0)).flatten(0, 1)
        for tensor, axis in zip(tensors, axes, strict=True)
    ]


def _required(found: Answer, q: Tensor, plan: Plan, heads: int) -> Tensor:
    """x, of which every token has digits."""
    if not bool((found.condition <= 1 / torch.finfo(q.dtype).eps).all()):
        _refuse(found, q, plan, heads)
    return found.x


def _refuse(found: Answer, q: Tensor, plan: Plan, heads: int) -> NoReturn:
    """Raise an error that says what is wrong with the worst chunk."""
    if plan.iterations is not None and bool(found.condition.isposinf().any()):
        count = f"{plan.iterations} iteration{'s'[: plan.iterations != 1]}"
        raise NumericalError(
            f"the relative residual must reach {tolerance_of(plan, q.dtype):g}, but does not in {count} of conjugate "
            "gradients: use a larger tolerance, ridge or number of iterations, or float64."
        )
    refuse_singular(found.condition, heads, q.shape[-2], q.dtype)


def _marked(found: Answer) -> Tensor:
    """x, with NaN for chunks in which a token has no digits."""
    singular = ~(found.condition <= 1 / torch.finfo(found.x.dtype).eps)
    return found.x.masked_fill(singular[..., None, None], torch.nan)


def refuse_singular(condition: Float[Tensor, "batch chunks"], heads: int, size: int, dtype: torch.dtype) -> NoReturn:
    """Raise an error that names where the largest condition number stands."""
    row, chunk = divmod(int(condition.nan_to_num(nan=torch.inf).argmax()), condition.shape[1])
    where = f"token {chunk}" if size == 1 else f"chunk {chunk} (tokens {chunk * size} to {(chunk + 1) * size - 1})"
    wider = "" if dtype == torch.float64 else ", or float64"
    raise NumericalError(
        f"H must stay positive definite, but is singular to {dtype} in head {row % heads}, {where}: use a larger "
        f"ridge, less forgetting, ridge_kind='constant', shorter keys{wider}."
    )
