import pytest
import torch
from definitions import softmax_attention_reference
from hypothesis import given, settings, strategies as st

from mesascope.errors import ArgumentError
from mesascope.nets import (
    Alternating,
    Concatenated,
    EmbeddingConfig,
    InContextRegressor,
    InContextRegressorConfig,
    Transformer,
    TransformerConfig,
)
from mesascope.streams import stream
from mesascope.tasks import LinearRegression


def normal(*shape, name):
    return torch.randn(*shape, dtype=torch.float64, generator=stream(0, name))


def random_net(generator_seed=0, **config):
    config = TransformerConfig(**{"width": 5, "key_size": 5, "init_scale": 0.5, **config})
    return Transformer(config, stream(generator_seed, "init")).double()


@settings(max_examples=40)
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
    context, query = normal(3, n, 5, name="context") / 2, normal(3, m, 5, name="query")
    fast, slow = net.query_tokens(context, query), net.tokens(context, query)[1:]
    for one, other in zip(fast, slow, strict=True):
        torch.testing.assert_close(one, other.query, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("layers", [1, 2, 4])
@pytest.mark.parametrize(("n", "m"), [(3, 1), (40, 1), (8, 50)])
def test_gradients_of_the_gram_form_are_those_of_the_token_form(layers, n, m):
    net = random_net(n_layers=layers, n_heads=2)
    context, query = normal(4, n, 5, name="context") / 2, normal(4, m, 5, name="query").requires_grad_()
    cotangent = normal(4, m, 5, name="cotangent")
    inputs = [query, *net.parameters()]
    fast = torch.autograd.grad((net(context, query) * cotangent).sum(), inputs)
    slow = torch.autograd.grad((net.tokens(context, query)[-1].query * cotangent).sum(), inputs)
    for one, other in zip(fast, slow, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("layers", [1, 2, 4])
def test_gradients_agree_with_finite_differences(layers):
    net = random_net(n_layers=layers)
    context, query = normal(2, 3, 5, name="context") / 2, normal(2, 2, 5, name="query")
    names, weights = zip(*net.named_parameters(), strict=True)

    def call(*values):
        return torch.func.functional_call(net, dict(zip(names, values, strict=True)), (context, query))

    assert torch.autograd.gradcheck(call, weights)


def test_softmax_layer_is_the_paper_equation():
    """Eq. 1 written out for one head, on top of the slow reference."""
    net = random_net(attention="softmax", key_size=3)
    attention = net.layers[0].attention
    context, query = normal(2, 6, 5, name="context"), normal(2, 2, 5, name="query")
    q, k, v = (
        tokens @ w[0].mT for tokens, w in ((query, attention.w_q), (context, attention.w_k), (context, attention.w_v))
    )
    expected = query + softmax_attention_reference(q, k, v) @ attention.p[0].mT
    torch.testing.assert_close(net(context, query), expected)


def test_initial_weights_have_the_variance_asked_for_and_no_tail():
    config = TransformerConfig(width=50, n_layers=2, n_heads=4, key_size=50, init_scale=0.002)
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
    context, query = normal(6, 5, name="context"), normal(2, 5, name="query")
    products = net.products()[0]
    gram = context.mT @ context
    expected = query + sum(query @ (pv @ gram @ kq).mT for kq, pv in zip(*products, strict=True))
    torch.testing.assert_close(net(context, query), expected)


def test_trajectory_and_tokens_tell_the_same_story():
    episode = LinearRegression(n_context=6, d_in=4).sample(3, stream(0, "t")).to(torch.float64)
    config = TransformerConfig(5, n_layers=3, token_clip=0.4, init_scale=0.5)
    learner = InContextRegressorConfig(config).build(stream(0, "init")).double()
    path, tokens = learner.trajectory(*episode[:2]), learner.tokens(*episode[:2])
    assert len(tokens) == 4
    assert path.shape == (4, 3, 1, 1)
    for step, state in zip(path, tokens, strict=True):
        torch.testing.assert_close(step, -state.query[..., -1:])
        assert state.context.shape == (3, 6, 5)
    assert tokens[-1].query.abs().max() <= 0.4


def test_repeated_layers_share_weights_and_damp():
    net = random_net(n_layers=1)
    context, query = normal(2, 6, 5, name="context") / 2, normal(2, 1, 5, name="query")
    looped = net.repeated(3, damping=0.5)
    state_context, state_query = context, query
    for _ in range(3):
        new = net.tokens(state_context, state_query)[-1]
        state_query = state_query + 0.5 * (new.query - state_query)
        state_context = state_context + 0.5 * (new.context - state_context)
    torch.testing.assert_close(looped(context, query), state_query)
    with pytest.raises(ArgumentError, match="n_layers must be 1, unless layers are shared"):
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
        (
            lambda: TransformerConfig(width=11, n_heads=2),
            "key_size must be given, as n_heads = 2 does not divide width = 11",
        ),
        (lambda: InContextRegressorConfig(TransformerConfig(5), d_out=0), "d_out must be at least 1"),
        (
            lambda: InContextRegressorConfig(TransformerConfig(5), embedding=EmbeddingConfig(3, 4)),
            "embedding must have the transformer's width 5, but is 4",
        ),
        (lambda: EmbeddingConfig(3, 4, project=False), "width must be d_token = 3 without a linear map, but is 4"),
        (lambda: random_net(n_layers=2).with_products(random_net().products()), "products must be of length 2"),
        (
            lambda: random_net().with_products(random_net(n_heads=2, key_size=5).products()),
            r"products must have shape \(1, 5, 5\), but is \(2, 5, 5\)",
        ),
    ],
)
def test_wrong_configurations_are_refused_in_a_sentence(call, message):
    with pytest.raises(ArgumentError, match=message):
        call()


def test_a_context_of_the_wrong_width_is_refused():
    episode = LinearRegression(n_context=6, d_in=7).sample(3, stream(0, "t"))
    with pytest.raises(ArgumentError, match="context must give tokens of the transformer's width 5, but is 8"):
        InContextRegressorConfig(TransformerConfig(5)).build()(*episode[:2])
    with pytest.raises(ArgumentError, match=r"context.y must have width 2, but is 1"):
        InContextRegressorConfig(TransformerConfig(8), d_out=2).build()(*episode[:2])


def test_a_network_with_its_own_products_is_the_same_network():
    """MLPs, norms and embeddings come along, and only the products of heads decide what attention does."""
    config = TransformerConfig(5, 2, 2, 5, attention=("softmax", "linear"), mlp=2, layer_norm=(True, False))
    net = InContextRegressorConfig(config, embedding=EmbeddingConfig(4, 5)).build(stream(0, "init")).double()
    context, xq, _ = LinearRegression(n_context=6, d_in=3).sample(3, stream(0, "t")).to(torch.float64)
    torch.testing.assert_close(net.with_products(net.products())(context, xq), net(context, xq))


def test_going_on_from_tokens_is_the_networks_own_way():
    net = InContextRegressorConfig(TransformerConfig(4, 3, attention="softmax")).build(stream(0, "init"))
    episode = LinearRegression(n_context=6, d_in=3).sample(3, stream(0, "t"))
    tokens = net.tokens(*episode[:2])
    for one, other in zip(net.tokens_from(tokens[0]), tokens, strict=True):
        assert torch.equal(one.query, other.query)
        assert torch.equal(one.context, other.context)


def test_networks_made_from_others_leave_the_global_generator_as_it_was():
    net = random_net()
    torch.manual_seed(3)
    expected = torch.rand(1)
    torch.manual_seed(3)
    net.repeated(2)
    net.with_products(net.products())
    assert torch.equal(torch.rand(1), expected)


@pytest.mark.parametrize("layout", [Concatenated(), Alternating(size=3)])
def test_layouts_make_tokens_of_the_width_they_state(layout):
    context, xq, _ = LinearRegression(n_context=4, d_in=3, d_out=2).sample(5, stream(0, "t"))
    tokens, query = layout(context, xq)
    assert tokens.shape[-1] == query.shape[-1] == layout.width(3, 2)


def test_looped_layers_come_apart_where_their_products_do():
    looped = random_net(n_layers=2, shared=True)
    first, second = looped.products()[0], random_net(1).products()[0]
    context, query = normal(2, 6, 5, name="context") / 2, normal(2, 1, 5, name="query")
    torch.testing.assert_close(looped.with_products([first, first])(context, query), looped(context, query))
    apart = looped.with_products([first, second])
    expected = random_net(n_layers=2).with_products([first, second])
    torch.testing.assert_close(apart(context, query), expected(context, query))
    assert looped.with_products([first]).config.shared


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "config",
    [
        TransformerConfig(4, 2, n_heads=2),
        TransformerConfig(4, 2, attention="softmax", mlp=2, layer_norm=True),
        TransformerConfig(4, 2, token_clip=1.0),
    ],
)
def test_regressors_take_half_precision_and_autocast(config, dtype):
    net = InContextRegressorConfig(config).build(stream(0, "init"))
    episode = LinearRegression(n_context=7, d_in=3).sample(40, stream(0, "t"))
    expected = net(*episode[:2])
    with torch.autocast("cpu", dtype=dtype):
        mixed = net(*episode[:2])
    half = net.to(dtype)(*episode.to(dtype)[:2])
    assert half.dtype == dtype
    for rough in (mixed, half):
        assert (rough - expected).norm() < 0.06 * expected.norm()


def test_tokens_of_another_dtype_are_left_to_autocast_but_for_float64():
    config = InContextRegressorConfig(TransformerConfig(6, mlp=2), embedding=EmbeddingConfig(4, 6))
    net = config.build(stream(0, "init"))
    episode = LinearRegression(n_context=7, d_in=3).sample(40, stream(0, "t"))
    expected = net(*episode[:2])
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for given in (episode, episode.to(torch.bfloat16)):
            assert (net(*given[:2]) - expected).norm() < 0.06 * expected.norm()
        with pytest.raises(ArgumentError, match="context and xq must have the dtype of the network"):
            net(*episode.to(torch.float64)[:2])


def test_initial_weights_of_a_learner_are_read_in_the_precision_of_its_tokens():
    start = torch.tensor([[1.0, 2.0, 3.0]], dtype=torch.float64)
    config = InContextRegressorConfig(TransformerConfig(4))
    episode = LinearRegression(n_context=7, d_in=3).sample(4, stream(0, "t"))
    net = InContextRegressor(config, stream(0, "init"), w0=start)
    torch.testing.assert_close(
        net(*episode[:2]),
        config.build(stream(0, "init"))(*episode[:2]) + net.tokens(*episode[:2])[-1].query[..., :3] @ start.float().mT,
    )


@pytest.mark.parametrize("attention", ["linear", "softmax"])
@pytest.mark.parametrize("key_size", [2, 5])
def test_a_network_of_its_own_products_and_its_one_repetition_are_the_same_network(attention, key_size):
    """Nothing that a network computes with is lost on the way: neither the scale of scores nor damping."""
    net = random_net(attention=attention, key_size=key_size, damping=0.5, mlp=2)
    context, query = normal(3, 7, 5, name="context"), normal(3, 2, 5, name="query")
    again = net.with_products(net.products())
    torch.testing.assert_close(again(context, query), net(context, query))
    torch.testing.assert_close(again.products(), net.products())
    torch.testing.assert_close(net.repeated(1)(context, query), net(context, query))
    assert net.repeated(3, damping=0.5).config.damping == 0.25
