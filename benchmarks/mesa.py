"""Speed of the mesa-layer, with its accuracy beside it.

Methods that are compared take turns within one process; times are the fastest of several, forward and backward, with
freed memory kept and denormal numbers as zero, as suits a training. Peaks of memory are those of processes of their
own, above the inputs. Writes benchmarks/results/mesa.json and a figure, and prints tables. Takes about four minutes on
two cores.
"""

from __future__ import annotations

import json
import multiprocessing
import platform
import re
import time
from collections.abc import Callable, Sequence
from functools import cache, partial
from pathlib import Path
from typing import Any

import torch
from matplotlib import rc_context
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import normalize, scaled_dot_product_attention

from mesascope.ops import MesaState, mesa_attention, mesa_step
from mesascope.reports.figures import COLOURS, STYLE, figure_files
from mesascope.streams import stream
from mesascope.training import keep_freed_memory

RESULTS = Path(__file__).parent / "results" / "mesa.json"
HEADS, D = 16, 64
METHODS = {
    "chunk": {"method": "chunk"},
    "recurrence": {"method": "scan"},
    "cg to 8 eps": {"method": "cg"},
    "30 cg": {"method": "cg", "iterations": 30, "tolerance": 0.0},
}


def inputs(t: int, d: int = D, *, forget: float = 0.99, ridge: float = 1.0, dtype=torch.float32) -> dict[str, Tensor]:
    """Unit keys and queries of one sequence of 16 heads."""
    generator = stream(0, "mesa")
    q, k, v = (torch.randn(1, HEADS, t, d, generator=generator, dtype=torch.float64) for _ in range(3))
    gate = torch.full((1, HEADS, t), forget, dtype=torch.float64).log()
    named = {"q": normalize(q, dim=-1), "k": normalize(k, dim=-1), "v": v, "log_forget": gate}
    named["ridge"] = torch.full((HEADS,), ridge, dtype=torch.float64)
    return {name: tensor.to(dtype).requires_grad_() for name, tensor in named.items()}


def run(leaves: dict[str, Tensor], **options) -> list[Tensor]:
    """The output, and the gradients of q, k, v, gates and ridge."""
    y = mesa_attention(**leaves, **options)
    return [y.detach(), *torch.autograd.grad(y, list(leaves.values()), cotangent(y.shape).to(y.dtype))]


def softmax(leaves: dict[str, Tensor]) -> None:
    """Softmax attention, forward and backward."""
    q, k, v = (leaves[name] for name in "qkv")
    y = scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.autograd.grad(y, (q, k, v), cotangent(y.shape))


@cache
def cotangent(shape: torch.Size) -> Tensor:
    """What the outputs' gradient is taken along; drawn once, in float32 so that every dtype gets the same."""
    return torch.randn(shape, generator=stream(0, "cotangent"))


def milliseconds(cases: dict[Any, Callable[[], object]], rounds: int = 4) -> dict[Any, float]:
    """The fastest of several calls of each case, in turns."""
    fastest = dict.fromkeys(cases, float("inf"))
    for _ in range(rounds):
        for name, case in cases.items():
            start = time.perf_counter()
            case()
            fastest[name] = min(fastest[name], 1e3 * (time.perf_counter() - start))
    return fastest


def accuracy() -> list[dict]:
    """Relative errors in float32 against float64, by condition number."""
    rows = []
    settings = (
        (1.0, 1.0),
        (1.0, 0.01),
        (0.99, 0.01),
        (1.0, 1e-3),
        (0.95, 0.01),
        (1.0, 3e-4),
        (0.95, 1e-3),
        (1.0, 1e-5),
    )
    for forget, ridge in settings:
        exact = run(inputs(512, forget=forget, ridge=ridge, dtype=torch.float64))
        row: dict = {"forget": forget, "ridge": ridge, "condition": condition(forget, ridge)}
        for method, options in METHODS.items():
            rough = run(inputs(512, forget=forget, ridge=ridge), **options)
            errors = [float((one.double() - true).norm() / true.norm()) for one, true in zip(rough, exact, strict=True)]
            row[method] = dict(zip(("y", "q", "k", "v", "log_forget", "ridge"), errors, strict=True))
        rows.append(row)
    return rows


def condition(forget: float, ridge: float) -> float:
    """The largest condition number of H_t that the first head meets."""
    leaves = inputs(512, forget=forget, ridge=ridge, dtype=torch.float64)
    H, worst = ridge * torch.eye(D, dtype=torch.float64), 1.0
    for t, k in enumerate(leaves["k"][0, 0].detach()):
        H = forget * H + k[:, None] * k
        worst = max(worst, float(torch.linalg.cond(H))) if t % 16 == 0 else worst
    return worst


def by_length(lengths: Sequence[int]) -> list[dict]:
    rows = []
    for t in lengths:
        leaves = inputs(t)
        methods = METHODS if t <= 512 else ("chunk",)
        cases: dict[str, Callable[[], object]] = {name: partial(run, leaves, **METHODS[name]) for name in methods}
        times = milliseconds({**cases, "softmax": partial(softmax, leaves)}, rounds=4 if t <= 2048 else 2)
        rows.append({"t": t, **times, **{f"{name} MiB": in_own_process(name, t) for name in ("chunk", "softmax")}})
    return rows


def in_own_process(method: str, t: int) -> float:
    """MiB that one call, forward and backward, adds at its peak to its inputs."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(added_memory, (method, t))


def added_memory(method: str, t: int) -> float:
    leaves = inputs(t)
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    softmax(leaves) if method == "softmax" else run(leaves, **METHODS[method])
    return (status("VmHWM") - before) / 1024


def status(name: str) -> int:
    """A line of Linux' account of this process, in KiB."""
    return int(re.findall(rf"{name}:\s+(\d+)", Path("/proc/self/status").read_text())[0])


def by_width(widths: Sequence[int], chunks: Sequence[int]) -> list[dict]:
    rows = []
    for d in widths:
        leaves = inputs(512, d)
        rows.append({"d": d, **milliseconds({str(chunk): partial(run, leaves, chunk=chunk) for chunk in chunks})})
    return rows


@torch.no_grad()
def decoding(positions: Sequence[int]) -> list[dict]:
    """Microseconds of one token of all heads, and bytes of what is kept, after so many tokens."""
    token = {name: part[:, :, 0] for name, part in inputs(1).items() if name != "ridge"}
    ridge, states, caches = inputs(1)["ridge"], {}, {}
    for t in positions:
        leaves = inputs(t)
        states[t] = mesa_attention(**leaves, return_state=True)[1]
        caches[t] = [leaves[name] for name in "kv"]
    steps = {t: partial(mesa_step, **token, state=state, ridge=ridge) for t, state in states.items()}
    attends = {t: partial(scaled_dot_product_attention, token["q"][:, :, None], *cache) for t, cache in caches.items()}
    # One after the other: a cache of hundreds of megabytes would push the mesa-layer's states out of the CPU's.
    mesa, softmax = milliseconds(steps, rounds=100), milliseconds(attends, rounds=30)
    return [
        {
            "t": t,
            "mesa": 1e3 * mesa[t],
            "softmax": 1e3 * softmax[t],
            "mesa bytes": size(states[t]),
            "softmax bytes": size(caches[t]),
        }
        for t in positions
    ]


def size(kept: MesaState | list[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in kept)


def show(title: str, rows: list[dict], console: Console) -> None:
    table = Table(title=title, title_justify="left")
    flat = [
        {key: max(value.values()) if isinstance(value, dict) else value for key, value in row.items()} for row in rows
    ]
    columns = list(dict.fromkeys(key for row in flat for key in row))
    for column in columns:
        table.add_column(column, justify="right")
    for row in flat:
        table.add_row(*(f"{row[column]:.3g}" if column in row else "" for column in columns))
    console.print(table)


def draw(rows: list[dict]) -> Figure:
    """Time and memory over the length of the sequence."""
    figure = Figure(figsize=(7.5, 3.1))
    time_axes, memory_axes = figure.subplots(1, 2)
    looks = {
        "chunk": ("mesa-layer, in chunks", "trained"),
        "softmax": ("softmax, PyTorch's kernel", "limit"),
        "recurrence": ("mesa-layer, recurrence", "gd"),
        "30 cg": ("mesa-layer, 30 CG steps", "gd++"),
    }
    for name, (label, colour) in looks.items():
        for axes, key in ((time_axes, name), (memory_axes, f"{name} MiB")):
            points = [(row["t"], row[key]) for row in rows if key in row]
            if points:
                axes.loglog(*zip(*points, strict=True), "o-", ms=3, color=COLOURS[colour], label=label)
    time_axes.set(xlabel="tokens", ylabel="ms, forward and backward")
    memory_axes.set(xlabel="tokens", ylabel="MiB beyond the inputs")
    figure.legend(*time_axes.get_legend_handles_labels(), loc="outside upper center", ncols=4)
    return figure


def main() -> None:
    keep_freed_memory()
    torch.set_flush_denormal(True)
    run(inputs(128))
    results = {
        "accuracy, float32: worst relative error of outputs and gradients": accuracy(),
        "ms forward and backward, and memory, by length": by_length((128, 256, 512, 1024, 2048, 4096, 8192, 16384)),
        "ms forward and backward by width and chunk, T = 512": by_width((16, 32, 64, 128, 256), (16, 32, 64, 128)),
        "microseconds of a decoded token": decoding((512, 4096, 32768)),
    }
    machine = {"machine": platform.machine(), "threads": torch.get_num_threads(), "torch": torch.__version__}
    RESULTS.write_text(json.dumps({**machine, **results}, indent=1) + "\n")
    with rc_context(STYLE):
        figure = draw(results["ms forward and backward, and memory, by length"])
    for suffix, content in figure_files(figure).items():
        RESULTS.with_suffix(f".{suffix}").write_bytes(content)
    for title, rows in results.items():
        show(title, rows, Console(width=120))


if __name__ == "__main__":
    main()
