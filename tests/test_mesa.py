"""The mesa-layer: every method beside a dense solve at every token, and its derivatives."""

import itertools

import children
import numpy as np
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch.func import grad, hessian, jacfwd, jacrev, vmap
from torch.nn.functional import logsigmoid, normalize, pad
from torture_mesa import is_right, judged

from mesascope.errors import ArgumentError, ArgumentTypeError, NumericalError
from mesascope.ops import (
    MESA_RIDGES,
    MesaState,
    mesa_attention,
    mesa_attention_reference,
    mesa_chebyshev,
    mesa_conjugate_gradients,
    mesa_neumann,
    mesa_recursion,
    mesa_state,
    mesa_step,
    without_reading_values,
)
from mesascope.streams import stream
from mesascope.tasks import LinearDynamics

METHODS = {
    "exact": mesa_attention,
    "reference": mesa_attention_reference,
    "cg": mesa_conjugate_gradients,
    "neumann": mesa_neumann,
    "chebyshev": mesa_chebyshev,
}


def draw(*shape, name="x", dtype=torch.float64):
    return torch.randn(*shape, generator=stream(0, name), dtype=dtype)


def problem(t=37, dk=5, dv=4, heads=3, batch=(2,), forget=3.0, dtype=torch.float64):
    """Queries, keys, values and all that regulates them."""
    shape = (*batch, heads, t)
    return {
        "q": draw(*shape, dk, name="q", dtype=dtype),
        "k": draw(*shape, dk, name="k", dtype=dtype),
        "v": draw(*shape, dv, name="v", dtype=dtype),
        "ridge": draw(heads, dk, name="ridge", dtype=dtype).exp(),
        "log_forget": logsigmoid(draw(*shape, name="forget", dtype=dtype) + forget),
        "beta": torch.sigmoid(draw(*shape, name="beta", dtype=dtype)),
    }


def attend(inputs, method="exact", **options):
    return METHODS[method](**inputs, **options)


def gap(a, b):
    return float((a - b).detach().abs().max() / b.detach().abs().max().clamp(min=1e-300))


def with_gradients(inputs, **options):
    """Outputs, states, and the gradients of one number made of all of them."""
    leaves = {name: tensor.detach().clone().requires_grad_() for name, tensor in inputs.items()}
    y, state = attend(leaves, return_state=True, **options)
    cotangents = [draw(*part.shape, name=f"cotangent-{n}", dtype=part.dtype) for n, part in enumerate((y, *state))]
    cotangents[1] = cotangents[1] + cotangents[1].mT  # H is symmetric, and so must be what is asked of it
    total = sum((part * cotangent).sum() for part, cotangent in zip((y, *state), cotangents, strict=True))
    return [y, *state, *torch.autograd.grad(total, list(leaves.values()), materialize_grads=True)]


@pytest.mark.parametrize("t", [1, 2, 8, 37, 130])
@pytest.mark.parametrize("forget", [0.0, 3.0, 30.0])
def test_outputs_states_and_gradients_are_those_of_dense_solves(t, forget):
    inputs = problem(t, forget=forget)
    for got, expected in zip(with_gradients(inputs), with_gradients(inputs, method="reference"), strict=True):
        assert gap(got, expected) < 1e-10


ENOUGH = {"neumann": {"terms": 500}, "chebyshev": {"terms": 150}, "cg": {"iterations": 60, "tolerance": 1e-13}}


@pytest.mark.parametrize("method", ENOUGH)
def test_long_series_and_many_iterations_agree_with_dense_solves(method, unchecked):
    inputs = problem(t=20, dk=3)
    inputs["ridge"] = inputs["ridge"] + 5
    got = with_gradients(inputs, method=method, **ENOUGH[method])
    for one, expected in zip(got, with_gradients(inputs, method="reference"), strict=True):
        assert gap(one, expected) < 1e-10


@pytest.mark.parametrize("kind", ["constant", "relative"])
@pytest.mark.parametrize("forget", [-14.0, 0.0, 3.0, 30.0])
def test_a_ridge_that_does_not_decay_bears_any_forgetting(kind, forget):
    inputs = problem(130, forget=forget)
    got = with_gradients(inputs, ridge_kind=kind)
    for one, expected in zip(got, with_gradients(inputs, ridge_kind=kind, method="reference"), strict=True):
        assert gap(one, expected) < 1e-10


@pytest.mark.parametrize("ridge", [1e-6, 1e-2])
def test_a_relative_ridge_follows_what_is_known_through_any_forgetting(ridge):
    """Over a few tokens of one chunk it falls by factors that no factorisation of the chunk bears."""
    inputs = problem(40, dk=2)
    inputs["ridge"] = torch.full((3,), ridge, dtype=torch.float64)
    inputs["log_forget"] = -14 * torch.rand(2, 3, 40, generator=stream(0, "gates"), dtype=torch.float64)
    got = with_gradients(inputs, ridge_kind="relative", chunk=5)
    for one, expected in zip(got, with_gradients(inputs, ridge_kind="relative", method="reference"), strict=True):
        assert gap(one, expected) < 1e-14 / ridge + 1e-12


def test_a_relative_ridge_is_a_share_of_the_size_of_what_is_known():
    """So that keys of any length give the same answers, and 1 counts as that size before there is any."""
    inputs = problem(20, batch=())
    inputs["beta"][:, :3] = 0.0
    y, state = attend(inputs, ridge_kind="relative", return_state=True)
    for factor in (1e-4, 1e4):
        other = attend({**inputs, "k": factor * inputs["k"]}, ridge_kind="relative")
        torch.testing.assert_close(factor * other[:, 3:], y[:, 3:], rtol=1e-6, atol=1e-9)
    regulariser = torch.diag_embed(inputs["ridge"] * torch.linalg.matrix_norm(state.H)[:, None])
    last = state.G @ torch.linalg.solve(state.H + regulariser, inputs["q"][:, -1])[..., None]
    torch.testing.assert_close(y[:, -1], last.squeeze(-1))
    assert y[:, :3].count_nonzero() == 0


@pytest.mark.parametrize("kind", MESA_RIDGES)
def test_a_state_is_that_which_attention_leaves_behind(kind):
    inputs = problem(150)
    parts = {name: part for name, part in inputs.items() if name != "q"}
    whole = mesa_state(**parts, ridge_kind=kind)
    for one, expected in zip(whole, attend(inputs, ridge_kind=kind, return_state=True)[1], strict=True):
        torch.testing.assert_close(one, expected)
    first, second = (
        {name: part if name == "ridge" else part[:, :, own] for name, part in parts.items()}
        for own in (slice(None, 70), slice(70, None))
    )
    after = mesa_state(**second, ridge_kind=kind, state=mesa_state(**first, ridge_kind=kind))
    for one, expected in zip(after, whole, strict=True):
        torch.testing.assert_close(one, expected)


@pytest.mark.parametrize("method", ["neumann", "chebyshev"])
def test_series_converge_and_say_how_far(method):
    inputs = problem()
    exact = attend(inputs, method="reference")
    gaps, residuals = [], []
    for terms in (5, 20, 80):
        y, info = attend(inputs, method=method, terms=terms, return_info=True)
        gaps.append(gap(y, exact))
        residuals.append(float(info.residual.max()))
        assert info.iterations == terms
    assert gaps[0] > gaps[1] > gaps[2]
    assert residuals[0] > residuals[1] > residuals[2]


def test_conjugate_gradients_need_one_or_two_steps_where_nothing_is_forgotten():
    """From the factor of a chunk, which then is the inverse."""
    inputs = problem(forget=40.0)
    _, info = attend(inputs, ridge_kind="constant", return_info=True)
    assert info.iterations <= 2
    assert float(info.residual.max()) <= 1e-14


def test_the_residual_of_two_tokens_is_measured():
    inputs = {name: one[..., :2, :] if one.ndim > 3 else one for name, one in problem(batch=(1,)).items()}
    inputs |= {name: inputs[name][..., :2] for name in ("log_forget", "beta")}
    y, info = attend(inputs, return_info=True)
    torch.testing.assert_close(y, attend(inputs))
    assert 0 < float(info.residual.max()) <= 1e-14


def test_the_recursion_refuses_to_forget_all():
    inputs = problem(batch=(1,))
    inputs["log_forget"][..., 3] = -torch.inf
    with pytest.raises(ArgumentError, match="log_forget must be finite for the recursion, but is -inf"):
        mesa_recursion(**inputs)


@pytest.mark.parametrize("options", [{}, {"cu_seqlens": torch.tensor([0, 5, 37])}, {"ridge_kind": "relative"}])
def test_tensors_lie_where_the_inputs_do_whatever_the_default_device(options):
    inputs = problem(batch=(1,))
    expected = attend(inputs, **options)
    with torch.device("meta"):
        found = attend(inputs, **options)
    torch.testing.assert_close(found, expected, rtol=0, atol=0)


@pytest.mark.parametrize("method", ["reference", "exact"])
@pytest.mark.parametrize("size", [1e-11, 1.0, 1e10])
def test_a_relative_ridge_is_that_share_of_H_however_small_or_large_H_is(method, size):
    """Squares of its entries leave the range of float32: after a long gap without pairs, say."""
    inputs = problem(dtype=torch.float32) | {"ridge": torch.full((3,), 0.1)}
    inputs["k"] = size * inputs["k"]
    options = {"ridge_kind": "relative", "method": method}
    wide = attend({name: tensor.double() for name, tensor in inputs.items()}, **options)
    assert gap(attend(inputs, **options).double(), wide) < 1e-5


@pytest.mark.parametrize(("iterations", "said"), [(1, "1 iteration"), (np.int64(2), "2 iterations")])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_conjugate_gradients_take_no_more_iterations_than_given_and_say_so(unchecked, dtype, iterations, said):
    """Nor again in float64, where single precision does not arrive."""
    inputs, options = problem(forget=0.0, dtype=dtype), {"ridge_kind": "constant", "iterations": iterations}
    with pytest.raises(NumericalError, match=f"residual must reach 1e-12, but does not in {said} of conjugate"):
        mesa_conjugate_gradients(**inputs, **options, tolerance=1e-12)
    assert mesa_conjugate_gradients(**inputs, **options, return_info=True)[1].iterations == iterations


@settings(max_examples=40)
@given(
    t=st.integers(0, 20),
    dk=st.integers(1, 7),
    dv=st.integers(1, 5),
    heads=st.integers(1, 3),
    batch=st.lists(st.integers(0, 2), max_size=2),
    chunk=st.integers(1, 9),
)
def test_any_shape_and_chunk_gives_the_same(t, dk, dv, heads, batch, chunk):
    inputs = problem(t, dk, dv, heads, tuple(batch))
    got = with_gradients(inputs, chunk=chunk)
    for one, expected in zip(got, with_gradients(inputs, method="reference"), strict=True):
        assert one.shape == expected.shape
        assert one.numel() == 0 or gap(one, expected) < 1e-10


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize(("t", "batch"), [(0, (2,)), (1, ()), (5, (0,)), (5, (2, 1))])
def test_every_method_takes_no_token_and_no_sequence(method, t, batch):
    inputs = problem(t, dk=3, heads=2, batch=batch)
    inputs["ridge"] = inputs["ridge"] + 3  # for the series
    terms = {"neumann": {"terms": 200}, "chebyshev": {"terms": 200}}.get(method, {})
    y, state = attend(inputs, method=method, return_state=True, **terms)
    expected, last = attend(inputs, method="reference", return_state=True)
    torch.testing.assert_close(y, expected, rtol=1e-6, atol=1e-6)
    torch.testing.assert_close(state.H, last.H)


@pytest.mark.parametrize("method", [mesa_attention, mesa_attention_reference, mesa_recursion, mesa_conjugate_gradients])
def test_without_forgetting_it_is_ridge_regression_on_the_past(method):
    inputs = problem()
    y = method(inputs["q"], inputs["k"], inputs["v"], ridge=inputs["ridge"])
    k, v = inputs["k"][0, 1, :20], inputs["v"][0, 1, :20]
    w = torch.linalg.solve(k.mT @ k + torch.diag(inputs["ridge"][1]), k.mT @ v)
    torch.testing.assert_close(y[0, 1, 19], inputs["q"][0, 1, 19] @ w, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("split", [1, 7, 36])
def test_a_prompt_in_chunks_goes_on_token_by_token(split):
    inputs = problem()
    whole, last = attend(inputs, return_state=True)
    ridge = inputs.pop("ridge")
    prompt = {name: tensor[:, :, :split] for name, tensor in inputs.items()}
    y, state = mesa_attention(**prompt, ridge=ridge, return_state=True)
    torch.testing.assert_close(y, whole[:, :, :split], rtol=1e-9, atol=1e-10)
    for t in range(split, 37):
        token = {name: tensor[:, :, t] for name, tensor in inputs.items()}
        y, state = mesa_step(**token, state=state, ridge=ridge)
        torch.testing.assert_close(y, whole[:, :, t], rtol=1e-9, atol=1e-10)
    torch.testing.assert_close(state.H, last.H, rtol=1e-10, atol=1e-10)


def test_padding_is_neither_read_nor_answered():
    inputs = problem()
    lengths = torch.tensor([20, 37])
    y, state = attend(inputs, lengths=lengths, return_state=True)
    short = {name: tensor if name == "ridge" else tensor[:1, :, :20] for name, tensor in inputs.items()}
    expected, last = attend(short, return_state=True)
    torch.testing.assert_close(y[:1, :, :20], expected, rtol=1e-10, atol=1e-10)
    torch.testing.assert_close(state.H[:1], last.H, rtol=1e-10, atol=1e-10)
    assert not y[0, :, 20:].any()


def test_a_fixed_number_of_conjugate_gradients_is_taken_whatever_they_reach():
    inputs = problem(forget=0.0)
    y, info = attend(inputs, method="cg", ridge_kind="constant", tolerance=0.0, iterations=4, return_info=True)
    assert info.iterations == 4
    exact = attend(inputs, method="reference", ridge_kind="constant")
    assert 1e-6 < gap(y, exact) < 0.3
    assert not attend(inputs, method="cg", ridge_kind="constant", tolerance=0.0, iterations=0).any()


def test_the_residual_told_is_that_of_what_is_returned():
    """Not that of the recurrence, which in single precision falls below a tolerance while the true one does not."""
    inputs = problem(130, dk=16, dtype=torch.float32)
    inputs |= {"ridge": torch.full((3,), 1e-2), "log_forget": torch.full((2, 3, 130), 0.9).log(), "beta": None}
    for name in "qk":
        inputs[name] = normalize(inputs[name], dim=-1)
    with pytest.raises(NumericalError, match="the relative residual must reach 1e-07, but does not in 200 iterations"):
        attend(inputs, method="cg", tolerance=1e-7, iterations=200)
    _, info = attend(inputs, method="cg", tolerance=0.0, iterations=30, return_info=True)
    assert 1e-6 < float(info.residual.max()) < 1e-4
    _, info = attend(inputs, method="cg", tolerance=0.0, iterations=0, return_info=True)
    torch.testing.assert_close(info.residual, torch.ones(2, 3))


@pytest.mark.parametrize(("t", "total"), [(65, 0.0), (65, 4.0), (65, 8.0), (200, 30.0)])
@pytest.mark.parametrize("ridge", [1.0, 0.1])
def test_forgetting_within_a_chunk_costs_no_digits(t, total, ridge):
    """Keys are scaled by what is forgotten there: of what the state before would answer a hundredth may be left."""
    wide = {name: normalize(draw(2, 3, t, 8, name=name), dim=-1) for name in "qkv"}
    wide["log_forget"] = torch.full((2, 3, t), -total / t, dtype=torch.float64)
    gradients = {}
    for method, dtype in (("reference", torch.float64), ("exact", torch.float32), ("reference", torch.float32)):
        leaves = {name: part.to(dtype).requires_grad_() for name, part in wide.items()}
        y = METHODS[method](**leaves, ridge=ridge)
        gradients[method, dtype] = [y, *torch.autograd.grad((y * y.detach().sin()).sum(), list(leaves.values()))]
    exact = gradients["reference", torch.float64]
    for own, dense, expected in zip(
        gradients["exact", torch.float32], gradients["reference", torch.float32], exact, strict=True
    ):
        assert gap(own, expected) < 2 * gap(dense, expected) + 1e-6


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"ridge_kind": "constant"},
        {"ridge_kind": "relative"},
        {"method": "reference"},
        {"method": "cg"},
        {"method": "cg", "ridge_kind": "relative"},
        {"method": "neumann", "terms": 3},
        {"method": "chebyshev", "terms": 3},
    ],
)
def test_first_and_second_derivatives_face_finite_differences(options, unchecked):
    inputs = problem(t=5, dk=3, dv=2, heads=1, batch=())
    names = list(inputs)

    def function(*tensors):
        own = {} if options.get("method") == "reference" else {"chunk": 2}
        y, state = attend(dict(zip(names, tensors, strict=True)), return_state=True, **own, **options)
        return y, (state.H + state.H.mT), state.G

    # log_forget stands away from 0, its bound, so that differences may be taken on both sides.
    inputs["log_forget"] = inputs["log_forget"] - 0.1
    leaves = [tensor.requires_grad_() for tensor in inputs.values()]
    assert torch.autograd.gradcheck(function, leaves)
    assert torch.autograd.gradgradcheck(function, leaves, fast_mode=True)


@pytest.mark.parametrize("options", [{}, {"ridge_kind": "constant"}, {"method": "cg"}])
def test_functional_transforms_agree(options):
    inputs = problem(t=11, dk=3, dv=2, heads=2, batch=())

    def function(k):
        return attend({**inputs, "k": k}, chunk=4, **options)

    def number(k):
        return function(k).square().sum()

    torch.testing.assert_close(jacfwd(function)(inputs["k"]), jacrev(function)(inputs["k"]), rtol=1e-9, atol=1e-9)
    several = torch.stack([inputs["k"], 2 * inputs["k"]])
    expected = torch.stack([grad(number)(k) for k in several])
    torch.testing.assert_close(vmap(grad(number))(several), expected, rtol=1e-9, atol=1e-9)
    curvature = hessian(number)(inputs["k"])
    torch.testing.assert_close(curvature, curvature.permute(3, 4, 5, 0, 1, 2), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("ridge", [1e-4, 1.0, 1e4])
@pytest.mark.parametrize("keys", ["zero", "repeated", "unit"])
def test_extreme_ridges_and_keys(ridge, keys):
    inputs = problem(forget=30.0)
    if keys == "zero":
        inputs["k"] = torch.zeros_like(inputs["k"])
    if keys == "repeated":
        inputs["k"] = inputs["k"][:, :, :1].expand_as(inputs["k"])
    if keys == "unit":
        inputs["k"] = normalize(inputs["k"], dim=-1)
    inputs["ridge"] = torch.full((3,), ridge, dtype=torch.float64)
    torch.testing.assert_close(attend(inputs), attend(inputs, method="reference"), rtol=1e-7, atol=1e-9)


@pytest.mark.parametrize("factor", [0.5, 0.1])
def test_strong_forgetting_is_as_accurate_as_dense_solves(factor):
    inputs = problem()
    inputs["log_forget"] = torch.full_like(inputs["log_forget"], factor).log()
    exact = attend(inputs, method="reference")
    assert gap(attend(inputs), exact) < 1e-8
    rough = {name: tensor.float() for name, tensor in inputs.items()}
    assert gap(attend(rough), exact) < 3 * gap(attend(rough, method="reference"), exact)


@pytest.mark.parametrize("forget", [1.0, 0.97])
@pytest.mark.parametrize("ridge", [1e-2, 1e-4, 1e-5, 1e-6, 1e-7])
def test_in_single_precision_it_is_as_accurate_as_dense_solves_or_says_why_not(ridge, forget, unchecked):
    inputs = problem(130, dk=16, dv=16)
    for name in "qk":
        inputs[name] = normalize(inputs[name], dim=-1)
    inputs["ridge"] = torch.full((3,), ridge, dtype=torch.float64)
    inputs["log_forget"] = torch.full_like(inputs["log_forget"], forget).log()
    inputs["beta"] = torch.ones_like(inputs["beta"])
    rough = {name: tensor.float() for name, tensor in inputs.items()}
    exact = attend({name: tensor.double() for name, tensor in rough.items()}, method="reference")
    try:
        y = attend(rough)
    except NumericalError:
        assert ridge <= 1e-6
    else:
        assert gap(y, exact) < 3 * gap(attend(rough, method="reference"), exact)


@pytest.mark.parametrize("options", [{}, {"method": "reference"}, {"method": "cg", "tolerance": 1e-6}])
def test_no_method_answers_beyond_its_precision(options):
    inputs = problem(20, dtype=torch.float32)
    inputs["ridge"] = torch.full((3,), 1e-9)
    with pytest.raises(NumericalError):
        attend(inputs, **options)


COMPILED = """
import torch
from functorch.compile import make_boxed_func
from torch._dynamo.backends.common import aot_autograd
from mesascope.nets import AttentionConfig
from mesascope.ops import mesa_attention
from mesascope.records import registered


def function(q, k, v, ridge, log_forget):
    return mesa_attention(q, k, v, ridge=ridge, log_forget=log_forget, chunk=16)


products = []


def recorded(graph, inputs):
    products.extend(str(node.target) for node in graph.graph.nodes if "mm" in str(node.target))
    return make_boxed_func(graph.forward)


backend = aot_autograd(fw_compiler=recorded)
torch.manual_seed(0)
shapes = [(2, 3, 38, 5), (2, 3, 38, 5), (2, 3, 38, 4), (3,), (2, 3, 38)]
leaves = [torch.randn(shape, dtype=torch.float64) for shape in shapes]
leaves[3], leaves[4] = leaves[3].exp(), -0.1 * leaves[4].sigmoid()
leaves = [leaf.requires_grad_() for leaf in leaves]
compiled = torch.compile(function, fullgraph=True, backend=backend)
got, expected = compiled(*leaves), function(*leaves)
torch.testing.assert_close(got, expected)
cotangent = torch.randn(got.shape, dtype=torch.float64)
ours, theirs = (torch.autograd.grad(y, leaves, cotangent) for y in (got, expected))
torch.testing.assert_close(ours, theirs)
assert not products, products
tokens = torch.randn(2, 24, 16)
for attention in registered("attention").values():
    layer = attention(AttentionConfig(16, 2, forget=True, beta=True, convolution=3))
    torch.testing.assert_close(torch.compile(layer, fullgraph=True, backend="eager")(tokens), layer(tokens))


def constant(q, k, v, ridge, log_forget):
    return mesa_attention(q, k, v, ridge=ridge, log_forget=log_forget, ridge_kind="constant")


torch.testing.assert_close(torch.compile(constant, fullgraph=True, backend="aot_eager")(*leaves), constant(*leaves))
leaves[4] = (leaves[4] - 1).detach().requires_grad_()
torch.testing.assert_close(compiled(*leaves), function(*leaves))
"""


def test_compiled_it_is_one_graph_with_the_same_numbers_and_errors_and_so_are_layers(tmp_path):
    """In a process of its own: the tests' run-time checks of shapes are nothing that torch could compile."""
    (tmp_path / "compiled.py").write_text(COMPILED)
    done = children.run(tmp_path / "compiled.py")
    assert done.returncode == 0, done.stderr


def test_forgetting_the_regulariser_ends_in_an_error_that_names_the_remedy():
    inputs = problem(dtype=torch.float32)
    inputs["log_forget"] = torch.full_like(inputs["log_forget"], 1e-3).log()
    with pytest.raises(
        NumericalError, match=r"singular to torch.float32 in head \d, (chunk|token) \d+.* ridge_kind='constant'"
    ):
        attend(inputs)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_computed_in_single(dtype):
    inputs = problem(dtype=torch.float32)
    rough = {name: tensor.to(dtype) for name, tensor in inputs.items()}
    y, state = attend(rough, return_state=True)
    assert y.dtype == dtype
    assert state.H.dtype == torch.float32
    same = attend({name: tensor.float() for name, tensor in rough.items()})
    torch.testing.assert_close(y, same.to(dtype))


def test_autocast_leaves_it_as_precise_as_it_was():
    inputs = problem(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = attend(inputs)
    torch.testing.assert_close(y, attend(inputs), rtol=0, atol=0)


@pytest.mark.parametrize("options", [{"method": "cg"}, *({"ridge_kind": kind} for kind in MESA_RIDGES)])
@pytest.mark.parametrize("name", ["q", "k", "v", "ridge", "log_forget", "beta"])
def test_forward_mode_derivatives_are_those_of_reverse_mode(options, name):
    inputs = problem(t=5, dk=3, dv=2, heads=2, batch=())

    def function(one):
        return attend({**inputs, name: one}, chunk=2, **options)

    torch.testing.assert_close(jacfwd(function)(inputs[name]), jacrev(function)(inputs[name]), rtol=1e-8, atol=1e-8)


@pytest.mark.parametrize("method", ["exact", "cg", "reference"])
def test_what_is_wrong_with_one_member_stays_with_it(method):
    inputs = problem(t=11, batch=())
    bad = inputs["k"].clone()
    bad[0, 3, 1] = torch.nan
    both = torch.stack([inputs["k"], bad])
    y = vmap(lambda k: attend({**inputs, "k": k}, method=method))(both)
    torch.testing.assert_close(y[0], attend(inputs, method=method), rtol=1e-10, atol=1e-10)
    assert y[1, 0, 3:].isnan().all()
    with pytest.raises((ArgumentError, NumericalError)):
        vmap(lambda k: attend({**inputs, "k": k}, method=method))(torch.stack([bad, bad]))


def test_a_singular_member_becomes_nan_in_its_own_part():
    inputs = problem(t=20, batch=(), dtype=torch.float32)
    ridges = torch.stack([inputs["ridge"], torch.full((3, 5), 1e-9)])
    for options in ({}, {"method": "reference"}, {"method": "cg", "tolerance": 1e-6, "iterations": 60}):
        y = vmap(lambda ridge, own=options: attend({**inputs, "ridge": ridge}, **own))(ridges)
        torch.testing.assert_close(y[0], attend(inputs, **options), rtol=1e-4, atol=1e-4)
        assert y[1].isnan().any(), options


def test_second_derivatives_of_chebyshev_exist_for_one_ridge_a_head():
    inputs = problem(t=4, dk=3, dv=2, heads=1, batch=())
    ridge = torch.ones(1, dtype=torch.float64, requires_grad=True)

    def function(r):
        return attend({**inputs, "ridge": r}, method="chebyshev", terms=3)

    assert torch.autograd.gradgradcheck(function, (ridge,))


def test_strided_inputs():
    inputs = problem()
    turned = {name: tensor.transpose(-1, -2).contiguous().transpose(-1, -2) for name, tensor in inputs.items()}
    torch.testing.assert_close(attend(turned), attend(inputs))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ridge": torch.tensor([1.0, 0.0, 1.0])}, "ridge must be positive and finite, but is 0.0"),
        ({"log_forget": torch.ones(2, 3, 37)}, "log_forget must be at most 0, but is 1.0"),
        ({"beta": torch.full((2, 3, 37), -0.5)}, r"beta must lie in \[0, 1\], but is -0.5"),
        ({"beta": torch.full((2, 3, 37), 1.5)}, r"beta must lie in \[0, 1\], but is 1.5"),
        ({"q": torch.full((2, 3, 37, 5), torch.nan)}, "q must be finite, but is nan"),
        ({"v": torch.full((2, 3, 37, 4), torch.inf)}, "v must be finite, but is inf"),
        ({"lengths": torch.tensor([37])}, r"lengths must have shape \(2,\) beside q"),
        ({"lengths": torch.tensor([-1, 37])}, r"lengths must lie in \[0, 37\], but is -1.0"),
        ({"lengths": torch.tensor([38, 37])}, r"lengths must lie in \[0, 37\], but is 38.0"),
        ({"ridge": torch.ones(4)}, r"ridge must have shape \(3,\) or \(3, 5\) beside q"),
        ({"v": torch.zeros(2, 3, 37, 4).double()}, "q, k and v must share one floating-point dtype"),
        ({"lengths": torch.ones(2)}, r"lengths must be integers, but are torch\.float32"),
        ({"chunk": 0}, "chunk must be at least 1"),
        ({"state": MesaState(torch.ones(2, 3, 4, 4), torch.ones(2, 3, 4, 5))}, "state.H must have shape"),
    ],
)
def test_bad_arguments_are_refused_in_a_sentence(change, message):
    with pytest.raises((ArgumentError, ArgumentTypeError), match=message):
        mesa_attention(**{**problem(dtype=torch.float32), **change})


def test_wrong_numbers_of_terms_and_iterations_are_refused():
    for method, name in ((mesa_neumann, "terms"), (mesa_chebyshev, "terms"), (mesa_conjugate_gradients, "iterations")):
        with pytest.raises(ArgumentError, match=f"{name} must be at least 0, but is -1"):
            method(**problem(t=5), **{name: -1})
    with pytest.raises(ArgumentError, match="tolerance must be at least 0, but is -1"):
        mesa_conjugate_gradients(**problem(t=5), tolerance=-1.0)


def test_one_number_is_a_ridge_for_all_heads():
    inputs = problem()
    same = {**inputs, "ridge": torch.full((3,), 0.1, dtype=torch.float64)}
    for ridge in (0.1, torch.tensor(0.1, dtype=torch.float64)):
        torch.testing.assert_close(attend({**inputs, "ridge": ridge}), attend(same), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("method", [mesa_attention, mesa_attention_reference, mesa_conjugate_gradients, mesa_neumann])
def test_values_of_no_width_go_on_from_a_state(method):
    k, v = torch.eye(3)[None], torch.zeros(1, 3, 0)
    y, state = method(k, k, v, ridge=1.0, return_state=True)
    again, after = method(k, k, v, ridge=1.0, state=state, return_state=True)
    assert y.shape == again.shape == (1, 3, 0)
    assert after.H.shape == (1, 3, 3)


def test_what_stands_in_padding_may_be_anything():
    inputs = problem()
    lengths = torch.tensor([20, 37])
    before = attend(inputs, lengths=lengths)
    for name in ("q", "k", "v", "log_forget", "beta"):
        inputs[name][0, :, 20:] = torch.nan
    torch.testing.assert_close(attend(inputs, lengths=lengths), before)


@pytest.mark.parametrize("ridge_kind", MESA_RIDGES)
@pytest.mark.parametrize("chunk", [None, 4, 16])
def test_packed_documents_are_read_each_alone(ridge_kind, chunk):
    inputs, ends = problem(150, batch=()), [0, 10, 10, 74, 75, 150]
    options = {"ridge_kind": ridge_kind, "chunk": chunk, "return_state": True}
    y, state = attend(inputs, cu_seqlens=torch.tensor(ends), **options)
    for n, (start, stop) in enumerate(itertools.pairwise(ends)):
        part = {name: tensor if name == "ridge" else tensor[:, start:stop] for name, tensor in inputs.items()}
        expected, last = attend(part, **options)
        assert stop == start or gap(y[:, start:stop], expected) < 1e-10
        assert gap(state.H[n], last.H) < 1e-12
    again = {name: tensor if name == "ridge" else tensor[None, :, :11] for name, tensor in inputs.items()}
    y, _ = attend(again, state=state, cu_seqlens=torch.tensor([0, 2, 2, 5, 11, 11]), **options)
    own = {name: tensor if name == "ridge" else tensor[:, :, 2:5] for name, tensor in again.items()}
    third = type(state)(*(part[2:3] for part in state))
    assert gap(y[:, :, 2:5], attend(own, state=third, ridge_kind=ridge_kind)) < 1e-10


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"cu_seqlens": torch.tensor([0, 30])}, r"cu_seqlens must rise from 0 to the 37 tokens of q, but is \[0, 30\]"),
        ({"cu_seqlens": torch.tensor([0, 20, 10, 37])}, "cu_seqlens must rise from 0"),
        ({"cu_seqlens": torch.tensor([0.0, 37.0])}, "cu_seqlens must be a vector of at least two integers"),
        (
            {"cu_seqlens": torch.tensor([0, 37]), "lengths": torch.tensor([37])},
            "cu_seqlens must be None beside a batch",
        ),
    ],
)
def test_what_cannot_be_packed_is_refused(change, message):
    with pytest.raises((ArgumentError, ArgumentTypeError), match=message):
        attend(problem(batch=(1,)), **change)
    with pytest.raises(ArgumentError, match="cu_seqlens must"):
        attend(problem(), **change)
    with pytest.raises(ArgumentError, match="cu_seqlens must be None for mesa_chebyshev"):
        mesa_chebyshev(**problem(batch=(1,)), cu_seqlens=torch.tensor([0, 37]))


@pytest.mark.parametrize("ridge_kind", MESA_RIDGES)
def test_without_reading_values_it_gives_the_same_numbers_or_nan(ridge_kind):
    inputs = problem(100, forget=5.0, dtype=torch.float32)
    if ridge_kind != "decaying":
        inputs["ridge"] = 3 * inputs["ridge"]  # for thirty iterations
    exact = with_gradients(inputs, ridge_kind=ridge_kind)
    with without_reading_values():  # on a CPU nothing waits
        assert all(map(torch.equal, with_gradients(inputs, ridge_kind=ridge_kind), exact))
    with without_reading_values(on_cpu=True):
        found = with_gradients(inputs, ridge_kind=ridge_kind)
    for one, expected in zip(found, exact, strict=True):
        assert gap(one, expected) < 1e-4
    inputs["log_forget"][0, 0, 3:50] = -3.0
    with without_reading_values(on_cpu=True):
        y = attend(inputs, ridge_kind=ridge_kind, chunk=64)
    if ridge_kind == "decaying":  # a chunk that forgets much would have to be cut
        assert y[0, 0, :64].isnan().all()
        assert y[0, 0, 64:].isfinite().all()
        assert y[1].isfinite().all()
    else:
        assert gap(y, attend(inputs, ridge_kind=ridge_kind)) < 1e-4
        with without_reading_values(on_cpu=True):  # of more than thirty large eigenvalues, 30 iterations miss some
            steep = problem(100, dk=64, dtype=torch.float32) | {"ridge": torch.full((3,), 1e-6)}
            assert attend(steep, ridge_kind=ridge_kind).isnan().any()


@pytest.mark.parametrize("scale", [1.0, 3.0, 10.0])
def test_raw_keys_of_linear_dynamics_are_solved_and_derived_without_reading_values(scale):
    """The layer that is ridge regression with the noise's ridge, as the studies of chapter 3 train it on a GPU."""
    sequence = LinearDynamics(length=51, start="uniform").sample(64, stream(0, "raw keys"))
    keys = scale * pad(sequence, (0, 10))[:, None]  # keys of 20 entries, as theirs
    inputs = {"q": keys[..., 1:, :], "k": keys[..., :-1, :], "v": sequence[:, None, 1:]}
    inputs["ridge"] = torch.tensor([1e-3 * scale**2])
    exact = with_gradients(inputs)
    with without_reading_values(on_cpu=True):
        found = with_gradients(inputs)
    for one, expected in zip(found, exact, strict=True):
        assert gap(one, expected) < 5e-3


@pytest.mark.parametrize("t", [0, 1, 30])
def test_the_recursion_of_the_thesis_equals_the_exact_solve_with_all_derivatives(t):
    inputs = problem(t, dk=4, heads=2)
    leaves = {name: part.clone().requires_grad_() for name, part in inputs.items()}
    outputs = [method(**leaves) for method in (mesa_recursion, mesa_attention)]
    assert outputs[0].shape == outputs[1].shape
    own, expected = (
        torch.autograd.grad((y * y.detach().sin()).sum(), list(leaves.values()), materialize_grads=True)
        for y in outputs
    )
    for one, other in zip((outputs[0], *own), (outputs[1], *expected), strict=True):
        assert one.numel() == 0 or gap(one, other) < 1e-8


def test_derivatives_of_the_recursion_face_finite_differences():
    inputs = problem(t=4, dk=2, dv=2, heads=1, batch=())
    inputs["log_forget"] = inputs["log_forget"] - 0.1
    leaves = [part.requires_grad_() for part in inputs.values()]

    def function(*tensors):
        return mesa_recursion(**dict(zip(inputs, tensors, strict=True)))

    assert torch.autograd.gradcheck(function, leaves)
    assert torch.autograd.gradgradcheck(function, leaves, fast_mode=True)
    several = torch.stack([inputs["k"].detach(), 2 * inputs["k"].detach()])
    mapped = vmap(lambda k: mesa_recursion(**{**inputs, "k": k}))(several)
    assert gap(mapped[1], mesa_recursion(**{**inputs, "k": several[1]})) < 1e-12


def test_the_reverse_recursion_keeps_one_inverse_and_loses_digits_of_small_ridges():
    """The recursion is that of von Oswald (2024); the exact method keeps these digits."""
    wide = problem(100, dk=16, heads=1, batch=(), forget=3.0) | {"ridge": torch.full((1,), 1e-3).double()}
    wide["k"] = normalize(wide["k"], dim=-1)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda part: saved.append(part.shape) or part, lambda part: part):
        mesa_recursion(**{name: part.requires_grad_() for name, part in wide.items()})
    assert max(shape.numel() for shape in saved) < 100 * 16 * 16

    def gradient(method, dtype):
        leaves = {name: part.detach().to(dtype).requires_grad_() for name, part in wide.items()}
        return torch.autograd.grad(method(**leaves).square().sum(), leaves["k"])[0].double()

    exact = gradient(mesa_attention, torch.float64)
    assert gap(gradient(mesa_attention, torch.float32), exact) < 1e-3
    assert not gap(gradient(mesa_recursion, torch.float32), exact) < 0.1


GATES = {
    "light": lambda draws: 1 - 0.05 * draws,
    "some": lambda draws: 1 - 0.4 * draws,
    "any": lambda draws: 10.0 ** (-6 * draws),
}


@pytest.mark.parametrize("gates", GATES)
@pytest.mark.parametrize("ridge", [1.0, 3e-3])
@pytest.mark.parametrize("ridge_kind", MESA_RIDGES)
def test_in_single_precision_outputs_and_derivatives_lose_no_more_than_those_of_dense_solves(
    ridge_kind, ridge, gates, unchecked
):
    """With gates drawn at random: constant ones forget too evenly to lose digits."""
    if ridge_kind == "decaying" and gates == "any":
        return  # singular by definition
    wide = problem(100, dk=16, dv=8, heads=2, batch=(1,))
    for name in "qk":
        wide[name] = normalize(wide[name], dim=-1)
    draws = torch.rand(1, 2, 100, generator=stream(0, "gates"), dtype=torch.float64)
    wide["log_forget"], wide["ridge"] = GATES[gates](draws).log(), torch.full((2,), ridge, dtype=torch.float64)
    rough = {name: part.float() for name, part in wide.items()}
    exact = {name: part.double() for name, part in rough.items()}
    expected, dense, *found = (
        with_gradients(leaves, method=way, ridge_kind=ridge_kind)
        for leaves, way in ((exact, "reference"), (rough, "reference"), (rough, "exact"))
    )
    for parts in zip(expected, dense, *found, strict=True):
        true, *others = (part.detach().double() for part in parts)
        theirs, *ours = (float((part - true).norm() / true.norm()) for part in others)
        assert max(ours) < 4 * theirs + 2e-6


@pytest.mark.parametrize("ridge_kind", MESA_RIDGES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_keys_near_one_direction_are_solved_as_by_one_dense_solve(ridge_kind, dtype):
    """A residual is of rounding beside the norm of A, which is dk times what its diagonal says."""
    keys = normalize(draw(2, 1, 256, name="mean") + 0.2 * draw(2, 100, 256, name="k"), dim=-1).to(dtype)
    ours = {"q": draw(2, 100, 256, name="q", dtype=dtype), "k": keys, "v": draw(2, 100, 3, name="v", dtype=dtype)}
    exact = {name: part.double().requires_grad_() for name, part in ours.items()}
    ours = {name: part.requires_grad_() for name, part in ours.items()}
    ridge = 0.01 if ridge_kind != "relative" else 1e-4
    y = mesa_attention(**ours, ridge=ridge, ridge_kind=ridge_kind)[:, -1]
    H = exact["k"].mT @ exact["k"]
    own = ridge * (torch.linalg.matrix_norm(H)[:, None, None] if ridge_kind == "relative" else 1)
    x = torch.linalg.solve(H + own * torch.eye(256).double(), exact["q"][:, -1])
    expected = (x[:, None] @ exact["k"].mT @ exact["v"]).squeeze(1)
    for one, other in zip(
        (y, *torch.autograd.grad(y.sum(), list(ours.values()))),
        (expected, *torch.autograd.grad(expected.sum(), list(exact.values()))),
        strict=True,
    ):
        assert (one - other).norm() < 3e4 * torch.finfo(dtype).eps * other.norm()


@pytest.mark.parametrize("number", [*range(30), 58])
def test_random_configurations_keep_the_bound_of_their_condition_number(number):
    """The first of those that `make torture` runs, and one whose keys have one direction."""
    _, off, condition = judged(number)
    assert is_right(off, condition)


def decoded(inputs, state, start, **options):
    """Tokens from ``start`` on, one at a time."""
    rows = []
    for t in range(start, inputs["q"].shape[2]):
        own = {name: part if name == "ridge" else part[:, :, t] for name, part in inputs.items()}
        y, state = mesa_step(**own, state=state, **options)
        rows.append(y)
    return torch.stack(rows, 2), state


def test_decoding_from_a_root_gives_the_same_numbers_and_derivatives():
    inputs = problem(20)
    leaves = {name: part.clone().requires_grad_() for name, part in inputs.items()}
    first = {name: part if name == "ridge" else part[:, :, :9] for name, part in leaves.items()}
    _, state = attend(first, return_state=True)
    y, after = decoded(leaves, state.rooted(), 9)
    whole, last = attend(leaves, return_state=True)
    assert gap(y, whole[:, :, 9:]) < 1e-10
    assert gap(after.H, last.H) < 1e-12
    assert gap(after.G, last.G) < 1e-12
    assert gap(after.root @ after.root.mT @ after.H, torch.eye(5).double().expand(2, 3, 5, 5)) < 1e-10
    one, expected = (
        torch.autograd.grad((part * part.detach().sin()).sum(), list(leaves.values())) for part in (y, whole[:, :, 9:])
    )
    for got, other in zip(one, expected, strict=True):
        assert gap(got, other) < 1e-9
    assert gap(attend(inputs, state=state.rooted()), attend(inputs, state=state)) == 0
    with without_reading_values(on_cpu=True):
        assert gap(decoded(inputs, state.rooted(), 9)[0], whole[:, :, 9:]) < 1e-10
    rooted = state.rooted()
    mapped = vmap(lambda q, k, v, H, G, root: mesa_step(q, k, v, type(rooted)(H, G, root), ridge=1.0)[0])
    now = [inputs[name][:, :, 9] for name in "qkv"]
    assert gap(mapped(*now, *rooted), mesa_step(*now, rooted, ridge=1.0)[0]) < 1e-12


@pytest.mark.parametrize("factor", [1.0, 0.9])
def test_many_tokens_from_a_root_in_single_precision_are_as_exact_as_dense_solves(factor, unchecked):
    inputs = problem(500, dk=8, dv=2, heads=2, batch=(1,))
    inputs["k"] = normalize(inputs["k"], dim=-1)
    inputs["log_forget"] = torch.full_like(inputs["log_forget"], factor).log()
    rough = {name: part.float() for name, part in inputs.items()}
    with torch.no_grad():
        exact = attend({name: part.double() for name, part in rough.items()})[:, :, -200:]
        start = MesaState(torch.diag_embed(rough["ridge"]).expand(1, 2, 8, 8), rough["v"].new_zeros(1, 2, 2, 8))
        own, dense = (decoded(rough, state, 0)[0][:, :, -200:] for state in (start.rooted(), start))
    assert gap(own.double(), exact) < 2 * gap(dense.double(), exact) + 1e-6


def test_a_root_that_has_drifted_is_made_anew_and_a_singular_state_refused():
    inputs = problem(3)
    _, state = attend(inputs, return_state=True)
    now = {name: part if name == "ridge" else part[:, :, 0] for name, part in inputs.items()}
    expected, _ = mesa_step(**now, state=state)
    for spoilt in (1.1 * state.rooted().root, torch.full_like(state.H, torch.nan)):
        y, after = mesa_step(**now, state=state.rooted()._replace(root=spoilt))
        assert gap(y, expected) < 1e-10
        assert gap(after.root @ after.root.mT @ after.H, torch.eye(5).double().expand(2, 3, 5, 5)) < 1e-10
    with pytest.raises(NumericalError, match="singular"):
        mesa_step(**now, state=state._replace(H=0 * state.H).rooted())
    with pytest.raises(ArgumentError, match="state must be a FixedRidgeState if ridge_kind = 'constant'"):
        mesa_step(**now, state=state.rooted(), ridge_kind="constant")
