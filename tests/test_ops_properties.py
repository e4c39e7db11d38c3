"""Every operation on any shape: no token, no sequence, any leading axes, and its slow definition."""

import functools

import pytest
import torch
from definitions import (
    causal_softmax_attention_reference,
    fast_weights_reference,
    linear_attention_reference,
    softmax_attention_reference,
)
from hypothesis import given, settings, strategies as st
from torch.nn.functional import logsigmoid, normalize

from mesascope.ops import (
    causal_linear_attention,
    causal_softmax_attention,
    delta_attention,
    dpfp,
    linear_attention,
    mesa_attention,
    mesa_attention_reference,
    mesa_step,
    softmax_attention,
)
from mesascope.streams import stream

BATCH = st.lists(st.integers(0, 2), max_size=2)
WIDTH = st.integers(1, 5)


def draw(*shape, name):
    return torch.randn(*shape, generator=stream(0, name), dtype=torch.float64)


def sequence(batch, heads, t, dk, dv):
    shape = (*batch, heads, t)
    return {
        "q": draw(*shape, dk, name="q"),
        "k": normalize(draw(*shape, dk, name="k"), dim=-1),
        "v": draw(*shape, dv, name="v"),
        "log_forget": logsigmoid(draw(*shape, name="forget") + 2),
        "beta": torch.sigmoid(draw(*shape, name="beta")),
    }


def times(inputs, chosen):
    return {name: part[..., chosen, :] if name in "qkv" else part[..., chosen] for name, part in inputs.items()}


@pytest.mark.parametrize(
    ("fast", "slow"),
    [(linear_attention, linear_attention_reference), (softmax_attention, softmax_attention_reference)],
)
@settings(max_examples=25)
@given(batch=BATCH, m=st.integers(0, 7), n=st.integers(0, 9), dk=WIDTH, dv=WIDTH)
def test_attention_to_a_context_is_its_definition_in_any_order(fast, slow, batch, m, n, dk, dv):
    if fast is softmax_attention and n == 0:
        return  # a mean over nothing
    q, k, v = draw(*batch, m, dk, name="q"), draw(*batch, n, dk, name="k"), draw(*batch, n, dv, name="v")
    answer = fast(q, k, v)
    assert answer.shape == (*batch, m, dv)
    torch.testing.assert_close(answer, slow(q, k, v))
    order = torch.randperm(n, generator=stream(0, "order"))
    torch.testing.assert_close(fast(q, k[..., order, :], v[..., order, :]), answer)


def fast_weights_slowly(delta, v, k, **inputs):
    start = v.new_zeros(*v.shape[:-2], v.shape[-1], k.shape[-1])
    return fast_weights_reference(v=v, k=k, **inputs, state=start, delta=delta)[0]


CAUSAL = {
    "softmax": (causal_softmax_attention, causal_softmax_attention_reference),
    "linear": (causal_linear_attention, functools.partial(fast_weights_slowly, False)),
    "delta": (delta_attention, functools.partial(fast_weights_slowly, True)),
    "mesa": (
        functools.partial(mesa_attention, ridge=0.5),
        functools.partial(mesa_attention_reference, ridge=0.5),
    ),
}


@pytest.mark.parametrize("name", CAUSAL)
@settings(max_examples=25)
@given(batch=BATCH, heads=st.integers(1, 3), t=st.integers(0, 9), dk=WIDTH, dv=WIDTH)
def test_causal_attention_is_its_definition(name, batch, heads, t, dk, dv):
    fast, slow = CAUSAL[name]
    inputs = sequence(batch, heads, t, dk, dv)
    answer = fast(**inputs)
    assert answer.shape == (*batch, heads, t, dv)
    torch.testing.assert_close(answer, slow(**inputs), rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", CAUSAL)
@settings(max_examples=25)
@given(t=st.integers(1, 9), later=st.integers(1, 4), split=st.integers(0, 9), dk=WIDTH, dv=WIDTH)
def test_causal_attention_ignores_what_follows_and_goes_on_where_it_stopped(name, t, later, split, dk, dv):
    fast, _ = CAUSAL[name]
    inputs, split = sequence((2,), 2, t + later, dk, dv), min(split, t)
    whole = fast(**inputs)
    torch.testing.assert_close(fast(**times(inputs, slice(0, t))), whole[..., :t, :], rtol=1e-9, atol=1e-10)
    _, state = fast(**times(inputs, slice(0, split)), return_state=True)
    rest = fast(**times(inputs, slice(split, None)), state=state)
    torch.testing.assert_close(rest, whole[..., split:, :], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize("name", CAUSAL)
@settings(max_examples=15)
@given(first=st.integers(1, 3), second=st.integers(1, 3), t=st.integers(1, 5))
def test_leading_axes_are_free(name, first, second, t):
    fast, _ = CAUSAL[name]
    inputs = sequence((first, second), 2, t, 3, 2)
    flat = fast(**{key: part.flatten(0, 1) for key, part in inputs.items()})
    torch.testing.assert_close(fast(**inputs), flat.unflatten(0, (first, second)), rtol=1e-9, atol=1e-10)


@settings(max_examples=25)
@given(batch=BATCH, t=st.integers(1, 7), dk=WIDTH, dv=WIDTH, ridge=st.sampled_from([0.1, 1.0, 30.0]))
def test_a_mesa_layer_in_steps_is_the_mesa_layer(batch, t, dk, dv, ridge):
    inputs = sequence(batch, 2, t, dk, dv)
    _, state = mesa_attention(**times(inputs, slice(0, 0)), ridge=ridge, return_state=True)
    rows = []
    for index in range(t):
        y, state = mesa_step(**times(inputs, index), state=state, ridge=ridge)
        rows.append(y)
    expected = mesa_attention_reference(**inputs, ridge=ridge)
    torch.testing.assert_close(torch.stack(rows, -2), expected, rtol=1e-8, atol=1e-9)


@settings(max_examples=25)
@given(batch=BATCH, d=st.integers(1, 4), nu=st.integers(1, 7))
def test_dpfp_features_are_products_of_positive_parts(batch, d, nu):
    nu = min(nu, 2 * d - 1)
    x = draw(*batch, d, name="x")
    features = dpfp(x, nu)
    assert features.shape == (*batch, 2 * d * nu)
    assert bool((features >= 0).all())
    torch.testing.assert_close(dpfp(3.0 * x, nu), 9.0 * features)
    positive = torch.relu(torch.cat([x, -x], -1))
    expected = [positive[..., i] * positive[..., i - shift] for shift in range(1, nu + 1) for i in range(2 * d)]
    torch.testing.assert_close(features, torch.stack(expected, -1))
