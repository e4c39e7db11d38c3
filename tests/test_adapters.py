"""Learners and predictors seen through each other's protocol."""

import copy
import pickle
import sys

import numpy as np
import pytest
import torch
from sklearn.base import RegressorMixin
from sklearn.cluster import KMeans
from sklearn.linear_model import LogisticRegression, Ridge
from sklearn.model_selection import GridSearchCV
from sklearn.multioutput import MultiOutputRegressor
from sklearn.neighbors import KNeighborsRegressor
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from mesascope.adapters import (
    AsLearner,
    AsPredictor,
    chunk_mesa_net,
    from_mesa_net,
    from_numpy,
    from_sklearn,
    record,
    replay,
)
from mesascope.errors import ArgumentError, ArgumentTypeError, MissingPackageError
from mesascope.learners import (
    Averaging,
    GradientDescent,
    LeastSquares,
    Mean,
    NearestNeighbours,
    OnlineGradientDescent,
    RecursiveLeastSquares,
    Zero,
)
from mesascope.lenses import access_of, compare
from mesascope.nets import AttentionConfig, CausalTransformerConfig, SequencePredictorConfig
from mesascope.streams import stream
from mesascope.tasks import Context, LinearDynamics, LinearRegression
from mesascope.testing import check_learner, check_predictor

SEQUENCES = LinearDynamics(d=3, length=12).sample(4, stream(0, "adapters")).double()


class Dropping(torch.nn.Dropout):
    """Least squares behind dropout."""

    def forward(self, context, xq):
        return super().forward(LeastSquares(1.0)(context, xq))


def test_modules_are_checked_in_eval_mode():
    learner = Dropping(0.5).train()
    check_learner(learner)
    assert learner.training


def test_least_squares_at_every_position_is_recursive_least_squares():
    expected = RecursiveLeastSquares(ridge=0.3)(SEQUENCES)
    torch.testing.assert_close(AsPredictor(LeastSquares(ridge=0.3))(SEQUENCES), expected, rtol=1e-10, atol=1e-12)


def test_gradient_descent_at_every_position_divides_its_step_by_the_number_of_pairs():
    found = AsPredictor(GradientDescent(1, 0.6))(SEQUENCES)
    expected = OnlineGradientDescent(1, 0.6)(SEQUENCES)
    pairs = torch.arange(12).clamp_min(1)[:, None]
    torch.testing.assert_close(found, expected / pairs, check_dtype=False)


@pytest.mark.parametrize("learner", [LeastSquares(0.1), GradientDescent(2, 0.05), Mean()])
def test_learners_make_predictors(learner):
    check_predictor(AsPredictor(learner))


def predictor(d):
    heads = AttentionConfig(12, 2, positions=4, window=3)
    config = SequencePredictorConfig(CausalTransformerConfig(heads, 2, ("softmax", "mesa")), d)
    return config.build(stream(0, "init"))


@pytest.mark.parametrize("family", [LinearRegression(5, 3), LinearRegression(5, 3, 2), LinearRegression(5, 2, 3)])
def test_predictors_make_learners(family):
    check_learner(AsLearner(predictor(3)), family, permutation_invariant=False)


def test_a_predictor_reads_each_query_at_the_end_of_alternating_elements():
    x, y = torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor([[5.0], [6.0]])
    read = []

    def last_but_one(sequence):
        read.append(sequence)
        return sequence.roll(1, -2)

    queries = torch.tensor([[7.0, 8.0], [9.0, 0.0]])
    assert AsLearner(last_but_one)(Context(x, y), queries).tolist() == [[6.0], [6.0]]
    assert read[0].tolist() == [
        [[1, 2], [0, 5], [3, 4], [0, 6], [7, 8]],
        [[1, 2], [0, 5], [3, 4], [0, 6], [9, 0]],
    ]


def test_modules_inside_adapters_keep_their_parameters_and_modes():
    inner = predictor(3)
    adapter = AsLearner(inner)
    assert list(adapter.parameters()) == list(inner.parameters())
    adapter.eval()
    assert not inner.training


@pytest.mark.parametrize(("adapter", "name"), [(AsLearner, "predictor"), (AsPredictor, "learner")])
def test_what_cannot_be_called_is_refused(adapter, name, unchecked):
    with pytest.raises(ArgumentTypeError, match=rf"{name} must be callable, but is 3: pass a module or a function\."):
        adapter(3)


# Estimators of scikit-learn


@pytest.mark.parametrize("d_out", [1, 2])
def test_an_estimator_is_fitted_to_each_context_alone(d_out):
    learner = from_sklearn(Ridge(alpha=0.3, fit_intercept=False))
    check_learner(learner, LinearRegression(8, 3, d_out, noise=0.1))
    episode = LinearRegression(8, 3, d_out, noise=0.1, n_query=2).sample(4, stream(0, "adapters")).to(torch.float64)
    exact = LeastSquares(ridge=0.3)(episode.context, episode.xq)
    torch.testing.assert_close(learner(episode.context, episode.xq), exact, rtol=1e-9, atol=1e-12)
    assert not hasattr(learner.estimator, "coef_")


def test_a_regressor_is_compared_in_one_line():
    family = LinearRegression(10, 3, noise=0.1)
    neighbours = {"three neighbours": NearestNeighbours(3), "none": Zero()}
    found = compare(from_sklearn(KNeighborsRegressor(3)), neighbours, family, tasks=50)
    assert str(found).splitlines()[1].startswith("KNeighborsRegressor")
    assert found.rows["three neighbours"].prediction_difference.value < 1e-6
    assert found.rows["none"].prediction_difference.value > 0.1
    assert "gradient" not in access_of(from_sklearn(Ridge()), family.sample(2, stream(0, "adapters")))


def test_an_empty_context_predicts_zero_and_no_query_nothing():
    learner, x = from_sklearn(KNeighborsRegressor(1)), torch.ones(2, 0, 3)
    assert torch.equal(learner(Context(x, torch.ones(2, 0, 1)), torch.ones(2, 4, 3)), torch.zeros(2, 4, 1))
    filled = Context(torch.ones(2, 5, 3), torch.ones(2, 5, 1))
    assert learner(filled, torch.ones(2, 0, 3)).shape == (2, 0, 1)
    assert learner(Context(*(part[:0] for part in filled)), torch.ones(0, 4, 3)).shape == (0, 4, 1)


@pytest.mark.parametrize(
    ("estimator", "said"),
    [(Ridge, r"but is <class .*>: pass Ridge\(\)\.$"), (3, r"but is 3: pass a regressor of scikit-learn\.$")],
)
def test_what_is_no_estimator_is_refused(estimator, said):
    with pytest.raises(ArgumentTypeError, match=f"estimator must have the methods fit, predict and get_params, {said}"):
        from_sklearn(estimator)


class Bare:
    """One of the methods alone, which does not say what kind it is."""

    def fit(self, x, y):
        return self

    def predict(self, x):
        return x[:, 0]

    def get_params(self, deep=True):
        return {}


class WithoutBase(RegressorMixin, Bare):
    """A regressor whose tags raise AttributeError, as its base has none."""


def test_only_regressors_are_taken_and_those_that_do_not_say_what_they_are():
    for estimator, kind in (
        (LogisticRegression(), "classifier"),
        (make_pipeline(StandardScaler(), LogisticRegression()), "classifier"),
        (KMeans(), "clusterer"),
    ):
        with pytest.raises(ArgumentTypeError, match=rf"^estimator must be a regressor, but is .* \({kind}\): pass"):
            from_sklearn(estimator)
    episode = LinearRegression(8, 3).sample(4, stream(0, "adapters"))
    for regressor in (
        make_pipeline(StandardScaler(), Ridge()),
        GridSearchCV(Ridge(), {"alpha": [1.0]}, cv=2),
        Bare(),
        WithoutBase(),
    ):
        assert from_sklearn(regressor)(episode.context, episode.xq).shape == (4, 1, 1)


def test_without_scikit_learn_the_sentence_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(
        MissingPackageError, match=r"^scikit-learn must be installed for from_sklearn, but is not: pip inst"
    ):
        from_sklearn(Ridge())


def mesa_net_exact(q, k, v, g, beta, lamb, h_kk, h_kv):
    """MesaNet's layer by its definition, one token at a time, in its own layout."""
    rows = []
    for t in range(q.shape[1]):
        forget, counted = g[:, t, :, None, None].exp(), (beta[:, t, :, None] * k[:, t])[..., None]
        h_kk = forget * h_kk + counted * k[:, t, :, None, :]
        h_kv = forget * h_kv + counted * v[:, t, :, None, :]
        x = torch.linalg.solve(h_kk + torch.diag_embed(lamb), q[:, t])
        rows.append((x[..., None] * h_kv).sum(-2))
    return torch.stack(rows, 1), h_kk, h_kv


def mesa_net_inputs(batch=2, t=70, heads=3, dk=8, dv=5):
    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    generator = torch.Generator().manual_seed(0)
    named = {"q": draw(batch, t, heads, dk), "k": draw(batch, t, heads, dk), "v": draw(batch, t, heads, dv)}
    named |= {"g": -draw(batch, t, heads).exp(), "beta": draw(batch, t, heads).sigmoid(), "lamb": draw(heads, dk).exp()}
    key = draw(batch, heads, dk, dk)
    return named, key @ key.mT, draw(batch, heads, dk, dv)


def test_mesanets_function_is_its_definition():
    named, h_kk, h_kv = mesa_net_inputs()
    y, states = chunk_mesa_net(**named, h_kk_init=h_kk, h_kv_init=h_kv, output_final_state=True)
    for got, expected in zip((y, *states), mesa_net_exact(**named, h_kk=h_kk, h_kv=h_kv), strict=True):
        torch.testing.assert_close(got, expected, rtol=1e-9, atol=1e-9)
    y, states = chunk_mesa_net(**named)
    torch.testing.assert_close(y, mesa_net_exact(**named, h_kk=0 * h_kk, h_kv=0 * h_kv)[0], rtol=1e-9, atol=1e-9)
    assert states == (None, None)
    unit = {name: torch.nn.functional.normalize(named[name], dim=-1) if name in "qk" else named[name] for name in named}
    torch.testing.assert_close(chunk_mesa_net(**named, use_qk_l2norm_in_kernel=True), chunk_mesa_net(**unit))


def test_mesanets_function_takes_packed_documents():
    named, h_kk, h_kv = mesa_net_inputs(batch=1)
    ends, several = torch.tensor([0, 30, 70]), [part.expand(2, *part.shape[1:]) for part in (h_kk, h_kv)]
    y, (last, _) = chunk_mesa_net(**named, h_kk_init=several[0], h_kv_init=several[1], output_final_state=True,
                                  cu_seqlens=ends)  # fmt: skip
    own = {name: part if name == "lamb" else part[:, 30:] for name, part in named.items()}
    expected, end, _ = mesa_net_exact(**own, h_kk=h_kk, h_kv=h_kv)
    torch.testing.assert_close(y[:, 30:], expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(last[1:], end)


def test_mesanets_function_agrees_with_flash_linear_attentions_own_definition():
    naive = pytest.importorskip("fla.ops.mesa_net.naive")
    named, h_kk, h_kv = mesa_net_inputs(dv=8)
    rough = {name: part.float() for name, part in named.items()}
    y, states = chunk_mesa_net(**rough, h_kk_init=h_kk.float(), h_kv_init=h_kv.float(), output_final_state=True)
    expected = naive.naive_mesa_net_exact(**rough, h_kk_init=h_kk.float(), h_kv_init=h_kv.float())
    for got, other in zip((y, *states), expected, strict=True):
        torch.testing.assert_close(got, other, rtol=1e-3, atol=1e-3)


def mesa_net_weights(heads=3, d=8, width=16, gate=True):
    """Random weights with fla's names and shapes."""
    generator, key = torch.Generator().manual_seed(1), heads * d

    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64) / shape[-1] ** 0.5

    named = {f"{name}_proj.weight": draw(key, width) for name in "qkv"} | {"o_proj.weight": draw(width, key)}
    named |= {f"{name}_proj.weight": draw(heads, width) for name in "ab"}
    named |= {f"{name}_proj.bias": draw(heads) for name in "ab"} | {"lambda_params": draw(key)}
    named |= {f"{name}_conv1d.weight": draw(key, 1, 4) for name in "qk"} | {"o_norm.weight": 1 + draw(d)}
    return named | ({"g_proj.weight": draw(key, width)} if gate else {})


@pytest.mark.parametrize("gate", [True, False])
def test_a_layer_from_mesanets_weights_computes_what_mesanet_does(gate):
    """Written out here with torch's own convolution and normalisation."""
    named = mesa_net_weights(gate=gate)
    e = torch.randn(2, 20, 16, generator=torch.Generator().manual_seed(2), dtype=torch.float64)

    def convolved(name):
        rows = torch.nn.functional.pad((e @ named[f"{name}_proj.weight"].mT).mT, (3, 0))
        moved = torch.nn.functional.conv1d(rows, named[f"{name}_conv1d.weight"], groups=24).mT
        return torch.nn.functional.normalize(torch.nn.functional.silu(moved).unflatten(-1, (3, 8)), dim=-1)

    gates = [e @ named[f"{name}_proj.weight"].mT + named[f"{name}_proj.bias"] for name in "ab"]
    nothing = torch.zeros(2, 3, 8, 8, dtype=torch.float64)
    y, _, _ = mesa_net_exact(
        convolved("q"), convolved("k"), (e @ named["v_proj.weight"].mT).unflatten(-1, (3, 8)),
        torch.nn.functional.logsigmoid(gates[0]), gates[1].sigmoid(),
        torch.nn.functional.softplus(named["lambda_params"]).view(3, 8) + 0.25, nothing, nothing,
    )  # fmt: skip
    y = torch.nn.functional.rms_norm(y, (8,), named["o_norm.weight"], 1e-5)
    if gate:
        y = y * torch.nn.functional.silu(e @ named["g_proj.weight"].mT).unflatten(-1, (3, 8))
    layer = from_mesa_net(named)
    torch.testing.assert_close(layer(e), y.flatten(-2) @ named["o_proj.weight"].mT)
    assert from_mesa_net({name: part.bfloat16() for name, part in named.items()})(e.bfloat16()).isfinite().all()


def test_weights_that_are_not_mesanets_are_refused():
    named = mesa_net_weights()
    with pytest.raises(
        ArgumentError, match=r"but \['q_conv1d\.bias'\] are missing or unexpected: pass layer\.state_dict"
    ):
        from_mesa_net({**named, "q_conv1d.bias": torch.zeros(24)})
    del named["lambda_params"]
    with pytest.raises(ArgumentError, match=r"but \['lambda_params'\] are missing"):
        from_mesa_net(named)


def test_a_function_of_arrays_learns_a_task_at_a_time():
    tasks = LinearRegression(n_context=6, d_in=3, d_out=2, n_query=4).sample(5, stream(0, "numpy"))

    def least_squares(x, y, xq):
        assert (x.shape, y.shape, xq.shape) == ((6, 3), (6, 2), (4, 3))
        assert x.dtype == np.float64
        x *= 1  # what it is given is its own
        return xq @ np.linalg.lstsq(x, y, rcond=None)[0]

    mine = from_numpy(least_squares)
    torch.testing.assert_close(mine(*tasks[:2]), LeastSquares()(*tasks[:2]), rtol=1e-4, atol=1e-5)
    assert mine.__name__ == "least_squares"
    assert mine(*tasks[:2]).dtype == torch.float32
    one = LinearRegression(n_context=6, d_in=3).sample(5, stream(0, "numpy"))
    assert from_numpy(lambda x, y, xq: xq[:, 0])(*one[:2]).shape == (5, 1, 1)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (lambda x, y, xq: "seven", "must return numbers \\(1, 1\\), but returned a str"),
        (lambda x, y, xq: y, "must have shape \\(1, 1\\), but is \\(10, 1\\)"),
    ],
)
def test_what_a_function_returns_is_checked(answer, message):
    with pytest.raises(ArgumentError, match=message):
        from_numpy(answer)(*LinearRegression().sample(2, stream(0, "numpy"))[:2])


@pytest.mark.parametrize("function", [lambda context, xq: xq, lambda x, y, xq, more: xq, lambda x, y, xq, *, own: xq])
def test_functions_of_other_arguments_are_no_functions_of_arrays(function):
    with pytest.raises(ArgumentTypeError, match=r"take \(x, y, xq\) for from_numpy, but <lambda> does not"):
        from_numpy(function)


def test_recorded_calls_are_replayed_in_turn(tmp_path):
    tasks = LinearRegression(n_context=4, d_in=2, n_query=3).sample(5, stream(0, "record"))
    draws = stream(0, "noise")

    def noisy(context, xq):
        return Averaging()(context, xq) + torch.randn(*xq.shape[:-1], 1, generator=draws)

    kept = record(noisy, tmp_path / "calls.jsonl")
    first, second = kept(*tasks[:2]), kept(*tasks[:2])
    again = replay(tmp_path / "calls.jsonl")
    for answer in (first, second, first):
        assert torch.equal(again(*tasks[:2]), answer)
    other = LinearRegression(n_context=4, d_in=2).sample(1, stream(1, "record"))
    with pytest.raises(ArgumentError, match="must be in its recording"):
        again(*other[:2])


def test_a_file_of_calls_that_is_damaged_is_refused_but_for_a_line_that_was_not_finished(tmp_path):
    file = tmp_path / "calls.jsonl"
    with pytest.raises(ArgumentError, match="path must be a file of recorded calls"):
        replay(file)
    with pytest.raises(ArgumentError, match="path must be a file that can be written"):
        record(Averaging(), tmp_path / "none" / "calls.jsonl")
    tasks = LinearRegression(n_context=2, d_in=1).sample(2, stream(0, "record"))
    record(Averaging(), file)(*tasks[:2])
    whole = file.read_text()
    file.write_text(whole + '{"x": [[')
    assert torch.equal(replay(file)(*tasks[:2]), Averaging()(*tasks[:2]))
    file.write_text(whole.rstrip("\n"))
    assert torch.equal(replay(file)(*tasks[:2]), Averaging()(*tasks[:2]))
    file.write_text(whole + '{"x": [[1.0]]}\n')
    with pytest.raises(ArgumentError, match=r"line 3 of .* does not: remove or mend it"):
        replay(file)


@pytest.mark.parametrize(
    "answer", ["NaN", "[NaN]", "[Infinity]", "[1e400]", '"12"', '["12"]', "[true]", "12", "[[1.0]]"]
)
def test_a_recorded_answer_that_is_no_finite_number_is_refused(answer, tmp_path):
    file = tmp_path / "calls.jsonl"
    file.write_text(f'{{"x": [[1]], "y": [[2]], "xq": [1], "answer": {answer}}}\n')
    with pytest.raises(ArgumentError, match=r"line 1 of .* does not: remove or mend it"):
        replay(file)


def test_what_was_not_answered_is_recorded_as_null_and_whole_numbers_of_other_programs_are_numbers(tmp_path):
    task = Context(torch.ones(1, 1), torch.full((1, 1), 2.0)), torch.ones(1, 1)
    file = tmp_path / "calls.jsonl"
    record(lambda context, xq: torch.full((1, 1), torch.nan), file)(*task)
    assert file.read_text().endswith('"answer": [null]}\n')
    file.write_text(file.read_text() + '{"x": [[1]], "y": [[2]], "xq": [1], "answer": [3]}\n')
    again = replay(file)
    assert again(*task).isnan().all()
    assert again(*task).item() == 3.0


def triple(x, y, xq):
    return 3 * xq[:, :1]


def test_learners_of_adapters_can_be_copied_and_pickled(tmp_path):
    tasks = LinearRegression(n_context=4, d_in=2).sample(3, stream(0, "copies"))[:2]
    record(Averaging(), tmp_path / "calls.jsonl")(*tasks)
    learners = [
        from_numpy(triple),
        from_sklearn(Ridge()),
        AsLearner(predictor(2)),
        record(Mean(), tmp_path / "more.jsonl"),
    ]
    for learner in (*learners, replay(tmp_path / "calls.jsonl")):
        expected = learner(*tasks)
        for other in (copy.deepcopy(learner), pickle.loads(pickle.dumps(learner))):
            assert torch.equal(other(*tasks), expected)


def test_a_pipeline_may_end_in_a_regressor_of_several_targets():
    regressor = make_pipeline(StandardScaler(), MultiOutputRegressor(Ridge()))
    context, xq = Context(torch.randn(2, 5, 2), torch.randn(2, 5, 1)), torch.randn(2, 4, 2)
    torch.testing.assert_close(
        from_sklearn(regressor)(context, xq), from_sklearn(make_pipeline(StandardScaler(), Ridge()))(context, xq)
    )
