"""Layers and transformers of any size: causal, the same in steps, and the same however they are evaluated."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from mesascope.nets import (
    AttentionConfig,
    CausalTransformer,
    CausalTransformerConfig,
    Transformer,
    TransformerConfig,
)
from mesascope.records import facts, registered
from mesascope.streams import stream

ATTENTIONS = sorted(registered("attention"))
OVER_CONTEXT = [name for name in ATTENTIONS if "over_context" in facts("attention", name)]

HEADS = st.fixed_dictionaries(
    {
        "width": st.integers(2, 6),
        "n_heads": st.sampled_from([1, 2, 4]),
        "n_kv_heads": st.none() | st.just(1),
        "key_size": st.integers(2, 4),
        "value_size": st.none() | st.integers(1, 3),
        "dpfp": st.integers(0, 2),
        "convolution": st.integers(0, 3),
        "positions": st.integers(0, 4),
        "window": st.none() | st.integers(1, 4),
        "forget": st.booleans(),
        "beta": st.booleans(),
        "normalise": st.none() | st.just(True),
        "ridge_per_dimension": st.booleans(),
        "ridge_kind": st.sampled_from(["decaying", "constant", "relative"]),
        "output_norm": st.booleans(),
        "output_gate": st.booleans(),
    }
)


def draw(*shape, name):
    return torch.randn(*shape, generator=stream(0, name), dtype=torch.float64)


def assert_close(one, other):
    torch.testing.assert_close(one, other, rtol=1e-8, atol=1e-8)


def check_causal(layer, tokens, later):
    """Check that outputs do not depend on later tokens, nor on the number of tokens in a call."""
    with torch.no_grad():
        whole = layer(torch.cat([tokens, later], -2))
        t = tokens.shape[-2]
        assert whole.shape == (*tokens.shape[:-2], t + later.shape[-2], tokens.shape[-1])
        assert_close(layer(tokens), whole[..., :t, :])
        state, told = layer.init_state(*tokens.shape[:-2]), []
        for token in torch.cat([tokens, later], -2).unbind(-2):
            answer, state = layer.step(token, state)
            told.append(answer)
        assert_close(torch.stack(told, -2), whole)


@pytest.mark.parametrize("name", ATTENTIONS)
@settings(max_examples=25)
@given(heads=HEADS, t=st.integers(0, 6), later=st.integers(1, 3), batch=st.lists(st.integers(0, 2), max_size=2))
def test_attention_of_every_kind_is_causal_and_the_same_in_steps(name, heads, t, later, batch):
    layer = registered("attention")[name](AttentionConfig(**heads), stream(0, "init")).double()
    check_causal(layer, *(draw(*batch, size, heads["width"], name=name) for name, size in (("a", t), ("b", later))))


@settings(max_examples=25)
@given(
    heads=HEADS,
    attention=st.lists(st.sampled_from(ATTENTIONS), min_size=1, max_size=3).map(tuple),
    mlp=st.none() | st.integers(1, 2),
    token_clip=st.none() | st.just(0.5),
    norms=st.booleans() | st.just("each"),
    t=st.integers(0, 5),
)
def test_a_causal_transformer_is_causal_and_the_same_in_steps(heads, attention, mlp, token_clip, norms, t):
    norm = tuple(index % 2 == 0 for index in range(len(attention))) if norms == "each" else norms
    config = CausalTransformerConfig(AttentionConfig(**heads), len(attention), attention, mlp, norm, token_clip)
    net = CausalTransformer(config, stream(0, "init")).double()
    check_causal(net, draw(2, t, heads["width"], name="a"), draw(2, 2, heads["width"], name="b"))


@settings(max_examples=40)
@given(
    attention=st.lists(st.sampled_from(OVER_CONTEXT), min_size=1, max_size=3).map(tuple),
    key_size=st.integers(1, 5),
    n_heads=st.integers(1, 2),
    mlp=st.none() | st.integers(1, 2),
    layer_norm=st.booleans(),
    token_clip=st.none() | st.just(0.4),
    damping=st.sampled_from([1.0, 0.5]),
    n=st.integers(1, 6),
    m=st.integers(1, 4),
)
def test_a_transformer_answers_each_query_alone_and_sees_its_context_as_a_set(
    attention, key_size, n_heads, mlp, layer_norm, token_clip, damping, n, m
):
    config = TransformerConfig(
        4, len(attention), n_heads, key_size, attention, False, mlp, layer_norm, token_clip, damping
    )
    net = Transformer(config, stream(0, "init")).double()
    context, query = draw(2, n, 4, name="context"), draw(2, m, 4, name="query")
    with torch.no_grad():
        answer = net(context, query)
        assert_close(net.tokens(context, query)[-1].query, answer)
        assert_close(net(context, query[:, :1]), answer[:, :1])
        assert_close(net(context.flip(1), query), answer)
        assert_close(net(context[0], query[0]), answer[0])


@settings(max_examples=20)
@given(n_layers=st.integers(1, 4), init_scale=st.sampled_from([0.01, 1.0, 4.0]))
def test_one_init_scale_means_the_same_in_both_transformers(n_layers, init_scale):
    """The variance of an entry times its fan-in is init_scale over the depth, in attention and MLPs alike."""
    wide = AttentionConfig(40, 2, init_scale=init_scale)
    causal = CausalTransformer(CausalTransformerConfig(wide, n_layers, mlp=2), stream(0, "init"))
    config = TransformerConfig(40, n_layers, 2, mlp=2, init_scale=init_scale)
    for net in (causal, Transformer(config, stream(0, "init"))):
        layer = net.layers[-1]
        for weight, fan_in in ((layer.attention.w_k, 40), (layer.attention.p, 40), (layer.mlp.down_proj.weight, 80)):
            deviation = (init_scale / n_layers / fan_in) ** 0.5
            assert weight.std().item() == pytest.approx(deviation, rel=0.1)
