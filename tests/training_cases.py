"""Trainings that tests interrupt, and what runs them in processes of their own.

``training_cases.py kill FOLDER`` starts each training and kills it with SIGKILL in the middle;
``training_cases.py parallel FOLDER RANK`` is one of two processes that train one module together.
"""

import dataclasses
import json
import os
import signal
import sys
from pathlib import Path

import torch
from torch import nn

from mesascope.runs.checkpoints import TrainingCheckpoints
from mesascope.streams import stream
from mesascope.training import Ensemble, EnsembleState, ModuleState, ParameterGroup, Training, fit

KILLED_AT, CHECKPOINT = 7, 6
BASE = Training(steps=10, batch=8, learning_rate=0.02, evaluate_every=4, checkpoint_every=3)


class Net(nn.Module):
    """Two layers with whatever a training has to keep: dropout, BatchNorm, a generator of its own."""

    def __init__(self, seed, *, dropout=0.0, batch_norm=False, noise=False):
        super().__init__()
        # A bias before BatchNorm has no gradient but rounding, which Adam would make large.
        self.first, self.second = nn.Linear(3, 8, bias=not batch_norm), nn.Linear(8, 1)
        self.norm = nn.BatchNorm1d(8) if batch_norm else nn.Identity()
        self.dropout = nn.Dropout(dropout)
        self.noise = torch.Generator().manual_seed(seed) if noise else None
        for weight in self.parameters():
            weight.data.normal_(0.0, 0.5, generator=stream(seed, "init"))

    def forward(self, x):
        hidden = self.dropout(torch.tanh(self.norm(self.first(x))))
        if self.noise is not None:
            hidden = hidden + 0.1 * torch.randn(hidden.shape, generator=self.noise)
        return self.second(hidden)


class Memory:
    """Checkpoints kept in memory; every one of them, so that a test can go back to any."""

    def __init__(self, start=None):
        self.saved, self.start = {}, start

    def save(self, step, tensors):
        self.saved[step] = {name: tensor.clone() for name, tensor in tensors.items()}

    def load(self):
        return self.start


def loss(model, batch):
    error = (model(batch["x"]) - batch["y"]).square()
    return error.flatten(1).mean(1) if isinstance(model, Ensemble) else error.mean()


def batch_at(step, members=(), dtype=torch.float32):
    generator = stream(0, "train", step)
    x = torch.randn(*members, 8, 3, generator=generator, dtype=dtype)
    return {"x": x, "y": x.sum(-1, keepdim=True).sin()}


def ensemble(plan, **parts):
    state = EnsembleState([Net(seed, **parts) for seed in range(3)], loss, plan, seed=5)
    return state, lambda step: batch_at(step, (3,)), plan


def module(plan, options=None, **parts):
    return ModuleState(Net(0, **parts), loss, plan, seed=5, **(options or {})), batch_at, plan


def _plan(**changes):
    return dataclasses.replace(BASE, **changes)


CASES = {
    "ensemble-sgd": lambda: ensemble(_plan(optimizer="sgd", momentum=0.9, clip=0.5), dropout=0.3),
    "ensemble-adam": lambda: ensemble(_plan(average=2.0), batch_norm=True, dropout=0.3),
    "ensemble-adamw": lambda: ensemble(_plan(optimizer="adamw", weight_decay=0.1, warmup_steps=4), noise=True),
    "module-sgd": lambda: module(_plan(optimizer="sgd", momentum=0.9, clip=0.5), {"accumulate": 2}, dropout=0.3),
    "module-adam": lambda: module(_plan(average=2.0, schedule="cosine"), batch_norm=True, dropout=0.3),
    "module-adamw": lambda: module(
        _plan(optimizer="adamw", weight_decay=0.1),
        {"autocast": torch.float16, "parameter_groups": [ParameterGroup(("*.bias",), 0.01, 0.0)]},
        noise=True,
    ),
}


def store(folder, name):
    return TrainingCheckpoints(Path(folder) / name, {"case": name})


def kill(folder):
    """Train each case in a process that kills itself before it finishes."""
    for name, make in CASES.items():
        child = os.fork()
        if child == 0:
            state, draw, plan = make()

            def deadly(step, draw=draw):
                if step == KILLED_AT:
                    os.kill(os.getpid(), signal.SIGKILL)
                return draw(step)

            fit(state, deadly, plan, checkpoints=store(folder, name))
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status), name


def parallel_plan():
    return _plan(optimizer="sgd", momentum=0.5, clip=1.0, average=1.0)


def parallel(folder, rank):
    """Train on this process's half of each batch, in two parts."""
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=2)
    wrapped, drawn = nn.parallel.DistributedDataParallel(Net(0)), []

    def losses(model, batch):
        drawn.append(torch.rand(()).item())
        return loss(model, batch)

    state = ModuleState(wrapped, losses, parallel_plan(), accumulate=2)
    halves = [slice(0, 4), slice(4, 8)]
    result = fit(state, lambda step: {k: v[halves[rank]] for k, v in batch_at(step).items()}, parallel_plan())
    weights = {name: weight.tolist() for name, weight in result.state_dict().items()}
    (Path(folder) / f"{rank}.json").write_text(json.dumps({"weights": weights, "drawn": drawn}))
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    torch.set_num_threads(1)
    if sys.argv[1] == "kill":
        kill(sys.argv[2])
    else:
        parallel(sys.argv[2], int(sys.argv[3]))
