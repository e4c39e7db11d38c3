"""Causal linear, delta and softmax attention beside their definitions, token by token."""

import functools

import pytest
import torch
from cases import in_turn
from definitions import causal_softmax_attention_reference, fast_weights_reference
from hypothesis import given, settings, strategies as st
from jaxtyping import TypeCheckError
from torch.nn.functional import logsigmoid, normalize

from mesascope.errors import ArgumentError, ArgumentTypeError, NumericalError
from mesascope.ops import (
    DeltaState,
    FixedRidgeState,
    LinearState,
    MesaState,
    SoftmaxState,
    causal_linear_attention,
    causal_softmax_attention,
    delta_attention,
    dpfp,
    linear_attention,
    mesa_attention,
    softmax_attention,
)
from mesascope.streams import stream

RULES = {"linear": causal_linear_attention, "delta": delta_attention}
STATES = {"linear": LinearState, "delta": DeltaState}


def draw(*shape, name):
    return torch.randn(*shape, generator=stream(0, name), dtype=torch.float64)


def inputs(t=11, dk=4, dv=3, heads=2, batch=(2,), forget=2.0):
    shape = (*batch, heads, t)
    return {
        "q": draw(*shape, dk, name="q"),
        "k": normalize(draw(*shape, dk, name="k"), dim=-1),
        "v": draw(*shape, dv, name="v"),
        "log_forget": logsigmoid(draw(*shape, name="forget") + forget),
        "beta": torch.sigmoid(draw(*shape, name="beta")),
    }


def at(named, times):
    """The tokens at some times."""
    return {name: part[..., times, :] if name in "qkv" else part[..., times] for name, part in named.items()}


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=30)
@given(
    t=st.integers(0, 20),
    dk=st.integers(1, 6),
    dv=st.integers(1, 5),
    batch=st.lists(st.integers(0, 2), max_size=2),
    chunk=st.integers(1, 9),
    forget=st.sampled_from([-40.0, 0.0, 3.0, 40.0]),
)
def test_fast_weights_in_chunks_equal_their_rule(rule, t, dk, dv, batch, chunk, forget):
    named = inputs(t, dk, dv, 2, tuple(batch), forget)
    start = draw(*batch, 2, dv, dk, name="start")
    y, last = RULES[rule](**named, chunk=chunk, state=STATES[rule](start), return_state=True)
    expected, end = fast_weights_reference(**named, state=start, delta=rule == "delta")
    torch.testing.assert_close(y, expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(last.G, end, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("rule", RULES)
def test_derivatives_of_fast_weights_face_finite_differences(rule):
    named = inputs(t=5, dk=2, dv=2, heads=1, batch=())
    leaves = [part.requires_grad_() for part in named.values()]

    def function(*tensors):
        y, state = RULES[rule](**dict(zip(named, tensors, strict=True)), chunk=2, return_state=True)
        return y, state.G

    assert torch.autograd.gradcheck(function, leaves)
    assert torch.autograd.gradgradcheck(function, leaves)


@pytest.mark.parametrize("rule", RULES)
def test_without_gates_every_pair_counts_fully(rule):
    named = inputs()
    ones = {**named, "log_forget": torch.zeros(2, 2, 11).double(), "beta": torch.ones(2, 2, 11).double()}
    torch.testing.assert_close(RULES[rule](*(named[name] for name in "qkv")), RULES[rule](**ones))


def test_the_delta_rule_replaces_what_was_stored():
    k = torch.eye(3, dtype=torch.float64)[None, [0, 1, 0]]
    v = draw(1, 3, 2, name="v")
    _, (G,) = delta_attention(k, k, v, return_state=True)
    torch.testing.assert_close(G[0, :, 0], v[0, 2])
    torch.testing.assert_close(G[0, :, 1], v[0, 1])


@in_turn("window", [None, 1, 3, 50])
@in_turn("t", [0, 1, 11, 32, 70, 140])
def test_causal_softmax_is_its_definition(window, t):
    named = inputs(t)
    expected = causal_softmax_attention_reference(**named, window=window)
    torch.testing.assert_close(causal_softmax_attention(**named, window=window), expected)


@pytest.mark.parametrize("window", [None, 1, 3])
@pytest.mark.parametrize("split", [0, 1, 5, 11])
def test_a_cache_goes_on_where_a_prompt_ended_and_holds_no_more_than_the_window(window, split):
    named = inputs()
    whole = causal_softmax_attention(**named, window=window)
    start = at(named, slice(0, split))
    y, state = causal_softmax_attention(**start, window=window, return_state=True)
    torch.testing.assert_close(y, whole[..., :split, :])
    for t in range(split, 11):
        y, state = causal_softmax_attention(**at(named, [t]), window=window, state=state, return_state=True)
        torch.testing.assert_close(y[..., 0, :], whole[..., t, :])
    assert state.k.shape[-2] == (11 if window is None else window - 1)


@pytest.mark.parametrize("window", [None, 7, 60])
def test_a_long_prompt_may_be_read_in_parts(window):
    named = inputs(t=140)
    whole = causal_softmax_attention(**named, window=window)
    y, state = causal_softmax_attention(**at(named, slice(0, 50)), window=window, return_state=True)
    rest = causal_softmax_attention(**at(named, slice(50, 140)), window=window, state=state)
    torch.testing.assert_close(torch.cat([y, rest], -2), whole)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("forget", [-0.05, -1.0, -5.0])
def test_forgetting_in_half_precision_is_as_exact_as_its_inputs(dtype, forget):
    """A sum of a thousand gates in bfloat16 would be off by more than a gate."""
    shape = (1, 1, 1024)
    named = {name: draw(*shape, 8, name=name).to(dtype) for name in "qkv"}
    named["log_forget"] = torch.full(shape, forget, dtype=torch.float64).to(dtype)
    wide = {name: part.double() for name, part in named.items()}
    for attention in (causal_softmax_attention, causal_linear_attention):
        rough, expected = attention(**named), attention(**wide)
        assert (rough - expected).norm() < 0.01 * expected.norm()


@pytest.mark.parametrize("attention", [causal_softmax_attention, *RULES.values()])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"beta": torch.ones(2, 2, 1)}, r"beta must have shape \(2, 2, 11\) beside q"),
        ({"log_forget": torch.ones(2, 2, 11)}, "log_forget must be at most 0, but is 1.0"),
        ({"q": torch.full((2, 2, 11, 4), torch.nan).double()}, "q must be finite, but is nan"),
        ({"v": torch.zeros(2, 2, 11, 3)}, "q, k and v must share one floating-point dtype"),
    ],
)
def test_bad_arguments_are_refused_in_a_sentence(attention, change, message):
    with pytest.raises((ArgumentError, ArgumentTypeError, TypeCheckError), match=message + "|Type-check error"):
        attention(**{**inputs(), **change})


def test_a_delta_rule_that_diverges_says_so():
    k = 3 * draw(1, 300, 16, name="k")
    with pytest.raises(NumericalError, match=r"outputs and states must be finite, .* normalise keys"):
        delta_attention(k, k, k)


def test_a_state_of_another_dtype_is_converted():
    q, k, v = torch.randn(3, 1, 2, 6, 4, generator=stream(0, "state"))
    whole = causal_softmax_attention(q, k, v)[..., 3:, :]
    _, state = causal_softmax_attention(*(part[..., :3, :].double() for part in (q, k, v)), return_state=True)
    found = causal_softmax_attention(*(part[..., 3:, :] for part in (q, k, v)), state=state)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, whole)


def test_features_that_would_repeat_are_refused():
    with pytest.raises(ArgumentError, match=r"nu must be less than twice the width 2"):
        dpfp(torch.ones(3, 2), 4)


def test_a_window_of_no_token_is_refused():
    with pytest.raises(ArgumentError, match="window must be at least 1"):
        causal_softmax_attention(**inputs(), window=0)


def test_dpfp_multiplies_neighbours():
    x = draw(5, 4, name="x")
    features = dpfp(x, 3)
    positive = torch.cat([x, -x], -1).relu()
    assert features.shape == (5, 24)
    for shift in (1, 2, 3):
        for i in range(8):
            torch.testing.assert_close(features[:, 8 * (shift - 1) + i], positive[:, i] * positive[:, i - shift])


@pytest.mark.parametrize("rule", [*RULES, "softmax", "mesa"])
def test_a_token_of_strength_zero_is_not_there(rule):
    """Outputs, states and derivatives of the others are what they are without it, wherever it stands."""
    op = {**RULES, "softmax": causal_softmax_attention, "mesa": functools.partial(mesa_attention, ridge=0.5)}[rule]
    named = inputs()
    real = torch.arange(11) % 4 != 0
    named["beta"][..., ~real], named["log_forget"][..., ~real] = 0.0, 0.0
    leaves = {name: part.clone().requires_grad_() for name, part in named.items()}
    y, state = op(**leaves, return_state=True)
    expected, end = op(**at(named, real), return_state=True)
    torch.testing.assert_close(y[..., real, :], expected)
    if rule != "softmax":  # whose state keeps every token, the absent ones too
        torch.testing.assert_close(state, end)
    gradients = torch.autograd.grad(y[..., real, :].square().sum(), [leaves["q"], leaves["k"], leaves["v"]])
    for gradient in gradients:
        assert torch.isfinite(gradient).all()
        assert not gradient[..., ~real, :].any()


@pytest.mark.usefixtures("unchecked")
def test_a_state_knows_what_it_is_of():
    named, states = inputs(dk=3, dv=3), {}
    ops = {
        LinearState: causal_linear_attention,
        DeltaState: delta_attention,
        SoftmaxState: causal_softmax_attention,
        MesaState: functools.partial(mesa_attention, ridge=0.5),
        FixedRidgeState: functools.partial(mesa_attention, ridge=0.5, ridge_kind="constant"),
    }
    for kind, op in ops.items():
        states[kind] = op(**named, return_state=True)[1]
        assert type(states[kind]) is kind
    for kind, op in ops.items():
        for other in (states[own] for own in ops if own is not kind):
            message = f"state must be of type {kind.__name__}, but is of type {type(other).__name__}: pass one"
            with pytest.raises(ArgumentTypeError, match=message):
                op(**named, state=other)
        with pytest.raises(ArgumentTypeError, match=f"state must be of type {kind.__name__}"):
            op(**named, state=torch.zeros(2, 2, 3, 3))


def test_states_are_what_vmap_hands_out_and_takes():
    q, k, v = (inputs(dk=3, dv=3)[name] for name in "qkv")
    for op in (delta_attention, functools.partial(mesa_attention, ridge=0.5, ridge_kind="constant")):
        _, state = torch.func.vmap(functools.partial(op, return_state=True))(q, k, v)
        again = torch.func.vmap(lambda q, k, v, state, op=op: op(q, k, v, state=state))(q, k, v, state)
        _, alone = op(q, k, v, return_state=True)
        torch.testing.assert_close(again, op(q, k, v, state=alone))


CAUSAL = {
    "softmax": causal_softmax_attention,
    "linear": causal_linear_attention,
    "delta": delta_attention,
    "mesa": functools.partial(mesa_attention, ridge=0.5, ridge_kind="constant", chunk=4),
}


@pytest.mark.parametrize("op", CAUSAL.values(), ids=CAUSAL)
@pytest.mark.parametrize("clean", [-torch.inf, -1e4])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_a_token_that_forgets_everything_begins_a_document(op, clean, dtype):
    """With no digit lost in the documents after it, nor derivatives that are no numbers, nor ones across its start."""
    named = {name: part.to(dtype) for name, part in inputs(t=23).items()}
    named["log_forget"][..., 9] = clean
    named["beta"][..., 14] = 0.0
    leaves = {name: part.clone().requires_grad_() for name, part in named.items()}
    y = op(**leaves)
    alone = op(**at(named, slice(9, None)))
    tight = {"rtol": 1e-10, "atol": 1e-12} if dtype == torch.float64 else {"rtol": 1e-5, "atol": 1e-6}
    torch.testing.assert_close(y[..., 9:, :], alone, **tight)
    assert all(
        grad.isfinite().all() for grad in torch.autograd.grad(y.square().sum(), leaves.values(), retain_graph=True)
    )
    (of_values,) = torch.autograd.grad(y[..., 9:, :].square().sum(), leaves["v"])
    assert not of_values[..., :9, :].any()
    _, state = op(**at(named, slice(0, 12)), return_state=True)
    torch.testing.assert_close(op(**at(named, slice(12, None)), state=state), alone[..., 3:, :], **tight)


@pytest.mark.parametrize("op", CAUSAL.values(), ids=CAUSAL)
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", [1.0, 30.0, 1e4])
def test_outputs_and_states_are_finite_numbers_or_refused(op, dtype, size):
    """Computed in float32, they may be beyond the range of their own dtype."""
    named = {name: size * draw(1, 64, 64, name=name) for name in "qkv"}
    named = {name: part.clamp(-6e4, 6e4).to(dtype) for name, part in named.items()}
    named["beta"] = torch.sigmoid(draw(1, 64, name="beta")).to(dtype)
    try:
        y, state = op(**named, return_state=True)
    except NumericalError:
        assert size > 1 or op is delta_attention
    else:
        assert all(part.isfinite().all() for part in (y, *state))


def test_softmax_keeps_its_digits_however_much_was_forgotten():
    """Sums of gates from the start, of which differences are taken, grow far beyond what counts."""
    named = {name: draw(1, 1024, 8, name=name).float() for name in "qkv"}
    gates = -20 * torch.rand(1, 1024, generator=stream(0, "gates"))
    wide = {name: part.double() for name, part in named.items()}
    expected = causal_softmax_attention_reference(**wide, log_forget=gates.double(), beta=torch.ones(1, 1024).double())
    assert (causal_softmax_attention(**named, log_forget=gates) - expected).abs().max() < 2e-6
    state, rows = None, []
    for start in range(0, 1024, 64):
        own = at({**named, "log_forget": gates}, slice(start, start + 64))
        y, state = causal_softmax_attention(**own, state=state, return_state=True)
        rows.append(y)
    assert (torch.cat(rows, -2) - expected).abs().max() < 2e-6


@pytest.mark.parametrize("attention", [linear_attention, softmax_attention])
def test_queries_and_keys_of_other_widths_are_refused(attention, unchecked):
    for shapes in (((4, 3), (5, 2), (5, 2)), ((4, 3), (5, 3), (6, 3))):
        with pytest.raises(ArgumentError, match=r"q, k and v must be \(m, dk\), \(n, dk\) and \(n, dv\)"):
            attention(*map(torch.zeros, shapes))


def test_a_part_without_tokens_depends_on_its_state():
    q, k, v = (draw(2, 3, 4, name=name) for name in "qkv")
    _, state = mesa_attention(q, k, v, ridge=0.1, return_state=True)
    own = state._replace(H=state.H.clone().requires_grad_())
    empty = mesa_attention(q[:, :0], k[:, :0], v[:, :0], ridge=0.1, state=own)
    empty.sum().backward()
    assert not own.H.grad.any()
