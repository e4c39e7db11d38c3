"""Published methods for the mesa-layer, for comparison; none of them is an option of `mesa_attention`.

All compute y_t = G_t A_t^{-1} q_t with A_t = H_t + diag(r_t), in the shapes of `mesa_attention`.
`mesa_attention_reference` is the definition, `mesa_recursion` the method of von Oswald (2024), section 3.7.2.1, and
`mesa_conjugate_gradients` MesaNet's. `mesa_neumann` (section 3.7.2.3) and `mesa_chebyshev` need a well-conditioned A_t.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch

from mesascope.errors import NumericalError, refuse, require_count, require_number
from mesascope.ops.checks import require_finite
from mesascope.ops.chunks import decays
from mesascope.ops.fast_weights import causal_linear_attention
from mesascope.ops.mesa.api import attend, pose, state_of
from mesascope.ops.mesa.chunks import Problem
from mesascope.ops.mesa.decode import solve_tokens
from mesascope.ops.mesa.equations import Factor, NormalEquations
from mesascope.ops.mesa.implicit import solve_chunks
from mesascope.ops.mesa.solve import SolveResult, conjugate_gradients
from mesascope.ops.products import exact_products
from mesascope.ops.reading import may_read
from mesascope.shapes import Float, Tensor
from mesascope.text import counted


def mesa_attention_reference(
    q: Tensor, k: Tensor, v: Tensor, *, ridge: Any, return_state: bool = False, **inputs: Any
) -> Any:
    """`mesa_attention` by its definition: a dense solve at every token, O(T d^3).

    Args:
        return_state: also return the state after the last token.
        ridge, inputs: ``log_forget``, ``beta``, ``ridge_kind``, ``state`` and ``lengths`` as in `mesa_attention`.
    """
    _require_one_document("mesa_attention_reference", inputs)
    problem = pose(q, k, v, ridge=ridge, **inputs)
    with torch.autocast(q.device.type, enabled=False):
        y, *parts = solve_tokens(problem)
    y, after = y.reshape(v.shape).to(v.dtype), state_of(problem, parts, q.shape[:-2])
    require_finite([y, *after] if return_state else [y])
    return (y, after) if return_state else y


def mesa_recursion(
    q: Tensor, k: Tensor, v: Tensor, *, ridge: Any, log_forget: Tensor | None = None, beta: Tensor | None = None
) -> Tensor:
    """The mesa-layer by the Sherman-Morrison recursion: one rank-one update of R_t = H_t^{-1} per token, O(T d^2).

        f_t = R_{t-1} k_t,    R_t = (R_{t-1} - beta_t f_t f_t^T / (gamma_t + beta_t k_t . f_t)) / gamma_t,

    then x_t = R_t q_t, and y_t = G_t x_t as in causal linear attention. The backward pass runs the recursion in reverse
    time, so only the last R_t is stored. Rounding errors accumulate in both directions and are not checked. With
    forget factors that fall to e^-3, outputs can be wrong in float64; in float32 with small ridges (1e-3) and gates
    below 1, gradients have no accurate digit. Those of `mesa_attention` are fully accurate. There are no forward-mode
    derivatives (`torch.func.jacfwd`).

    Args:
        q, k, v, ridge, log_forget, beta: as in `mesa_attention`, with a decaying ridge and forget factors above 0.

    Source: von Oswald (2024), eq. 3.19 and section 3.7.2.1.
    """
    problem = pose(q, k, v, ridge=ridge, log_forget=log_forget, beta=beta)
    if may_read(q.device) and not bool(problem.log_forget.isfinite().all()):
        refuse("log_forget", "be finite for the recursion", -torch.inf, "use mesa_attention")
    start = problem.H[0].diagonal(dim1=-2, dim2=-1).reciprocal()
    with torch.autocast(q.device.type, enabled=False):
        x, _ = _Recursion.apply(problem.q, problem.k, problem.log_forget, problem.beta, start)
        require_finite([x])
        y = causal_linear_attention(
            x[:, None], problem.k[:, None], problem.v[:, None], log_forget=problem.log_forget[:, None],
            beta=problem.beta[:, None],
        )  # fmt: skip
    y = y.reshape(v.shape).to(v.dtype)
    require_finite([y])
    return y


class _Recursion(torch.autograd.Function):
    """Solutions x_t = R_t q_t for all t, and the last R_t."""

    generate_vmap_rule = True

    @staticmethod
    def forward(q, k, log_forget, beta, start) -> tuple[Tensor, Tensor]:
        return _forwards(q, k, log_forget, beta, start)

    @staticmethod
    def setup_context(ctx, inputs, output) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.save_for_backward(*inputs, output[1])

    @staticmethod
    def backward(ctx, grad_x: Tensor, _):  # type: ignore[override]
        q, k, log_forget, beta, start, R = ctx.saved_tensors
        if torch.is_grad_enabled():  # autograd would treat the saved R as a constant
            R = _forwards(q, k, log_forget, beta, start)[1]
        return _backwards(grad_x, q, k, log_forget, beta, R)


@exact_products()
def _forwards(q: Tensor, k: Tensor, log_forget: Tensor, beta: Tensor, start: Tensor) -> tuple[Tensor, Tensor]:
    R, rows = torch.diag_embed(start), []
    for t in range(q.shape[1]):
        forget, strength, key = log_forget[:, t, None, None].exp(), beta[:, t, None, None], k[:, t, :, None]
        f = R @ key
        R = (R - strength * f * f.mT / (forget + strength * key.mT @ f)) / forget
        rows.append((R @ q[:, t, :, None]).squeeze(-1))
    return torch.stack(rows, 1) if rows else torch.zeros_like(q), R


@exact_products()
def _backwards(
    grad_x: Tensor, q: Tensor, k: Tensor, log_forget: Tensor, beta: Tensor, R: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Gradients of q, k, log_forget, beta and the start, computed in reverse time.

    If E is the gradient of R_t, the gradient of A_t = R_t^{-1} is S = -R_t E R_t, and A_t = gamma A_{t-1} + beta k k^T
    is linear in all its parts. R_{t-1} follows from R_t by the Sherman-Morrison formula (eq. 3.34).
    """
    E, gradients = torch.zeros_like(R), []
    one = torch.eye(R.shape[-1], dtype=R.dtype, device=R.device)
    for t in reversed(range(q.shape[1])):
        forget, strength, key = log_forget[:, t, None, None].exp(), beta[:, t, None, None], k[:, t, :, None]
        grad = grad_x[:, t, :, None]
        E = E + 0.5 * (grad * q[:, t, None, :] + q[:, t, :, None] * grad.mT)
        S, f = -R @ E @ R, R @ key
        of_strength = key.mT @ S @ key
        of_gate = -(R * E).sum((-2, -1)) - (strength * of_strength)[:, 0, 0]
        gradients.append(((R @ grad).squeeze(-1), (2 * strength * S @ key).squeeze(-1), of_gate, of_strength[:, 0, 0]))
        back = one - strength * f * key.mT
        E = back.mT @ E @ back / forget
        R = forget * (R + strength * f * f.mT / (1 - strength * key.mT @ f))
    if not gradients:
        return grad_x, grad_x, torch.zeros_like(log_forget), torch.zeros_like(beta), E.diagonal(dim1=-2, dim2=-1)
    of_q, of_k, of_gates, of_strengths = (torch.stack(parts[::-1], 1) for parts in zip(*gradients, strict=True))
    return of_q, of_k, of_gates, of_strengths, E.diagonal(dim1=-2, dim2=-1)


def mesa_conjugate_gradients(
    q: Tensor, k: Tensor, v: Tensor, *, ridge: Any, iterations: int = 30, tolerance: float = 0.0, **inputs: Any
) -> Any:
    """The mesa-layer by conjugate gradients for all tokens at once, with derivatives by the implicit function theorem.

    Args:
        iterations: largest number of iterations, for outputs and again for derivatives.
        tolerance: relative residual |A x - q| / |q| at which to stop; 0 runs all iterations. The recurrence computes
            it; at the end, the true one may be twice as large.
        ridge, inputs: other arguments of `mesa_attention`.

    Raises:
        NumericalError: the tolerance is above 0 and is not reached.

    Source: MesaNet (von Oswald et al. 2025), which takes 30 iterations.
    """
    solver = _ConjugateGradients(
        require_count("iterations", iterations, least=0), require_number("tolerance", tolerance, least=0)
    )
    return attend(lambda problem, equations, q: solve_chunks(equations, q, solver), q, k, v, ridge=ridge, **inputs)


@dataclass(frozen=True)
class _ConjugateGradients:
    """A solver of `mesascope.ops.mesa.implicit`: plain conjugate gradients."""

    iterations: int
    tolerance: float

    def factor(self, equations: NormalEquations, q: Tensor) -> Factor | None:
        return None

    @exact_products()
    def find(self, equations: NormalEquations, q: Tensor, factor: Factor | None) -> SolveResult:
        goal = self.tolerance if self.tolerance and may_read(q.device) else None
        x, count = conjugate_gradients(equations, q, goal, self.iterations if q.numel() else 0)
        if goal is None:
            return SolveResult(x, q.new_zeros(q.shape[:-2]), count)
        # Rounding makes the true residual larger than that of the recurrence.
        most = goal if count == self.iterations else 2 * goal
        missed = ((q - equations.times(x)).norm(dim=-1) > most * q.norm(dim=-1)).any(-1)
        return SolveResult(x, q.new_zeros(missed.shape).masked_fill(missed, torch.inf), count)

    def required(self, found: SolveResult, q: Tensor) -> Tensor:
        if found.condition.numel() and may_read(q.device) and bool(found.condition.isinf().any()):
            raise NumericalError(
                f"the relative residual must reach {self.tolerance:g}, but does not in "
                f"{counted(self.iterations, 'iteration')} of conjugate gradients: "
                "use a larger tolerance, ridge or number of iterations, or float64."
            )
        return found.x

    def marked(self, found: SolveResult) -> Tensor:
        return found.x.masked_fill(found.condition.isinf()[..., None, None], torch.nan)


def mesa_neumann(q: Tensor, k: Tensor, v: Tensor, *, ridge: Any, terms: int = 30, **inputs: Any) -> Any:
    """The mesa-layer by a truncated Neumann series, x = sum_{j<=terms} (I - A/c)^j q / c.

    Its error falls as (1 - smallest eigenvalue / c)^terms. The upper bound c on A's largest eigenvalue is the trace of
    H_t plus the largest ridge. Each term costs T d (2 C + d) multiplications; derivatives go through every term.

    Args:
        terms: number of terms after the first.
        ridge, inputs: other arguments of `mesa_attention`.

    Source: von Oswald (2024), section 3.7.2.3.
    """
    terms = require_count("terms", terms, least=0)

    def find(problem: Problem, equations: NormalEquations, q: Tensor) -> tuple[Tensor, int]:
        bound = _bound(equations)
        x = scaled = q / bound
        for _ in range(terms):
            x = scaled + x - equations.times(x) / bound
        return x, terms

    return attend(find, q, k, v, ridge=ridge, **inputs)


def mesa_chebyshev(q: Tensor, k: Tensor, v: Tensor, *, ridge: Any, terms: int = 30, **inputs: Any) -> Any:
    """The mesa-layer by the Chebyshev semi-iteration, for eigenvalues between a lower and an upper bound.

    Its error falls as ((sqrt(r) - 1) / (sqrt(r) + 1))^terms, with r the ratio of the bounds. The upper bound is that of
    `mesa_neumann`; the lower bound is the decayed smallest eigenvalue of the initial H plus the smallest ridge.

    Args:
        terms: number of terms after the first.
        ridge, inputs: other arguments of `mesa_attention`, except ``cu_seqlens``.
    """
    terms = require_count("terms", terms, least=0)
    _require_one_document("mesa_chebyshev", inputs)

    def find(problem: Problem, equations: NormalEquations, q: Tensor) -> tuple[Tensor, int]:
        bound, smallest = _bound(equations), _lower_bound(problem, equations)
        centre, radius = (bound + smallest) / 2, (bound - smallest) / 2
        rho = radius / centre
        x = step = q / centre
        for _ in range(terms):
            pace = 1 / (2 * centre - rho * radius)
            step = pace * radius * rho * step + 2 * pace * (q - equations.times(x))
            x, rho = x + step, pace * radius
        return x, terms

    return attend(find, q, k, v, ridge=ridge, **inputs)


def _require_one_document(method: str, inputs: Mapping[str, Any]) -> None:
    if inputs.get("cu_seqlens") is not None:
        refuse("cu_seqlens", f"be None for {method}", inputs["cu_seqlens"], "use mesa_attention")


def _bound(equations: NormalEquations) -> Float[Tensor, "batch chunks size 1"]:
    """An upper bound on A_t's largest eigenvalue: the trace of H_t plus the largest ridge."""
    return equations.trace() + equations.ridge.amax(-1, keepdim=True)


def _lower_bound(problem: Problem, equations: NormalEquations) -> Float[Tensor, "batch chunks size 1"]:
    """A lower bound on A_t's smallest eigenvalue.

    Without previous tokens, H is diagonal. Otherwise derivatives treat its eigenvalues as constants, as they are not
    differentiable if two are equal.
    """
    H = problem.H[0]
    smallest = H.diagonal(dim1=-2, dim2=-1).amin(-1) if problem.new else torch.linalg.eigvalsh(H.detach())[:, 0]
    left = decays(equations.log_forget)
    before = torch.cat([torch.ones_like(left[:, :1, :1]), left[:, :-1, -1:].cumprod(1)], 1)
    return before * left * smallest[:, None, None, None] + equations.ridge.amin(-1, keepdim=True)
