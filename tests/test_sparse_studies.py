"""Studies of sparse learning: the images that networks are trained and judged on, and the sign of transfer."""

import dataclasses
import itertools
from types import SimpleNamespace
from unittest import mock

import numpy as np
import pytest
import torch

from mesascope.records import registered
from mesascope.streams import stream
from mesascope.studies.sparse import continual_mnist, continual_online
from mesascope.studies.sparse.few_shot import FewShot, accuracy_by_task
from mesascope.studies.sparse.following import _watches
from mesascope.tasks import Context, Episode, RotatedDigits

pytestmark = pytest.mark.usefixtures("unchecked_module")

STUDIES = registered("study")
FEW_SHOT = [name for name, study in STUDIES.items() if isinstance(study.presets["quick"], FewShot)]


@pytest.mark.parametrize("name", FEW_SHOT)
def test_few_shot_studies_train_on_the_training_classes_and_judge_on_the_test_classes(name):
    study = STUDIES[name]
    lab = mock.MagicMock(seeds=[0], device="cpu")
    lab.draw.side_effect = lambda family, tasks, name: family.sample(2, stream(0, name))
    study.measure(lab, dataclasses.replace(study.presets["quick"], dataset="digits"))
    assert {call.args[2].part for call in lab.train.call_args_list} == {"train"}
    assert {call.args[0].part for call in lab.draw.call_args_list} == {"test"}


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
