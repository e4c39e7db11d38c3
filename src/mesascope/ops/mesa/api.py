"""Public functions of the mesa-layer: `mesa_attention`, `mesa_step` and `mesa_state`."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch

from mesascope.errors import refuse, require_choice, require_count, require_instance, require_number
from mesascope.ops.checks import require_attention, require_finite, require_state, require_values
from mesascope.ops.mesa.chunks import Problem, chunks_of, equations_of, read_out
from mesascope.ops.mesa.decode import (
    FixedRidgeState,
    MesaState,
    RootedMesaState,
    require_known,
    rooted_step,
    solve_tokens,
)
from mesascope.ops.mesa.equations import NormalEquations
from mesascope.ops.mesa.implicit import solve_chunks
from mesascope.ops.mesa.solve import Exact
from mesascope.ops.reading import may_read
from mesascope.shapes import Float, Tensor

MESA_RIDGES = ("decaying", "constant", "relative")

# Largest chunk size by default, and length of the longest sequence that is solved token by token.
_CHUNK, _SHORT = 64, 3


class MesaInfo(NamedTuple):
    """Iterations (0 for factorisation) or terms of a series, and largest relative residual |A x - q| / |q| per head."""

    iterations: int
    residual: Float[Tensor, "*batch heads"]


def mesa_attention(
    q: Float[Tensor, "*batch heads t dk"],
    k: Float[Tensor, "*batch heads t dk"],
    v: Float[Tensor, "*batch heads t dv"],
    *,
    ridge: float | Float[Tensor, "*ridges"],
    log_forget: Float[Tensor, "*batch heads t"] | None = None,
    beta: Float[Tensor, "*batch heads t"] | None = None,
    ridge_kind: str = "decaying",
    chunk: int | None = None,
    state: MesaState | RootedMesaState | FixedRidgeState | None = None,
    return_state: bool = False,
    return_info: bool = False,
    lengths: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> Any:
    """The mesa-layer: y_t = G_t (H_t + diag(r_t))^{-1} q_t, exact to rounding and parallel in time.

    Args:
        q, k, v: tensors of one dtype, which the output also has; half precision is computed in float32, even under
            autocast.
        ridge: 1/lambda > 0, or, for a relative ridge, its ratio to |H_t|_F: a number, ``(heads,)`` or ``(heads, dk)``.
        log_forget: logarithm of the forget factors, at most 0, -inf to forget everything; None forgets nothing.
        beta: input strength of each pair, in [0, 1], 0 for padding; None is 1.
        ridge_kind: ``"decaying"``, ``"constant"``, or ``"relative"`` to |H_t|_F, which counts as 1 while H_t is 0.
        chunk: tokens in a chunk. If None, at most 64; at most 32 if the ridge does not decay or dk < 64.
        state: state after the previous tokens, a `MesaState` if the ridge decays and a `FixedRidgeState` otherwise. A
            `MesaState` includes the decayed ridge: ``ridge`` then has no effect.
        return_state, return_info: also return the state after the last token and a `MesaInfo`, in this order.
        lengths: number of tokens of each sequence before its padding, ``(*batch,)``; outputs at padding are 0.
        cu_seqlens: starts of documents that are packed into one sequence, and the end of the last one, ``(n + 1,)``. No
            token attends to another document. Batch axes must have size 1; states are ``(n, heads, ...)``.

    Raises:
        NumericalError: H_t is singular to the precision of the dtype (a decaying ridge may be forgotten), or an output
            exceeds the range of its dtype. Under `torch.func.vmap`, the error is raised only if this occurs in every
            member; otherwise the affected outputs become NaN or infinite.

    For symbols, methods and `torch.compile` see `mesascope.ops.mesa`, for accelerators `without_reading_values`.

    Source: von Oswald (2024), sections 3.4 and 3.7.1.

    >>> q, k, v = torch.eye(2)[None], torch.eye(2)[None], torch.tensor([[[3.0], [5.0]]])
    >>> mesa_attention(q, k, v, ridge=torch.tensor([0.5]))
    tensor([[[2.0000],
             [3.3333]]])
    """
    inputs = {"ridge": ridge, "log_forget": log_forget, "beta": beta, "ridge_kind": ridge_kind, "state": state}
    inputs |= {"lengths": lengths, "cu_seqlens": cu_seqlens}
    returned = {"return_state": return_state, "return_info": return_info}
    return attend(None, q, k, v, **inputs, **returned, chunk=chunk)


Find = Callable[[Problem, NormalEquations, Tensor], tuple[Tensor, int]]


def attend(
    find: Find | None,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    chunk: int | None = None,
    return_state: bool = False,
    return_info: bool = False,
    **inputs: Any,
) -> Any:
    """`mesa_attention` with x = A^{-1} q and the number of iterations from ``find(problem, equations, queries)``.

    If ``find`` is None, x is exact; short sequences are solved token by token, unless packed or ``return_info``.
    """
    chunk = None if chunk is None else require_count("chunk", chunk)
    problem = pose(q, k, v, **inputs)
    packed, info = inputs.get("cu_seqlens") is not None, MesaInfo(0, problem.q.new_zeros(q.shape[:-2]))
    with torch.autocast(q.device.type, enabled=False):
        if find is None and q.shape[-2] <= _SHORT and not packed and not return_info:
            solution = solve_tokens(problem)
        else:
            chunks = chunks_of(problem, _chunk_size(problem, chunk, find is None))
            equations = equations_of(problem, chunks)
            if find is None:
                solver = Exact(problem.decaying, may_read(q.device), problem.heads)
                x, count = solve_chunks(equations, chunks.queries, solver)
            else:
                x, count = find(problem, equations, chunks.queries)
            solution = read_out(chunks, x)
            if return_info:
                left, asked = (chunks.queries - equations.times(x)).norm(dim=-1), chunks.queries.norm(dim=-1)
                residual = (left / asked.where(asked > 0, 1)).detach().flatten(1).amax(1)
                info = MesaInfo(count, residual.reshape(q.shape[:-2]))
    y = solution.y.reshape(v.shape).to(v.dtype)
    states = (len(problem.lengths), problem.heads) if packed else q.shape[:-2]
    after = [state_of(problem, solution[1:], states)] if return_state else []
    require_finite([y, *(part for state in after for part in state)])
    outputs = (y, *after, *([info] if return_info else []))
    return outputs if len(outputs) > 1 else y


def _chunk_size(problem: Problem, chunk: int | None, exact: bool) -> int:
    """Chunk size: ``chunk``, or a multiple of 4 (other sizes are slow) that splits a sequence into similar chunks."""
    longest, dk = max(problem.lengths), problem.q.shape[-1]
    size = chunk or (_CHUNK if dk >= _CHUNK and exact and problem.decaying else _CHUNK // 2)
    parts = math.ceil(longest / size) if chunk is None else 1
    return max(min(size, 4 * math.ceil(longest / max(parts, 1) / 4)), 1)


def mesa_step(
    q: Float[Tensor, "*batch heads dk"],
    k: Float[Tensor, "*batch heads dk"],
    v: Float[Tensor, "*batch heads dv"],
    state: MesaState | FixedRidgeState | RootedMesaState | None,
    *,
    ridge: float | Float[Tensor, "*ridges"],
    log_forget: Float[Tensor, "*batch heads"] | None = None,
    beta: Float[Tensor, "*batch heads"] | None = None,
    ridge_kind: str = "decaying",
) -> tuple[Float[Tensor, "*batch heads dv"], MesaState | FixedRidgeState | RootedMesaState]:
    """Output of `mesa_attention` for one token, and the state after it: decoding with constant memory.

    It costs a dense solve, O(d^3); with a decaying ridge and a `RootedMesaState`, it costs O(d^2).
    """
    for name, part in (("q", q), ("k", k), ("v", v)):
        require_instance(name, part, Tensor)
    gates = {"log_forget": log_forget, "beta": beta}
    for name, gate in gates.items():
        require_instance(name, gate, Tensor | None)
    if q.ndim < 2 or q.ndim != k.ndim or v.ndim != q.ndim:
        shapes = f"q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}"
        refuse("q, k and v", "be one token, (*batch, heads, d) each", shapes, "add or remove axes")
    gates = {name: gate if gate is None else gate[..., None] for name, gate in gates.items()}
    tokens = [part[..., None, :] for part in (q, k, v)]
    inputs = {"ridge": ridge, "ridge_kind": ridge_kind, "state": state, **gates}
    if not isinstance(state, RootedMesaState):
        y, after = mesa_attention(*tokens, **inputs, return_state=True)
        return y.squeeze(-2), after
    if ridge_kind != "decaying":
        refuse("state", f"be a FixedRidgeState if ridge_kind = {ridge_kind!r}", "RootedMesaState", "pass None")
    problem = pose(*tokens, **inputs)
    q, k, v, log_forget, beta = (part.reshape(*q.shape[:-1], *part.shape[2:]) for part in problem[:5])
    with torch.autocast(q.device.type, enabled=False):
        y, x, after = rooted_step(q, k, v, log_forget.exp(), beta, state)
    y = y.to(tokens[2].dtype)
    require_known(after.H, x, q)
    require_finite([y, *after])
    return y, after


def mesa_state(
    k: Float[Tensor, "*batch heads t dk"],
    v: Float[Tensor, "*batch heads t dv"],
    *,
    ridge: float | Float[Tensor, "*ridges"],
    log_forget: Float[Tensor, "*batch heads t"] | None = None,
    beta: Float[Tensor, "*batch heads t"] | None = None,
    ridge_kind: str = "decaying",
    state: MesaState | RootedMesaState | FixedRidgeState | None = None,
) -> MesaState | FixedRidgeState:
    """The state after `mesa_attention`, without its outputs: computes sums only and solves no system."""
    require_instance("k", k, Tensor)
    if k.ndim < 3:
        refuse("k", "have shape (*batch, heads, t, dk)", tuple(k.shape), "add the missing axes")
    q = k.new_zeros(()).expand_as(k)  # not read
    problem = pose(q, k, v, ridge=ridge, log_forget=log_forget, beta=beta, ridge_kind=ridge_kind, state=state)
    with torch.autocast(k.device.type, enabled=False):
        chunks = chunks_of(problem, _CHUNK)
    after = state_of(problem, (chunks.last_H, chunks.last_G), k.shape[:-2])
    require_finite(after)
    return after


def state_of(problem: Problem, parts: Iterable[Tensor], batch: Iterable[int]) -> MesaState | FixedRidgeState:
    """State of H and G ``(documents, batch, ...)``, with batch and heads as separate axes."""
    kind = MesaState if problem.decaying else FixedRidgeState
    return kind(*(part.reshape(*batch, *part.shape[2:]) for part in parts))


def pose(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    ridge: float | Tensor,
    log_forget: Tensor | None = None,
    beta: Tensor | None = None,
    ridge_kind: str = "decaying",
    state: MesaState | RootedMesaState | FixedRidgeState | None = None,
    lengths: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
) -> Problem:
    """Check the arguments of `mesa_attention`, and convert them to a `Problem`."""
    require_choice("ridge_kind", ridge_kind, MESA_RIDGES)
    decaying = ridge_kind == "decaying"
    if isinstance(state, RootedMesaState):
        state = MesaState(state.H, state.G)
    if state is not None:
        require_state(state, MesaState if decaying else FixedRidgeState)
    require_instance("q", q, Tensor)
    if not isinstance(ridge, Tensor):
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        ridge = torch.tensor(require_number("ridge", ridge, above=0), dtype=wide, device=q.device)
    if ridge.dim() == 0 and q.ndim > 2:
        ridge = ridge.expand(q.shape[-3])
    if cu_seqlens is not None:
        _require_documents(cu_seqlens, q, lengths)
    arguments = {"ridge": ridge, "log_forget": log_forget, "beta": beta, "lengths": lengths, "q": q, "k": k, "v": v}
    if state is not None:
        arguments |= {"state.H": state.H, "state.G": state.G}
    require_attention(arguments, None if cu_seqlens is None else (len(cu_seqlens) - 1,))
    if lengths is not None:  # padding becomes zeros that forget nothing
        real = torch.arange(q.shape[-2], device=q.device) < lengths[..., None, None]
        q, k, v = (torch.where(real[..., None], part, 0) for part in (q, k, v))
        log_forget = None if log_forget is None else torch.where(real, log_forget, 0)
        beta = None if beta is None else torch.where(real, beta, 1)
        arguments |= {"log_forget": log_forget, "beta": beta, "q": q, "k": k, "v": v}
    require_values(arguments, q.shape[-2])
    documents = [q.shape[-2]] if cu_seqlens is None else cu_seqlens.diff().tolist()
    return _formed(q, k, v, ridge, log_forget, beta, state, ridge_kind, documents)


def _formed(
    q: Tensor, k: Tensor, v: Tensor, ridge: Tensor, log_forget: Tensor | None, beta: Tensor | None, state: Any,
    ridge_kind: str, documents: list[int],
) -> Problem:  # fmt: skip
    dtype = torch.promote_types(q.dtype, torch.float32)
    wide = ridge.to(dtype) if ridge.dim() == 2 else ridge.to(dtype)[:, None].expand(-1, q.shape[-1])
    rows = wide.expand(*q.shape[:-3], *wide.shape).reshape(-1, q.shape[-1])
    none, decaying = torch.zeros_like(rows), ridge_kind == "decaying"
    if state is None:
        H, G = torch.diag_embed(rows if decaying else none), rows.new_zeros(len(rows), v.shape[-1], q.shape[-1])
        H, G = (part.expand(len(documents), *part.shape) for part in (H, G))
    else:
        H, G = (part.to(dtype).reshape(len(documents), len(rows), *part.shape[-2:]) for part in state)
    q, k, v, shape = *(part.to(dtype).flatten(0, -3) for part in (q, k, v)), q.shape
    log_forget, beta = (
        (q.new_full(shape[:-1], idle) if gate is None else gate.to(dtype)).flatten(0, -2)
        for gate, idle in ((log_forget, 0), (beta, 1))
    )
    beside, new = none if decaying else rows, state is None
    return Problem(q, k, v, log_forget, beta, H, G, beside, shape[-3], ridge_kind, new, documents)


def _require_documents(cu_seqlens: Tensor, q: Tensor, lengths: Tensor | None) -> None:
    """Raise unless ``cu_seqlens`` splits one sequence into documents."""
    require_instance("cu_seqlens", cu_seqlens, Tensor)
    if cu_seqlens.dtype not in (torch.int32, torch.int64) or cu_seqlens.ndim != 1 or len(cu_seqlens) < 2:
        refuse("cu_seqlens", "be a vector of at least two integers", cu_seqlens, "pass 0 and the end of each document")
    ends = cu_seqlens.tolist()
    if math.prod(q.shape[:-3]) != 1 or lengths is not None:
        refuse("cu_seqlens", "be None beside a batch or lengths", ends, "pack all documents into one sequence")
    if q.ndim > 1 and (ends[0] != 0 or ends[-1] != q.shape[-2] or ends != sorted(ends)):
        refuse("cu_seqlens", f"rise from 0 to the {q.shape[-2]} tokens of q", ends, "pass cumulative lengths")
