"""x_t = A_t^{-1} q_t for all tokens of chunks, to the precision of the dtype, or a condition number that says why not.

Nothing here has derivatives: see `mesascope.ops.mesa_solve`. Chunks are told apart by what they forget, and by how well
conditioned they are, so that one head with strong gates costs the others nothing.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch

from mesascope.errors import require_package
from mesascope.ops.mesa_normal import Factor, Normal, factorise, forgotten, substitute
from mesascope.ops.products import exact_products
from mesascope.shapes import Float, Tensor

__all__ = ["Answer", "Plan", "answer", "condition_seen", "dense_solve", "fits", "gradients_of", "tolerance_of"]

# Logarithm of what a chunk may forget for its keys to be scaled by its inverse: rounding grows in proportion to that.
_MOST = 4.0
# Logarithm of what a chunk may forget for its factor to be a good start where the ridge does not decay.
_LITTLE = 0.75
# Tokens of the smallest chunks that are factorised for such a start, and iterations that a factorisation costs.
_SMALLEST, _FACTORISED = 16, 6
# Condition numbers below it cost so few digits that a correction would add none.
_BENIGN = 5.0
# Factor by which what the state before a chunk would answer may shrink, at a cost of as many units of rounding.
_SHRUNK = 10.0
# Tolerance of conjugate gradients for a correction.
_COARSE = 0.01
# Units of rounding that a residual may have.
_ROUNDING = 4.0
# Corrections before what is left is solved in float64.
_CORRECTIONS = 4


class Plan(NamedTuple):
    """The method, its tolerance, its largest number of iterations where one was given, and whether values are read."""

    method: str
    tolerance: float | None
    iterations: int | None
    check: bool

    def most(self, q: Tensor) -> int:
        """The largest number of iterations."""
        default = 2 * q.shape[-1] + 50 if self.method == "cg" and self.check else 30
        return default if self.iterations is None else self.iterations


class Answer(NamedTuple):
    """x, a lower bound of the condition number of what was solved (infinite where no digit is known), and products."""

    x: Float[Tensor, "*chunks size dk"]
    condition: Float[Tensor, "*chunks"]
    products: int = 0


Work = Callable[[Normal, Tensor], Answer]


@exact_products()
def answer(normal: Normal, q: Float[Tensor, "*chunks size dk"], plan: Plan, factor: Factor | None = None) -> Answer:
    """By the plan's method; ``factor`` is that of all chunks, where it is known."""
    if not q.numel():
        return Answer(torch.zeros_like(q), q.new_zeros(q.shape[:-2]))
    if not plan.check:
        return _blind(normal, q, plan, factor)

    def work(normal: Normal, q: Tensor) -> Answer:
        return _iterated(normal, q, plan) if plan.method == "cg" else _exact(normal, q)

    if plan.method == "fused":
        found = _redone(normal, q, _blind(normal, q, plan, None), work, q.dtype)
    else:
        found = work(normal, q) if factor is None else _corrected(normal, q, factor)
    if plan.iterations is not None:
        plan = plan._replace(iterations=plan.iterations - found.products)
    if q.dtype != torch.float64:
        found = _redone(normal, q, found, work, torch.float64)
    return found if plan.iterations is not None else _redone(normal, q, found, _dense, torch.float64)


def _blind(normal: Normal, q: Tensor, plan: Plan, factor: Factor | None) -> Answer:
    """The same work whatever the values are, so that nothing waits for them."""
    if plan.method == "cg":
        x, count = _recurrence(normal, q, q.new_zeros(q.shape[:-1]), plan.most(q), None, check=False)
        return Answer(x, q.new_zeros(q.shape[:-2]), count)
    if plan.method == "fused":
        x = _kernels().solve(normal, q)
    else:
        factor = factorise(normal) if factor is None else factor
        x, _ = substitute(factor, q)
        x = x + substitute(factor, q - normal.times(x))[0]
    largest = normal.largest()
    settled = _of_rounding(largest, q, x, q - normal.times(x)).all(-1) & (forgotten(normal.log_forget) <= _MOST)
    return Answer(x, _condition(normal, q, x, settled))


def gradients_of(normal: Normal, x: Tensor, u: Tensor) -> tuple[Tensor, ...]:
    """By the kernel: see `mesascope.ops.mesa_kernels`."""
    return _kernels().gradients(normal, x, u)


def _kernels() -> Any:
    require_package("triton", "method 'fused'", "triton")
    return importlib.import_module("mesascope.ops.mesa_kernels")


def fits(normal: Normal) -> bool:
    """Whether no chunk forgets so much that it has no factor of its own."""
    return not bool((forgotten(normal.log_forget) > _MOST).any())


def _exact(normal: Normal, q: Tensor) -> Answer:
    """By the chunk's factor, or those of its halves where it forgets much."""
    much = forgotten(normal.log_forget) > _MOST
    if bool(much.any()):
        return _apart(much, normal, q, lambda normal, q: _halved(normal, q, _exact), _exact)
    return _corrected(normal, q, factorise(normal))


def _apart(chosen: Tensor, normal: Normal, q: Tensor, one: Work, other: Work) -> Answer:
    """Chosen chunks in one way, the rest in the other."""
    some, all_of_them = bool(chosen.any()), bool(chosen.all())
    if all_of_them or not some:
        return (one if some else other)(normal, q)
    x, condition, products = torch.empty_like(q), q.new_empty(q.shape[:-2]), 0
    for rows, work in ((chosen, one), (~chosen, other)):
        own = work(normal.part(rows), q[rows])
        x[rows], condition[rows], products = own.x, own.condition, max(products, own.products)
    return Answer(x, condition, products)


def _halved(normal: Normal, q: Tensor, work: Work) -> Answer:
    """The first tokens of every chunk, and then the rest."""
    first, second = normal.halves()
    half = first.keys.shape[-2]
    early, late = work(first, q[..., :half, :]), work(second, q[..., half:, :])
    condition = torch.maximum(early.condition, late.condition)
    return Answer(torch.cat([early.x, late.x], -2), condition, max(early.products, late.products))


def _corrected(normal: Normal, q: Tensor, factor: Factor) -> Answer:
    """By the factor, and as much more as it takes."""
    x, first = substitute(factor, q)
    if _benign(factor, first, x):
        return Answer(x, factor.condition)
    return _settled(normal, q, x, lambda residual: (substitute(factor, residual)[0], 0))


def _settled(
    normal: Normal, q: Tensor, x: Tensor, inverse: Callable[[Tensor], tuple[Tensor, int]], tolerance: float = 0.0
) -> Answer:
    """Corrections by an approximate inverse until x solves a problem that is the given one but for rounding.

    That is so where |q - A x| <= c eps (|A| |x| + |q|): what a dense solve leaves, and all that y = G x and
    derivatives, which multiply x by keys, can ask for. Before a correction |A| counts as its largest diagonal entry: a
    correction often gains a digit where keys have much of one direction, and costs little. A residual of ``tolerance``
    |q| will do, too. Where neither is so in the end, the chunk is lost.
    """
    largest, products = normal.diagonal().amax(-1), 0
    for correction in range(_CORRECTIONS + 1):
        residual = q - normal.times(x)
        settled = _of_rounding(largest, q, x, residual) | (_relative(residual, q) <= tolerance)
        if correction == _CORRECTIONS or bool(settled.all()):
            break
        change, more = inverse(residual)
        x, products = x + change, products + more
        largest = largest if correction else normal.largest()
    return Answer(x, _condition(normal, q, x, settled.all(-1)), products)


def _condition(normal: Normal, q: Tensor, x: Tensor, settled: Tensor) -> Float[Tensor, "*chunks"]:
    """The lower bound of condition numbers that `condition_seen` is, and infinite for what is not settled."""
    return condition_seen(x, q, normal.diagonal()).amax(-1).masked_fill(~settled, torch.inf)


def _of_rounding(largest: Tensor, q: Tensor, x: Tensor, residual: Tensor) -> Tensor:
    """Whether a residual is what rounding leaves of problems of this size: see `_settled`."""
    return _norm(residual) <= _ROUNDING * torch.finfo(q.dtype).eps * (largest * _norm(x) + _norm(q))


def _redone(normal: Normal, q: Tensor, found: Answer, work: Work, dtype: torch.dtype) -> Answer:
    """What was found, and for chunks that are lost what ``work`` finds."""
    lost = found.condition.isinf()
    if not bool(lost.any()):
        return found
    wide = work(Normal(*(part.to(dtype) for part in normal.part(lost))), q[lost].to(dtype))
    x, condition = found.x.clone(), found.condition.clone()
    x[lost], condition[lost] = wide.x.to(q.dtype), wide.condition.to(q.dtype)
    return Answer(x, condition, found.products + wide.products)


def _dense(normal: Normal, q: Tensor) -> Answer:
    """Solve by one factorisation a token, a chunk after the other."""
    solved = [dense_solve(normal.part(n).matrices(), q[n]) for n in range(len(q))]
    x, condition = (torch.stack(parts) for parts in zip(*solved, strict=True))
    return Answer(x, condition.amax(-1))


def dense_solve(A: Float[Tensor, "*tokens d d"], q: Float[Tensor, "*tokens d"]) -> tuple[Tensor, Tensor]:
    """A^{-1} q, and `condition_seen` of it, infinite where A has no factors."""
    x, failed = torch.linalg.solve_ex(A, q)
    seen = condition_seen(x, q, A.diagonal(dim1=-2, dim2=-1)).detach()
    return x, seen.masked_fill(failed != 0, torch.inf)


def _iterated(normal: Normal, q: Tensor, plan: Plan) -> Answer:
    """By conjugate gradients, from the chunk's factor, or those of its parts, where that costs less.

    They take some sqrt(kappa)/2 ln(2/tolerance) iterations: kappa is about 1 + 4 h/ridge without a start, with h the
    mean of H's diagonal, as a few large eigenvalues take an iteration each, and what is forgotten with one.
    """
    pace = 0.5 * math.log(2 / max(tolerance_of(plan, q.dtype), 1e-16))
    mean = (normal.diagonal() - normal.ridge).amax(-2).mean(-1)
    plain = pace * (1 + 4 * mean / normal.ridge.amin((-2, -1))).sqrt()
    lost, size = forgotten(normal.log_forget), q.shape[-2]
    started = _FACTORISED + pace * (0.5 * lost * min(_SMALLEST / size, 1)).exp()
    return _apart(
        plain <= started, normal, q,
        lambda normal, q: _by_gradients(normal, q, plan, None),
        lambda normal, q: _started(normal, q, plan),
    )  # fmt: skip


def _started(normal: Normal, q: Tensor, plan: Plan) -> Answer:
    def halved(normal: Normal, q: Tensor) -> Answer:
        return _halved(normal, q, lambda normal, q: _started(normal, q, plan))

    def preconditioned(normal: Normal, q: Tensor) -> Answer:
        return _by_gradients(normal, q, plan, factorise(normal))

    much = forgotten(normal.log_forget) > (_LITTLE if q.shape[-2] > _SMALLEST else _MOST)
    return _apart(much, normal, q, halved, preconditioned)


def _by_gradients(normal: Normal, q: Tensor, plan: Plan, factor: Factor | None) -> Answer:
    """By conjugate gradients to the plan's tolerance, of their recurrence's residual, or as much more as it takes."""
    left = plan.most(q)

    def solve(rows: Tensor, tolerance: float) -> tuple[Tensor, int]:
        nonlocal left
        x, count = _recurrence(normal, rows, tolerance * rows.norm(dim=-1), left, factor)
        left -= count
        return x, count

    x, count = solve(q, tolerance_of(plan, q.dtype))
    if plan.tolerance == 0:
        return Answer(x, q.new_zeros(q.shape[:-2]), count)
    found = _settled(normal, q, x, lambda rows: solve(rows, _COARSE), plan.tolerance or 0.0)
    return found._replace(products=count + found.products)


def _recurrence(
    normal: Normal,
    q: Tensor,
    goal: Float[Tensor, "*chunks size"],
    iterations: int,
    factor: Factor | None,
    check: bool = True,
) -> tuple[Tensor, int]:
    """Conjugate gradients until no residual is larger than its goal: x, and the number of iterations.

    Where values are not looked at, all iterations are taken; a direction along which A is not positive is left alone.
    """
    x, residual, energy, count = torch.zeros_like(q), q.clone(), q.new_ones(()), 0
    direction = image = torch.zeros_like(q)
    started = _start(normal, factor)
    while count < iterations and (not check or bool((residual.norm(dim=-1) > goal).any())):
        better, its_image = started(residual)
        before, energy = energy, _dot(residual, better)
        momentum = energy / before.where(before > 0, 1) if count else torch.zeros_like(energy)
        direction, image = torch.addcmul(better, momentum, direction), torch.addcmul(its_image, momentum, image)
        along = _dot(direction, image)
        step = torch.where(along > 0, energy / along.where(along > 0, 1), 0)
        x.addcmul_(step, direction)
        residual.addcmul_(step, image, value=-1)
        count += 1
    return x, count


def _start(normal: Normal, factor: Factor | None) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """What a residual becomes before it is a direction, and A times that.

    With (g_t M_t)^{-1} as a start, A_t times what it makes of a row is the row and (ridge_t - g_t ridge_1) times that:
    no products with H or keys are needed.
    """
    if factor is None:
        times = normal.many_times()
        return lambda residual: (residual, times(residual))
    unlike = normal.ridge - normal.ridge[..., :1, :] / factor.lift

    def started(residual: Tensor) -> tuple[Tensor, Tensor]:
        better, _ = substitute(factor, residual)
        return better, torch.addcmul(residual, unlike, better)

    return started


def tolerance_of(plan: Plan, dtype: torch.dtype) -> float:
    """Of conjugate gradients."""
    return 8 * torch.finfo(dtype).eps if plan.tolerance is None else plan.tolerance


def _benign(factor: Factor, first: Tensor, x: Tensor) -> bool:
    """Whether neither the matrices nor the difference that ``x`` is have cost digits that a correction gives back.

    ``first`` is what the state before a chunk would answer. Where the chunk knows much more than it, as where it has
    forgotten much, little of it is left.
    """
    shrunk = (1 / _relative(x, first)).amax().nan_to_num(nan=0.0, posinf=0.0) / _SHRUNK
    worst = torch.stack([factor.condition.amax(), factor.growth.amax(), factor.lift.amax()]).amax() / _BENIGN
    return float(torch.maximum(worst, shrunk)) < 1


def condition_seen(x: Tensor, q: Tensor, diagonal: Tensor) -> Float[Tensor, "*tokens"]:
    """A lower bound of A_t's condition number: |x| |A| / |q| with x = A^{-1} q and |A| from A's diagonal.

    What follows multiplies x with keys, and loses digits in proportion to it.
    """
    return _relative(x, q) * diagonal.amax(-1)


def _relative(rows: Tensor, to: Tensor) -> Float[Tensor, "*tokens"]:
    """|rows| / |to|, and |rows| where ``to`` is 0."""
    size = _norm(to)
    return (_norm(rows) / size.where(size > 0, 1)).to(rows.dtype)


def _norm(rows: Tensor) -> Float[Tensor, "*tokens"]:
    """Norms in float64, whose range holds the squares of float32."""
    return rows.double().norm(dim=-1)


def _dot(a: Tensor, b: Tensor) -> Float[Tensor, "*tokens 1"]:
    return torch.linalg.vecdot(a, b)[..., None]
