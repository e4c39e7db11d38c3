"""Inspection of a language model's heads, against planted patterns and sums of keys."""

import dataclasses

import pytest
import torch

from mesascope.errors import ArgumentError
from mesascope.language import head_scores, inspect, language_model_config
from mesascope.streams import stream


def built(layers="softmax, mesa", **options):
    return (
        language_model_config(layers, 40, 32, width=16, n_heads=2, **options).build(stream(0, "init")).double().eval()
    )


def windows(n=5, t=33):
    return torch.randint(40, (n, t), generator=stream(0, "tokens"))


def pattern(kind, t):
    places = torch.arange(t)
    if kind == "uniform":
        return torch.ones(t, t).tril() / (places + 1.0)[:, None]
    half = t // 2
    seen = {"copying": places - 1, "induction": torch.where(places < half, places, places - half + 1)}[kind]
    return -torch.nn.functional.one_hot(seen.clamp(min=0), t).float()  # signs do not count


@pytest.mark.parametrize("kind", ["copying", "induction", "uniform"])
def test_scores_of_heads_that_are_known(kind):
    model, name = built(), "layers.1.attention.pattern"
    with model.patched({name: lambda held: pattern(kind, held.shape[-1]).to(held).expand_as(held)}):
        found = head_scores(model, 16)
    copying, induction = found.copying[1].tolist(), found.induction[1].tolist()
    expected = found.uniform if kind == "uniform" else (float(kind == "copying"), float(kind == "induction"))
    assert copying == pytest.approx([expected[0]] * 2, abs=1e-6)
    assert induction == pytest.approx([expected[1]] * 2, abs=1e-6)
    assert 0 < found.copying[0].max() < 0.5


@pytest.mark.parametrize("kv_heads", [2, 1])
@pytest.mark.parametrize("forget", [False, True])
def test_condition_numbers_are_those_of_sums_of_keys(forget, kv_heads):
    config = language_model_config("softmax, mesa", 40, 32, width=16, n_heads=2, forget=forget)
    first, second = config.transformer.each_heads
    heads = (first, dataclasses.replace(second, n_kv_heads=kv_heads))
    config = dataclasses.replace(config, transformer=dataclasses.replace(config.transformer, heads=heads))
    model = config.build(stream(0, "init")).double().eval()
    layer = model.transformer.layers[1].attention
    with torch.no_grad():
        layer.ridge_above.copy_(torch.tensor([-2.0, 1.0])[:kv_heads])
    tokens = windows()
    found = inspect(model, tokens)
    names = ["layers.1.attention.key", "layers.1.norm"]
    _, cache = model.run_with_cache(tokens[:, :-1], names=names)
    kv_heads, every = layer.config.kv_heads, layer.config.group
    gates = torch.ones(5, kv_heads, 32)
    if forget:
        gates = torch.sigmoid(layer.forget_proj(cache[names[1]])).mT
    assert found.read == (8, 16, 24, 32)
    for place, t in enumerate(found.read):
        k, own = cache[names[0]][:, :, :t], gates[..., :t].double()
        weight = (own.log().flip(-1).cumsum(-1).flip(-1) - own.log()).exp()  # of each key at the last token
        H = torch.einsum("bht,bhti,bhtj->bhij", weight, k, k)
        H = H + layer.ridge[:, None, None] * torch.eye(k.shape[-1])
        expected = torch.linalg.cond(H).median(0).values.repeat_interleave(every)
        torch.testing.assert_close(found.condition[1][place], expected.detach())
    torch.testing.assert_close(found.ridge[1], layer.ridge.detach().repeat_interleave(every))
    if forget:
        torch.testing.assert_close(found.forget[1], gates.mean((0, 2)).detach().repeat_interleave(every))
    else:
        assert found.forget == {}


def test_maps_and_losses_are_the_models_own():
    model, tokens = built("linear, softmax"), windows()
    found = inspect(model, tokens)
    _, cache = model.run_with_cache(tokens[:1, :-1])
    torch.testing.assert_close(found.maps, cache["layers.0.attention.pattern"][0].detach())
    shares = model(tokens[:, :-1]).log_softmax(-1).gather(-1, tokens[:, 1:, None])[..., 0]
    torch.testing.assert_close(found.losses, -shares.detach())
    rows = found.table()
    assert [(row["layer"], row["attention"], row["head"]) for row in rows] == [
        (0, "linear", 0), (0, "linear", 1), (1, "softmax", 0), (1, "softmax", 1),
    ]  # fmt: skip
    assert rows[0]["ridge"] is None


def test_windows_too_short_are_refused():
    with pytest.raises(ArgumentError, match="windows must have shape"):
        inspect(built(), windows(t=4))
    with pytest.raises(ArgumentError, match="tokens must be at least 2"):
        head_scores(built(), 1)
