"""Studies of sparse learning: the images that networks are trained and judged on, and the sign of transfer."""

import dataclasses
import itertools
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch
from PIL import Image

from mesascope.data import images
from mesascope.errors import ArgumentError
from mesascope.records import registered
from mesascope.streams import stream
from mesascope.studies import estimating, new_run, run_study
from mesascope.studies.sparse import continual_mnist, continual_online
from mesascope.studies.sparse.few_shot import FewShot, accuracies, accuracy_by_task, layers_of, watched
from mesascope.studies.sparse.following import _watches
from mesascope.studies.sparse.sparse_maml import closed_vectors, strengths
from mesascope.tasks import Context, Episode, RotatedDigits

pytestmark = pytest.mark.usefixtures("unchecked_module")

STUDIES = registered("study")
FEW_SHOT = [name for name, study in STUDIES.items() if isinstance(study.presets["quick"], FewShot)]


@pytest.mark.parametrize("name", FEW_SHOT)
def test_few_shot_studies_train_on_the_training_classes_and_judge_on_the_test_classes(name):
    study = STUDIES[name]
    lab = mock.MagicMock(seeds=[0], device="cpu")
    lab.draw.side_effect = lambda family, tasks, name: family.sample(2, stream(0, name))
    lab.stage.side_effect = lambda name, compute, *given: [draw(0) for draw in given if callable(draw)]
    study.measure(lab, dataclasses.replace(study.presets["quick"], dataset="digits"))
    assert {call.args[2].part for call in lab.train.call_args_list} == {"train"}
    assert {call.args[0].part for call in lab.draw.call_args_list} == {"test"}


@pytest.fixture
def mini_imagenet(tmp_path, monkeypatch):
    """Folders of noise where miniImageNet and the datasets beside it would be: 84 x 84 pixels, in colour."""
    noise = np.random.default_rng(0)
    for dataset, part, label, image in itertools.product(
        ("mini-imagenet", "tiered-imagenet", "cub", "cars"), ("train", "test"), "abcde", range(7)
    ):
        path = tmp_path / dataset / part / f"{part}-{label}" / f"{image}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(noise.integers(0, 255, (84, 84, 3), dtype=np.uint8)).save(path)
    monkeypatch.setenv("MESASCOPE_DATA", str(tmp_path))
    monkeypatch.setenv("MESASCOPE_CACHE", str(tmp_path / "cache"))


def small(settings, steps=1, batch=2, **changes):
    """A preset with its images, recipes and order, narrow networks and few tasks."""
    plan = dataclasses.replace(settings.training, steps=steps, batch=batch, evaluate_every=steps)
    changes |= {"training": plan, "width": 2, "shots": 1, "queries": 1, "tasks": 2, "watch_tasks": 1, "seeds": 2}
    return dataclasses.replace(settings, **changes)


THESIS = [(name, preset) for name in FEW_SHOT for preset in STUDIES[name].presets if preset.startswith("mini-")]


@pytest.mark.slow
@pytest.mark.parametrize("steps", [{}, {"steps": 10, "inner_steps": 2}], ids=["one", "ten"])
@pytest.mark.parametrize(("name", "preset"), THESIS)
def test_presets_of_the_thesis_train_on_images_of_its_size(name, preset, steps, mini_imagenet, tmp_path):
    few = {"sparse-maml-plasticity": {"lengths": (5,), "rates": (0.1,)}}.get(name, {})
    trained_by(name, preset, tmp_path, **steps, **few)


def test_all_methods_of_the_thesis_take_a_step_on_images_of_its_size(mini_imagenet, tmp_path):
    trained_by("sparse-maml", "mini-imagenet", tmp_path, inner_steps=1)


def trained_by(name, preset, folder, **changes):
    study = STUDIES[name]
    settings = small(study.presets[preset], **changes)
    records = run_study(study, settings, new_run(study, preset, settings, out=folder / "run"))
    assert not any(one["verdict"] == "holds" for one in records if one["about"] == "training")
    assert all(one["n"] for one in records) or "resnet12" in preset  # which has fewer methods


@pytest.mark.slow
def test_networks_of_the_thesis_take_ten_steps_at_their_width(mini_imagenet, monkeypatch):
    monkeypatch.setattr(estimating, "steps_to_time", lambda first, seconds: 8)  # beside two
    study = STUDIES["sparse-maml"]
    settings = small(study.presets["mini-imagenet"], batch=1, width=study.presets["mini-imagenet"].width, seeds=1)
    assert len(estimating.estimate(study, "mini-imagenet", settings)) == study.trainings(settings)


# Few images of few tasks, of digits as large as those of MNIST and Omniglot; networks are as wide as in the preset.
FEW = {
    "continual-mnist": {
        "dataset": "digits", "samples": 100, "many_samples": 100, "queries": 100, "tasks": 2, "many_tasks": 2,
        "passes": 1, "pass_tasks": 1, "side_seeds": 2,
    },
    "continual-online": {
        "domains": ("digits",), "before": "digits", "ways": 5, "steps": continual_online.PARTS, "stays": (0.5,),
        "pretraining": dataclasses.replace(continual_online.BEFORE, steps=10, evaluate_every=10),
    },
}  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("name", FEW)
def test_learners_of_streams_take_ten_batches_and_more_at_the_width_of_the_paper(name, tmp_path):
    study = STUDIES[name]
    settings = dataclasses.replace(study.presets["paper"], seeds=2, **FEW[name])
    run = new_run(study, "paper", settings, out=tmp_path / "run")
    run_study(study, settings, run)
    assert run.is_complete


def test_each_method_has_its_own_recipe_on_images_of_the_thesis_size():
    study, found = STUDIES["sparse-maml"], {}
    for preset in ("mini-imagenet", "mini-imagenet-resnet12"):
        for shots in (1, 5):
            settings = dataclasses.replace(study.presets[preset], shots=shots)
            found[preset, shots] = {name: settings.learner(name) for name in settings.methods}
    five = {name: (one.inner_lr, one.steps, one.order) for name, one in found["mini-imagenet", 5].items()}
    assert (five["sparse-maml"], five["boil"], five["meta-sgd"][2], five["exp-maml"][2]) == (
        (0.25, 35, 1),
        (0.5, 1, 1),
        2,
        2,
    )
    assert found["mini-imagenet", 1]["sparse-maml"].inner_lr == 0.1
    deep = found["mini-imagenet-resnet12", 1]
    assert (deep["sparse-maml"].inner_lr, deep["sparse-relu-maml"].inner_lr) == (0.05, 0.01)
    assert not any(one.norms for one in deep.values())
    plus = STUDIES["sparse-maml-plus"].presets["mini-imagenet"].outer("sparse-maml-plus")
    assert (plus.optimizer, plus.steps, plus.learning_rate) == ("sgd", 60_000, 0.0075)


def test_recipes_are_those_of_the_preset_whatever_the_size_of_the_images():
    whole = STUDIES["sparse-maml"].presets["mini-imagenet"]
    small = dataclasses.replace(whole, dataset="cifar-fs", size=32)
    for method in whole.methods:
        assert small.learner(method).inner_lr == whole.learner(method).inner_lr
        assert small.learner(method).steps == whole.learner(method).steps
    assert dataclasses.replace(whole, recipes="tuned").learner("sparse-maml").inner_lr == 0.4


def test_settings_that_are_not_those_of_the_preset_are_among_the_deviations(tmp_path):
    study = STUDIES["sparse-maml"]
    settings = dataclasses.replace(study.presets["quick"], dataset="omniglot", tasks=20)
    said = new_run(study, "quick", settings, out=tmp_path / "run").config["deviations"][-1]
    assert said == (
        "Settings of this run that are not those of its preset (in brackets): dataset omniglot (digits), "
        "tasks 20 (200)."
    )
    assert new_run(study, "quick", out=tmp_path / "own").config["deviations"] == study.departures("quick")


def test_images_of_other_channels_are_refused_before_anything_trains(tmp_path):
    study = STUDIES["sparse-maml"]
    run = new_run(study, "quick", dataclasses.replace(study.presets["quick"], in_channels=3), out=tmp_path / "run")
    with pytest.raises(ArgumentError, match="in_channels must be 1, as the images of digits have, but is 3"):
        run_study(study, run.settings, run)


def test_too_few_images_for_five_shots_are_refused_before_anything_trains(tmp_path):
    study = STUDIES["sparse-maml"]
    fewest = int(images("digits", "test", study.presets["quick"].size).labels.bincount().min())
    settings = dataclasses.replace(study.presets["quick"], queries=fewest - 1)
    run = new_run(study, "quick", settings, out=tmp_path / "run")
    with pytest.raises(ArgumentError, match="be at most"):
        run_study(study, run.settings, run)
    assert not run.times


def learner_of(method, architecture="convnet4", seed=0):
    settings = FewShot(ways=2, width=4, architecture=architecture, size=8)
    return settings.learner(method).build(stream(seed, "init"))


def test_a_layer_is_a_weight_or_the_three_convolutions_of_a_residual_block():
    convnet, mlp, deep = (layers_of(learner_of("maml", kind).model) for kind in ("convnet4", "mlp", "resnet12"))
    assert convnet == [[f"blocks.{place}.0.weight"] for place in range(4)] + [["head.weight"]]
    assert mlp == [[f"layers.{place}.weight"] for place in range(3)]
    assert deep[1] == [f"blocks.1.convolutions.{place}.weight" for place in range(3)]
    assert len(deep) == 5


def test_closed_shares_count_the_entries_that_a_method_may_adapt():
    tasks = FewShot(dataset="digits", ways=2, size=8, queries=1).family().sample(1, stream(0, "watch"))
    for architecture in ("convnet4", "resnet12"):
        one = learner_of("sparse-maml", architecture)
        with torch.no_grad():
            for number in one.method.numbers.values():
                number.fill_(1.0)
            first = layers_of(one.model)[0][0]
            one.method.numbers[first.replace(".", "/")].fill_(-1.0)
        found, weights = watched(tasks)(one), dict(one.model.named_parameters())
        entries = [sum(weights[name].numel() for name in names) for names in layers_of(one.model)]
        every = sum(own.numel() for name, own in one.method.adapted(one.model).items())
        assert found["closed"] == pytest.approx(weights[first].numel() / every)
        assert found["closed 0"] == pytest.approx(weights[first].numel() / entries[0])
        assert found["closed 1"] == found["closed bias"] == 0


def test_closed_vectors_are_those_of_norms_or_the_biases_of_a_network_without_them():
    convnet, mlp = learner_of("sparse-maml"), learner_of("sparse-maml", "mlp")
    with torch.no_grad():
        for one, closed in ((convnet, "blocks/2/1/bias"), (mlp, "layers/1/bias")):
            for name, number in one.method.numbers.items():
                number.fill_(-1.0 if name == closed else 1.0)
    assert closed_vectors([convnet])["closed"].tolist() == [[[0, 0, 0, 0], [0, 0, 100, 0]]]
    assert closed_vectors([mlp])["closed"].tolist() == [[[0, 100]]]


def test_strengths_of_shrinkage_are_relative_to_their_start():
    one = learner_of("shrinkage")
    with torch.no_grad():
        one.method.numbers["blocks/0/0"].add_(np.log(3))
    np.testing.assert_allclose(strengths([one, one])["strength"], [[3, 1, 1, 1, 1]] * 2, rtol=1e-6)


def test_streams_hold_other_classes_than_those_learned_before(monkeypatch):
    followed = []
    monkeypatch.setattr(continual_online, "follow_batches", lambda *args: followed.extend(args[4]))
    lab = mock.MagicMock(seeds=[0])
    continual_online.measure(lab, STUDIES["continual-online"].presets["quick"])
    assert {call.args[2].part for call in lab.train.call_args_list} == {"train"}
    assert {one.settings.part for one in followed} == {"test"}


def test_a_learner_that_looks_up_its_context_is_at_chance_on_labels_drawn_at_random():
    """The context holds neither the queries nor their labels."""
    x, xq = torch.randn(2, 400, 5, 8, generator=stream(0, "images")).unbind()
    y, yq = torch.eye(5)[torch.randint(5, (2, 400, 5), generator=stream(0, "labels"))].unbind()

    def nearest(context, queries):
        return context.y.take_along_dim(torch.cdist(queries, context.x).argmin(-1)[..., None], -2)

    assert accuracy_by_task(nearest, Episode(Context(x, y), xq, yq)).mean() == pytest.approx(0.2, abs=0.03)


def test_networks_are_judged_on_tasks_of_their_own_and_methods_on_the_same():
    def fresh(place):
        yq = torch.eye(5)[torch.randint(5, (50, 5), generator=stream(place, "labels"))]
        return Episode(Context(yq, yq), yq, yq)

    def first_class(context, queries):
        return torch.eye(5)[0].expand(queries.shape)

    found = accuracies(dict.fromkeys(("one", "same"), [first_class] * 3), fresh)
    expected = [100 * fresh(place).yq[..., 0].mean().item() for place in range(3)]
    assert found["one"] == pytest.approx(expected)
    assert found["same"] == found["one"]
    assert len({*expected}) == 3


def test_accuracy_along_a_stream_is_on_the_queries_of_the_present_task():
    tasks = RotatedDigits(20, 30).sample(3, stream(0, "tasks")).map(lambda part: part[None])
    state = SimpleNamespace(step=8, seeds=[0], sparsity_by_parameter=lambda: [{}])

    def knows_queries_of_the_second(x):
        return tasks.yq[0, 1] if torch.equal(x, tasks.xq[0, 1]) else torch.zeros(len(x), 10)

    assert _watches(state, tasks, steps=4)[0](knows_queries_of_the_second) == {"accuracy": 1.0}


def test_transfer_is_negative_where_accuracy_falls_after_a_task():
    fell = {"learned": np.array([[0.9, 0.6]]), "retained": np.array([[0.5, 0.6]])}
    table = continual_mnist._table(
        dict.fromkeys(itertools.product(continual_mnist.STREAMS, continual_mnist.METHODS), fell)
    )
    assert table["retained"] == pytest.approx(55.0)
    assert table["transfer"] == pytest.approx(-20.0)
