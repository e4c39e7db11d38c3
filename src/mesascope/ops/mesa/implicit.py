"""Differentiable solve x_t = A_t^{-1} q_t for all tokens of all chunks, by any solver.

Derivatives follow from the equation (the implicit function theorem), not from the steps of the solver:

    A_t dx_t = dq_t - dA_t x_t,    grad q_t = u_t = A_t^{-1} grad x_t,    grad A_t = -u_t x_t^T,

where A_t is linear in all its parts: see `mesascope.ops.mesa.equations`.
"""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch

from mesascope.ops.chunks import decays
from mesascope.ops.mesa.equations import Factor, NormalEquations
from mesascope.ops.mesa.solve import Exact, SolveResult
from mesascope.ops.products import product
from mesascope.shapes import Float, Tensor


@runtime_checkable
class Solver(Protocol):
    """Solver for x. For inaccurate x, ``required`` raises an error and ``marked`` returns NaN."""

    def factor(self, equations: NormalEquations, q: Tensor) -> Factor | None: ...
    def find(self, equations: NormalEquations, q: Tensor, factor: Factor | None) -> SolveResult: ...
    def required(self, found: SolveResult, q: Tensor) -> Tensor: ...
    def marked(self, found: SolveResult) -> Tensor: ...


def solve_chunks(
    equations: NormalEquations, q: Float[Tensor, "batch chunks size dk"], solver: Solver
) -> tuple[Float[Tensor, "batch chunks size dk"], int]:
    """Solution x and number of iterations (0 if compiled); raise `NumericalError` if inaccurate.

    Under `torch.func.vmap`, and if the solver may not read values, inaccurate chunks become NaN instead.
    """
    if torch.compiler.is_compiling() and isinstance(solver, Exact):
        return _compiled(q, *equations, solver.decaying, solver.reading, solver.heads), 0
    x, products, *_ = _Solve.apply(q, *equations, solver, True)
    return x, int(products)


class _Solve(torch.autograd.Function):
    """Solution x, the number of iterations, and the factor (if any) for the backward pass.

    Autograd treats the factor as a constant, so a backward pass that is itself differentiated solves without it.
    """

    @staticmethod
    def forward(q, keys, weights, log_forget, H, ridge, solver: Solver, strict: bool) -> tuple[Tensor, ...]:
        equations = NormalEquations(keys, weights, log_forget, H, ridge)
        factor = solver.factor(equations, q)
        found = solver.find(equations, q, factor)
        x = solver.required(found, q) if strict else solver.marked(found)
        return x, torch.tensor(found.products, device="cpu"), *(factor or ())

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        _, *equations, ctx.solver, ctx.strict = inputs
        x, *rest = output
        ctx.mark_non_differentiable(*rest)
        ctx.save_for_backward(x, *equations, *rest[1:])
        ctx.save_for_forward(x, *equations)

    @staticmethod
    def backward(ctx, grad_x: Tensor, *_):
        x, *saved = ctx.saved_tensors
        equations, factor = NormalEquations(*saved[:5]), saved[5:]
        if torch.is_grad_enabled() or not factor:
            u = _Solve.apply(grad_x, *equations, ctx.solver, ctx.strict)[0]
        else:
            found = ctx.solver.find(equations, grad_x, Factor(*factor))
            u = ctx.solver.required(found, grad_x) if ctx.strict else ctx.solver.marked(found)
        return u, *_gradients(equations, x, u), None, None

    @staticmethod
    def jvp(ctx, q: Tensor | None, keys, weights, log_forget, H, ridge, *_):
        x, *parts = ctx.saved_tensors
        equations = NormalEquations(*parts)
        scores, left = product(x, equations.keys.mT), decays(equations.log_forget)
        change = torch.zeros_like(x) if q is None else q
        if keys is not None:
            change = change - product(equations.weights * product(x, keys.mT), equations.keys)
            change = change - product(equations.weights * scores, keys)
        if weights is not None:
            change = change - product(weights * scores, equations.keys)
        if log_forget is not None:
            change = change - log_forget.cumsum(-2) * left * product(x, equations.H)
        if H is not None:
            change = change - left * product(x, H.mT)
        if ridge is not None:
            change = change - ridge * x
        moved, _, *factor = _Solve.apply(change, *equations, ctx.solver, ctx.strict)
        return moved, None, *(None for _ in factor)

    @staticmethod
    def vmap(info, in_dims, *inputs):
        """Merge the mapped axis into the batch axis, in which heads vary fastest."""
        folded = [
            (part.expand(info.batch_size, *part.shape) if axis is None else part.movedim(axis, 0)).flatten(0, 1)
            for part, axis in zip(inputs[:6], in_dims[:6], strict=True)
        ]
        x, products, *factor = _Solve.apply(*folded, inputs[6], False)
        apart = [part.unflatten(0, (info.batch_size, -1)) for part in (x, *factor)]
        return (apart[0], products, *apart[1:]), (0, None, *(0 for _ in factor))


def _gradients(equations: NormalEquations, x: Tensor, u: Tensor) -> tuple[Tensor, ...]:
    """Gradients of keys, weights, log_forget, H and ridge, from x and u."""
    keys, weights = equations.keys, equations.weights
    left, scores, others = decays(equations.log_forget), product(x, keys.mT), product(u, keys.mT)
    grad_keys = -(product((weights * scores).mT, u) + product((weights * others).mT, x))
    grad_decay = -left * (u * product(x, equations.H)).sum(-1, keepdim=True)
    grad_log_forget = grad_decay.flip(-2).cumsum(-2).flip(-2)
    outer, grad_ridge = product((left * u).mT, x), -u * x
    if equations.ridge.shape[-2] == 1:
        grad_ridge = grad_ridge.sum(-2, keepdim=True)
    return grad_keys, -scores * others, grad_log_forget, -0.5 * (outer + outer.mT), grad_ridge


@torch.library.custom_op(
    "mesascope::solve_chunks",
    mutates_args=(),
    schema="(Tensor q, Tensor keys, Tensor weights, Tensor log_forget, Tensor H, Tensor ridge, bool decaying, "
    "bool reading, int heads) -> Tensor",
)
def _compiled(q, keys, weights, log_forget, H, ridge, decaying, reading, heads):
    """The exact solve as one node of a graph, for `torch.compile`, which cannot trace `_Solve`."""
    solver = Exact(decaying, reading, heads)
    found = solver.find(NormalEquations(keys, weights, log_forget, H, ridge), q, None)
    return solver.required(found, q).contiguous()


@_compiled.register_fake
def _(q, keys, weights, log_forget, H, ridge, decaying, reading, heads):
    return q.new_empty(q.shape)


def _remember(ctx, inputs, output) -> None:
    ctx.options = inputs[6:]
    ctx.save_for_backward(output, *inputs[1:6])


def _backward(ctx, grad_x):
    x, *equations = ctx.saved_tensors
    u = _compiled(grad_x, *equations, *ctx.options)
    return u, *_gradients(NormalEquations(*equations), x, u), *(None for _ in ctx.options)


_compiled.register_autograd(_backward, setup_context=_remember)
