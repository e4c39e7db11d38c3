"""Results that neither SIGKILL nor several processes may change."""

import json
from pathlib import Path

import children
import pytest
import torch
from training_cases import CASES, CHECKPOINT, Net, batch_at, loss, parallel_plan, store

from mesascope.errors import ArgumentError
from mesascope.modules import fill
from mesascope.training import EnsembleState, ModuleState, fit, result_tensors

SCRIPT = Path(__file__).with_name("training_cases.py")


@pytest.fixture(scope="module")
def killed(tmp_path_factory):
    """Run directories of trainings that were killed."""
    folder = tmp_path_factory.mktemp("killed")
    done = children.run(SCRIPT, "kill", folder)
    assert done.returncode == 0, done.stderr
    return folder


@pytest.mark.parametrize("name", CASES)
def test_a_killed_training_that_is_resumed_ends_as_an_uninterrupted_one_bit_for_bit(killed, name):
    checkpoints = store(killed, name)
    assert checkpoints.load()[0] == CHECKPOINT
    torch.manual_seed(12345)  # the global generator is no part of a training
    state, draw, plan = CASES[name]()
    drawn = []
    fit(state, lambda step: drawn.append(step) or draw(step), plan, checkpoints=checkpoints)
    assert drawn == list(range(CHECKPOINT, plan.steps))

    torch.manual_seed(54321)
    whole, draw, plan = CASES[name]()
    fit(whole, draw, plan)
    expected, found = whole.tensors(), state.tensors()
    assert expected.keys() == found.keys()
    for key, tensor in expected.items():
        assert torch.equal(found[key], tensor), key


@pytest.mark.parametrize("name", CASES)
def test_the_result_can_be_read_from_the_last_checkpoint(name):
    state, draw, plan = CASES[name]()
    result = fit(state, draw, plan)
    if isinstance(state, EnsembleState):
        expected = result.weights | result.buffers
    else:
        expected = dict(result.named_parameters()) | dict(result.named_buffers())
    found = result_tensors(state.tensors())
    assert found.keys() == expected.keys()
    for key, tensor in expected.items():
        assert torch.equal(found[key], tensor), key


@pytest.mark.parametrize("name", ["ensemble-adam", "module-adam"])
def test_a_checkpoint_of_another_model_is_refused(name):
    state, _, _ = CASES[name]()
    tensors = state.tensors()
    tensors["weights/third.weight"] = tensors.pop("weights/second.weight")
    with pytest.raises(ArgumentError, match=r"must hold the weights .* only one .* has second\.weight, third\.weight"):
        state.load(tensors)


def test_two_processes_train_as_one_does_on_the_whole_batch(tmp_path):
    workers = [children.Popen([SCRIPT, "parallel", tmp_path, rank]) for rank in (0, 1)]
    assert [worker.wait(timeout=240) for worker in workers] == [0, 0]
    first, second = (json.loads((tmp_path / f"{rank}.json").read_text()) for rank in (0, 1))
    assert first["weights"] == second["weights"]
    assert not set(first["drawn"]) & set(second["drawn"])  # dropout of one process is not that of the other
    alone = fit(ModuleState(Net(0), loss, parallel_plan()), batch_at, parallel_plan())
    for name, weight in alone.state_dict().items():
        torch.testing.assert_close(torch.tensor(first["weights"][name]), weight, rtol=1e-5, atol=1e-6)


def test_parts_that_are_shared_and_buffers_that_are_not_persistent_are_read_from_a_checkpoint():
    def make():
        net = Net(0)
        net.again = net.first
        net.second.register_buffer("seen", torch.zeros(2), persistent=False)
        return net

    state = ModuleState(make(), loss, parallel_plan())
    fit(state, batch_at, parallel_plan())
    state._module.second.seen += 1.0
    other = make()
    fill(other, result_tensors(state.tensors()))
    assert other.again.weight is other.first.weight
    for name, tensor in (*state._average.items(), ("second.seen", torch.ones(2))):
        assert torch.equal((dict(other.named_parameters()) | dict(other.named_buffers()))[name], tensor), name
