"""The mesa-layer: attention that solves a least-squares problem at every token.

    W_t = argmin_W 1/2 sum_{i<=t} g_t/g_i beta_i |v_i - W k_i|^2 + 1/2 tr(W diag(r_t) W^T),    y_t = W_t q_t,

with g_t the product of the forget factors up to t. Through H_t = sum_{i<=t} g_t/g_i beta_i k_i k_i^T and a like G_t
of v k^T, y_t = G_t (H_t + diag(r_t))^{-1} q_t. The regulariser decays with the rest, r_t = g_t ridge (thesis, eqs. 3.12
to 3.15), is constant, r_t = ridge (MesaNet), or grows with what is known, r_t = ridge |H_t|_F (Gated KalmaNet).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch

from mesascope.errors import ArgumentError, refuse, require_choice, require_count, require_instance, require_number
from mesascope.ops import mesa_series, mesa_steps
from mesascope.ops.checks import require_finite, require_shapes, require_tensors, require_values
from mesascope.ops.mesa_answers import Plan
from mesascope.ops.mesa_chunks import Problem, Solution, chunks_of, read_out
from mesascope.ops.mesa_decode import rooted_step
from mesascope.ops.mesa_normal import Normal
from mesascope.ops.mesa_solve import solve_chunks
from mesascope.ops.mesa_states import FixedRidgeState, MesaState, RootedMesaState
from mesascope.shapes import Float, Tensor

__all__ = ["MESA_METHODS", "MESA_RIDGES", "MesaInfo", "mesa_attention", "mesa_state", "mesa_step"]

MESA_METHODS = ("chunk", "solve", "cg", "neumann", "chebyshev", "fused")
MESA_RIDGES = ("decaying", "constant", "relative")

_CHUNK = 64
_SHORT = 3


class MesaInfo(NamedTuple):
    """Iterations or terms that a method took, and the largest |A x - q| / |q| of every head."""

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
    method: str = "auto",
    chunk: int | None = None,
    state: MesaState | RootedMesaState | FixedRidgeState | None = None,
    return_state: bool = False,
    return_info: bool = False,
    lengths: Tensor | None = None,
    cu_seqlens: Tensor | None = None,
    tolerance: float | None = None,
    iterations: int | None = None,
    check: bool = True,
) -> Any:
    """y_t = G_t (H_t + diag(r_t))^{-1} q_t for every t of a sequence.

    Args:
        q, k, v: of one dtype, which is the output's; bfloat16 and float16 are computed in float32, as is everything
            under `torch.autocast`.
        ridge: 1/lambda > 0, or its share of |H_t|_F where it is relative; one number, ``(heads,)`` or ``(heads, dk)``.
        log_forget: logarithm of the forget factors, at most 0, -inf to forget everything; None forgets nothing.
        beta: how strongly each pair counts, in [0, 1], 0 for padding; None is 1.
        ridge_kind: one of `MESA_RIDGES`: ``"decaying"``, as all else is forgotten, ``"constant"``, or ``"relative"`` to
            |H_t|_F, which counts as 1 while H_t is 0.
        method: one of `MESA_METHODS`, or ``"auto"``: ``"solve"`` for up to 3 tokens, then ``"chunk"``, or ``"cg"`` for
            another kind of ridge, which only it, the series and ``"solve"`` can take.

            ``"chunk"``: exact, parallel in time. 6 T (C d + d^2) multiplications, two thirds more where it corrects,
            and 2 T/C factorisations.
            ``"solve"``: a dense solve a token, O(T d^3): the definition, to test the others against.
            ``"cg"``: conjugate gradients to ``tolerance``, from the chunk's factor where that saves more than it costs.
            ``"fused"``: ``"chunk"`` as one Triton kernel, for CUDA; not timed on a GPU yet, and so picked by nothing.
            ``"neumann"``, ``"chebyshev"``: ``iterations`` terms of a series, for H of small condition number:
            T d (2 C + d) multiplications a term, no factorisation, derivatives through every term.
        chunk: tokens of a chunk; if None at most 64, or 32 for iterations or keys of less than 64 entries. Chunks that
            forget much are cut further.
        state: that of the tokens before, as an earlier call returned it: a `MesaState` where the ridge decays, else a
            `FixedRidgeState`. What is left of a decaying ridge is part of it, and ``ridge`` then has no effect.
        return_state, return_info: whether to return a state and a `MesaInfo` too, in this order.
        lengths: tokens of each sequence ``(*batch,)`` that are not padding; outputs beyond are 0.
        cu_seqlens: where documents begin that are packed into one sequence, and where the last one ends, ``(n + 1,)``,
            as in flash attention. No token sees another document's. The batch is then empty or 1, and states are those
            of the documents, ``(n, heads, ...)``.
        tolerance: of conjugate gradients alone, |A x - q| relative to |q|; if None, what rounding allows; 0 takes all
            ``iterations``.
        iterations: at most so many of conjugate gradients, 2 dk + 50 if None, or terms of a series, 30 if None; how far
            these came only ``return_info`` tells.
        check: whether values are looked at. If not, nothing waits for a GPU, and a CUDA graph may be captured, but
            values out of range are not refused, chunks not cut further and nothing is solved in float64: ``"chunk"``
            corrects once and gives NaN for chunks without digits, and ``"cg"`` takes all ``iterations``, 30 if None.

    Raises:
        NumericalError: H_t is singular to the precision at hand, or an output leaves the range of its dtype. Forgetting
            forgets a decaying regulariser too. Under `torch.func.vmap`, so that the others may go on, what is wrong
            with one member becomes NaN in its own part.

    `torch.compile` takes ``"chunk"`` and ``"cg"`` in one graph, without the checks of arguments' values.

    Source: thesis, sections 3.4 and 3.7.1.

    >>> q, k, v = torch.eye(2)[None], torch.eye(2)[None], torch.tensor([[[3.0], [5.0]]])
    >>> mesa_attention(q, k, v, ridge=torch.tensor([0.5]))
    tensor([[[2.0000],
             [3.3333]]])
    """
    kind, state = _states(ridge_kind, state)
    require_instance("check", check, bool)
    arguments = _arguments(q, k, v, ridge, log_forget, beta, lengths, cu_seqlens, state, check)
    packed = cu_seqlens is not None
    plan, chunk = _plan(method, q.shape[-2], ridge_kind, tolerance, iterations, chunk, packed, check)
    problem = _problem(arguments, state, ridge_kind, cu_seqlens)
    documents = [q.shape[-2]] if cu_seqlens is None else cu_seqlens.diff().tolist()
    with torch.autocast(q.device.type, enabled=False):
        solution, residual, count = _solution(problem, documents, chunk, plan, q.shape[-3], state is None, return_info)
    y, *parts = solution
    outputs: list[Any] = [y.reshape(v.shape).to(v.dtype)]
    if return_state:
        outputs.append(kind(*(part.reshape(_of_states(q, cu_seqlens) + part.shape[2:]) for part in parts)))
    if return_info:
        outputs.append(MesaInfo(count, residual.reshape(q.shape[:-2])))
    if check:
        require_finite([outputs[0], *(outputs[1] if return_state else ())])
    return tuple(outputs) if len(outputs) > 1 else outputs[0]


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
    check: bool = True,
) -> tuple[Float[Tensor, "*batch heads dv"], MesaState | FixedRidgeState | RootedMesaState]:
    """One token of `mesa_attention`, and the state after it: decoding in memory that does not grow with time.

    From ``state.rooted()``, where the ridge decays, it costs O(d^2), else a dense solve.
    """
    if isinstance(state, RootedMesaState):
        return _rooted(q, k, v, state, ridge, log_forget, beta, ridge_kind, check)
    y, after = mesa_attention(
        *(part[..., None, :] for part in (q, k, v)),
        ridge=ridge,
        log_forget=None if log_forget is None else log_forget[..., None],
        beta=None if beta is None else beta[..., None],
        ridge_kind=ridge_kind,
        state=state,
        return_state=True,
        check=check,
    )
    return y.squeeze(-2), after


def _rooted(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    state: RootedMesaState,
    ridge: float | Tensor,
    log_forget: Tensor | None,
    beta: Tensor | None,
    ridge_kind: str,
    check: bool,
) -> tuple[Tensor, RootedMesaState]:
    if ridge_kind != "decaying":
        refuse("state", f"be no RootedMesaState where ridge_kind = {ridge_kind!r}", "one", "begin without a state")
    require_instance("check", check, bool)
    gates = [None if gate is None else gate[..., None] for gate in (log_forget, beta)]
    tokens = [part[..., None, :] for part in (q, k, v)]
    _arguments(tokens[0], tokens[1], tokens[2], ridge, gates[0], gates[1], None, None, state, check)
    dtype = torch.promote_types(q.dtype, torch.float32)
    forget = q.new_ones(q.shape[:-1], dtype=dtype) if log_forget is None else log_forget.to(dtype).exp()
    strength = torch.ones_like(forget) if beta is None else beta.to(dtype)
    with torch.autocast(q.device.type, enabled=False):
        y, x, after = rooted_step(q.to(dtype), k.to(dtype), v.to(dtype), forget, strength, state, check)
    y = y.to(v.dtype)
    if check:
        mesa_steps.require_known(after.H, x, q)
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
    check: bool = True,
) -> MesaState | FixedRidgeState:
    """The state that `mesa_attention` would leave behind, where nothing is asked: sums alone, no system is solved."""
    kind, state = _states(ridge_kind, state)
    require_instance("check", check, bool)
    arguments = _arguments(k, k, v, ridge, log_forget, beta, None, None, state, check)
    problem = _problem(arguments, state, ridge_kind, None)
    with torch.autocast(k.device.type, enabled=False):
        chunks = chunks_of(problem, _CHUNK, [k.shape[-2]])
    parts = (chunks.last_H, chunks.last_G)
    after = kind(*(part.reshape(*k.shape[:-2], *part.shape[2:]) for part in parts))
    if check:
        require_finite(after)
    return after


def _states(
    ridge_kind: str, state: Any
) -> tuple[type[MesaState] | type[FixedRidgeState], MesaState | FixedRidgeState | None]:
    """The type of states, of which the one passed in must be, and that one without its root."""
    require_choice("ridge_kind", ridge_kind, MESA_RIDGES)
    kind = MesaState if ridge_kind == "decaying" else FixedRidgeState
    if isinstance(state, RootedMesaState):
        state = MesaState(state.H, state.G)
    if state is not None:
        require_instance("state", state, kind)
    return kind, state


def _arguments(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    ridge: float | Tensor,
    log_forget: Tensor | None,
    beta: Tensor | None,
    lengths: Tensor | None,
    cu_seqlens: Tensor | None,
    state: MesaState | RootedMesaState | FixedRidgeState | None,
    check: bool,
) -> dict[str, Tensor | None]:
    """Everything by name, checked: the ridge as a tensor, and padding as tokens that neither add nor forget."""
    require_instance("q", q, Tensor)
    if not isinstance(ridge, Tensor):
        ridge = require_number("ridge", ridge, above=0)
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        ridge = torch.tensor(ridge, dtype=wide, device=q.device)
    arguments = {"ridge": ridge, "log_forget": log_forget, "beta": beta, "lengths": lengths, "q": q, "k": k, "v": v}
    if state is not None:
        arguments |= {"state.H": state.H, "state.G": state.G}
    require_tensors(arguments)
    if cu_seqlens is not None:
        _require_documents(cu_seqlens, q, lengths)
    if ridge.dim() == 0:
        arguments["ridge"] = ridge.expand(q.shape[-3])
    require_shapes(q, arguments, None if cu_seqlens is None else _of_states(q, cu_seqlens)[:-1])
    if lengths is not None:
        arguments |= _masked(lengths, q, k, v, log_forget, beta)
    if check:
        require_values(arguments, q.shape[-2])
    return arguments


def _of_states(q: Tensor, cu_seqlens: Tensor | None) -> tuple[int, ...]:
    """What a state's axes begin with: batch, or documents, and heads."""
    return tuple(q.shape[:-2]) if cu_seqlens is None else (len(cu_seqlens) - 1, q.shape[-3])


def _require_documents(cu_seqlens: Tensor, q: Tensor, lengths: Tensor | None) -> None:
    """Refuse what does not cut one sequence into documents."""
    require_instance("cu_seqlens", cu_seqlens, Tensor)
    if cu_seqlens.dtype not in (torch.int32, torch.int64) or cu_seqlens.ndim != 1 or len(cu_seqlens) < 2:
        refuse("cu_seqlens", "be a vector of at least two integers", cu_seqlens, "pass 0 and where each document ends")
    if math.prod(q.shape[:-3]) != 1 or lengths is not None:
        refuse(
            "cu_seqlens",
            "be None beside a batch or lengths",
            cu_seqlens.tolist(),
            "pack all documents into one sequence",
        )
    ends = cu_seqlens.tolist()
    if ends[0] != 0 or ends[-1] != q.shape[-2] or ends != sorted(ends):
        refuse("cu_seqlens", f"rise from 0 to the {q.shape[-2]} tokens of q", ends, "pass cumulative lengths")


def _chunk_size(longest: int, dk: int, chunk: int | None, method: str) -> int:
    """Tokens of a chunk: as told, or such that chunks of a sequence are alike. Products of odd sizes are slow."""
    size = chunk or (_CHUNK if dk >= _CHUNK and method in ("chunk", "fused") else _CHUNK // 2)
    parts = math.ceil(longest / size) if chunk is None else 1
    return max(min(size, 4 * math.ceil(longest / max(parts, 1) / 4)), 1)


def _solution(
    problem: Problem, documents: list[int], chunk: int | None, plan: Plan, heads: int, stateless: bool, informed: bool
) -> tuple[Solution, Float[Tensor, " rows"], int]:
    """By whichever method; residuals are measured where they are asked for."""
    (rows, _, dk), count = problem.q.shape, plan.most(problem.q)
    if plan.method == "solve":
        return mesa_steps.solve(problem, heads, plan.check), problem.q.new_zeros(rows), 0
    size = _chunk_size(max(documents), dk, chunk, plan.method)
    chunks = chunks_of(problem, size, documents)
    q, ridge = chunks.queries, problem.ridge[:, None, None, :].expand(-1, chunks.H.shape[1], -1, -1)
    normal = Normal(chunks.keys, chunks.weights, chunks.log_forget, chunks.H, ridge)
    if problem.relative:
        normal = normal._replace(ridge=ridge * normal.norm())
    if plan.method == "neumann":
        x = mesa_series.neumann(normal, q, count)
    elif plan.method == "chebyshev":
        x = mesa_series.chebyshev(normal, q, count, mesa_series.lower_bound(problem.H[0], normal, stateless))
    else:
        x, count = solve_chunks(normal, q, plan, heads)
    residual = q.new_zeros(rows)
    if informed:
        left, asked = (q - normal.times(x)).norm(dim=-1), q.norm(dim=-1)
        residual = (left / asked.where(asked > 0, 1)).detach().flatten(1).amax(1)
    return read_out(chunks, x), residual, count


def _plan(
    method: str,
    t: int,
    ridge_kind: str,
    tolerance: float | None,
    iterations: int | None,
    chunk: int | None,
    packed: bool,
    check: bool,
) -> tuple[Plan, int | None]:
    """The plan, where ``"auto"`` is resolved, and the chunk; options that the method has no use for are refused."""
    require_choice("method", method, ("auto", *MESA_METHODS))
    if chunk is not None:
        chunk = require_count("chunk", chunk)
    if method == "auto":
        of_cg = tolerance is not None or iterations is not None
        method = (
            "cg" if of_cg else "solve" if t <= _SHORT and not packed else "chunk" if ridge_kind == "decaying" else "cg"
        )
    if packed and method not in ("chunk", "cg"):
        refuse("method", "be 'chunk' or 'cg' for packed documents", method, "leave it out")
    if ridge_kind != "decaying" and method in ("chunk", "fused"):
        raise ArgumentError(
            f"method must be 'cg', 'solve' or a series where ridge_kind={ridge_kind!r}, but is {method!r}: pass 'cg'."
        )
    if tolerance is not None:
        tolerance = require_number("tolerance", tolerance, least=0)
        if method != "cg":
            refuse("tolerance", f"be None for method {method!r}", tolerance, "leave it out, or pass method='cg'")
    if iterations is not None:
        iterations = require_count("iterations", iterations, least=0)
        if method not in ("cg", "neumann", "chebyshev"):
            refuse("iterations", f"be None for method {method!r}", iterations, "leave it out, or pass method='cg'")
    return Plan(method, tolerance, iterations, check), chunk


def _masked(
    lengths: Tensor, q: Tensor, k: Tensor, v: Tensor, log_forget: Tensor | None, beta: Tensor | None
) -> dict[str, Tensor | None]:
    """What stands in padding, whatever that is, as zeros, and as gates that forget nothing."""
    real = torch.arange(q.shape[-2], device=q.device) < lengths[..., None, None]
    tokens = {name: torch.where(real[..., None], part, 0) for name, part in (("q", q), ("k", k), ("v", v))}
    gates = (("log_forget", log_forget, 0), ("beta", beta, 1))
    return tokens | {name: None if gate is None else torch.where(real, gate, idle) for name, gate, idle in gates}


def _problem(
    arguments: Mapping[str, Any],
    state: MesaState | FixedRidgeState | None,
    ridge_kind: str,
    cu_seqlens: Tensor | None,
) -> Problem:
    """The working form, batch and heads as one axis, with the ridge in H or beside it."""
    q, k, v, ridge = (arguments[name] for name in ("q", "k", "v", "ridge"))
    dtype = torch.promote_types(q.dtype, torch.float32)
    gates = [
        q.new_full(q.shape[:-1], idle, dtype=dtype) if gate is None else gate.to(dtype)
        for gate, idle in ((arguments["log_forget"], 0), (arguments["beta"], 1))
    ]
    wide = ridge.to(dtype) if ridge.dim() == 2 else ridge.to(dtype)[:, None].expand(-1, q.shape[-1])
    rows = wide.expand(*q.shape[:-3], *wide.shape).reshape(-1, q.shape[-1])
    within, beside = (rows, torch.zeros_like(rows)) if ridge_kind == "decaying" else (torch.zeros_like(rows), rows)
    documents = 1 if cu_seqlens is None else len(cu_seqlens) - 1
    if state is None:
        H, G = torch.diag_embed(within), rows.new_zeros(rows.shape[0], v.shape[-1], q.shape[-1])
        H, G = (part.expand(documents, *part.shape) for part in (H, G))
    else:
        H, G = (part.to(dtype).reshape(documents, -1, *part.shape[-2:]) for part in state)
    q, k, v = (part.to(dtype).flatten(0, -3) for part in (q, k, v))
    log_forget, beta = (gate.flatten(0, -2) for gate in gates)
    return Problem(q, k, v, log_forget, beta, H, G, beside, ridge_kind == "relative")
