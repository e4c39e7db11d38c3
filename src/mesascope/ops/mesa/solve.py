"""Solve x_t = A_t^{-1} q_t for all tokens of chunks, to the precision of the dtype; report the condition number.

Derivatives are in `mesascope.ops.mesa.implicit`. With a decaying ridge, systems are solved by the chunk's factor, with
other ridges by conjugate gradients. Methods are chosen for each chunk by its forget factors and condition number, so a
head with strong gates does not slow down the others.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, NoReturn

import torch

from mesascope.errors import NumericalError
from mesascope.ops.mesa.equations import Factor, NormalEquations, factorise, forgotten, substitute
from mesascope.ops.products import exact_products
from mesascope.shapes import Float, Tensor

# Largest -log g_t of a chunk whose keys are scaled by 1/g_t: rounding errors grow in proportion to 1/g_t.
_MOST = 4.0
# Largest -log g_t of a chunk whose factor is a good preconditioner if the ridge does not decay.
_LITTLE = 0.75
# Size up to which a chunk is preconditioned whole if -log g_t <= _MOST; cost of a factorisation in iterations.
_SMALLEST, _FACTORISED = 16, 6
# Largest condition number at which a correction would not improve accuracy.
_BENIGN = 5.0
# Largest |first| / |x| without a correction (see `_benign`); rounding errors grow by this ratio.
_SHRUNK = 10.0
# Largest residual in units of rounding: of the system, and of the recurrence in conjugate gradients.
_ROUNDING, _ARRIVED = 4.0, 8.0
# Largest relative residual of conjugate gradients in corrections and if no value may be read; iterations then.
_COARSE, _UNREAD = 0.01, 30
# Number of corrections before unsettled chunks are solved in float64; number of corrections if no value may be read.
_CORRECTIONS, _UNREAD_CORRECTIONS = 4, 3


class SolveResult(NamedTuple):
    """Solution x, lower bound on the condition number (inf if inaccurate), number of iterations."""

    x: Float[Tensor, "*chunks size dk"]
    condition: Float[Tensor, "*chunks"]
    products: int = 0


Work = Callable[[NormalEquations, Tensor], SolveResult]


@dataclass(frozen=True)
class Exact:
    """The mesa-layer's solver.

    Args:
        decaying: the ridge decays and is therefore part of H.
        reading: the solver may choose its method by values: see `mesascope.ops.reading.may_read`.
        heads: number of heads, for error messages.
    """

    decaying: bool
    reading: bool
    heads: int

    def factor(self, equations: NormalEquations, q: Tensor) -> Factor | None:
        """The factor of all chunks; None if the ridge does not decay or, with ``reading``, a chunk forgets too much."""
        if not self.decaying or not q.numel():
            return None
        much = forgotten(equations.log_forget) > _MOST
        return None if self.reading and bool(much.any()) else factorise(equations)

    @exact_products()
    def find(self, equations: NormalEquations, q: Tensor, factor: Factor | None) -> SolveResult:
        """Solve for x; ``factor`` is the factor of all chunks, if it is known."""
        if not q.numel():
            return SolveResult(torch.zeros_like(q), q.new_zeros(q.shape[:-2]))
        if not self.reading:
            return _unread(equations, q, factor) if self.decaying else _thirty(equations, q)
        work = _factored if self.decaying else _iterated
        found = work(equations, q) if factor is None else _corrected(equations, q, factor)
        if q.dtype != torch.float64:
            found = _redone(equations, q, found, work)
        return _redone(equations, q, found, _dense)

    def required(self, found: SolveResult, q: Tensor) -> Tensor:
        """Solution x; raise if a token has no accurate digit. If no value may be read, return `marked`."""
        if not self.reading:
            return self.marked(found)
        if not bool((found.condition <= 1 / torch.finfo(q.dtype).eps).all()):
            refuse_singular(found.condition, self.heads, q.shape[-2], q.dtype)
        return found.x

    def marked(self, found: SolveResult) -> Tensor:
        """Solution x, with NaN in chunks in which a token has no accurate digit."""
        singular = ~(found.condition <= 1 / torch.finfo(found.x.dtype).eps)
        return found.x.masked_fill(singular[..., None, None], torch.nan)


def refuse_singular(condition: Float[Tensor, "batch chunks"], heads: int, size: int, dtype: torch.dtype) -> NoReturn:
    """Raise an error that names the head and tokens with the largest condition number."""
    row, chunk = divmod(int(condition.nan_to_num(nan=torch.inf).argmax()), condition.shape[1])
    where = f"token {chunk}" if size == 1 else f"chunk {chunk} (of up to {size} tokens)"
    wider = "" if dtype == torch.float64 else ", or float64"
    raise NumericalError(
        f"H must stay positive definite, but is singular to {dtype} in head {row % heads}, {where}: use a larger "
        f"ridge, less forgetting, ridge_kind='constant', shorter keys{wider}."
    )


def _unread(equations: NormalEquations, q: Tensor, factor: Factor | None) -> SolveResult:
    """Solve by the factor and three corrections, without choices that depend on values."""
    factor = factorise(equations) if factor is None else factor
    x, _ = substitute(factor, q)
    for _ in range(_UNREAD_CORRECTIONS):
        x = x + substitute(factor, q - equations.times(x))[0]
    entry, asked, size = equations.diagonal().amax(-1), _norm(q), _norm(x)
    settled = _of_rounding(equations.largest(entry), asked, size, q - equations.times(x)).all(-1)
    return SolveResult(x, _condition(entry, asked, size, settled & (forgotten(equations.log_forget) <= _MOST)))


def _thirty(equations: NormalEquations, q: Tensor) -> SolveResult:
    """Solve by 30 conjugate-gradient iterations; chunks with a large residual get an infinite condition number."""
    x, count = conjugate_gradients(equations, q, None, _UNREAD)
    lost = ~(_norm(q - equations.times(x)) <= _COARSE * _norm(q)).all(-1)
    return SolveResult(x, q.new_zeros(q.shape[:-2]).masked_fill(lost, torch.inf), count)


def _factored(equations: NormalEquations, q: Tensor) -> SolveResult:
    """Solve by the chunk's factor, or by the factors of its halves if the chunk forgets much."""
    much = forgotten(equations.log_forget) > _MOST
    if bool(much.any()):
        return _apart(much, equations, q, lambda equations, q: _halved(equations, q, _factored), _factored)
    return _corrected(equations, q, factorise(equations))


def _apart(chosen: Tensor, equations: NormalEquations, q: Tensor, one: Work, other: Work) -> SolveResult:
    """Solve the chosen chunks by ``one`` and the rest by ``other``."""
    some, all_of_them = bool(chosen.any()), bool(chosen.all())
    if all_of_them or not some:
        return (one if some else other)(equations, q)
    x, condition, products = torch.empty_like(q), q.new_empty(q.shape[:-2]), 0
    for rows, work in ((chosen, one), (~chosen, other)):
        own = work(equations.part(rows), q[rows])
        x[rows], condition[rows], products = own.x, own.condition, max(products, own.products)
    return SolveResult(x, condition, products)


def _halved(equations: NormalEquations, q: Tensor, work: Work) -> SolveResult:
    """Solve the first half of every chunk, then the second half."""
    first, second = equations.halves()
    half = first.keys.shape[-2]
    early, late = work(first, q[..., :half, :]), work(second, q[..., half:, :])
    condition = torch.maximum(early.condition, late.condition)
    return SolveResult(torch.cat([early.x, late.x], -2), condition, max(early.products, late.products))


def _corrected(equations: NormalEquations, q: Tensor, factor: Factor) -> SolveResult:
    """Solve by the factor, and correct until the residual is settled."""
    x, first = substitute(factor, q)
    if _benign(factor, first, x):
        return SolveResult(x, factor.condition)
    return _settled(equations, q, x, lambda residual: (substitute(factor, residual)[0], 0))


def _settled(
    equations: NormalEquations, q: Tensor, x: Tensor, inverse: Callable[[Tensor], tuple[Tensor, int]]
) -> SolveResult:
    """Correct x by an approximate inverse until it solves the system up to rounding.

    The criterion |q - A x| <= c eps (|A| |x| + |q|) is that of a dense solve. More accuracy would not help: y = G x
    and derivatives multiply x by keys, where its errors are small. Before the first correction, |A| is estimated by its
    largest diagonal entry. If keys share a direction, this is too small; the extra correction costs little and often
    gains a digit. Chunks that do not settle get an infinite condition number.
    """
    largest = entry = equations.diagonal().amax(-1)
    asked, products = _norm(q), 0
    for correction in range(_CORRECTIONS + 1):
        residual, size = q - equations.times(x), _norm(x)
        settled = _of_rounding(largest, asked, size, residual)
        if correction == _CORRECTIONS or bool(settled.all()):
            break
        change, more = inverse(residual)
        x, products = x + change, products + more
        largest = largest if correction else equations.largest(entry)
    return SolveResult(x, _condition(entry, asked, size, settled.all(-1)), products)


def _condition(entry: Tensor, asked: Tensor, size: Tensor, settled: Tensor) -> Float[Tensor, "*chunks"]:
    """Largest `condition_seen` of each chunk, from |q| and |x|; infinite for chunks that are not settled."""
    return (_ratio(size, asked).to(entry.dtype) * entry).amax(-1).masked_fill(~settled, torch.inf)


def _of_rounding(largest: Tensor, asked: Tensor, size: Tensor, residual: Tensor) -> Tensor:
    """True for each token whose residual is at the level of rounding, from |q| and |x|: see `_settled`."""
    return _norm(residual) <= _ROUNDING * torch.finfo(residual.dtype).eps * (largest * size + asked)


def _redone(equations: NormalEquations, q: Tensor, found: SolveResult, work: Work) -> SolveResult:
    """The result, with unsettled chunks solved again by ``work`` in float64."""
    lost = found.condition.isinf()
    if not bool(lost.any()):
        return found
    wide = work(NormalEquations(*(part.double() for part in equations.part(lost))), q[lost].double())
    x, condition = found.x.clone(), found.condition.clone()
    x[lost], condition[lost] = wide.x.to(q.dtype), wide.condition.to(q.dtype)
    return SolveResult(x, condition, found.products + wide.products)


def _dense(equations: NormalEquations, q: Tensor) -> SolveResult:
    """Solve by one factorisation per token, chunk by chunk."""
    solved = [dense_solve(equations.part(n).matrices(), q[n]) for n in range(len(q))]
    x, condition = (torch.stack(parts) for parts in zip(*solved, strict=True))
    return SolveResult(x, condition.amax(-1))


def dense_solve(A: Float[Tensor, "*tokens d d"], q: Float[Tensor, "*tokens d"]) -> tuple[Tensor, Tensor]:
    """A^{-1} q, and its `condition_seen`, infinite if the factorisation fails."""
    x, failed = torch.linalg.solve_ex(A, q)
    seen = condition_seen(x, q, A.diagonal(dim1=-2, dim2=-1).amax(-1)).detach()
    return x, seen.masked_fill(failed != 0, torch.inf)


def _iterated(equations: NormalEquations, q: Tensor) -> SolveResult:
    """Solve by conjugate gradients, preconditioned by the factor of the chunk or of its parts if that costs less.

    The number of iterations is about sqrt(kappa)/2 ln(2/tolerance), with kappa the condition number. Without a
    preconditioner, kappa is about 1 + 4 h/ridge, with h the mean of H's diagonal; larger eigenvalues are few and take
    one iteration each. With the preconditioner, kappa depends on the forget factors of the chunk.
    """
    pace = 0.5 * math.log(2 / max(_ARRIVED * torch.finfo(q.dtype).eps, 1e-16))
    mean = (equations.diagonal() - equations.ridge).amax(-2).mean(-1)
    plain = pace * (1 + 4 * mean / equations.ridge.amin((-2, -1))).sqrt()
    lost, size = forgotten(equations.log_forget), q.shape[-2]
    started = _FACTORISED + pace * (0.5 * lost * min(_SMALLEST / size, 1)).exp()
    return _apart(plain <= started, equations, q, lambda equations, q: _by_gradients(equations, q, None), _started)


def _started(equations: NormalEquations, q: Tensor) -> SolveResult:
    def preconditioned(equations: NormalEquations, q: Tensor) -> SolveResult:
        return _by_gradients(equations, q, factorise(equations))

    much = forgotten(equations.log_forget) > (_LITTLE if q.shape[-2] > _SMALLEST else _MOST)
    return _apart(much, equations, q, lambda equations, q: _halved(equations, q, _started), preconditioned)


def _by_gradients(equations: NormalEquations, q: Tensor, factor: Factor | None) -> SolveResult:
    """Solve by conjugate gradients until the recurrence's residual is at the level of rounding, then correct."""
    left = 2 * q.shape[-1] + 50

    def solve(rows: Tensor, tolerance: float) -> tuple[Tensor, int]:
        nonlocal left
        x, count = conjugate_gradients(equations, rows, tolerance, left, factor)
        left -= count
        return x, count

    x, count = solve(q, _ARRIVED * torch.finfo(q.dtype).eps)
    found = _settled(equations, q, x, lambda rows: solve(rows, _COARSE))
    return found._replace(products=count + found.products)


def conjugate_gradients(
    equations: NormalEquations, q: Tensor, tolerance: float | None, iterations: int, factor: Factor | None = None
) -> tuple[Tensor, int]:
    """Solve by conjugate gradients until all residuals of the recurrence are at most ``tolerance`` |q|.

    Returns x and the number of iterations. If the tolerance is None, all iterations run. No step is taken along
    directions in which A is not positive.
    """
    x, residual, energy, count = torch.zeros_like(q), q.clone(), q.new_ones(()), 0
    goal = None if tolerance is None else tolerance * q.norm(dim=-1)
    direction = image = torch.zeros_like(q)
    started = _start(equations, factor)
    while count < iterations and (goal is None or bool((residual.norm(dim=-1) > goal).any())):
        better, its_image = started(residual)
        before, energy = energy, torch.linalg.vecdot(residual, better)[..., None]
        momentum = energy / before.where(before > 0, 1) if count else torch.zeros_like(energy)
        direction, image = torch.addcmul(better, momentum, direction), torch.addcmul(its_image, momentum, image)
        along = torch.linalg.vecdot(direction, image)[..., None]
        step = torch.where(along > 0, energy / along.where(along > 0, 1), 0)
        x.addcmul_(step, direction)
        residual.addcmul_(step, image, value=-1)
        count += 1
    return x, count


def _start(equations: NormalEquations, factor: Factor | None) -> Callable[[Tensor], tuple[Tensor, Tensor]]:
    """Return a function from a residual r to the preconditioned residual z and the product A z.

    With z = (g_t M_t)^{-1} r, A_t z = r + (ridge_t - g_t ridge_1) z needs no products with H or keys.
    """
    if factor is None:
        times = equations.many_times()
        return lambda residual: (residual, times(residual))
    unlike = equations.ridge - equations.ridge[..., :1, :] / factor.inverse_decay

    def started(residual: Tensor) -> tuple[Tensor, Tensor]:
        better, _ = substitute(factor, residual)
        return better, torch.addcmul(residual, unlike, better)

    return started


def _benign(factor: Factor, first: Tensor, x: Tensor) -> bool:
    """True if x is so accurate that a correction would not improve it.

    Digits are lost to large condition numbers, and to cancellation if x is much smaller than ``first``, the solution
    for the state before the chunk. This happens if the chunk's tokens outweigh that state, for example after much
    forgetting.
    """
    shrunk = (1 / _relative(x, first)).amax().nan_to_num(nan=0.0, posinf=0.0) / _SHRUNK
    worst = torch.stack([factor.condition.amax(), factor.growth.amax(), factor.inverse_decay.amax()]).amax() / _BENIGN
    return float(torch.maximum(worst, shrunk)) < 1


def condition_seen(x: Tensor, q: Tensor, entry: Tensor) -> Float[Tensor, "*tokens"]:
    """A lower bound on A_t's condition number: |x| |A| / |q|, with x = A^{-1} q and A's largest diagonal entry as |A|.

    The relative error of outputs and derivatives is proportional to it, as they multiply x by keys.
    """
    return _relative(x, q) * entry


def _relative(rows: Tensor, to: Tensor) -> Float[Tensor, "*tokens"]:
    """|rows| / |to|, or |rows| if ``to`` is 0."""
    return _ratio(_norm(rows), _norm(to)).to(rows.dtype)


def _ratio(size: Tensor, to: Tensor) -> Tensor:
    return size / to.where(to > 0, 1)


def _norm(rows: Tensor) -> Float[Tensor, "*tokens"]:
    """Norms in float64, so squares of float32 numbers do not overflow."""
    return rows.double().norm(dim=-1)
