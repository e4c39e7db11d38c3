import pytest
import torch
from hypothesis import given, settings, strategies as st

from mesascope.errors import ArgumentError
from mesascope.nets import InContextRegressor, Transformer, TransformerConfig
from mesascope.ops import (
    linear_attention,
    linear_attention_reference,
    softmax_attention,
    softmax_attention_reference,
)
from mesascope.streams import stream
from mesascope.tasks import LinearRegression


def normal(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=stream(0, str(shape)))


@settings(max_examples=40, deadline=None)
@given(m=st.integers(0, 7), n=st.integers(0, 9), dk=st.integers(1, 5), dv=st.integers(1, 5), batch=st.integers(0, 3))
def test_attention_equals_its_slow_reference(m, n, dk, dv, batch):
    q, k, v = normal(batch, 2, m, dk), normal(batch, 2, n, dk), normal(batch, 2, n, dv)
    torch.testing.assert_close(linear_attention(q, k, v), linear_attention_reference(q, k, v))
    if n:
        torch.testing.assert_close(softmax_attention(q, k, v), softmax_attention_reference(q, k, v))


def random_net(generator_seed=0, **config):
    config = TransformerConfig(**{"width": 5, "init_scale": 0.5, **config})
    return Transformer(config, stream(generator_seed, "init")).double()


@settings(max_examples=40, deadline=None)
@given(
    layers=st.integers(1, 5),
    heads=st.integers(1, 3),
    key=st.integers(1, 6),
    shared=st.booleans(),
    n=st.integers(0, 12),
    m=st.integers(1, 30),
    damping=st.sampled_from([1.0, 0.5]),
)
def test_gram_form_equals_token_form(layers, heads, key, shared, n, m, damping):
    """The form that the net chooses, however it mixes matrices and vectors, against attention over tokens."""
    net = random_net(n_layers=layers, n_heads=heads, key_size=key, shared=shared, damping=damping)
    context, query = normal(3, n, 5) / 2, normal(3, m, 5)
    fast, slow = net.query_tokens(context, query), net.tokens(context, query)[1:]
    for one, other in zip(fast, slow, strict=True):
        torch.testing.assert_close(one, other.query, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("layers", [1, 2, 4])
@pytest.mark.parametrize(("n", "m"), [(3, 1), (40, 1), (8, 50)])
def test_gradients_of_the_gram_form_are_those_of_the_token_form(layers, n, m):
    net = random_net(n_layers=layers, n_heads=2)
    context, query, cotangent = normal(4, n, 5) / 2, normal(4, m, 5).requires_grad_(), normal(4, m, 5)
    inputs = [query, *net.parameters()]
    fast = torch.autograd.grad((net(context, query) * cotangent).sum(), inputs)
    slow = torch.autograd.grad((net.tokens(context, query)[-1].query * cotangent).sum(), inputs)
    for one, other in zip(fast, slow, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("layers", [1, 2, 4])
def test_gradients_agree_with_finite_differences(layers):
    net = random_net(n_layers=layers)
    context, query = normal(2, 3, 5) / 2, normal(2, 2, 5)
    names, weights = zip(*net.named_parameters(), strict=True)

    def call(*values):
        return torch.func.functional_call(net, dict(zip(names, values, strict=True)), (context, query))

    assert torch.autograd.gradcheck(call, weights)


def test_softmax_layer_is_the_paper_equation():
    """Eq. 1 written out for one head, on top of the slow reference."""
    net = random_net(attention="softmax", key_size=3)
    attention = net.layers[0].attention
    context, query = normal(2, 6, 5), normal(2, 2, 5)
    q, k, v = (
        tokens @ w[0].mT for tokens, w in ((query, attention.w_q), (context, attention.w_k), (context, attention.w_v))
    )
    expected = query + softmax_attention_reference(q, k, v) @ attention.p[0].mT
    torch.testing.assert_close(net(context, query), expected)


def test_initial_weights_have_the_variance_asked_for_and_no_tail():
    config = TransformerConfig(width=50, n_layers=2, n_heads=4, init_scale=0.002)
    weights = Transformer(config, stream(0, "init")).layers[1].attention.w_k
    deviation = (0.002 / 2 / 50) ** 0.5
    assert weights.std().item() == pytest.approx(deviation, rel=0.03)
    assert weights.abs().max().item() < 2.3 * deviation


def test_initial_weights_follow_their_generator():
    one, again, other = (Transformer(TransformerConfig(4), stream(seed, "init")) for seed in (0, 0, 1))
    weight = lambda net: net.layers[0].attention.w_k  # noqa: E731
    assert torch.equal(weight(one), weight(again))
    assert not torch.equal(weight(one), weight(other))


def test_products_are_what_the_layer_computes_with():
    net = random_net(n_heads=2, key_size=3)
    context, query = normal(6, 5), normal(2, 5)
    products = net.products()[0]
    gram = context.mT @ context
    expected = query + sum(query @ (pv @ gram @ kq).mT for kq, pv in zip(*products, strict=True))
    torch.testing.assert_close(net(context, query), expected)


def test_trajectory_and_tokens_tell_the_same_story():
    episode = LinearRegression(n_context=6, d_in=4).sample(3, stream(0, "t")).to(torch.float64)
    learner = InContextRegressor(random_net(n_layers=3, token_clip=0.4))
    path, tokens = learner.trajectory(*episode[:2]), learner.tokens(*episode[:2])
    assert len(tokens) == 4
    assert path.shape == (4, 3, 1, 1)
    for step, state in zip(path, tokens, strict=True):
        torch.testing.assert_close(step, -state.query[..., -1:])
        assert state.context.shape == (3, 6, 5)
    assert tokens[-1].query.abs().max() <= 0.4


def test_repeated_layers_share_weights_and_damp():
    net = random_net(n_layers=1)
    context, query = normal(2, 6, 5) / 2, normal(2, 1, 5)
    looped = net.repeated(3, damping=0.5)
    state_context, state_query = context, query
    for _ in range(3):
        new = net.tokens(state_context, state_query)[-1]
        state_query = state_query + 0.5 * (new.query - state_query)
        state_context = state_context + 0.5 * (new.context - state_context)
    torch.testing.assert_close(looped(context, query), state_query)
    with pytest.raises(ArgumentError, match="n_layers must be 1, or shared"):
        random_net(n_layers=2).repeated(4)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: TransformerConfig(width=0), "width must be at least 1"),
        (lambda: TransformerConfig(width=3, attention="sofmax"), "did you mean 'softmax'"),
        (lambda: TransformerConfig(width=3, n_layers=2, attention=("linear",)), "attention must be one value or 2"),
        (
            lambda: TransformerConfig(width=3, n_layers=2, shared=True, attention=("linear", "softmax")),
            "attention must be the same for all layers that share weights",
        ),
        (lambda: InContextRegressor(random_net(), layout="alternatin"), "layout must be one of"),
        (lambda: InContextRegressor(random_net(), d_out=0), "d_out must be at least 1"),
    ],
)
def test_wrong_configurations_are_refused_in_a_sentence(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()


def test_a_context_of_the_wrong_width_is_refused():
    episode = LinearRegression(n_context=6, d_in=7).sample(3, stream(0, "t"))
    with pytest.raises(ArgumentError, match="context must give tokens of the transformer's width 5, but is 8"):
        InContextRegressor(Transformer(TransformerConfig(5)))(*episode[:2])
    with pytest.raises(ArgumentError, match=r"context.y must have width 2, but is 1"):
        InContextRegressor(Transformer(TransformerConfig(8)), d_out=2)(*episode[:2])
