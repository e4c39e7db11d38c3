"""Speed of the mesa-layer, with its accuracy beside it.

Methods that are compared take turns within one process; times are the fastest of several, forward and backward, with
freed memory kept and denormal numbers as zero, as suits a training. Peaks of memory are those of processes of their
own, above the inputs. Writes benchmarks/results/mesa.json and a figure, and prints tables. Takes about six minutes on
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
from matplotlib.figure import Figure
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.nn.functional import normalize, scaled_dot_product_attention

from mesascope.ops import (
    MESA_RIDGES,
    RootedMesaState,
    mesa_attention,
    mesa_attention_reference,
    mesa_chebyshev,
    mesa_conjugate_gradients,
    mesa_neumann,
    mesa_recursion,
    mesa_step,
    without_reading_values,
)
from mesascope.reports.figures import own_style
from mesascope.reports.panels import COLOURS
from mesascope.streams import stream
from mesascope.training import keep_freed_memory

RESULTS = Path(__file__).parent / "results" / "mesa.json"
HEADS, D = 16, 64
CONSTANT = {"ridge_kind": "constant"}
# Published methods, with 30 iterations or terms each.
THIRTY = {"30 cg": mesa_conjugate_gradients, "30 Neumann": mesa_neumann, "30 Chebyshev": mesa_chebyshev}
# Forget factors, drawn from uniform numbers.
GATES: dict[str, Callable[[Tensor], Tensor]] = {
    "1": torch.ones_like,
    ".999": lambda draws: torch.full_like(draws, 0.999),
    ".99": lambda draws: torch.full_like(draws, 0.99),
    ".95": lambda draws: torch.full_like(draws, 0.95),
    ".9": lambda draws: torch.full_like(draws, 0.9),
    ".6": lambda draws: torch.full_like(draws, 0.6),
    ".6 and .998": lambda draws: torch.tensor([0.6, 0.998]).repeat(HEADS // 2)[None, :, None].expand_as(draws),
    "U(.95, 1)": lambda draws: 1 - 0.05 * draws,
    "U(.9, 1)": lambda draws: 1 - 0.1 * draws,
    "U(.6, 1)": lambda draws: 1 - 0.4 * draws,
    "10^U(-6, 0)": lambda draws: 10 ** (-6 * draws),
}


def inputs(t: int, d: int = D, *, gates: str = ".99", ridge: float = 1.0, dtype=torch.float32) -> dict[str, Tensor]:
    """Unit keys and queries of one sequence of 16 heads."""
    generator = stream(0, "mesa")
    q, k, v = (torch.randn(1, HEADS, t, d, generator=generator, dtype=torch.float64) for _ in range(3))
    draws = torch.rand(1, HEADS, t, generator=generator, dtype=torch.float64)
    gate = GATES[gates](draws).double().log()
    named = {"q": normalize(q, dim=-1), "k": normalize(k, dim=-1), "v": v, "log_forget": gate}
    named["ridge"] = torch.full((HEADS,), ridge, dtype=torch.float64)
    return {name: tensor.to(dtype).requires_grad_() for name, tensor in named.items()}


def run(leaves: dict[str, Tensor], method: Callable[..., Any] = mesa_attention, **options) -> list[Tensor]:
    """The output, and the gradients of q, k, v, gates and ridge."""
    y = method(**leaves, **options)
    return [y.detach(), *torch.autograd.grad(y, list(leaves.values()), cotangent(y.shape).to(y.dtype))]


def softmax(leaves: dict[str, Tensor]) -> None:
    """Softmax attention, forward and backward."""
    q, k, v = (leaves[name] for name in "qkv")
    y = scaled_dot_product_attention(q, k, v, is_causal=True)
    torch.autograd.grad(y, (q, k, v), cotangent(y.shape))


@cache
def cotangent(shape: torch.Size) -> Tensor:
    """Random cotangent of the outputs; drawn once, in float32, so that it is the same in every dtype."""
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
    """Relative errors in float32 of outputs and of gradients, the worst of them, by condition number."""
    rows = []
    settings = {
        "decaying": [("1", 1.0), ("U(.95, 1)", 1.0), ("U(.95, 1)", 0.02), ("U(.9, 1)", 0.1), ("U(.9, 1)", 3e-3),
               ("U(.6, 1)", 0.3), ("U(.6, 1)", 3e-3)],
        "constant": [("U(.6, 1)", 1.0), ("U(.6, 1)", 0.01), ("U(.95, 1)", 0.02), ("10^U(-6, 0)", 0.01), (".99", 3e-4),
                ("1", 1e-5)],
    }  # fmt: skip
    for kind, gates, ridge in ((kind, *case) for kind, cases in settings.items() for case in cases):
        case = {"t": 160, "d": 32, "gates": gates, "ridge": ridge}
        rough = inputs(**case)
        wide = {name: part.detach().double().requires_grad_() for name, part in rough.items()}
        exact = run(wide, mesa_attention_reference, ridge_kind=kind)
        row: dict = {**case, "ridge_kind": kind, "condition": condition(rough, kind == "decaying")}
        for method, function in {"exact": mesa_attention, "reference": mesa_attention_reference, **THIRTY}.items():
            found = run(rough, function, ridge_kind=kind)
            errors = [float((one.double() - true).norm() / true.norm()) for one, true in zip(found, exact, strict=True)]
            row |= {f"{method} y": errors[0], f"{method} gradients": max(errors[1:])}
        rows.append(row)
    return rows


def condition(leaves: dict[str, Tensor], decays: bool) -> float:
    """The largest condition number of A_t that any head meets."""
    ridge = torch.diag_embed(leaves["ridge"].detach().double()[:, None].expand(-1, leaves["k"].shape[-1]))
    H, worst = ridge if decays else torch.zeros_like(ridge), 1.0
    keys, gates = (leaves[name].detach().double()[0].unbind(1) for name in ("k", "log_forget"))
    for k, gate in zip(keys, gates, strict=True):
        H = gate.exp()[:, None, None] * H + k[:, :, None] * k[:, None]
        worst = max(worst, float(torch.linalg.cond(H if decays else H + ridge).max()))
    return worst


def unread(call: Callable[..., Any], **options: Any) -> Any:
    """A call that reads no values."""
    with without_reading_values(on_cpu=True):
        return call(**options)


def by_length(lengths: Sequence[int], d: int = D) -> list[dict]:
    rows = []
    for t in lengths:
        leaves = inputs(t, d)
        cases: dict[str, Callable[[], object]] = {
            "mesa": partial(run, leaves),
            "constant ridge": partial(run, leaves, **CONSTANT),
            "softmax": partial(softmax, leaves),
        }
        if t <= 512 and d == D:
            cases["recurrence"] = partial(run, leaves, mesa_recursion)
            cases |= {name: partial(run, leaves, method, **CONSTANT) for name, method in THIRTY.items()}
        times = milliseconds(cases, rounds=6 if t <= 1024 else 3)
        memory = {f"{name} MiB": in_own_process(name, t) for name in ("mesa", "softmax")} if d == D else {}
        rows.append({"t": t, **times, "mesa / softmax": times["mesa"] / times["softmax"], **memory})
    return rows


def by_gate(t: int = 512) -> list[dict]:
    """A ridge that does not decay, at any gate, beside one that does, at .99, and 30 plain iterations."""
    rows, reference = [], inputs(t)
    for gates in GATES:
        leaves = inputs(t, gates=gates)
        times = milliseconds(
            {
                "decaying ridge, gate .99": partial(run, reference),
                "constant ridge": partial(run, leaves, **CONSTANT),
                "30 cg": partial(run, leaves, mesa_conjugate_gradients, **CONSTANT),
            }
        )
        _, info = mesa_attention(**leaves, **CONSTANT, return_info=True)
        ratio = times["constant ridge"] / times["decaying ridge, gate .99"]
        rows.append({"gates": gates, **times, "constant / decaying": ratio, "iterations": info.iterations})
    return rows


def in_own_process(method: str, t: int) -> float:
    """MiB that one call, forward and backward, adds at its peak to its inputs."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(added_memory, (method, t))


def added_memory(method: str, t: int) -> float:
    leaves = inputs(t)
    before = status("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    softmax(leaves) if method == "softmax" else run(leaves)
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
    token["ridge"] = inputs(1)["ridge"]
    states, caches, steps = {}, {}, {}
    for t in positions:
        leaves = inputs(t)
        caches[t] = [leaves[name] for name in "kv"]
        state, fixed = (mesa_attention(**leaves, return_state=True, ridge_kind=kind)[1] for kind in MESA_RIDGES[:2])
        states[t] = state.rooted()
        steps[t, "mesa"] = partial(mesa_step, **token, state=states[t])
        steps[t, "mesa, unchecked"] = partial(unread, mesa_step, **token, state=states[t])
        steps[t, "mesa, dense"] = partial(mesa_step, **token, state=state)
        steps[t, "mesa, constant ridge"] = partial(mesa_step, **token, state=fixed, **CONSTANT)
    attends = {t: partial(scaled_dot_product_attention, token["q"][:, :, None], *cache) for t, cache in caches.items()}
    # One after the other: a cache of hundreds of megabytes would push the mesa-layer's states out of the CPU's.
    mesa, softmax = milliseconds(steps, rounds=100), milliseconds(attends, rounds=30)
    return [
        {
            "t": t,
            **{kind: 1e3 * time for (at, kind), time in mesa.items() if at == t},
            "softmax": 1e3 * softmax[t],
            "mesa bytes": size(states[t]),
            "softmax bytes": size(caches[t]),
        }
        for t in positions
    ]


def size(kept: RootedMesaState | list[Tensor]) -> int:
    return sum(tensor.numel() * tensor.element_size() for tensor in kept)


def show(title: str, rows: list[dict], console: Console) -> None:
    table = Table(title=title, title_justify="left")
    columns = list(dict.fromkeys(key for row in rows for key in row))
    for column in columns:
        table.add_column(column, justify="right")
    for row in rows:
        cells = (row.get(column, "") for column in columns)
        table.add_row(*(f"{cell:.3g}" if isinstance(cell, float) else str(cell) for cell in cells))
    console.print(table)


def draw(rows: list[dict]) -> Figure:
    """Time and memory over the length of the sequence."""
    figure = Figure(figsize=(7.5, 3.1))
    time_axes, memory_axes = figure.subplots(1, 2)
    looks = {
        "mesa": ("mesa-layer", "trained"),
        "softmax": ("softmax, PyTorch's kernel", "limit"),
        "constant ridge": ("its ridge constant", "interpolated"),
        "recurrence": ("recurrence", "gd"),
        "30 cg": ("30 CG steps", "gd++"),
    }
    for name, (label, colour) in looks.items():
        for axes, key in ((time_axes, name), (memory_axes, f"{name} MiB")):
            points = [(row["t"], row[key]) for row in rows if key in row]
            if points:
                axes.loglog(*zip(*points, strict=True), "o-", ms=3, color=COLOURS[colour], label=label)
    time_axes.set(xlabel="tokens", ylabel="ms, forward and backward")
    memory_axes.set(xlabel="tokens", ylabel="MiB beyond the inputs")
    figure.legend(*time_axes.get_legend_handles_labels(), loc="outside upper center", ncols=5)
    return figure


def main() -> None:
    keep_freed_memory()
    torch.set_flush_denormal(True)
    run(inputs(128))
    lengths = (128, 256, 512, 1024, 2048, 4096, 8192, 16384)
    results = {
        "relative errors in float32, T = 160, d = 32": accuracy(),
        "ms forward and backward, and memory, by length": by_length(lengths),
        "the same for d = 128": by_length((512, 1024, 2048, 4096), 128),
        "ms forward and backward by gate, T = 512": by_gate(),
        "ms forward and backward by width and chunk, T = 512": by_width((16, 32, 64, 128, 256), (16, 32, 64, 128)),
        "microseconds of a decoded token": decoding((512, 4096, 32768)),
    }
    machine = {"machine": platform.machine(), "threads": torch.get_num_threads(), "torch": torch.__version__}
    RESULTS.write_text(json.dumps({**machine, **results}, indent=1) + "\n")
    with own_style():
        figure = draw(results["ms forward and backward, and memory, by length"])
        for suffix in ("svg", "png"):
            figure.savefig(RESULTS.with_suffix(f".{suffix}"))
    for title, rows in results.items():
        show(title, rows, Console(width=140))


if __name__ == "__main__":
    main()
