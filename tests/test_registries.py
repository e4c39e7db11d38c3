"""Everything registered keeps its contract."""

import dataclasses
import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pytest
import torch
from cases import in_turn
from examples import examples

from mesascope import compare, identify
from mesascope.constructions import Construction
from mesascope.errors import ArgumentError, ArgumentTypeError
from mesascope.identification import candidates
from mesascope.learners import DeltaRule, GradientDescent, LastLabel, LeastSquares, Mean, Titans
from mesascope.nets import (
    Alternating,
    AttentionConfig,
    CausalTransformerConfig,
    Concatenated,
    InContextRegressorConfig,
    SequencePredictorConfig,
    TransformerConfig,
)
from mesascope.records import _REGISTRY, facts, from_record, register, registered, to_record, updated
from mesascope.streams import stream
from mesascope.tasks import LinearDynamics, LinearRegression
from mesascope.testing import check_family, check_learner, check_predictor
from mesascope.training import Ensemble, Training, half_mse

ATTENTIONS = list(registered("attention"))


def each(kind, **said):
    """All examples of a kind, with these facts, as test parameters."""
    return [pytest.param(build, id=name) for name, build in examples(kind, **said)]


@pytest.mark.parametrize("kind", ["family", "net", "layout"])
def test_a_record_is_the_inverse_of_its_config(kind):
    for name, build in examples(kind):
        config = build()
        record = json.loads(json.dumps(to_record(config)))
        assert (record["kind"], record["name"]) == (kind, name)
        assert from_record(record) == config


def in_numpy(value):
    """Numbers and truth values as NumPy's, in tuples and nested configs too."""
    if isinstance(value, bool | int | float):
        return np.array(value)[()]
    if dataclasses.is_dataclass(value):
        return dataclasses.replace(value, **{name: in_numpy(one) for name, one in fields(value).items()})
    return tuple(map(in_numpy, value)) if type(value) is tuple else value


def fields(config):
    return {field.name: getattr(config, field.name) for field in dataclasses.fields(config) if field.init}


KINDS = ("family", "net", "layout", "method", "learner", "predictor")


# Two of these hold a function, and so have no record.
FUNCTIONS = ("kernel-gradient-descent", "on-features")
PLAIN = [(name, build) for kind in KINDS for name, build in examples(kind) if name not in FUNCTIONS]


@in_turn(("name", "build"), PLAIN)
def test_numpys_scalars_are_kept_as_plain_numbers(name, build, unchecked):
    config = build()
    if dataclasses.is_dataclass(config):
        again = in_numpy(config)
        assert (again, repr(again)) == (config, repr(config))
    else:
        held = {key: getattr(config, key) for key in to_record(config) if key not in ("kind", "name")}
        given = {key: one.tolist() if isinstance(one, torch.Tensor) else in_numpy(one) for key, one in held.items()}
        again = type(config)(**given)
    assert json.dumps(to_record(again)) == json.dumps(to_record(config))


@pytest.mark.parametrize("count", [np.int64, np.uint8])
def test_counts_and_numbers_of_numpy_are_taken_as_arguments(count, unchecked):
    family = LinearRegression(n_context=count(6))
    assert family == LinearRegression(n_context=6)
    assert hash(family) == hash(LinearRegression(n_context=6))
    assert Training(count(200), count(3), learning_rate=np.float32(0.5)) == Training(200, 3, learning_rate=0.5)
    gd, tenth = GradientDescent(count(2), np.float32(0.1)), LeastSquares(np.float32(0.1))
    assert tenth.ridge == float(np.float32(0.1))
    assert type(tenth.ridge) is float
    assert compare(gd, {"other": tenth}, family, tasks=count(200)).rows["other"].mse_ratio.n == 200
    few = [one for one in candidates(sklearn=False) if one.name == "mean"]
    assert identify(Mean(), family, few, count(250), count(1), tolerance=np.float32(0.25)).names == ("mean",)
    for value in (np.array(6), torch.tensor(6), np.float64(6), np.True_):
        with pytest.raises(ArgumentTypeError, match="n_context must be an integer, but is"):
            LinearRegression(n_context=value)


@dataclasses.dataclass(frozen=True)
class Inner:
    size: int = 3


@dataclasses.dataclass(frozen=True)
class Other:
    rate: float = 0.1
    steps: int = 5


# A field's type, a value of it, and the same value with a dataclass in the place of each mark.
NESTED = {
    "dataclass": (Inner, "@"),
    "optional": (Inner | None, "@"),
    "union": (int | Other | Inner, "@"),
    "list": (list[Inner], ["@", "@"]),
    "tuple": (tuple[Inner, ...], ["@"]),
    "pair": (tuple[int, Inner], [4, "@"]),
    "sequence": (Sequence[Inner], ["@"]),
    "mapping": (Mapping[str, Inner], {"a": "@"}),
    "either": (tuple[Inner | Other, ...], ["@"]),
    "optional tuple": (tuple[Inner, ...] | None, ["@"]),
    "deep": (dict[str, tuple[list[Inner | None], ...]], {"a": [[None, "@"]]}),
    "anything": (tuple[Any, ...], [["@"]]),
}


def with_marks(value, mark):
    """A value with something in the place of each of its marks."""
    if isinstance(value, dict):
        return {key: with_marks(one, mark) for key, one in value.items()}
    return [with_marks(one, mark) for one in value] if isinstance(value, list) else mark if value == "@" else value


@in_turn("name", NESTED)
def test_a_misspelt_key_is_refused_at_any_depth(name):
    kind, shape = NESTED[name]
    outer = dataclasses.make_dataclass("Outer", [("field", kind)], frozen=True)
    known = {"kind": "family", "name": "linear-regression"} if name == "anything" else {}
    key = "d_in" if known else "size"
    config = from_record({"field": with_marks(shape, known | {key: 7})}, outer)
    assert f"{key}=7" in repr(config)
    assert from_record(json.loads(json.dumps(to_record(config))), outer) == config
    for typo, hint in ((key.replace("i", "y"), f"did you mean {key!r}?"), ("hidden", "its keys are")):
        with pytest.raises(ArgumentError) as refused:
            from_record({"field": with_marks(shape, known | {typo: 7})}, outer)
        assert f"has the unknown key {typo!r}: {hint}" in str(refused.value)
    if not known:  # nor does a registered class stand where another one is declared
        with pytest.raises(ArgumentTypeError, match=r"must be of type .*, but is of type Zero: correct it"):
            from_record({"field": with_marks(shape, {"kind": "learner", "name": "zero"})}, outer)


def test_a_record_in_a_container_has_its_declared_types():
    outer = dataclasses.make_dataclass("Outer", [("field", tuple[int, Inner])], frozen=True)
    for wrong in ([4, {"size": "x"}], [4], ["x", {"size": 4}], {"size": 4}, 4):
        with pytest.raises(ArgumentTypeError, match=r"(Outer|Inner)\.(field|size)"):
            from_record({"field": wrong}, outer)


class Scaled:
    def __init__(self, weights):
        self.weights = weights

    def __call__(self, context, xq):
        return xq @ torch.as_tensor(self.weights).to(xq)


@pytest.mark.parametrize("weights", [np.array([[2.0], [1.0]]), torch.nn.Parameter(torch.tensor([[2.0], [1.0]]))])
def test_arrays_of_a_learner_become_lists_and_those_of_a_dataclass_are_refused_in_one_sentence(weights, monkeypatch):
    outer = dataclasses.make_dataclass("Outer", ["field"], frozen=True)
    with pytest.raises(ArgumentTypeError, match=r"^a config must be made of .* but holds .* \(\w+\): store what .*\.$"):
        to_record(outer(weights))
    monkeypatch.setattr("mesascope.records._REGISTRY", {**_REGISTRY, "learner": {**_REGISTRY["learner"]}})
    register("learner", "scaled")(Scaled)
    record = to_record(Scaled(weights))
    assert record == {"kind": "learner", "name": "scaled", "weights": [[2.0], [1.0]]}
    assert from_record(record).weights == [[2.0], [1.0]]


def test_records_within_lists_are_updated():
    old = {"kind": "family", "name": "linear-regression", "d_in": 7}
    new = to_record(LinearRegression(d_in=7))
    assert new != old
    assert updated({"of mine": [old, [old], 3]}) == {"of mine": [new, [new], 3]}


@in_turn(("name", "build"), examples("attention"))
def test_attention_is_built_from_a_config_with_a_record(name, build):
    config = build()
    layer = registered("attention")[name](config, stream(0, "init"))
    assert from_record(json.loads(json.dumps(to_record(layer.config))), AttentionConfig) == config


@in_turn(("name", "build"), examples("net"))
def test_a_network_is_built_from_its_record(name, build):
    net = build().build(stream(0, "init"))
    again = from_record(json.loads(json.dumps(to_record(net.config)))).build(stream(0, "init"))
    assert type(again) is type(net)
    assert again.state_dict().keys() == net.state_dict().keys()
    for key, weight in net.state_dict().items():
        assert torch.equal(again.state_dict()[key], weight), key


@in_turn(("name", "build"), examples("net"))
def test_networks_without_a_generator_follow_the_global_one(name, build):
    torch.manual_seed(0)
    first, second = (next(iter(build().build().parameters())) for _ in range(2))
    torch.manual_seed(0)
    again = next(iter(build().build().parameters()))
    assert torch.equal(first, again)
    assert not torch.equal(first, second)


@pytest.mark.parametrize("build", each("net", of="learner"))
def test_networks_that_learn_keep_the_contract(build):
    config = build()
    ordered = isinstance(getattr(config, "layout", None), Alternating)
    check_learner(config.build(stream(0, "init")), permutation_invariant=not ordered)


@pytest.mark.parametrize("build", each("net", of="predictor"))
def test_networks_that_predict_keep_the_contract(build):
    check_predictor(build().build(stream(0, "init")))


@pytest.mark.parametrize("build", each("learner"))
def test_learners_keep_the_contract(build):
    learner = build()
    check_learner(learner, permutation_invariant=not isinstance(learner, LastLabel | DeltaRule | Titans))


@pytest.mark.parametrize("build", each("predictor"))
def test_predictors_keep_the_contract(build):
    check_predictor(build())


@pytest.mark.parametrize("build", each("family"))
def test_families_keep_the_contract(build):
    check_family(build())


@pytest.mark.parametrize(
    "extra", [{"dynamics": "contracting"}, {"dynamics": "fixed"}, {"start": "uniform"}, {"clip": 0.5}, {"noise": 0.0}]
)
def test_linear_dynamics_keeps_the_contract_in_all_its_variants(extra):
    check_family(LinearDynamics(d=3, length=5, **extra))


@in_turn("x", ["uniform", "normal", "exponential", "laplace", "mixture"])
@in_turn("extra", [{}, {"noise": 0.3}, {"covariance": [1.0, 2.0, 0.5]}, {"pool": 20}, {"n_query": 4}])
def test_linear_regression_keeps_the_contract_in_all_its_variants(x, extra):
    check_family(LinearRegression(n_context=5, d_in=3, x=x, d_out=2, **extra))


@in_turn("attention", [name for name in ATTENTIONS if "over_context" in facts("attention", name)])
@in_turn("layout", [Concatenated(), Alternating()])
@in_turn(
    "extra",
    [
        {},
        {"n_heads": 2, "key_size": 3},
        {"n_layers": 3, "shared": True, "damping": 0.5},
        {"n_layers": 3},
        {"n_layers": 2, "mlp": 2},
        {"n_layers": 2, "layer_norm": True},
        {"n_layers": 2, "token_clip": 0.5},
    ],
)
def test_regressors_keep_the_contract(attention, layout, extra):
    transformer = TransformerConfig(width=layout.width(3, 1), attention=attention, **extra)
    net = InContextRegressorConfig(transformer, layout).build(stream(0, "init"))
    check_learner(net, permutation_invariant=isinstance(layout, Concatenated))


CAUSAL_VARIANTS = [
    {},
    {"n_heads": 2, "key_size": 5, "value_size": 2},
    {"normalise": True, "forget": True, "beta": True},
    {"normalise": False, "init_scale": 0.1},
    {"dpfp": 2},
    {"convolution": 3},
    {"positions": 4, "window": 3},
    {"key_shift": True, "rotary": True, "key_size": 4},
    {"ridge_per_dimension": True, "ridge_kind": "constant", "forget": True},
    {"output_norm": True, "output_gate": True},
]


@in_turn("attention", ATTENTIONS)
@in_turn("extra", CAUSAL_VARIANTS)
def test_causal_layers_keep_the_contract_alone_and_as_an_ensemble(attention, extra, unchecked):
    """Shapes within causal layers are checked in tests/test_causal_layers.py."""
    heads = AttentionConfig(**{"width": 8, "n_heads": 4, "init_scale": 2.0, **extra})
    config = SequencePredictorConfig(CausalTransformerConfig(heads, 2, attention, mlp=2, layer_norm=True), 3)
    nets = [config.build(stream(seed, "init")) for seed in range(2)]
    check_predictor(nets[0], LinearDynamics(d=3, length=5))
    ensemble, sequence = Ensemble(nets), LinearDynamics(d=3, length=5).sample(4, stream(0, "ensemble"))
    both = ensemble(sequence.expand(2, *sequence.shape))
    for net, answer in zip(nets, both, strict=True):
        torch.testing.assert_close(answer, net(sequence), rtol=1e-4, atol=1e-4)
    half_mse(ensemble, sequence.expand(2, *sequence.shape)).sum().backward()
    for name, weight in ensemble.weights.items():
        assert weight.grad is not None, name
        assert torch.isfinite(weight.grad).all(), name
        assert weight.grad.any(), f"{name} must matter"


@pytest.mark.parametrize("attention", ATTENTIONS)
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "extra", [{}, {"key_shift": True}, {"convolution": 3, "forget": True, "beta": True, "output_norm": True}]
)
def test_causal_layers_take_half_precision_and_autocast(attention, extra, dtype):
    layer = registered("attention")[attention](AttentionConfig(8, 4, **extra), stream(0, "init"))
    tokens = torch.randn(2, 300, 8, generator=stream(0, "tokens"))
    tokens[:, 5] = 0.0
    expected = layer(tokens)
    with torch.autocast("cpu", dtype=dtype):
        mixed = layer(tokens)
    half = layer.to(dtype)
    state, steps = half.init_state(2), []
    for token in tokens[:, :40].to(dtype).unbind(1):
        moved, state = half.step(token, state)
        steps.append(moved)
    for rough in (mixed, half(tokens.to(dtype)), torch.stack(steps, 1)):
        assert rough.dtype == dtype
        same = expected[:, : rough.shape[1]]
        assert (rough - same).norm() < 10 * torch.finfo(dtype).eps * same.norm()


@pytest.mark.parametrize("build", each("construction", of="predictor"))
@in_turn(
    ("d", "steps", "start"),
    [(1, 1, False), (1, 5, True), (3, 1, True), (3, 2, False), (3, 5, True), (10, 2, True), (10, 5, False)],
)
def test_constructions_that_predict_equal_their_algorithms(build, d, steps, start):
    w0 = torch.randn(d, d, dtype=torch.float64, generator=stream(0, "w0")) / d**0.5 if start else None
    network, algorithm = construction = build(d, steps, w0)
    assert isinstance(construction, Construction)
    sequence = LinearDynamics(d, 30).sample(5, stream(1, "constructions")).double()
    with torch.no_grad():
        expected = algorithm(sequence)
        torch.testing.assert_close(network(sequence), expected, rtol=1e-12, atol=1e-12)
    check_predictor(network.float(), LinearDynamics(d, 7))
    blind = sequence @ (torch.zeros_like(sequence[0, :1].mT) if w0 is None else w0.mT)
    assert float((expected - blind).abs().max()) > 1e-2, "an algorithm that does nothing shows nothing"


@pytest.mark.parametrize("build", each("construction", of="learner", exact=True))
@in_turn(("d_in", "d_out", "n_context"), [(1, 1, 1), (3, 2, 7), (10, 1, 10), (4, 5, 2), (6, 1, 40)])
@in_turn("steps", [1, 2, 5])
@in_turn("start", [False, True])
def test_constructions_that_learn_equal_their_algorithms(build, d_in, d_out, n_context, steps, start):
    w0 = torch.randn(d_out, d_in, dtype=torch.float64, generator=stream(0, "w0")) if start else None
    network, algorithm = construction = build(d_in, d_out, n_context, steps, w0)
    assert isinstance(construction, Construction)
    family = LinearRegression(n_context, d_in, d_out, n_query=5)
    episode = family.sample(9, stream(1, "constructions")).to(torch.float64)
    with torch.no_grad():
        expected = algorithm.trajectory(episode.context, episode.xq)
        # The layers that come before the first step predict what no step does.
        layers = network.trajectory(episode.context, episode.xq)
        expected_layers = torch.cat([expected[:1].expand(len(layers) - len(expected), *expected[0].shape), expected])
        torch.testing.assert_close(layers, expected_layers, rtol=1e-12, atol=1e-12)
        torch.testing.assert_close(network(episode.context, episode.xq), expected[-1], rtol=1e-12, atol=1e-12)
    assert float((expected[-1] - expected[0]).abs().max()) > 1e-3, "an algorithm that does nothing shows nothing"


@pytest.mark.parametrize("build", each("construction", of="learner"))
def test_the_network_of_a_construction_is_that_of_its_record(build):
    network = build(3, 2, 5, 2, None).network
    again = from_record(json.loads(json.dumps(to_record(network.config)))).build().double()
    again.load_state_dict(network.state_dict())
    episode = LinearRegression(5, 3, 2).sample(4, stream(0, "records")).to(torch.float64)
    assert torch.equal(again(episode.context, episode.xq), network(episode.context, episode.xq))


@pytest.mark.parametrize("build", each("construction", of="predictor"))
def test_the_predictor_of_a_construction_is_that_of_its_record(build):
    network = build(3, 2, None).network
    again = from_record(json.loads(json.dumps(to_record(network.config)))).build().double()
    again.load_state_dict(network.state_dict())
    sequence = LinearDynamics(3, 8).sample(4, stream(0, "records")).double()
    assert torch.equal(again(sequence), network(sequence))
