"""Speed of meta-learning and of continual learning on two cores, beside plain loops of PyTorch, with their agreement.

One first-order outer step of MAML (5 inner steps, 4 tasks, 5-way 5-shot, 15 queries, 28 x 28 pixels, 64 filters) takes
turns with a plain loop over tasks; a glance of La-MAML is that of the benchmark on MNIST, three networks at once and
one; peak memory is that of 5 and of 35 inner steps. Writes benchmarks/results/meta.json. Takes some two minutes;
``python benchmarks/meta.py`` from the root of the project.
"""

from __future__ import annotations

import json
import platform
import resource
import statistics
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.func import functional_call
from torch.nn.functional import cross_entropy, max_pool2d

from mesascope.meta import MAML, ContinualBatch, ContinualState, LaMAML
from mesascope.nets import ClassifierConfig, ConvNet4
from mesascope.streams import stream
from mesascope.tasks import Context, Episode
from mesascope.training import keep_freed_memory

RESULTS = Path(__file__).parent / "results" / "meta.json"
ROUNDS, TASKS, WAYS, SHOTS, QUERIES, RATE = 7, 4, 5, 5, 15, 0.1


class Plain(nn.Module):
    """The same network as it is usually written."""

    def __init__(self, net: ConvNet4) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(
            nn.Conv2d(*block[0].weight.shape[1::-1], 3, padding=1) for block in net.blocks
        )
        self.norms = nn.ModuleList(nn.BatchNorm2d(block[1].num_features) for block in net.blocks)
        self.head = nn.Linear(net.head.in_features, net.head.out_features)
        own, theirs = dict(self.named_parameters()), dict(net.named_parameters())
        for index in range(len(net.blocks)):
            for place, part in ((0, "convolutions"), (1, "norms")):
                for kind in ("weight", "bias"):
                    own[f"{part}.{index}.{kind}"].data = theirs[f"blocks.{index}.{place}.{kind}"].data.clone()
        self.head.load_state_dict(net.head.state_dict())

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = images.view(-1, 1, 28, 28)
        for convolution, norm in zip(self.convolutions, self.norms, strict=True):
            hidden = max_pool2d(norm(convolution(hidden)).relu(), 2)
        return self.head(hidden.flatten(1))


def plain_step(net: Plain, episode: Episode) -> torch.Tensor:
    """First-order MAML, task by task: the outer loss, and its gradient in the parameters."""
    names, total = [name for name, _ in net.named_parameters()], torch.zeros(())
    for x, y, xq, yq in zip(*episode.context, episode.xq, episode.yq, strict=True):
        phi = {name: one.detach().clone().requires_grad_() for name, one in net.named_parameters()}
        for _ in range(5):
            inner = torch.autograd.grad(cross_entropy(functional_call(net, phi, (x,)), y), list(phi.values()))
            phi = {n: (phi[n] - RATE * g).detach().requires_grad_() for n, g in zip(names, inner, strict=True)}
        loss = cross_entropy(functional_call(net, phi, (xq,)), yq)
        for parameter, outer in zip(net.parameters(), torch.autograd.grad(loss, list(phi.values())), strict=True):
            parameter.grad = outer / TASKS if parameter.grad is None else parameter.grad + outer / TASKS
        total = total + loss.detach() / TASKS
    return total


def episode() -> Episode:
    generator = stream(0, "benchmark")
    x, xq = (torch.rand(TASKS, WAYS * count, 784, generator=generator) for count in (SHOTS, QUERIES))
    y, yq = (torch.eye(WAYS).repeat(TASKS, count, 1) for count in (SHOTS, QUERIES))
    return Episode(Context(x, y), xq, yq)


def outer_steps() -> dict[str, Any]:
    """Seconds of a step, ours and plain taking turns, and how far their gradients differ."""
    torch.manual_seed(0)
    net, drawn = ConvNet4(64, 1, 28, WAYS), episode()
    plain, method = Plain(net), MAML(RATE, 5)

    def ours() -> None:
        net.zero_grad()
        method.outer_loss(net, drawn).backward()

    def theirs() -> None:
        plain.zero_grad()
        plain_step(plain, drawn)

    seconds = in_turn({"ours": ours, "plain": theirs})
    net, plain, drawn = net.double(), plain.double(), drawn.to(torch.float64)  # five steps in float32 are chaotic
    ours()
    theirs()
    own = torch.cat([one.grad.flatten() for one in net.head.parameters() if one.grad is not None])
    other = torch.cat([one.grad.flatten() for one in plain.head.parameters() if one.grad is not None])
    return seconds | {"difference_in_float64": float((own - other).norm() / other.norm())}


def in_turn(cases: dict[str, Callable[[], None]]) -> dict[str, Any]:
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(ROUNDS + 1):
        for name, call in cases.items():
            start = time.perf_counter()
            call()
            times[name].append(time.perf_counter() - start)
    medians = {name: round(statistics.median(one[1:]), 4) for name, one in times.items()}
    ratios = [a / b for a, b in zip(times["ours"][1:], times["plain"][1:], strict=True)]
    return medians | {"ratio": round(statistics.median(ratios), 3)}


def glances(members: int) -> float:
    """Milliseconds of a glance of La-MAML on batches of ten, of so many networks together."""
    nets = [ClassifierConfig("mlp", 100, size=28, classes=10).build(stream(seed, "init")) for seed in range(members)]
    state, generator = ContinualState(nets, LaMAML(), range(members)), stream(0, "benchmark")
    x, y = torch.rand(members, 10, 784, generator=generator), torch.arange(10).repeat(members, 1)
    times = []
    for _ in range(40):
        start = time.perf_counter()
        state.update(ContinualBatch(x, y, 0))
        times.append(time.perf_counter() - start)
    return round(1e3 * statistics.median(times[5:]) / 5, 2)


def memory(steps: int) -> float:
    """MiB that a process holds at its peak after an outer step."""
    MAML(RATE, steps).outer_loss(ConvNet4(64, 1, 28, WAYS), episode()).backward()
    return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10, 1)


def alone(call: Callable[[int], float], value: int) -> float:
    """In a process of its own."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
        return pool.submit(call, value).result()


def main() -> None:
    found = {
        "machine": platform.processor() or platform.machine(), "threads": torch.get_num_threads(),
        "peak_mib": {steps: alone(memory, steps) for steps in (5, 35)},
    }  # fmt: skip
    keep_freed_memory()
    found["outer_step_seconds"] = outer_steps()
    found["glance_milliseconds"] = {members: glances(members) for members in (1, 3)}
    RESULTS.write_text(json.dumps(found, indent=1) + "\n")
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
