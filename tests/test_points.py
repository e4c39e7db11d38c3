"""Hooks, caches and patches see what the networks compute, whichever form that takes."""

import functools
import pydoc
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn.utils import parametrize, prune

from mesascope.errors import ArgumentError, ArgumentTypeError
from mesascope.learners import GradientDescent
from mesascope.lenses import alignment, per_task_errors
from mesascope.nets import (
    AttentionConfig,
    CausalTransformer,
    CausalTransformerConfig,
    EmbeddingConfig,
    InContextRegressor,
    InContextRegressorConfig,
    SequencePredictor,
    SequencePredictorConfig,
    Transformer,
    TransformerConfig,
    points,
    transformer,
)
from mesascope.nets.points import has_hooks, is_hooked
from mesascope.records import registered
from mesascope.streams import stream
from mesascope.tasks import LinearDynamics, LinearRegression
from mesascope.training import Ensemble

EPISODE = LinearRegression(n_context=6, d_in=3, n_query=2).sample(4, stream(0, "points")).to(torch.float64)
SEQUENCE = LinearDynamics(d=3, length=9).sample(4, stream(0, "points")).double()
REGRESSORS = {
    "linear": TransformerConfig(4, 2, n_heads=2, key_size=3),
    "looped": TransformerConfig(4, 3, n_heads=2, key_size=3, shared=True, damping=0.5),
    "clipped": TransformerConfig(4, 2, n_heads=2, token_clip=0.5),
    "softmax": TransformerConfig(4, 2, n_heads=2, attention=("softmax", "linear"), mlp=2, layer_norm=True),
}
ATTENTIONS = list(registered("attention"))


def regressor(name, **changes):
    return InContextRegressorConfig(REGRESSORS[name], **changes).build(stream(0, "init")).double()


def predictor(attention, **heads):
    config = CausalTransformerConfig(AttentionConfig(8, 2, **heads), 2, attention, mlp=2, layer_norm=True)
    return SequencePredictorConfig(config, 3).build(stream(0, "init")).double()


NETS = {
    **{name: (functools.partial(regressor, name), EPISODE[:2]) for name in REGRESSORS},
    **{f"causal-{name}": (functools.partial(predictor, name), (SEQUENCE,)) for name in ATTENTIONS},
}
each_net = pytest.mark.parametrize("name", NETS)
each_attention = pytest.mark.parametrize("attention", ATTENTIONS)


def parts(net):
    """Every module inside that a call runs, without containers."""
    return {name: part for name, part in net.named_modules() if name and not isinstance(part, nn.ModuleList)}


def hooked(net):
    return any(is_hooked(part) for part in net.modules())


def loops(net):
    return net.config.transformer.n_layers if getattr(net.config.transformer, "shared", False) else 1


# Hooks of torch


@each_net
@pytest.mark.parametrize("kind", ["forward", "forward_pre", "full_backward"])
def test_a_hook_anywhere_fires_and_changes_nothing(name, kind):
    build, inputs = NETS[name]
    net, inputs = build(), (*inputs[:-1], inputs[-1].clone().requires_grad_())
    expected = net(*inputs)
    for path, part in parts(net).items():
        if kind != "forward" and "layers.1" in path:  # as the layer before
            continue
        fired = []
        handle = getattr(part, f"register_{kind}_hook")(lambda *_, fired=fired: fired.append(1))
        output = net(*inputs)
        if kind == "full_backward":
            output.square().sum().backward()
        handle.remove()
        assert len(fired) == (1 if path == "transformer" or "layers" not in path else loops(net)), path
        torch.testing.assert_close(output, expected, rtol=1e-12, atol=1e-12)
    assert not hooked(net)


@each_net
def test_a_hook_for_all_modules_sees_the_attention(name):
    build, inputs = NETS[name]
    net, seen = build(), []
    handle = nn.modules.module.register_module_forward_hook(lambda module, *_: seen.append(module))
    try:
        net(*inputs)
    finally:
        handle.remove()
    assert {id(layer.attention) for layer in net.transformer.layers} <= {id(module) for module in seen}


@each_net
def test_what_a_hook_returns_is_what_goes_on(name):
    """Attention and MLP that add nothing leave the tokens as they were embedded."""
    build, inputs = NETS[name]
    net = build()
    for layer in net.transformer.layers:
        for part in (layer.attention, layer.mlp):
            if part is not None:
                part.register_forward_hook(lambda module, inputs, output: torch.zeros_like(output))
    path = net.trajectory(*inputs)
    torch.testing.assert_close(path[-1], path[0].clamp(-0.5, 0.5) if name == "clipped" else path[0])
    assert torch.equal(net(*inputs), path[-1])


@pytest.mark.parametrize("way", ["forward", "subclass", "mlp", "pruned", "parametrized", "appended"])
def test_a_replaced_part_is_called(way):
    """All of them at odds with the Gram matrix, which sees nothing of them."""
    net, inputs = regressor("linear"), EPISODE[:2]
    before, first = net(*inputs), net.transformer.layers[0]
    if way == "forward":
        first.attention.forward = lambda tokens, n: torch.zeros_like(tokens)
    if way == "subclass":

        class Silent(type(first.attention)):
            def forward(self, tokens, n, first=0):
                return torch.zeros_like(tokens)

        first.attention.__class__ = Silent
    if way == "mlp":
        first.mlp = nn.Linear(4, 4).double()
    if way == "pruned":
        prune.random_unstructured(first.attention, "p", 5)
    if way == "parametrized":
        parametrize.register_parametrization(first.attention, "p", nn.Dropout(0.0))
    if way == "appended":
        net.transformer.layers.append(regressor("linear").transformer.layers[0])
    assert has_hooks(net.transformer)
    after = net(*inputs)
    torch.testing.assert_close(after, net.trajectory(*inputs)[-1])
    assert torch.allclose(after, before) == (way == "parametrized")


def test_repeating_a_replaced_layer_repeats_what_was_put_there():
    net = InContextRegressorConfig(TransformerConfig(4)).build(stream(0, "init")).double()
    net.transformer.layers[0].mlp = nn.Linear(4, 4, bias=False).double()
    once = net.repeated(1)
    torch.testing.assert_close(once(*EPISODE[:2]), net(*EPISODE[:2]))


@each_attention
def test_hooks_fire_while_decoding(attention):
    net = predictor(attention)
    seen = {path: [] for path in parts(net)}
    for path, part in parts(net).items():
        part.register_forward_hook(lambda *_, path=path: seen[path].append(1))
    expected, state = net(SEQUENCE), net.init_state(4)
    for calls in seen.values():
        calls.clear()
    prompt, state = net.advance(SEQUENCE[:, :5], state)
    steps = []
    for element in SEQUENCE[:, 5:].unbind(1):
        prediction, state = net.step(element, state)
        steps.append(prediction)
    torch.testing.assert_close(torch.cat([prompt, torch.stack(steps, 1)], 1), expected)
    assert all(len(calls) == 5 for calls in seen.values())


@pytest.mark.parametrize("name", ["linear", "softmax", "causal-softmax", "causal-delta"])
def test_members_of_an_ensemble_may_be_hooked(name):
    build, inputs = NETS[name]
    nets = [build() for _ in range(2)]
    nets[0].transformer.layers[0].attention.pattern.register_forward_hook(lambda module, inputs, output: 0 * output)
    with torch.no_grad():
        nets[1].transformer.layers[1].attention.p.mul_(2.0)
    both = Ensemble(nets)(*([torch.stack([part] * 2) for part in inputs] if len(inputs) == 1 else _doubled(inputs)))
    for net, output in zip(nets, both, strict=True):
        with net.patched({"layers.0.attention.pattern": torch.zeros_like}):
            torch.testing.assert_close(output, net(*inputs))


@pytest.mark.parametrize("members", [1, 2])
def test_an_ensemble_takes_the_form_that_its_member_would(members, monkeypatch):
    """Weights put in place for a call are no replaced parts."""
    calls, run = [], transformer.run_linear_layers
    monkeypatch.setattr(transformer, "run_linear_layers", lambda *inputs: calls.append(1) or run(*inputs))
    ensemble = Ensemble([regressor("linear") for _ in range(members)])
    inputs = _doubled(EPISODE[:2], members)
    fast = ensemble(*inputs)
    assert len(calls) == 1
    ensemble.module.transformer.layers[1].norm.register_forward_hook(lambda *_: None)
    torch.testing.assert_close(ensemble(*inputs), fast)
    assert len(calls) == 1


def _doubled(inputs, members=2):
    context, xq = inputs
    return type(context)(*(torch.stack([part] * members) for part in context)), torch.stack([xq] * members)


# Points


@each_net
def test_a_cache_holds_every_point_and_changes_nothing(name):
    build, inputs = NETS[name]
    net = build()
    prediction, cache = net.run_with_cache(*inputs)
    torch.testing.assert_close(prediction, net(*inputs), rtol=1e-12, atol=1e-12)
    assert set(cache) == set(net.points())
    batch, t = (4, 8) if "causal" not in name else (4, 9)
    heads, width = net.transformer.layers[0].attention.p.shape[:2]
    for index in range(net.config.transformer.n_layers):
        known = 6 if "causal" not in name else t
        assert cache[f"layers.{index}"].shape == cache[f"layers.{index}.norm"].shape == (batch, t, width)
        assert cache[f"layers.{index}.attention"].shape == (batch, t, width)
        assert cache[f"layers.{index}.attention.pattern"].shape == (batch, heads, t, known)
        for part, rows in (("query", t), ("key", known), ("value", known), ("read", t)):
            assert cache[f"layers.{index}.attention.{part}"].shape[:3] == (batch, heads, rows)
    assert not hooked(net)


def test_the_page_lists_every_place():
    rows = (Path(__file__).parent.parent / "docs" / "looking-inside.md").read_text().split("\n")
    named = {row.split("`")[1] for row in rows if row.startswith("| `")}
    in_code = {row.split("``")[1] for row in (points.__doc__ or "").split("\n") if row.startswith("| ``")}
    own = Transformer(TransformerConfig(4, mlp=2)).points()
    assert named == in_code == {name.replace("layers.0", "layers.L") for name in own}


def test_help_tells_of_these_methods_before_those_of_torch():
    for kind in (Transformer, CausalTransformer, InContextRegressor, SequencePredictor):
        told = pydoc.plain(pydoc.render_doc(kind))
        torch_begins = told.index("inherited from torch")
        for name in ("run_with_cache", "cached", "patched", "points", "forward"):
            assert re.search(rf" {name}\([\s|]*self", told[:torch_begins])


def test_both_kinds_of_transformer_have_the_same_names():
    own = Transformer(TransformerConfig(4, 2, mlp=2))
    assert own.points() == CausalTransformer(CausalTransformerConfig(AttentionConfig(4), 2, mlp=2)).points()
    assert "layers.2.attention.pattern" in regressor("looped").points()


@each_net
def test_the_residual_stream_adds_up(name):
    build, inputs = NETS[name]
    net = build()
    _, cache = net.run_with_cache(*inputs)
    tokens, damping = cache["embedded"], 0.5 if name == "looped" else 1.0
    for index, layer in enumerate(net.transformer.unrolled()):
        parts = [cache[f"layers.{index}.attention"]]
        # Each head's own addition, by what it reads.
        own = cache[f"layers.{index}.attention.read"] @ layer.attention.p.mT
        torch.testing.assert_close(own.sum(-3), parts[0])
        if layer.mlp is not None:
            parts.append(cache[f"layers.{index}.mlp"])
        tokens = tokens + damping * sum(parts)
        tokens = tokens.clamp(-0.5, 0.5) if name == "clipped" else tokens
        torch.testing.assert_close(cache[f"layers.{index}"], tokens)
        tokens = cache[f"layers.{index}"]


@each_net
def test_values_through_the_pattern_are_what_heads_read(name):
    build, inputs = NETS[name]
    _, cache = build().run_with_cache(*inputs, names="layers.*.attention.*")
    for place in (key.removesuffix(".pattern") for key in cache if key.endswith(".pattern")):
        pattern = cache[f"{place}.pattern"]
        torch.testing.assert_close(pattern @ cache[f"{place}.value"], cache[f"{place}.read"], rtol=1e-12, atol=1e-12)
        if "causal" in name:
            assert not pattern.triu(1).any(), "no token sees a later one"


HEADS = [
    {},
    {"convolution": 3, "forget": True, "beta": True, "output_norm": True, "output_gate": True},
    {"positions": 4, "window": 3, "dpfp": 1},
    {"ridge_per_dimension": True, "ridge_kind": "constant", "forget": True},
]


@each_attention
@pytest.mark.parametrize("heads", HEADS)
def test_the_pattern_of_every_causal_layer_is_the_layer(attention, heads):
    """Read without the pattern: the layer's own output, in one piece and going on from a state."""
    layer = registered("attention")[attention](AttentionConfig(8, 2, **heads), stream(0, "init")).double()
    tokens = torch.randn(3, 9, 8, dtype=torch.float64, generator=stream(0, "tokens"))
    expected = layer(tokens)
    seen = []
    layer.pattern.register_forward_hook(lambda module, inputs, output: seen.append(output))
    torch.testing.assert_close(layer(tokens), expected, rtol=1e-11, atol=1e-11)
    first, state = layer.advance(tokens[:, :5], layer.init_state(3))
    second, _ = layer.advance(tokens[:, 5:], state)
    torch.testing.assert_close(torch.cat([first, second], 1), expected, rtol=1e-11, atol=1e-11)
    whole, before, after = seen
    torch.testing.assert_close(before, whole[..., :5, :5], rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(after, whole[..., 5:, 5:], rtol=1e-10, atol=1e-10)


def test_the_pattern_of_softmax_sums_to_one_and_that_of_a_mesa_layer_solves():
    _, cache = predictor("softmax").run_with_cache(SEQUENCE)
    torch.testing.assert_close(cache["layers.1.attention.pattern"].sum(-1), torch.ones(4, 2, 9).double())
    net = predictor("mesa")
    _, cache = net.run_with_cache(SEQUENCE)
    query, key, pattern = (cache[f"layers.0.attention.{part}"] for part in ("query", "key", "pattern"))
    ridge = net.transformer.layers[0].attention.ridge[:, None, None] * torch.eye(4).double()
    last = torch.linalg.solve(key.mT @ key + ridge, query[..., -1:, :].mT)
    torch.testing.assert_close(pattern[..., -1:, :].mT, key @ last)


def test_patterns_are_computed_for_those_who_look():
    layer = predictor("mesa").transformer.layers[0].attention
    calls, attend = [], layer.attend
    layer.attend = lambda *arguments: calls.append(1) or attend(*arguments)
    tokens = torch.ones(2, 5, 8).double()
    layer(tokens)
    assert len(calls) == 1
    layer.read.register_forward_hook(lambda *_: None)
    layer(tokens)
    assert len(calls) == 2


@pytest.mark.parametrize("name", ["linear", "causal-delta"])
def test_a_module_in_the_place_of_a_point_is_called(name):
    """Dropout of attention, say."""
    build, inputs = NETS[name]
    net = build()
    expected = net(*inputs)
    for layer in net.transformer.layers:
        layer.attention.pattern = nn.Dropout(1.0)
    assert not torch.allclose(net(*inputs), expected)
    torch.testing.assert_close(net.eval()(*inputs), expected)


@each_attention
def test_attention_of_ones_own_needs_to_know_of_nothing_but_tokens(attention):
    net = predictor(attention)
    net.transformer.layers[1].attention = nn.Linear(8, 8).double()
    before = net.transformer.layers[0](net.transformer.embedded(SEQUENCE @ net.w_in.mT))
    torch.testing.assert_close(net(SEQUENCE), net.transformer.layers[1](before) @ net.w_out.mT)


# Patches


@each_net
def test_a_head_that_reads_nothing_is_a_head_that_is_not_there(name):
    build, inputs = NETS[name]
    net = build()
    keep = torch.tensor([1.0, 0.0]).double()[:, None, None]
    last = net.config.transformer.n_layers - 1
    patches = {f"layers.{index}.attention.read": lambda read: keep * read for index in (0, last)}
    if loops(net) > 1:
        patches["layers.1.attention.read"] = lambda read: keep * read
    before = net(*inputs)
    with net.patched(patches):
        ablated, path = net(*inputs), net.trajectory(*inputs)
    with torch.no_grad():
        for layer in net.transformer.layers:
            layer.attention.p[1] = 0.0
    torch.testing.assert_close(ablated, net(*inputs))
    torch.testing.assert_close(path, net.trajectory(*inputs))
    assert not torch.allclose(ablated, before)


@each_net
def test_putting_back_what_another_input_gave_gives_its_prediction(name):
    """From the last layer's tokens, or any layer's, everything that follows is the other's."""
    build, inputs = NETS[name]
    net, other = build(), tuple(_halved(part) for part in inputs)
    expected, cache = net.run_with_cache(*other)
    for place in ("embedded", "layers.0", f"layers.{net.config.transformer.n_layers - 1}"):
        with net.patched({place: cache[place]}):
            torch.testing.assert_close(net(*inputs), expected)
    assert not torch.allclose(net(*inputs), expected)


def _halved(part):
    return type(part)(*(0.5 * own for own in part)) if isinstance(part, tuple) else 0.5 * part


def test_each_loop_of_a_looped_layer_is_patched_alone():
    net = regressor("looped")
    context, query = net._tokens(*EPISODE[:2])
    with net.patched({"layers.1.attention": torch.zeros_like}):
        tokens = net.transformer.tokens(context, query)
        assert torch.equal(tokens[2].query, tokens[1].query)
        assert not torch.allclose(tokens[3].query, tokens[2].query)
        # A call that fails midway leaves no trace in the next call.
        with pytest.raises(ZeroDivisionError), net.patched({"layers.0": lambda tokens: 1 / 0}):
            net(*EPISODE[:2])
        torch.testing.assert_close(net(*EPISODE[:2]), -tokens[-1].query[..., -1:])
    assert not hooked(net)


def test_gradients_flow_through_what_is_cached():
    """Attribution: how much a prediction would change with each entry of a point."""
    net = regressor("softmax")
    prediction, cache = net.run_with_cache(*EPISODE[:2], names=["layers.0.mlp", "layers.*.attention.pattern"])
    assert list(cache) == ["layers.0.attention.pattern", "layers.0.mlp", "layers.1.attention.pattern"]
    slope = torch.autograd.grad(prediction.sum(), cache["layers.0.mlp"])[0]
    move = 1e-6 * torch.randn(slope.shape, generator=stream(0, "move"), dtype=torch.float64)
    with net.patched({"layers.0.mlp": cache["layers.0.mlp"] + move}):
        change = (net(*EPISODE[:2]) - prediction).sum()
    torch.testing.assert_close(change, (slope * move).sum(), rtol=1e-4, atol=1e-12)


def test_lenses_look_at_a_patched_network():
    net = regressor("linear")
    with net.patched({"layers.*".replace("*", str(index)): (lambda rows: rows.clone()) for index in range(2)}):
        same = per_task_errors(net, EPISODE)
        alignment(net, GradientDescent(1, 0.5), EPISODE)
    torch.testing.assert_close(same, per_task_errors(net, EPISODE))
    with net.patched({f"layers.{index}.attention": torch.zeros_like for index in range(2)}):
        torch.testing.assert_close(per_task_errors(net, EPISODE), EPISODE.yq.square().mean((1, 2)))


def test_points_of_decoding_are_cached_and_patched_too():
    net = predictor("linear")
    _, state = net.advance(SEQUENCE[:, :5], net.init_state(4))
    (prediction, after), cache = net.run_with_cache(SEQUENCE[:, 5:6], state)
    assert cache["layers.1.attention"].shape == (4, 1, 8)
    torch.testing.assert_close(prediction, net(SEQUENCE)[:, 5:6])
    with net.patched({"layers.1": torch.zeros_like}):
        assert not net.step(SEQUENCE[:, 6], after)[0].any()


def test_an_embedding_comes_before_the_points():
    net = InContextRegressorConfig(TransformerConfig(6), embedding=EmbeddingConfig(4, 6)).build(stream(0, "init"))
    episode = EPISODE.to(torch.float32)
    _, cache = net.run_with_cache(*episode[:2])
    tokens = net.tokens(*episode[:2])[0]
    assert torch.equal(cache["embedded"], torch.cat(tokens, -2))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize(
    ("patches", "kind", "message"),
    [
        ({"layers.0.atention": torch.zeros_like}, ArgumentError, "did you mean 'layers.0.attention'"),
        ({"layers.2": torch.zeros_like}, ArgumentError, "patches must be one of"),
        (
            {"layers.1": torch.zeros(4, 8, 1).double()},
            ArgumentError,
            r"patches\['layers.1'\] must have shape \(4, 8, 4\), but is \(4, 8, 1\)",
        ),
        ({"layers.1": lambda x: x.float()}, ArgumentError, r"must have dtype torch.float64, but is torch.float32"),
        ({"layers.1": lambda x: None}, ArgumentTypeError, "must be a tensor, or a function that returns one, but"),
        ({"layers.1": 0.0}, ArgumentTypeError, "must be a tensor, or a function that returns one, but gives 0.0"),
    ],
)
def test_wrong_patches_are_refused_in_a_sentence(patches, kind, message):
    net = regressor("linear")
    with pytest.raises(kind, match=message), net.patched(patches):
        net(*EPISODE[:2])
    assert not hooked(net)


def test_unknown_names_are_refused_in_a_sentence():
    with pytest.raises(ArgumentError, match=r"names must be one of .* did you mean 'layers.0.mlp'"):
        regressor("softmax").run_with_cache(*EPISODE[:2], names="layer.0.mlp")


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")
@pytest.mark.parametrize("compiled", ["wrapped", "in place", "a part"])
def test_what_is_compiled_before_is_patched_and_cached_too(compiled, unchecked):
    net, plain = regressor("linear"), regressor("linear")
    inputs, patches = EPISODE[:2], {"layers.1.attention": torch.zeros_like}
    call = net
    if compiled == "wrapped":
        call = torch.compile(net, backend="eager")
    else:
        (net if compiled == "in place" else net.transformer.layers[1]).compile(backend="eager")
    torch.testing.assert_close(call(*inputs), plain(*inputs))
    with net.patched(patches), plain.patched(patches), net.cached() as cache:
        torch.testing.assert_close(call(*inputs), plain(*inputs))
    assert set(cache) == set(plain.points())
    torch.testing.assert_close(call(*inputs), plain(*inputs))


@pytest.mark.filterwarnings("ignore:.*torch.jit.script:FutureWarning")  # deprecated from torch 2.14 on
def test_parts_of_a_scripted_layer_cannot_be_patched():
    net = regressor("softmax")
    net.transformer.layers[0].mlp = torch.jit.script(nn.Sequential(nn.Linear(4, 4), nn.Tanh()).double())
    assert "layers.0.mlp" in net.points()
    with (
        pytest.raises(ArgumentError, match="patches must be one of"),
        net.patched({"layers.0.mlp.1": torch.zeros_like}),
    ):
        pass


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["linear", "softmax", "causal-mesa"])
def test_nnsight_reads_and_writes_the_same_points(name):
    """Its wrapper knows nothing of mesascope: points are modules."""
    nnsight = pytest.importorskip("nnsight")
    build, inputs = NETS[name]
    net = build()
    _, cache = net.run_with_cache(*inputs)
    with net.patched({"layers.0.attention.read": torch.zeros_like}):
        expected = net(*inputs)
    wrapped = nnsight.NNsight(net)
    with wrapped.trace(*inputs):
        pattern = wrapped.transformer.layers[1].attention.pattern.output.save()
        tokens = wrapped.transformer.layers[1].output.save()
    torch.testing.assert_close(pattern, cache["layers.1.attention.pattern"])
    torch.testing.assert_close(tokens, cache["layers.1"])
    with wrapped.trace(*inputs):
        wrapped.transformer.layers[0].attention.read.output[:] = 0
        silenced = wrapped.output.save()
    torch.testing.assert_close(silenced, expected)
    torch.testing.assert_close(net(*inputs), build()(*inputs))


def test_what_was_held_before_a_call_failed_is_kept():
    net = CausalTransformer(CausalTransformerConfig(AttentionConfig(width=6, n_heads=2), 2, "linear"))

    def fail(value):
        raise ZeroDivisionError

    tokens = torch.randn(1, 4, 6)
    with pytest.raises(ZeroDivisionError), net.patched({"layers.1": fail}), net.cached("layers.*.attention") as cache:
        net(tokens)
    _, expected = net.run_with_cache(tokens, names="layers.*.attention")
    assert list(cache) == list(expected)
    with (
        pytest.raises(ZeroDivisionError),
        net.patched({"layers.0": fail}),
        net.cached(["layers.0.attention", "layers.1"]) as cache,
    ):
        net(tokens)
    assert list(cache) == ["layers.0.attention"]
    torch.testing.assert_close(cache["layers.0.attention"], expected["layers.0.attention"])
