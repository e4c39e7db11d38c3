"""Interface of attention layers to other packages: linear modules, grouped heads, marks against weight decay."""

import contextlib
import copy

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode

from mesascope.errors import ArgumentError
from mesascope.nets import AttentionConfig, CausalTransformer, CausalTransformerConfig, MesaAttention, TokenMLP
from mesascope.ops import rotated, without_reading_values
from mesascope.records import from_record, registered, to_record
from mesascope.streams import stream
from mesascope.training import EnsembleState, ModuleState, Training

ATTENTIONS = sorted(registered("attention"))
each_attention = pytest.mark.parametrize("attention", ATTENTIONS)
ALL = {"convolution": 2, "forget": True, "beta": True, "output_norm": True}
EVERYTHING = {**ALL, "output_gate": True, "ridge_per_dimension": True, "positions": 2}


def tokens(*shape):
    return torch.randn(*shape, dtype=torch.float64, generator=stream(0, "tokens"))


def layer(attention, *sizes, seed=0, **options):
    built = registered("attention")[attention](AttentionConfig(*sizes, **options), stream(seed, "init")).double()
    for weight in built.parameters():  # gates that differ from token to token, and norms and ridges from head to head
        nn.init.normal_(weight, std=0.5, generator=stream(seed, "weights"))
    return built


@each_attention
def test_all_matrices_are_those_of_linear_modules(attention):
    """Tools for adapters and quantisation look for these modules and replace them, so layers must call them."""
    net = layer(attention, 8, 2, **EVERYTHING)
    linear = {name for name, part in net.named_modules() if type(part) is nn.Linear}
    assert linear == {f"{name}_proj" for name in ("q", "k", "v", "o", "forget", "beta", "gate")}
    others = {name for name, weight in net.named_parameters() if name.split(".")[0] not in linear}
    assert others <= {"convolution", "norm", "ridge_above"}
    assert {name for name, part in TokenMLP(8, 16, 1.0).named_modules() if name} == {"up_proj", "down_proj"}
    e = tokens(2, 5, 8)
    for name in linear:
        before, part = net(e), getattr(net, name)
        down, up = tokens(2, part.in_features), tokens(part.out_features, 2)
        setattr(net, name, LowRank(part, down, up))
        adapted = net(e)
        setattr(net, name, part)
        with torch.no_grad():
            part.weight += up @ down
        torch.testing.assert_close(adapted, net(e))
        assert not torch.allclose(adapted, before)


class LowRank(nn.Module):
    def __init__(self, base, down, up):
        super().__init__()
        self.base, self.down, self.up = base, down, up

    def forward(self, x):
        return self.base(x) + x @ self.down.mT @ self.up.mT


@each_attention
def test_grouped_heads_are_heads_that_share_keys_values_and_gates(attention):
    grouped, whole = (layer(attention, 8, 4, n_kv_heads=n, **EVERYTHING) for n in (2, None))
    own = grouped.state_dict()
    q, k = own["convolution"].split([8, 4])
    for name in ("k_proj.weight", "v_proj.weight", "forget_proj.weight", "forget_proj.bias", "beta_proj.weight"):
        own[name] = own[name].unflatten(0, (2, -1)).repeat_interleave(2, 0).flatten(0, 1)
    own["beta_proj.bias"] = own["beta_proj.bias"].repeat_interleave(2)
    own["convolution"] = torch.cat([q, k.unflatten(0, (2, 2)).repeat_interleave(2, 0).flatten(0, 1)])
    if "ridge_above" in own:
        own["ridge_above"] = own["ridge_above"].repeat_interleave(2, 0)
    whole.load_state_dict(own)
    e = tokens(3, 6, 8)
    torch.testing.assert_close(grouped(e), whole(e))
    moved, state = grouped.advance(e[:, :4], grouped.init_state(3))
    step, _ = grouped.step(e[:, 4], state)
    torch.testing.assert_close(torch.cat([moved, step[:, None]], 1), whole(e)[:, :5])
    _, of_all = whole.advance(e[:, :4], whole.init_state(3))
    for part, other in zip(state.memory, of_all.memory, strict=True):
        assert part.numel() == other.numel() / 2
    with pytest.raises(ArgumentError, match="n_kv_heads must divide n_heads = 4, but is 3: pass a divisor"):
        AttentionConfig(8, 4, n_kv_heads=3)


def test_products_of_grouped_heads_are_those_of_every_head():
    net = layer("linear", 8, 4, n_kv_heads=2)
    e = tokens(5, 8)
    w_kq, w_pv = net.products()
    expected = sum(((e @ kq.mT @ e.mT).tril() @ e) @ pv.mT for kq, pv in zip(w_kq, w_pv, strict=True))
    torch.testing.assert_close(net(e), expected)


@each_attention
def test_keys_are_convolved_over_time_where_asked(attention):
    net = layer(attention, 4, 2, convolution=3, normalise=False)
    seen = []
    net.key.register_forward_hook(lambda module, inputs, output: seen.append(output))
    e = tokens(6, 4)
    net(e)
    past = functional.pad(e @ net.k_proj.weight.mT, (0, 0, 2, 0))
    lagged = sum(net.convolution[4:, lag] * past[2 - lag : 8 - lag] for lag in range(3))
    torch.testing.assert_close(seen[0].transpose(0, 1).flatten(1), functional.silu(lagged))


@each_attention
def test_keys_are_those_of_the_token_before_where_asked(attention):
    net, plain, e = layer(attention, 4, 2, key_shift=True), layer(attention, 4, 2), tokens(6, 4)
    keys = {}
    for name, one in (("shifted", net), ("plain", plain)):
        one.key.register_forward_hook(lambda module, inputs, output, name=name: keys.update({name: output}))
        one(e)
    assert not keys["shifted"][:, 0].any()
    torch.testing.assert_close(keys["shifted"][:, 1:], keys["plain"][:, :-1])


@each_attention
def test_forget_factors_of_1_remember_all_and_of_0_forget_all_but_the_token_itself(attention):
    net, plain, e = layer(attention, 6, 2, forget=True, forget_cap=1.0), layer(attention, 6, 2), tokens(7, 6)
    for bias, expected in ((60.0, plain(e)), (-60.0, torch.cat([plain(one) for one in e.split(1)]))):
        nn.init.constant_(net.forget_proj.bias, bias)
        torch.testing.assert_close(net(e), expected)


@pytest.mark.parametrize("ridge", [0.03, 2.0])
def test_a_mesa_layer_reads_the_ridge_regression_of_values_on_keys_up_to_each_token(ridge):
    config = AttentionConfig(6, 2, key_size=4, value_size=3, normalise=False)
    net, e = MesaAttention(config, stream(0, "init")).double(), tokens(9, 6)
    net.ridge = ridge
    expected = torch.zeros_like(e)
    for w_q, w_k, w_v, p in zip(net.w_q, net.w_k, net.w_v, net.p, strict=True):
        q, k, v = (e @ weights.mT for weights in (w_q, w_k, w_v))
        for t in range(9):
            seen = slice(t + 1)
            gram = k[seen].mT @ k[seen] + ridge * torch.eye(4).double()
            fitted = torch.linalg.solve(gram, k[seen].mT @ v[seen])
            expected[t] += p @ fitted.mT @ q[t]
    torch.testing.assert_close(net(e), expected, rtol=1e-11, atol=1e-11)


def test_rotary_scores_depend_on_how_far_apart_tokens_are_alone():
    q, k = torch.randn(2, 1, 2, 7, 6, generator=stream(0, "rotary"), dtype=torch.float64)
    times = torch.arange(7)
    early, late = (rotated(q, times + start) @ rotated(k, times + start).mT for start in (0, 1000))
    torch.testing.assert_close(early, late, rtol=1e-9, atol=1e-9)
    assert not torch.allclose(early, q @ k.mT)
    torch.testing.assert_close(rotated(q, times).norm(dim=-1), q.norm(dim=-1))


@pytest.mark.parametrize("copied", [lambda net: net, copy.deepcopy, lambda net: net.double()])
def test_weight_decay_leaves_ridges_and_gates_alone(copied):
    """One step of AdamW with and without it: they are equal, and everything else that is not 0 is not."""
    config = CausalTransformerConfig(AttentionConfig(8, 2, forget=True, beta=True), attention="mesa", mlp=1)
    kept = {f"layers.0.attention.{name}" for name in ("ridge_above", "forget_proj.bias", "beta_proj.bias")}

    def after_a_step(state, decay):
        nets = [copied(CausalTransformer(config, stream(seed, "init"))) for seed in range(2)]
        plan = Training(1, 2, optimizer="adamw", weight_decay=decay, learning_rate=0.1, schedule="constant")
        one = state(nets, plan)
        one.update(torch.randn(2, 5, 8, generator=stream(0, "e")).to(next(nets[0].parameters()).dtype))
        return one.tensors()

    for state in (
        lambda nets, plan: ModuleState(nets[0], lambda net, e: net(e).square().mean(), plan),
        lambda nets, plan: EnsembleState(nets, lambda all_, e: all_(e).square().flatten(1).mean(1), plan),
    ):
        plain, decayed = (after_a_step(state, decay) for decay in (0.0, 0.5))
        weights = {name for name in plain if name.startswith("weights/")}
        same = {name.removeprefix("weights/") for name in weights if torch.equal(plain[name], decayed[name])}
        assert same == kept | {"layers.0.attention.forget_proj.weight", "layers.0.attention.beta_proj.weight"}


def test_records_of_earlier_versions_may_have_a_field_for_checks():
    config = CausalTransformerConfig(AttentionConfig(8, 2, forget=True), 2, ("softmax", "mesa"))
    record = to_record(config)
    assert "check" not in record["heads"]
    record["heads"]["check"] = False
    assert from_record(record, CausalTransformerConfig) == config


def test_marks_are_those_that_other_trainers_look_for():
    net = MesaAttention(AttentionConfig(8, 2, forget=True))
    marked = {name for name, weight in net.named_parameters() if getattr(weight, "_no_weight_decay", False)}
    assert marked == {"ridge_above", "forget_proj.bias"}


@pytest.mark.parametrize("last", [0, 3, 9])
@pytest.mark.parametrize("options", [{}, EVERYTHING, {"n_kv_heads": 1, "ridge_kind": "relative"}, {"window": 2}])
@each_attention
def test_the_last_tokens_alone_are_told_as_among_all(attention, options, last, unchecked):
    """And nothing else changes, neither the state after them nor what patterns are seen."""
    net = CausalTransformer(
        CausalTransformerConfig(AttentionConfig(8, 2, **options), 2, ("linear", attention), mlp=1, layer_norm=True),
        stream(0, "init"),
    ).double()
    e = tokens(2, 7, 8)
    own = slice(max(7 - last, 0), None)
    torch.testing.assert_close(net(e, last=last), net(e)[:, own])
    _, before = net.advance(e[:, :3], net.init_state(2))
    for part, mask in ((e, None), (e, torch.arange(7) >= torch.tensor([[0], [4]]))):
        start = net.init_state(2) if mask is not None else before
        whole, state = net.advance(part, start, mask)
        told, after = net.advance(part, start, mask, last=last)
        torch.testing.assert_close(told, whole[:, own])
        torch.testing.assert_close(after, state)
    net.layers[1].attention.pattern.register_forward_hook(lambda module, inputs, output: 2 * output)
    torch.testing.assert_close(net(e, last=last), net(e)[:, own])


def test_a_wrong_number_of_last_tokens_is_refused():
    with pytest.raises(ArgumentError, match="last must be at least 0, but is -1"):
        layer("mesa", 8)(tokens(5, 8), last=-1)


class Reads(TorchDispatchMode):
    """Counts how often the host waits for a number; numbers of iterations are kept there, whole ones on the CPU."""

    count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        waits = any(name in str(func) for name in ("_local_scalar_dense", "equal.default", "nonzero"))
        self.count += waits and args[0].dtype != torch.int64
        return func(*args, **(kwargs or {}))


class Lists(TorchFunctionMode):
    """Counts the lists that are made of tensors, which the mode above does not see."""

    count = 0

    def __torch_function__(self, func, types, args=(), kwargs=None):
        self.count += func is torch.Tensor.tolist
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("forget", [False, True])
@each_attention
def test_without_reading_values_nothing_waits_for_a_number(attention, forget):
    options = {"width": 8, "n_heads": 2, "forget": forget, "beta": True, "convolution": 2}
    counts = {}
    for reading in (True, False):
        net = CausalTransformerConfig(AttentionConfig(**options), 2, attention).build(stream(0, "init")).double()
        mask = torch.arange(20).expand(2, 20) > 2
        switch = contextlib.nullcontext() if reading else without_reading_values(on_cpu=True)
        with Reads() as reads, Lists() as lists, switch:
            y, state = net.advance(tokens(2, 20, 8), net.init_state(2), mask)
            for t in range(2):
                step, state = net.step(tokens(2, 3, 8)[:, t], state)
            (y.sum() + step.sum()).backward()
        counts[reading] = reads.count + lists.count
        assert all(weight.grad.isfinite().all() for weight in net.parameters() if weight.grad is not None)
    assert counts[False] == 0 < counts[True]
