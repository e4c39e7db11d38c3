"""States of decoding: padding without effect, reordering for beams, saving and loading."""

import pytest
import torch

from mesascope.errors import ArgumentError, ArgumentTypeError
from mesascope.nets import (
    AttentionConfig,
    CausalTransformer,
    CausalTransformerConfig,
    Embedding,
    EmbeddingConfig,
    SequencePredictorConfig,
    TokenMLP,
    Transformer,
    TransformerConfig,
    checks,
    load_state,
    save_state,
    select_state,
)
from mesascope.ops.reading import read
from mesascope.records import registered
from mesascope.streams import stream
from mesascope.tasks import LinearDynamics

ATTENTIONS = list(registered("attention"))
HEADS = [
    {},
    {"convolution": 3, "forget": True, "beta": True, "output_norm": True, "output_gate": True},
    {"positions": 4, "window": 3, "dpfp": 1, "forget": True},
    {"ridge_per_dimension": True, "ridge_kind": "constant", "normalise": True, "convolution": 2, "positions": 4},
    {"n_kv_heads": 1, "convolution": 2, "forget": True, "beta": True, "output_gate": True},
    {"key_shift": True, "rotary": True, "key_size": 4, "dpfp": 1, "n_kv_heads": 1},
]
SEQUENCE = LinearDynamics(d=3, length=11).sample(4, stream(0, "states")).double()
each_attention = pytest.mark.parametrize("attention", ATTENTIONS)
each_heads = pytest.mark.parametrize("heads", [HEADS[1], HEADS[3]])


def predictor(attention, heads, **more):
    transformer = CausalTransformerConfig(AttentionConfig(9, 3, **heads), 2, attention, mlp=2, layer_norm=True)
    return SequencePredictorConfig(transformer, 3, **more).build(stream(0, "init")).double()


# Padding


@each_attention
@pytest.mark.parametrize(
    ("heads", "channels"), [*((heads, None) for heads in HEADS), (HEADS[1], ("blank", "now", "before"))]
)
def test_padding_on_the_left_changes_nothing(attention, heads, channels, unchecked):
    """Sequences of different lengths, whatever stands before them, read in two parts and decoded on."""
    net = predictor(attention, heads, channels=channels)
    lengths = [11, 8, 5, 1]
    mask = torch.stack([torch.arange(11) >= 11 - length for length in lengths])
    padded = torch.where(mask[..., None], SEQUENCE, torch.nan)
    whole = net(padded, mask=mask)
    first, state = net.advance(padded[:, :7], net.init_state(4), mask[:, :7])
    second, state = net.advance(padded[:, 7:], state, mask[:, 7:])
    after, _ = net.step(SEQUENCE[:, 0], state)
    for index, length in enumerate(lengths):
        own, element = SEQUENCE[index, 11 - length :], SEQUENCE[index, :1]
        expected = net(torch.cat([own, element]))
        torch.testing.assert_close(whole[index, 11 - length :], expected[:-1])
        torch.testing.assert_close(torch.cat([first, second], 1)[index, 11 - length :], expected[:-1])
        torch.testing.assert_close(after[index], expected[-1])
    gradients = torch.autograd.grad(whole[mask].square().sum(), list(net.parameters()), allow_unused=True)
    expected = sum(net(SEQUENCE[index, 11 - length :]).square().sum() for index, length in enumerate(lengths))
    own = torch.autograd.grad(expected, list(net.parameters()), allow_unused=True)
    for one, other in zip(gradients, own, strict=True):
        assert (one is None) == (other is None)
        if one is not None:
            torch.testing.assert_close(one, other)


@each_attention
def test_padding_on_the_right_needs_no_mask(attention):
    net = predictor(attention, {"convolution": 3, "positions": 4})
    other = SEQUENCE.clone()
    other[:, 6:] = 100.0
    torch.testing.assert_close(net(other)[:, :6], net(SEQUENCE)[:, :6])


@each_attention
def test_a_layer_takes_a_mask_alone_and_compiled_too(attention):
    layer = registered("attention")[attention](AttentionConfig(8, 2, positions=2), stream(0, "init")).double()
    tokens = torch.randn(2, 6, 8, dtype=torch.float64, generator=stream(0, "tokens"))
    mask = torch.arange(6) >= torch.tensor([[2], [0]])
    expected = layer(tokens[0, 2:])
    torch.testing.assert_close(layer(tokens, mask=mask)[0, 2:], expected)
    torch.testing.assert_close(torch.func.vmap(lambda e, m: layer(e, mask=m))(tokens, mask)[0, 2:], expected)


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("mask", "kind", "message"),
    [
        (torch.tensor([[True, False, True]] * 4), ArgumentError, "mask must be False only before a sequence's first"),
        (torch.tensor([[True, True, False]] * 4), ArgumentError, "pad on the left"),
        (torch.ones(4, 2, dtype=torch.bool), ArgumentError, r"mask must have shape \(4, 3\), but is \(4, 2\)"),
        (torch.ones(4, 3), ArgumentTypeError, r"mask must be a tensor of booleans, but is torch\.float32"),
        ([[True] * 3] * 4, ArgumentTypeError, "mask must be a tensor of booleans, but is list"),
    ],
)
def test_a_wrong_mask_is_refused_in_a_sentence(mask, kind, message):
    net = predictor("linear", {})
    with pytest.raises(kind, match=message):
        net(SEQUENCE[:, :3], mask=mask)


def test_padding_within_a_sequence_that_goes_on_is_refused():
    net = predictor("linear", {})
    _, state = net.advance(SEQUENCE[:, :3], net.init_state(4))
    with pytest.raises(ArgumentError, match="mask must be False only before a sequence's first token"):
        net.advance(SEQUENCE[:, :2], state, torch.tensor([[False, True]] * 4))


def test_padding_is_read_off_the_device_once_whatever_the_depth(monkeypatch):
    readings = []
    monkeypatch.setattr(checks, "read", lambda vector: readings.append(vector) or read(vector))
    net, mask = predictor("linear", {}), torch.ones(4, 3, dtype=torch.bool)
    net(SEQUENCE[:, :3], mask=mask)
    assert len(readings) == 1
    net.advance(SEQUENCE[:, :3], net.init_state(4), mask)
    assert len(readings) == 2
    gap = torch.tensor([[True, False, True]] * 4)
    layer = registered("attention")["linear"](AttentionConfig(3)).double()
    with pytest.raises(ArgumentError, match="mask must be False only before a sequence's first token"):
        layer(SEQUENCE[:, :3], mask=gap)


def test_members_whose_tokens_are_not_finite_are_blamed_only_where_all_are():
    layer = registered("attention")["mesa"](AttentionConfig(3, forget=True)).double()
    diverged = torch.stack([SEQUENCE, SEQUENCE * torch.nan])
    assert torch.func.vmap(layer)(diverged)[0].isfinite().all()
    with pytest.raises(ArgumentError, match="tokens must be finite where MesaAttention reads them, but 264 of 264 num"):
        torch.func.vmap(layer)(diverged * torch.nan)


# Beams


@each_attention
@each_heads
def test_sequences_of_a_state_are_reordered_repeated_and_left_out(attention, heads):
    net, indices = predictor(attention, heads), torch.tensor([2, 2, 0])
    _, state = net.advance(SEQUENCE[:, :6], net.init_state(4))
    picked = select_state(state, indices)
    told, _ = net.advance(SEQUENCE[indices, 6:], picked)
    torch.testing.assert_close(told, net(SEQUENCE[indices])[:, 6:])
    start = select_state(net.init_state(4), indices)
    torch.testing.assert_close(net.advance(SEQUENCE[indices], start)[0], net(SEQUENCE[indices]))
    assert type(select_state(state.layers, indices)) is tuple


@pytest.mark.parametrize(
    ("indices", "message"),
    [
        (torch.tensor([4]), r"indices must lie in \[0, 4\), but is \[4\]"),
        (torch.tensor([-1]), r"indices must lie in \[0, 4\)"),
        (torch.tensor([[0]]), r"indices must be int64 of shape \(count,\), but is 'torch.int64 \(1, 1\)'"),
        (torch.tensor([0.0]), r"indices must be int64 of shape \(count,\)"),
    ],
)
def test_wrong_indices_are_refused_in_a_sentence(indices, message):
    with pytest.raises(ArgumentError, match=message):
        select_state(predictor("softmax", {}).init_state(4), indices)


def test_a_state_without_a_batch_has_no_sequences_to_pick():
    with pytest.raises(ArgumentError, match="state must have a batch axis"):
        select_state(predictor("softmax", {}).init_state(), torch.tensor([0]))


# Files


@each_attention
@each_heads
def test_a_state_goes_through_a_file(attention, heads, tmp_path):
    net = predictor(attention, heads)
    _, state = net.advance(SEQUENCE[:, :6], net.init_state(4))
    for own, advance, rest in (
        (state, net.advance, SEQUENCE[:, 6:]),
        (net.init_state(4), net.advance, SEQUENCE),
        (state.layers, net.transformer.advance, torch.ones(4, 2, 9).double()),
    ):
        save_state(own, tmp_path / "state.safetensors")
        again = load_state(str(tmp_path / "state.safetensors"))
        assert type(again) is type(own)
        for one, other in zip(advance(rest, own), advance(rest, again), strict=True):
            torch.testing.assert_close(one, other, rtol=0, atol=0)


def test_a_state_that_is_a_part_of_another_tensor_goes_through_a_file(tmp_path):
    net = predictor("softmax", {})
    _, state = net.advance(SEQUENCE[:, :6], net.init_state(4))
    shared = state._replace(last=state.layers[0].recent.new_zeros(1, 3).expand(4, 3))
    save_state(shared, tmp_path / "state")
    assert torch.equal(load_state(tmp_path / "state").last, shared.last)


@pytest.mark.parametrize("content", [None, b"", b"not a file of tensors", "weights"])
def test_a_file_that_is_no_state_is_refused_in_a_sentence(content, tmp_path):
    from safetensors.torch import save_file

    path = tmp_path / "state"
    if content == "weights":
        save_file({"weight": torch.ones(2)}, path)
    elif content is not None:
        path.write_bytes(content)
    with pytest.raises(ArgumentError, match=r"path must be a file that save_state wrote, but is '.*state' \(.*pass"):
        load_state(path)


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_state_is_not_saved(tmp_path):
    with pytest.raises(ArgumentTypeError, match="state must be made of tensors, tuples and states of mesascope"):
        save_state(["a"], tmp_path / "state")


# Layers


def test_layers_without_a_generator_follow_the_global_one():
    """All of their random weights, so that no two layers start equal."""
    rich = AttentionConfig(8, 2, convolution=3, output_gate=True, forget=True, beta=True)
    builders = [
        *(lambda kind=kind: registered("attention")[kind](rich) for kind in ATTENTIONS),
        lambda: TokenMLP(4, 8, 1.0),
        lambda: Embedding(EmbeddingConfig(4, 6)),
        lambda: Transformer(TransformerConfig(4, 2, mlp=2)),
        lambda: CausalTransformer(CausalTransformerConfig(rich, 2, ("linear", "mesa"), mlp=2)),
    ]
    for build in builders:
        torch.manual_seed(0)
        first, second = dict(build().named_parameters()), dict(build().named_parameters())
        torch.manual_seed(0)
        again = dict(build().named_parameters())
        assert all(torch.equal(weight, again[name]) for name, weight in first.items())
        drawn = {name for name, weight in first.items() if weight.unique().numel() > 3}
        assert drawn
        assert not any(torch.equal(first[name], second[name]) for name in drawn)
