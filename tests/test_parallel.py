"""The mesa-layer over a sequence whose parts lie in two processes."""

import children
import pytest
import torch

from mesascope.errors import ArgumentError
from mesascope.ops import mesa_state_before

PROGRAM = """
import sys
import torch
from torch import distributed, multiprocessing
from mesascope.ops import mesa_attention, mesa_state_before
from mesascope.ops.mesa.parallel import _Exchange

def problem(kind):
    torch.manual_seed(0)
    shape = (2, 3, 50)
    leaves = {name: torch.randn(*shape, 4, dtype=torch.float64) for name in "qkv"}
    leaves |= {"log_forget": -torch.rand(shape, dtype=torch.float64), "beta": torch.rand(shape, dtype=torch.float64)}
    leaves["log_forget"][0, 0, 10] = leaves["log_forget"][0, 1, 40] = -torch.inf
    if kind == "decaying":
        leaves["log_forget"] = leaves["log_forget"].clamp(min=-0.3) / 10
    return {name: leaf.requires_grad_() for name, leaf in leaves.items()}, torch.rand(3, 4, dtype=torch.float64) + 0.1

def work(rank, folder):
    distributed.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=2)
    for kind in ("decaying", "constant", "relative"):
        compare(rank, kind)
    distributed.destroy_process_group()

def compare(rank, kind):
    leaves, ridge = problem(kind)
    ridge.requires_grad_()
    whole = mesa_attention(**leaves, ridge=ridge, ridge_kind=kind)
    cut = 17
    part = slice(None, cut) if rank == 0 else slice(cut, None)
    own = {name: leaf.detach()[:, :, part].requires_grad_() for name, leaf in leaves.items()}
    own_ridge = ridge.detach().clone().requires_grad_()
    about = {name: leaf for name, leaf in own.items() if name != "q"}
    state = mesa_state_before(**about, ridge=own_ridge, ridge_kind=kind)
    y = mesa_attention(**own, ridge=own_ridge, ridge_kind=kind, state=state)
    close = lambda a, b: torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)
    close(y, whole[:, :, part])
    expected = torch.autograd.grad((whole * whole.detach().cos()).sum(), [*leaves.values(), ridge])
    found = torch.autograd.grad((y * y.detach().cos()).sum(), [*own.values(), own_ridge])
    for one, other in zip(found[:-1], expected[:-1], strict=True):
        close(one, other[:, :, part])
    seen = []
    passed = _Exchange.apply(own["q"].sum()[None], None)
    passed.register_hook(seen.append)
    (2.0 * passed).sum().backward()
    assert seen[0].tolist() == [[2.0], [2.0]]  # what came in is another's, and stays
    of_ridge = found[-1].clone()
    distributed.all_reduce(of_ridge)
    close(of_ridge, expected[-1])

if __name__ == "__main__":
    multiprocessing.start_processes(work, (sys.argv[1],), nprocs=2, start_method="fork")
"""


def test_two_processes_give_the_numbers_and_gradients_of_one(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    done = children.run(program, tmp_path)
    assert done.returncode == 0, done.stderr


def test_without_processes_a_sentence_says_so():
    with pytest.raises(ArgumentError, match="must be initialised, but is not: call torch"):
        mesa_state_before(torch.ones(1, 3, 2), torch.ones(1, 3, 2), ridge=1.0)
