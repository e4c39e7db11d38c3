"""Everything public on a device that is not the CPU: the numbers of the CPU, and no operation on two devices."""

import copy
import dataclasses
import importlib
import re
from collections.abc import Mapping
from functools import partial
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from definitions import (
    causal_softmax_attention_reference,
    fast_weights_reference,
    linear_attention_reference,
    softmax_attention_reference,
)
from examples import EXAMPLES, examples
from torch import nn
from torch.nn.functional import cross_entropy

from mesascope.adapters import (
    AsLearner,
    AsPredictor,
    LocalModel,
    NumberTokenizer,
    chunk_mesa_net,
    from_language_model,
    from_mesa_net,
    from_numpy,
    from_sklearn,
    from_text,
    record,
)
from mesascope.constructions import mesa_gradient_descent
from mesascope.errors import ArgumentError
from mesascope.identification import (
    CONDITIONS,
    along,
    behaviour_of,
    by_layer,
    candidates,
    controls,
    identify,
    implicit_weights,
    invariances,
    smoother_weights,
    spectral_filter,
    superposition,
)
from mesascope.language import (
    LanguageTraining,
    evaluate,
    generate,
    head_scores,
    in_context_score,
    inspect,
    language_model_config,
    losses_by_octave,
    new_language_run,
    next_token_loss,
    prepare,
    recall_accuracy,
    recall_by_sequence,
    recall_loss,
    token_losses,
    train_language_model,
)
from mesascope.language.sampling import next_tokens
from mesascope.language.tokenizing import load_tokenizer
from mesascope.learners import (
    GradientDescent,
    Lags,
    LeastSquares,
    gram_spectra,
    spectral_mse,
    tune,
    tune_spectral,
)
from mesascope.lenses import compare, preconditioned, prompt_tune, sweep
from mesascope.meta import (
    METHODS,
    ContinualState,
    MetaLearner,
    MetaLearnerConfig,
    batch_of,
    outer_loss,
    retained_accuracy,
)
from mesascope.nets import (
    AttentionConfig,
    CausalTransformerConfig,
    ClassifierConfig,
    InContextRegressorConfig,
    Products,
    SequencePredictor,
    SequencePredictorConfig,
    TransformerConfig,
    load_state,
    save_state,
    select_state,
    set_products,
)
from mesascope.ops import (
    causal_linear_attention,
    causal_softmax_attention,
    delta_attention,
    dpfp,
    linear_attention,
    mesa_attention,
    mesa_attention_reference,
    mesa_chebyshev,
    mesa_conjugate_gradients,
    mesa_neumann,
    mesa_recursion,
    mesa_state,
    mesa_step,
    rotated,
    sinusoidal,
    softmax_attention,
)
from mesascope.records import facts, registered
from mesascope.runs.provenance import available_device, tell_device
from mesascope.streams import stream
from mesascope.studies.identifying import regressors
from mesascope.studies.sparse.few_shot import FewShot, accuracy_by_task, untrained, watched
from mesascope.studies.sparse.following import _followed
from mesascope.tasks import (
    AssociativeRecall,
    Context,
    FewShotArrays,
    FewShotImages,
    FewShotSequence,
    LinearDynamics,
    LinearRegression,
    RotatedDigits,
    SwitchingImages,
)
from mesascope.tasks.calling import sample_tasks
from mesascope.testing import check_learner, check_predictor
from mesascope.training import EnsembleState, ModuleState, Training, fit, pair_half_mse, result_tensors, train
from mesascope.training.family import stacked

simulation = pytest.importorskip("simulated_device", reason="torch 2.9 has no backends in Python", exc_type=ImportError)
DEVICE, simulated_device = simulation.DEVICE, simulation.simulated_device

FAMILY = LinearRegression(n_context=10, d_in=3)
EPISODES = FAMILY.sample(6, stream(0, "devices"))
SHORT = LinearDynamics(d=3, length=5)
SEQUENCES = SHORT.sample(6, stream(0, "devices"))
PLAN = Training(steps=2, batch=4, learning_rate=0.01)


@pytest.fixture(autouse=True)
def computing(unchecked):
    """Unchecked, as shapes of the same calls are checked elsewhere."""
    with simulated_device() as computing:
        yield computing


def each(kind, **said):
    return [pytest.param(build, id=f"{name}-{place}") for place, (name, build) in enumerate(examples(kind, **said))]


def built(build):
    """An example, of a network's config with the initial weights of seed 0."""
    made = build()
    return made.build(stream(0, "init")) if hasattr(made, "build") else made


def there(model):
    return model.to(DEVICE) if isinstance(model, nn.Module) else model


def numbers(found):
    """All tensors and numbers of an answer."""
    if isinstance(found, torch.Tensor | np.ndarray | float | int):
        return [torch.as_tensor(found)]
    if isinstance(found, nn.Module):
        found = found.state_dict()
    elif not isinstance(found, list | tuple | Mapping) and hasattr(found, "__dict__"):
        found = vars(found)
    parts = found.values() if isinstance(found, Mapping) else found if isinstance(found, list | tuple) else ()
    return [number for part in parts for number in numbers(part)]


def require_same(found, expected):
    found, expected = numbers(found), numbers(expected)
    assert len(found) == len(expected) > 0
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(
            one.detach().cpu(), other.detach(), rtol=1e-4, atol=1e-5, check_dtype=False, equal_nan=True
        )


def require_there(answer):
    assert answer.device == torch.device(DEVICE)
    return answer


@pytest.mark.parametrize("build", [*each("learner"), *each("net", of="learner")])
def test_learners_answer_as_on_the_cpu(build):
    context, xq, _ = EPISODES.to(DEVICE)
    require_same(require_there(there(built(build))(context, xq)), built(build)(EPISODES.context, EPISODES.xq))


@pytest.mark.parametrize("build", [*each("predictor"), *each("net", of="predictor")])
def test_predictors_answer_and_decode_as_on_the_cpu(build):
    model, sequences = there(built(build)), SEQUENCES.to(DEVICE)
    answer = require_there(model(sequences))
    require_same(answer, built(build)(SEQUENCES))
    state = model.init_state(6) if hasattr(model, "init_state") else None
    for element, expected in zip(sequences.unbind(1), answer.unbind(1), strict=True) if state else ():
        found, state = model.step(element, state)
        require_same(found, expected.cpu())


@pytest.mark.parametrize("build", [*each("learner"), *each("net", of="learner")])
def test_learners_are_checked_where_they_are(build):
    check_learner(there(built(build)), permutation_invariant=False)


@pytest.mark.parametrize("build", [*each("predictor"), *each("net", of="predictor")])
def test_predictors_are_checked_where_they_are(build):
    check_predictor(there(built(build)), SHORT)


@pytest.mark.parametrize("build", each("construction", of="learner"))
def test_constructions_that_learn_compute_as_on_the_cpu(build):
    context, xq, _ = EPISODES.to(DEVICE)
    for model in build(3, 1, 10, 2, None):
        expected = model.float()(EPISODES.context, EPISODES.xq)
        require_same(require_there(there(model)(context, xq)), expected)


@pytest.mark.parametrize("build", each("construction", of="predictor"))
def test_constructions_that_predict_compute_as_on_the_cpu(build):
    for model in build(3, 2, None):
        expected = model.float()(SEQUENCES)
        require_same(require_there(there(model)(SEQUENCES.to(DEVICE))), expected)


@pytest.mark.parametrize("build", each("family"))
def test_families_draw_on_the_device_of_the_generator(build):
    batch = sample_tasks(build(), 3, stream(0, "devices", device=DEVICE))
    for tensor in [batch] if isinstance(batch, torch.Tensor) else [*batch.context, batch.xq, batch.yq]:
        require_there(tensor)


@pytest.mark.parametrize(("name", "look"), [one for one in examples("lens") if "of" not in facts("lens", one[0])])
def test_lenses_see_a_network_as_on_the_cpu(name, look):
    if name in ("compare", "sweep", "identify"):  # which draw tasks of their own; see below
        return
    config = TransformerConfig(4, n_layers=2, shared=True, token_clip=9.0)
    net = InContextRegressorConfig(config).build(stream(0, "init"))
    require_same(look(there(copy.deepcopy(net)), EPISODES.to(DEVICE)), look(net, EPISODES))


@pytest.mark.parametrize(("name", "look"), examples("lens", of="predictor"))
def test_lenses_see_a_predictor_as_on_the_cpu(name, look):
    net = mesa_gradient_descent(3, 0.1).network.float()
    found = []
    for one, tasks in ((net, SEQUENCES), (there(copy.deepcopy(net)), SEQUENCES.to(DEVICE))):
        torch.manual_seed(0)  # of what is shuffled
        found.append(look(one, tasks))
    require_same(found[1], found[0])


def test_what_draws_tasks_of_its_own_draws_them_there():
    config = InContextRegressorConfig(TransformerConfig(4, init_scale=0.02))
    net, gd = (train(config.build, FAMILY, PLAN, [0, 1], device=DEVICE).member(0), there(GradientDescent(1, 1.0)))
    compare(net, {"gd": gd, "lsq": LeastSquares(), "ridge": from_numpy(lambda x, y, xq: xq[:, :1])}, FAMILY, tasks=10,
            device=DEVICE)  # fmt: skip
    sweep({"net": net, "gd": gd}, FAMILY, {"noise": [0.0, 1.0]}, tasks=10, device=DEVICE)
    require_there(tune(gd, FAMILY, tasks=20).learner.eta)
    require_there(tune_spectral(gd, FAMILY, contexts=20).learner.eta)
    spectra = gram_spectra(FAMILY, 5, stream(0, "spectra", device=DEVICE))
    require_there(spectral_mse(spectra, gd, FAMILY))


def test_a_learner_is_identified_where_its_weights_are_or_where_it_is_told_to_compute():
    few = [one for one in candidates(sklearn=False) if one.name in ("mean", "zero")]
    net = InContextRegressorConfig(TransformerConfig(4, init_scale=0.5)).build(stream(0, "init"))
    expected = identify(net, FAMILY, few, 700).to_dict()
    there(net)
    for device in (None, DEVICE):
        found = identify(net, FAMILY, few, 700, device=device).to_dict()
        assert found == expected if DEVICE == "simulated:0" else found["verdict"] == expected["verdict"]
    with pytest.raises(ArgumentError, match="must be on the device of the network"):
        identify(net, FAMILY, few, device="cpu")
    with pytest.raises(ArgumentError, match="device must be one that torch can use here, but is 'nowhere'"):
        identify(net, FAMILY, few, device="nowhere")


def test_layers_are_identified_as_on_the_cpu():
    net = InContextRegressorConfig(TransformerConfig(4, n_layers=2, init_scale=0.5)).build(stream(0, "init"))
    few = [one for one in candidates(sklearn=False) if one.name in ("mean", "zero")]
    expected = along(by_layer(net, FAMILY), FAMILY, few, 700)
    found = along(by_layer(there(net), FAMILY), FAMILY, few, 700)
    assert found.sentences == expected.sentences
    assert found.to_dict() == expected.to_dict() or DEVICE != "simulated:0"


def test_behaviour_is_measured_as_on_the_cpu():
    gd, double = GradientDescent(1, 0.5).double(), EPISODES.to(torch.float64)
    expected = behaviour_of(gd, double, stream(0, "b"))
    for device in ("cpu", DEVICE):  # of the generator
        require_same(behaviour_of(there(gd), double.to(DEVICE), stream(0, "b", device=device)), expected)
        for change in CONDITIONS.values():
            require_there(change(double.to(DEVICE), stream(0, "c", device=device)).xq)


@pytest.mark.parametrize("measure", [smoother_weights, superposition, lambda gd, tasks: controls(gd, tasks, None, None),
    lambda gd, tasks: implicit_weights(gd, tasks, tasks.context.x),
    lambda gd, tasks: spectral_filter(smoother_weights(gd, tasks), tasks),
    lambda gd, tasks: invariances(gd, tasks, stream(0, "changes")),
])  # fmt: skip
def test_each_measurement_of_behaviour_is_that_of_the_cpu(measure):
    expected = measure(GradientDescent(1, 0.5), EPISODES)
    require_same(measure(there(GradientDescent(1, 0.5)), EPISODES.to(DEVICE)), expected)


PUBLISHED = (mesa_attention_reference, mesa_conjugate_gradients, mesa_neumann, mesa_chebyshev, mesa_recursion)


@pytest.mark.parametrize("method", [mesa_attention, *PUBLISHED])
def test_every_method_of_the_mesa_layer_computes_as_on_the_cpu(method):
    def attended(device):
        inputs = [torch.randn(2, 2, 5, 3, generator=stream(0, name)).to(device).requires_grad_() for name in "qkv"]
        ridge = torch.full((2, 3), 9.0, device=device)
        y = method(*inputs, ridge=ridge)
        return y, torch.autograd.grad(y.square().sum(), inputs)

    require_same(attended(DEVICE), attended("cpu"))


PLAIN = (linear_attention, linear_attention_reference, softmax_attention, softmax_attention_reference)


@pytest.mark.parametrize("method", [
    *(partial(one, return_state=True) for one in (causal_softmax_attention, causal_linear_attention, delta_attention)),
    *(lambda q, k, v, one=one, **gates: one(q, k, v) for one in PLAIN), lambda q, k, v, **gates: dpfp(q, 2),
    lambda q, k, v, **gates: rotated(q[..., :2], torch.arange(5, device=q.device)),
    lambda q, k, v, **gates: sinusoidal(q, 4),
    lambda q, k, v, **gates: causal_softmax_attention_reference(q, k, v, *gates.values()),
    lambda q, k, v, **gates: fast_weights_reference(q, k, v, *gates.values(), q.new_zeros(2, 2, 3, 3), delta=True),
    partial(mesa_attention, ridge=2.0, return_state=True, return_info=True),
    lambda q, k, v, **gates: mesa_state(k, v, ridge=2.0, **gates),
    lambda q, k, v, **gates: mesa_step(q[..., 0, :], k[..., 0, :], v[..., 0, :], None, ridge=2.0),
])  # fmt: skip
def test_operations_compute_as_on_the_cpu(method):
    def computed(device):
        q, k, v = (torch.randn(2, 2, 5, 3, generator=stream(0, name)).to(device) for name in "qkv")
        gates = {name: torch.rand(2, 2, 5, generator=stream(0, name)).to(device) for name in ("log_forget", "beta")}
        gates["log_forget"] = -gates["log_forget"]
        return method(q, k, v, **gates)

    require_same(computed(DEVICE), computed("cpu"))


@pytest.fixture
def waits_a_step(computing):
    """Number of times that the CPU waits for the device in the second step of a training."""

    def count(go):
        total = []
        for steps in (1, 2):
            before = computing.waits
            go(dataclasses.replace(PLAN, steps=steps, clip=0.1, average=1.0, evaluate_every=100, schedule="constant"))
            total.append(computing.waits - before)
        return total[1] - total[0]

    return count


@pytest.mark.skipif(DEVICE != "simulated:0", reason="only the simulated device counts")
def test_a_training_step_of_an_ensemble_waits_for_its_losses_alone(waits_a_step):
    config = InContextRegressorConfig(TransformerConfig(4, init_scale=0.02))
    assert waits_a_step(lambda plan: train(config.build, FAMILY, plan, [0, 1], device=DEVICE)) <= 1


@pytest.mark.skipif(DEVICE != "simulated:0", reason="only the simulated device counts")
@pytest.mark.parametrize("autocast", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("options", [{}, {"forget": True}, {"forget": True, "beta": True, "ridge_kind": "relative"}])
def test_a_training_step_of_a_module_with_mesa_layers_waits_for_its_loss_alone(waits_a_step, options, autocast):
    config = CausalTransformerConfig(AttentionConfig(8, 2, **options), 1, "mesa")
    tokens = torch.randn(2, 12, 8, generator=stream(0, "tokens")).to(DEVICE)

    def go(plan):
        net = config.build(stream(0, "init")).to(DEVICE)
        loss = lambda net, tokens: net(tokens).square().mean()  # noqa: E731
        fit(ModuleState(net, loss, plan, autocast=autocast), lambda step: tokens, plan)

    assert waits_a_step(go) <= 1


@pytest.mark.skipif(DEVICE != "simulated:0", reason="only the simulated device counts")
@pytest.mark.parametrize(
    ("method", "order"),
    [
        *(("maml", 2), ("sparse-maml", 1)),
        *(pytest.param(method, 1, marks=pytest.mark.slow) for method in METHODS if method != "sparse-maml"),
    ],
)
def test_an_outer_step_of_a_meta_learner_waits_for_its_loss_alone(waits_a_step, method, order):
    config = MetaLearnerConfig(ClassifierConfig("mlp", 8, size=6, classes=3), method, 0.1, 2, order=order)
    tasks = FewShotImages(ways=3, shots=1, queries=2, size=6).sample(2, stream(0, "tasks")).to(DEVICE)

    def go(plan):
        fit(ModuleState(config.build(stream(0, "init")).to(DEVICE), MetaLearner.loss, plan), lambda step: tasks, plan)

    assert waits_a_step(go) <= 1


def waits_of(computing, state, batches):
    """Number of times that the CPU waits in each step of a fit."""
    found = []

    def batch_at(step):
        found.append(computing.waits)
        return batches[step]

    fit(state, batch_at, Training(steps=len(batches), schedule="constant"))
    return [later - before for before, later in pairwise([*found, computing.waits])]


@pytest.mark.skipif(DEVICE != "simulated:0", reason="only the simulated device counts")
@pytest.mark.parametrize(("name", "build"), examples("method", of="tasks"))
def test_a_step_of_a_continual_learner_waits_for_its_loss_alone_and_for_a_projection_of_gem(computing, name, build):
    net = ClassifierConfig("mlp", 8, size=8, classes=10)
    tasks = stacked([RotatedDigits(samples=10, queries=3).sample(3, stream(seed, "tasks")) for seed in (0, 1)])
    state = ContinualState([net.build(stream(seed, "init")).to(DEVICE) for seed in (0, 1)], build(), [0, 1])
    found = waits_of(computing, state, [batch_of(tasks.to(DEVICE), step, 5) for step in range(6)])
    assert found == ([1, 1, 2, 2, 2, 2] if name == "gem" else [1] * 6)


@pytest.mark.parametrize(("name", "build"), examples("method", of="tasks"))
def test_a_continual_state_goes_on_from_tensors_of_the_cpu(computing, name, build):
    """Its memory moves to the device too."""
    net = ClassifierConfig("mlp", 8, size=8, classes=10)
    tasks = stacked([RotatedDigits(samples=10, queries=3).sample(3, stream(0, "tasks"))]).to(DEVICE)
    first, again = (ContinualState([net.build(stream(0, "init")).to(DEVICE)], build(), [0]) for _ in range(2))
    first.update(batch_of(tasks, 0, 5))
    again.load({key: value.cpu() for key, value in first.tensors().items()})
    for step in (1, 2):
        torch.testing.assert_close(first.update(batch_of(tasks, step, 5)), again.update(batch_of(tasks, step, 5)))


@pytest.mark.skipif(DEVICE != "simulated:0", reason="only the simulated device counts")
@pytest.mark.parametrize(("name", "build"), examples("method", of="batches"))
def test_a_step_of_an_online_learner_waits_as_often_as_it_must(computing, name, build):
    """Once for what the network predicts of a batch, and again for each loss that decides how it goes on."""
    stream_of = SwitchingImages(stay=0.5, ways=4, shots=5, domains=("digits",), size=8).stream(12, 0)
    state, switched = build().state(0, device=DEVICE), []
    update = state.update

    def noted(batch):
        metrics = update(batch)
        switched.append(metrics.get("switch"))
        return metrics

    state.update = noted
    batches = [Context(*(part.to(DEVICE) for part in stream_of(step))) for step in range(12)]
    found = waits_of(computing, state, batches)
    if name != "continual-maml":
        assert found == [{"online-descent": 2, "bayesian-descent": 1}[name]] * 12
        return
    assert 1.0 in switched
    found[0] -= 1  # once, for whether targets are classes
    for waits, switch in zip(found, switched, strict=True):
        assert waits <= (4 if switch else 2)


@pytest.mark.skipif(DEVICE != "simulated:0", reason="only the simulated device counts")
@pytest.mark.parametrize(("name", "build"), examples("family"))
def test_tasks_are_drawn_without_waiting_but_for_data_in_the_memory_of_the_cpu(computing, name, build):
    most = {"few-shot-images": 1, "real-table": 1, "text-windows": 1, "rotated-digits": 9, "permuted-digits": 6,
            "regression-problem": 4}  # fmt: skip
    family, generator, before = build(), stream(0, "devices", device=DEVICE), computing.waits
    sample_tasks(family, 3, generator)
    assert computing.waits - before <= most.get(name, 0)


def test_language_models_train_and_continue_as_on_the_cpu():
    config = language_model_config("softmax, mesa", 40, 32, width=16, n_heads=2, forget=True)
    tokens = torch.randint(40, (4, 16), generator=stream(0, "tokens"))

    def trained(device):
        model = config.build(stream(0, "init")).to(device)
        fit(ModuleState(model, next_token_loss, PLAN), lambda step: tokens.to(device), PLAN)
        logits = model(tokens.to(device))
        next_tokens(logits[:, -1], 1.0, 0.5, stream(0, "draws", device=device))
        return logits, vars(head_scores(model, 4)) | {"uniform": ()}, vars(inspect(model, tokens))["losses"]

    require_same(trained(DEVICE), trained("cpu"))


@pytest.mark.parametrize(("members", "dtype"), [(0, torch.bfloat16), (2, torch.bfloat16), (0, torch.float16)])
def test_a_step_with_activations_of_16_bits_has_nearly_the_loss_of_one_in_float32(members, dtype):
    config = language_model_config("softmax, mesa", 40, 32, width=16, n_heads=2, forget=True)
    tokens = torch.randint(40, (max(members, 1), 4, 16), generator=stream(0, "tokens")).to(DEVICE)
    losses = []
    for autocast in (None, dtype):
        models = [config.build(stream(seed, "init")).to(DEVICE) for seed in range(max(members, 1))]
        given = (next_token_loss, PLAN)
        state = EnsembleState(models, *given, autocast=autocast) if members else ModuleState(
            models[0], *given, autocast=autocast
        )  # fmt: skip
        losses.append(torch.as_tensor(state.update(tokens if members else tokens[0])["loss"]))
    torch.testing.assert_close(*losses, rtol=0.02, atol=0)
    assert not torch.equal(*losses)
    assert {weight.dtype for weight in state.tensors().values() if weight.is_floating_point()} == {torch.float32}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_a_meta_learner_adapts_with_products_of_16_bits_and_keeps_its_weights_in_float32(dtype):
    config = MetaLearnerConfig(ClassifierConfig("convnet4", 4, size=8, classes=3), "maml", 0.01, 2)
    tasks, losses = FewShotImages(ways=3, shots=2, queries=2, size=8).sample(2, stream(0, "tasks")).to(DEVICE), []
    for autocast in (None, dtype):
        state = ModuleState(config.build(stream(0, "init")).to(DEVICE), MetaLearner.loss, PLAN, autocast=autocast)
        losses.append(state.update(tasks)["loss"])
    assert losses[0] != losses[1] == pytest.approx(losses[0], rel=0.05)
    assert {weight.dtype for weight in state.result().parameters()} == {torch.float32}


def test_language_models_are_trained_saved_and_continue_text_there(tmp_path, monkeypatch):
    pytest.importorskip("tokenizers")
    monkeypatch.setattr("mesascope.language.learning.available_device", lambda name: name)
    (tmp_path / "text.txt").write_text("|".join("abc " * 20 + str(number) for number in range(40)))
    prepare([tmp_path / "text.txt"], tmp_path / "tokens", delimiter="|", validation=0.3)
    settings = LanguageTraining(
        str(tmp_path / "tokens"), width=16, n_heads=2, mlp=None, context=24, accumulate=2, autocast="bfloat16",
        validation_windows=2, training=dataclasses.replace(LanguageTraining.training, steps=3, batch=4, warmup_steps=0),
    )  # fmt: skip
    run = new_language_run(settings, tmp_path / "run", device=DEVICE)
    model = train_language_model(run)
    require_there(model.embedding.weight)
    assert {row["step"] for row in run.metrics("model")} == {0, 3}
    tokenizer = load_tokenizer(tmp_path / "tokens" / "tokenizer.json")
    found = ["".join(generate(one, tokenizer, "abc ", tokens=5)) for one in (model, copy.deepcopy(model).cpu())]
    assert found[0] == found[1] or DEVICE != "simulated:0"  # whose draws are others
    found, expected = (evaluate(one, tokenizer, tmp_path / "tokens") for one in (model, copy.deepcopy(model).cpu()))
    assert found.loss.value == pytest.approx(expected.loss.value, rel=1e-4)
    assert found.by_token.keys() == expected.by_token.keys()


def test_losses_and_recall_of_a_language_model_are_those_of_the_cpu():
    tasks = AssociativeRecall().sample(4, stream(0, "tasks"))
    model = language_model_config("softmax, mesa", 64, 64, width=16, n_heads=2).build(stream(0, "init"))

    def measured(device):
        own, asked = copy.deepcopy(model).to(device), tasks.to(device)
        losses = token_losses(own, asked[:, 0])
        return (losses, in_context_score(losses), losses_by_octave(losses), recall_loss(own, asked),
                recall_by_sequence(own, asked), recall_accuracy(own, asked))  # fmt: skip

    require_same(measured(DEVICE), measured("cpu"))


def test_states_are_saved_and_go_on_there(tmp_path):
    config = SequencePredictorConfig(CausalTransformerConfig(AttentionConfig(8, 2), 2, ("softmax", "mesa")), d=3)
    net, found = config.build(stream(0, "init")), []
    for device in ("cpu", DEVICE):
        net, elements = net.to(device), SEQUENCES.to(device)
        _, state = net.step(elements[:, 0], net.init_state(6))
        save_state(select_state(state, torch.tensor([1, 0, 2])), tmp_path / "state")
        found.append(net.step(elements[:3, 1], load_state(tmp_path / "state", device)))
        net.save_pretrained(tmp_path / "net")
        require_same(SequencePredictor.from_pretrained(tmp_path / "net"), copy.deepcopy(net).cpu())
    require_there(found[1][0])
    require_same(*reversed(found))


def test_products_are_set_there():
    net = InContextRegressorConfig(TransformerConfig(4)).build(stream(0, "init"))
    products = torch.randn(2, 1, 4, 4, generator=stream(0, "products"))
    found = [copy.deepcopy(net), there(net)]
    for one, device in zip(found, ("cpu", DEVICE), strict=True):
        set_products(one.transformer.layers[0].attention, Products(*products.to(device)))
    require_same(found[1], found[0])


def test_layers_of_fla_compute_as_on_the_cpu():
    def attended(device):
        q, k, v = (torch.randn(1, 9, 2, 3, generator=stream(0, name)).to(device).requires_grad_() for name in "qkv")
        g, beta = (torch.rand(1, 9, 2, generator=stream(0, name)).to(device) for name in ("g", "beta"))
        documents = torch.tensor([0, 4, 9], device=device)
        y, states = chunk_mesa_net(
            q, k, v, -g, beta, torch.ones(2, 3, device=device), cu_seqlens=documents, output_final_state=True
        )
        return y, states, torch.autograd.grad(y.square().sum(), (q, k, v))

    require_same(attended(DEVICE), attended("cpu"))


def test_a_layer_with_the_weights_of_mesanet_computes_as_on_the_cpu():
    weights = pytest.importorskip("test_adapters").mesa_net_weights()
    tokens = torch.randn(2, 5, 16, generator=stream(0, "tokens"), dtype=torch.float64)
    found = from_mesa_net({name: one.to(DEVICE) for name, one in weights.items()})(tokens.to(DEVICE))
    require_same(require_there(found), from_mesa_net(weights)(tokens))


@pytest.mark.parametrize("build", each("method", of="tasks"))
def test_continual_learners_learn_tasks_as_on_the_cpu(build):
    family, net = RotatedDigits(samples=5, queries=3), ClassifierConfig("mlp", 8, size=8, classes=10)
    tasks = stacked([family.sample(3, stream(seed, "tasks")) for seed in (0, 1)])

    def learned(device):
        state = ContinualState([net.build(stream(seed, "init")).to(device) for seed in (0, 1)], build(), [0, 1])
        ensemble = fit(state, lambda step: batch_of(tasks.to(device), step, 5), Training(steps=3))
        curves = {"accuracy": np.zeros((2, 3))}
        return (
            ensemble.weights,
            state.sparsity_by_parameter(),
            _followed(curves, retained_accuracy(ensemble, tasks.to(device)), 1),
        )

    require_same(learned(DEVICE), learned("cpu"))


@pytest.mark.parametrize("build", each("method", of="batches"))
def test_online_learners_follow_a_stream_as_on_the_cpu(build):
    batches = SwitchingImages(stay=0.5, ways=4, shots=5, domains=("digits",), size=8).stream(5, 0)

    def learned(device):
        state = build().state(0, device=device)
        return fit(state, lambda step: Context(*(part.to(device) for part in batches(step))), Training(steps=5))

    require_same(learned(DEVICE), learned("cpu"))


@pytest.mark.parametrize(("method", "order"), [*((method, 1) for method in METHODS), ("sparse-maml", 2)])
def test_meta_learners_adapt_and_learn_as_on_the_cpu(method, order):
    if method == "sparse-maml-plus" and DEVICE != "simulated:0":
        pytest.skip("its masks are drawn on the device")
    config = MetaLearnerConfig(ClassifierConfig("mlp", 8, size=6, classes=3), method, 0.1, 2, order=order)
    episodes = FewShotImages(ways=3, shots=1, queries=2, size=6).sample(2, stream(0, "tasks"))

    def learned(device):
        learner, tasks = config.build(stream(0, "init")).to(device), episodes.to(device)
        plan = dataclasses.replace(PLAN, schedule="constant")
        trained = fit(ModuleState(learner, MetaLearner.loss, plan), lambda step: tasks, plan)
        return trained, accuracy_by_task(trained, tasks), watched(tasks)(trained)

    require_same(learned(DEVICE), learned("cpu"))


def test_tasks_are_drawn_there_from_images_of_ones_own():
    images, labels = np.random.default_rng(0).random((30, 8, 8), dtype=np.float32), np.repeat(["a", "b", "c"], 10)
    family = FewShotArrays(images, labels, ways=2, queries=5, rotations=True)
    context, xq, yq = family.sample(2, stream(0, "tasks", device=DEVICE))
    for tensor in (*context, xq, yq):
        require_there(tensor)


def test_clones_of_a_meta_learner_adapt_as_on_the_cpu():
    x, y = torch.randn(4, 36, generator=stream(0, "x")), torch.tensor([0, 1, 2, 0])

    def gradients(device):
        learner = MetaLearnerConfig(ClassifierConfig("mlp", 8, size=6, classes=3)).build(stream(0, "init")).to(device)
        task, own = learner.clone(), (x.to(device), y.to(device))
        for _ in range(2):
            task.adapt(cross_entropy(task(own[0]), own[1]))
        cross_entropy(task(own[0]), own[1]).backward()
        return [one.grad for one in learner.parameters()], learner.sparsity_by_parameter()

    require_same(gradients(DEVICE), gradients("cpu"))


def test_ensembles_of_meta_learners_train_as_on_the_cpu():
    learner = MetaLearnerConfig(ClassifierConfig("mlp", 8, size=6, classes=3), steps=2)
    episodes = stacked([FewShotImages(ways=3, shots=1, queries=2, size=6).sample(2, stream(0, "t")) for _ in range(2)])

    def trained(device):
        state = EnsembleState([learner.build(stream(seed, "init")).to(device) for seed in (0, 1)], outer_loss, PLAN)
        return fit(state, lambda step: episodes.to(device), PLAN).weights, result_tensors(state.tensors())

    require_same(trained(DEVICE), trained("cpu"))


def test_untrained_meta_learners_are_on_the_device_of_the_run():
    lab = SimpleNamespace(seeds=(0, 1), device=torch.device(DEVICE))
    for learner in untrained(lab, FewShot(size=6, architecture="mlp", width=4), "sparse-maml"):
        assert {one.device for one in learner.parameters()} == {torch.device(DEVICE)}


def test_adapters_answer_there(tmp_path):
    linear_model = pytest.importorskip("sklearn.linear_model")
    context, xq, _ = EPISODES.to(DEVICE)
    for learner in (
        from_sklearn(linear_model.Ridge()),
        from_numpy(lambda x, y, xq: xq[:, :1]),
        from_text(lambda _: "1.0"),
        record(LeastSquares(), tmp_path / "calls.jsonl"),
    ):
        require_same(require_there(learner(context, xq)), learner(EPISODES.context, EPISODES.xq))
    predictor, learner = AsPredictor(GradientDescent(1, 0.1)), AsLearner(mesa_gradient_descent(3, 0.1).network.float())
    expected = predictor(SEQUENCES), learner(EPISODES.context, EPISODES.xq)
    require_same((there(predictor)(SEQUENCES.to(DEVICE)), there(learner)(context, xq)), expected)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_local_models_answer_as_on_the_cpu(temperature, tmp_path):
    folder = pytest.importorskip("test_local_model").saved(tmp_path / "model", "bloom")
    prompts = ["1.0 -> 2.0\n1.5 ->", "1.0 -> 2.0\n1.7 ->", "0 ->"]  # of which two begin alike

    def answered(device):
        model = LocalModel(folder, device=device, temperature=temperature, max_tokens=4)
        return model(prompts), model.log_probabilities(prompts[0], [" 1.0", " 1.1"])

    (found, logs), (expected, other) = answered(DEVICE), answered("cpu")
    require_same(logs, other)
    assert found == expected or (temperature and DEVICE != "simulated:0")


@pytest.mark.parametrize("read", ["mode", "mean", "sample"])
def test_language_models_of_numbers_read_prompts_where_they_are(read):
    words, tasks = NumberTokenizer(), LinearRegression(n_context=4, d_in=1).sample(3, stream(0, "tasks"))
    model = language_model_config("softmax", len(words), 60, width=8, n_heads=2).build(stream(0, "init"))
    expected = from_language_model(model, words, read)(tasks.context, tasks.xq)
    for device in ("cpu", DEVICE):  # of the tasks
        own = tasks.to(device)
        require_same(from_language_model(there(model), words, read)(own.context, own.xq), expected)


def test_regressors_are_compared_where_the_tasks_are(monkeypatch):
    monkeypatch.setattr(regressors, "COUNTS", (1, 5))
    tasks, ridge = LinearRegression(n_context=20, d_in=1).sample(3, stream(0, "tasks")), LeastSquares(0.1)
    found = regressors.errors_by_pairs(ridge, tasks.to(DEVICE), tasks.to(DEVICE))
    require_same(found, regressors.errors_by_pairs(ridge, tasks, tasks))


def test_functions_of_sequences_compute_as_on_the_cpu():
    loss, sequences = partial(pair_half_mse, lambda sequences: 0.5 * sequences), SEQUENCES[:, :4]
    for function in (Lags(2), partial(preconditioned, regulariser=0.1), loss):
        expected = function(sequences)
        require_same(there(function)(sequences.to(DEVICE)), expected)


def test_prompts_are_tuned_where_the_network_is():
    family = FewShotSequence(d=3, pairs=2, tasks=2)
    net = there(mesa_gradient_descent(3, 0.1).network.float())
    require_there(next(prompt_tune(net, family, eos=True, training=PLAN).parameters()))


@pytest.mark.parametrize("there_is", [False, True])
def test_the_device_that_auto_takes_is_said_in_one_line(there_is, monkeypatch, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: there_is)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "H100")
    taken = available_device("auto")
    tell_device("cpu", "cpu")
    tell_device("auto", taken)
    assert taken == ("cuda" if there_is else "cpu")
    said = capsys.readouterr().err
    assert said.startswith(f"mesascope: --device auto takes {taken} (")
    assert said.count("\n") == 1


@pytest.mark.parametrize(
    "use",
    [
        available_device,
        EPISODES.to,
        lambda device: stream(0, "x", device=torch.device(device)),
        lambda device: train(InContextRegressorConfig(TransformerConfig(4)).build, FAMILY, PLAN, device=device),
        lambda device: compare(GradientDescent(1, 1.0), {"lsq": LeastSquares()}, FAMILY, device=device),
    ],
)
def test_a_device_without_float64_is_refused_and_why(use):
    with pytest.raises(ArgumentError, match=r"^device must support float64, but is 'mps(:0)?': pass 'cpu'\.$"):
        use("mps")


# Public names that take tensors or models, and that no test here names.
NOT_NAMED = {
    "protocols": """Checkpoints ContinualMethod Family HasActivations HasTokens HasTrajectory Layout Learner Predictor
        SequenceFamily TrainingState""",
    "results of functions that are tested here": "HeadScores Inspection ReverseEngineered Tuned WeightReading",
    "called or made by what is tested here": """BayesianDescentState Candidate CausalAttention ContinualMAMLState
        EmbeddingConfig Ensemble Episode Gradient HookedModule Learning MLPConfig Modulation OnlineDescentState
        ProgressBar Reservoir TaskCopy TaskMemory TextLearner check_episode check_inputs check_sequence corpus_windows
        half_mse squares""",
    "tested with several processes": "SharedCheckpoints local_batch mesa_state_before sharded",
    "tested with studies": "Lab",
    "on the CPU alone": "check_family",
}
TAKES = re.compile(
    r"\b(Tensors?|Generator|device|Context|Descent|Ensemble|Episode|Family|LanguageModel|Learner|Module|Predictor|"
    r"Has\w+|\w*State)\b"
)


def test_every_public_name_that_takes_tensors_or_models_is_tested_here_or_is_an_exception():
    def takes(given):
        own = vars(given).values() if isinstance(given, type) else [given]
        notes = [note for one in own if callable(one) for note in getattr(one, "__annotations__", {}).items()]
        return any(name != "return" and TAKES.search(str(note)) for name, note in notes)

    source = Path(importlib.import_module("mesascope").__file__).parent
    modules = [importlib.import_module(f"mesascope.{stub.parent.name}") for stub in source.glob("*/__init__.pyi")]
    public = {name: getattr(module, name) for module in modules for name in module.__all__}
    tested = {*re.findall(r"\w+", Path(__file__).read_text().partition("NOT_NAMED")[0])}
    tested |= {entry.__name__ for kind in EXAMPLES for entry in registered(kind).values()}
    tested |= {method.__name__ for method in METHODS.values()}
    tested |= {type(part).__name__ for _, build in examples("net") for part in built(build).modules()}
    taking = {name for name, given in public.items() if takes(given)}
    assert sorted(taking - tested) == sorted(" ".join(NOT_NAMED.values()).split())
