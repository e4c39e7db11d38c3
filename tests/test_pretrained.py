"""Networks go through folders, without pickle, and are shown in a line."""

import json

import pytest
import torch
from examples import examples
from torch import nn

from mesascope.constructions import gradient_descent_plus_plus, mesa_gradient_descent
from mesascope.errors import ArgumentError, ArgumentTypeError
from mesascope.meta import MetaLearner
from mesascope.nets import (
    MLP,
    AttentionConfig,
    BlockMultiples,
    CausalTransformer,
    CausalTransformerConfig,
    ClassifierConfig,
    EmbeddedDescent,
    EmbeddingConfig,
    InContextRegressor,
    InContextRegressorConfig,
    LanguageModel,
    MesaAttention,
    Pretrained,
    Prompted,
    SequencePredictor,
    Transformer,
    TransformerConfig,
)
from mesascope.records import registered
from mesascope.streams import stream
from mesascope.tasks import LinearDynamics, LinearRegression

EPISODE = LinearRegression(n_context=10, d_in=3).sample(4, stream(0, "pretrained"))
SEQUENCE = LinearDynamics(d=3, length=9).sample(4, stream(0, "pretrained"))


def told(net):
    dtype = next(net.parameters()).dtype
    if isinstance(net, SequencePredictor | Prompted | BlockMultiples):
        return net(SEQUENCE.to(dtype))
    if isinstance(net, LanguageModel):
        return net(torch.arange(5))
    if isinstance(net.config, ClassifierConfig):
        return net(torch.ones(2, net.config.in_channels * net.config.size**2, dtype=dtype))
    episode = EPISODE.to(dtype)
    return net(episode.context, episode.xq)


@pytest.mark.parametrize("attention", list(registered("attention")))
@pytest.mark.parametrize("heads", [{}, {"n_heads": 2, "n_kv_heads": 1}, {"n_heads": 2}])
@pytest.mark.parametrize("gates", [{}, {"forget": True, "beta": True, "output_norm": True, "output_gate": True}])
def test_every_attention_goes_through_a_folder_with_one_head_and_with_more(attention, heads, gates, tmp_path):
    config = CausalTransformerConfig(AttentionConfig(8, **heads, **gates), attention=attention)
    net, tokens = config.build(stream(0, "init")), torch.randn(2, 5, 8, generator=stream(0, "tokens"))
    net.save_pretrained(tmp_path)
    assert torch.equal(CausalTransformer.from_pretrained(tmp_path)(tokens), net(tokens))


@pytest.mark.parametrize(("name", "build"), examples("net"))
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_registered_network_goes_through_a_folder(name, build, dtype, tmp_path):
    net = build().build(stream(0, "init")).to(dtype)
    with torch.no_grad():
        expected = told(net)
    net.save_pretrained(tmp_path / "new" / "folder")
    assert sorted(file.name for file in (tmp_path / "new" / "folder").iterdir()) == ["config.json", "model.safetensors"]
    assert json.loads((tmp_path / "new" / "folder" / "config.json").read_text())["name"] == name
    again = type(net).from_pretrained(str(tmp_path / "new" / "folder"))
    assert again.config == net.config
    assert torch.equal(told(again), expected)
    assert all(weight.dtype == dtype for weight in again.parameters())
    frozen = [[not weight.requires_grad for weight in one.parameters()] for one in (again, net)]
    assert frozen[0] == frozen[1]
    assert not all(frozen[0])


@pytest.mark.parametrize("w0", [None, "random"])
def test_constructions_go_through_a_folder_with_what_they_start_from(w0, tmp_path):
    start = None if w0 is None else torch.randn(3, 3, dtype=torch.float64, generator=stream(0, "w0"))
    for network in (
        gradient_descent_plus_plus(3, 1, [0.4, 0.2], 0.01, 10, 2, start if start is None else start[:1]).network,
        mesa_gradient_descent(3, 0.03, start).network,
    ):
        network.save_pretrained(tmp_path)
        assert torch.equal(told(type(network).from_pretrained(tmp_path)), told(network))


def damaged(folder, damage):
    if damage == "missing":
        return folder / "elsewhere"
    if damage == "no weights":
        (folder / "model.safetensors").unlink()
    elif damage == "other weights":
        other = InContextRegressorConfig(TransformerConfig(5)).build()
        other.save_pretrained(folder / "other")
        (folder / "other" / "model.safetensors").rename(folder / "model.safetensors")
    else:
        (folder / "config.json").write_text(damage)
    return folder


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        ("missing", "No such file"),
        ("no weights", "No such file"),
        ("other weights", "size mismatch"),
        ("[]", "a record must have the keys kind and name"),
        ("3", "a record must have the keys kind and name"),
        ('{"kind": "net", "name": "in-context-regresor"}', "did you mean 'in-context-regressor'"),
        ('{"kind": "net", "name": "in-context-regressor", "transformer": 3}', "must be of its declared type"),
        ('{"kind": "family", "name": "linear-regression"}', "kind must be 'net', but is 'family'"),
    ],
)
def test_a_folder_that_is_no_network_is_refused_in_a_sentence(damage, message, tmp_path):
    InContextRegressorConfig(TransformerConfig(4)).build().save_pretrained(tmp_path)
    rule = rf"(?s)folder must be one that save_pretrained wrote, but is '.*' \(.*{message}.*\): pass another\.$"
    with pytest.raises(ArgumentError, match=rule) as caught:
        InContextRegressor.from_pretrained(damaged(tmp_path, damage))
    assert "\n" not in str(caught.value)


def test_weights_that_changed_on_disk_are_refused(tmp_path):
    InContextRegressorConfig(TransformerConfig(4)).build().save_pretrained(tmp_path)
    content = bytearray((tmp_path / "model.safetensors").read_bytes())
    content[-2] ^= 64
    (tmp_path / "model.safetensors").write_bytes(content)
    said = r"/model.safetensors must be whole, but is damaged \(its tensors do not match their checksum\): save the net"
    with pytest.raises(ArgumentError, match=said):
        InContextRegressor.from_pretrained(tmp_path)


def test_a_config_of_an_earlier_save_is_refused(tmp_path):
    """A process that is killed between the two files leaves such a folder."""
    InContextRegressorConfig(TransformerConfig(4)).build().save_pretrained(tmp_path)
    former = (tmp_path / "config.json").read_bytes()
    InContextRegressorConfig(TransformerConfig(4, damping=0.5)).build().save_pretrained(tmp_path)
    (tmp_path / "config.json").write_bytes(former)
    with pytest.raises(ArgumentError, match=r"its config.json differs from the config in model.safetensors"):
        InContextRegressor.from_pretrained(tmp_path)


@pytest.mark.parametrize("left", ["half", "all but 4 bytes", "none"])
@pytest.mark.parametrize("name", ["model.safetensors", "config.json"])
def test_a_damaged_file_of_a_network_is_named(name, left, tmp_path):
    InContextRegressorConfig(TransformerConfig(4)).build().save_pretrained(tmp_path)
    whole = (tmp_path / name).read_bytes()
    (tmp_path / name).write_bytes({"half": whole[: len(whole) // 2], "none": b""}.get(left, whole[:-4]))
    with pytest.raises(
        ArgumentError, match=rf"/{name} must be whole, but is damaged \(.*\): save the network again\.$"
    ):
        InContextRegressor.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("net", "inputs"),
    [
        (Transformer(TransformerConfig(4, 2, layer_norm=(True, False))), (torch.ones(2, 5, 4), torch.ones(2, 1, 4))),
        (Transformer(TransformerConfig(4)).repeated(3, damping=0.5), (torch.ones(2, 5, 4), torch.ones(2, 1, 4))),
        (
            CausalTransformer(CausalTransformerConfig(AttentionConfig(4, forget=True), 2, ("softmax", "mesa"))),
            (torch.ones(2, 5, 4),),
        ),
        (MLP([4, 6, 3]), (torch.ones(2, 4),)),
        (EmbeddingConfig(4, 6).build(), (torch.ones(2, 5, 4),)),
    ],
)
def test_networks_without_a_registered_config_go_through_a_folder(net, inputs, tmp_path):
    net.save_pretrained(tmp_path)
    again = type(net).from_pretrained(tmp_path)
    assert again.config == net.config
    assert torch.equal(again(*inputs), net(*inputs))
    for kind in {Transformer, CausalTransformer, InContextRegressor} - {type(net)}:
        with pytest.raises(ArgumentError, match="folder must be one that save_pretrained wrote, but is"):
            kind.from_pretrained(tmp_path)
    InContextRegressorConfig(TransformerConfig(4)).build().save_pretrained(tmp_path)
    with pytest.raises(ArgumentTypeError, match=r"holds one of type InContextRegressor: call InContextRegressor\."):
        type(net).from_pretrained(tmp_path)


def test_a_part_under_two_names_is_one_part_again(tmp_path):
    net = Twice(TransformerConfig(4, n_heads=2, n_layers=1))
    net.save_pretrained(tmp_path)
    again = Twice.from_pretrained(tmp_path)
    assert [name for name, _ in again.named_parameters()] == [name for name, _ in net.named_parameters()]
    assert again.second.weight is again.first.weight
    torch.testing.assert_close(again.state_dict(), net.state_dict(), rtol=0, atol=0)


class Twice(Pretrained):
    built_from = TransformerConfig

    def __init__(self, config):
        super().__init__()
        self.config, self.first, self.second = config, nn.Linear(2, 2), nn.Linear(2, 2)
        self.second.weight = self.first.weight
        self.third = self.first


def test_another_network_is_named(tmp_path):
    InContextRegressorConfig(TransformerConfig(4)).build().save_pretrained(tmp_path)
    for kind in (SequencePredictor, EmbeddedDescent):
        with pytest.raises(ArgumentTypeError, match=r"holds one of type InContextRegressor: call InContextRegressor\."):
            kind.from_pretrained(tmp_path)


def test_every_registered_network_has_the_two_methods():
    for name, build in examples("net"):
        assert name in registered("net")
        assert hasattr(build().build(), "save_pretrained"), name


@pytest.mark.parametrize(("name", "build"), examples("net"))
def test_a_network_is_shown_in_a_line(name, build):
    net = build().build()
    assert len(repr(net)) < 250
    assert "\n" not in repr(net)
    assert repr(net).startswith(type(net).__name__)
    if not isinstance(net, EmbeddedDescent | Prompted | BlockMultiples | MetaLearner) and name != "classifier":
        assert "\n" not in repr(net.transformer)
        assert "Point" not in repr(net.transformer.layers)


def test_what_differs_from_the_defaults_is_shown():
    assert repr(InContextRegressorConfig(TransformerConfig(4, n_heads=2)).build()) == (
        "InContextRegressor(transformer=TransformerConfig(width=4, n_heads=2); 64 parameters)"
    )
    assert repr(MesaAttention(AttentionConfig(8, 2))) == "MesaAttention(width=8, n_heads=2; 258 parameters)"
