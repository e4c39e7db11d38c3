"""Small byte models whose second layer is of one kind or another: how fast they train, and what they come to.

The text is the source of the Python standard library on this machine, split by file. All kinds take turns, one training
step each, so that their speeds are compared within one process. Writes benchmarks/results/text.json after every seed,
and goes on from there. Takes three quarters of an hour; ``python benchmarks/text.py STEPS SEEDS`` as long as one likes.
"""

from __future__ import annotations

import json
import math
import platform
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.progress import track
from rich.table import Table
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

from mesascope.nets import AttentionConfig, CausalTransformer, CausalTransformerConfig
from mesascope.streams import stream
from mesascope.training import keep_freed_memory

RESULTS = Path(__file__).parent / "results" / "text.json"
WIDTH, HEADS, T, BATCH, RATE = 64, 1, 512, 4, 3e-3
# Kinds of the second layer; the first attends by softmax, and both are followed by MLPs.
GATED: dict[str, Any] = {"convolution": 4, "forget": True}
KINDS: dict[str, tuple[str, dict[str, Any]]] = {
    "softmax": ("softmax", {"convolution": 4}),
    "linear": ("linear", GATED),
    "delta": ("delta", GATED),
    "mesa, ridge decays": ("mesa", {"convolution": 4}),
    "mesa, constant ridge": ("mesa", GATED),
    "mesa, relative ridge": ("mesa", {**GATED, "ridge_kind": "relative", "ridge": 0.05}),
    "MesaNet's": (
        "mesa",
        {**GATED, "beta": True, "ridge_per_dimension": True, "ridge_floor": 0.25, "output_norm": True},
    ),
}


class ByteModel(nn.Module):
    """Bytes in, logits of the next byte out."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        name, options = KINDS[kind]
        heads = AttentionConfig(WIDTH, HEADS, positions=16, **options)
        self.embedding = nn.Embedding(256, WIDTH)
        self.body = CausalTransformer(CausalTransformerConfig(heads, 2, ("softmax", name), mlp=4, layer_norm=True))
        self.read = nn.Linear(WIDTH, 256)

    def forward(self, text: Tensor) -> Tensor:
        return self.read(self.body(self.embedding(text)))


def corpus() -> tuple[Tensor, Tensor]:
    """Bytes to train on, and of every tenth file to validate on."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    parts = [b"".join(file.read_bytes() for n, file in enumerate(files) if (n % 10 == 0) == held) for held in (0, 1)]
    return tuple(torch.frombuffer(bytearray(part), dtype=torch.uint8) for part in parts)  # type: ignore[return-value]


def windows(text: Tensor, count: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    starts = torch.randint(len(text) - T, (count, 1), generator=generator)
    drawn = text[starts + torch.arange(T + 1)].long()
    return drawn[:, :-1], drawn[:, 1:]


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    """Bits a byte."""
    return cross_entropy(model(batch[0]).flatten(0, 1), batch[1].flatten()) / math.log(2)


def decayed_apart(model: nn.Module) -> list[dict[str, Any]]:
    """Parameters that decay, and those marked not to: ridges, and the biases of gates."""
    kept = [weight for weight in model.parameters() if getattr(weight, "_no_weight_decay", False)]
    rest = [weight for weight in model.parameters() if not getattr(weight, "_no_weight_decay", False)]
    return [{"params": rest}, {"params": kept, "weight_decay": 0.0}]


def train(steps: int, seed: int) -> dict[str, dict[str, float]]:
    """Validation loss and tokens a second of each kind, all trained on the same windows."""
    text, held = corpus()
    models, optimizers = {}, {}
    for kind in KINDS:
        torch.manual_seed(seed)
        models[kind] = ByteModel(kind)
        optimizers[kind] = torch.optim.AdamW(decayed_apart(models[kind]), RATE, (0.9, 0.95), weight_decay=0.1)
    seconds: dict[str, list[float]] = {kind: [] for kind in KINDS}
    for step in track(range(steps), f"seed {seed}"):
        batch = windows(text, BATCH, stream(seed, "text", step))
        for kind, model in models.items():
            start = time.perf_counter()
            for group in optimizers[kind].param_groups:
                group["lr"] = RATE * min(1, (step + 1) / 50) * 0.5 * (1 + math.cos(math.pi * step / steps))
            optimizers[kind].zero_grad()
            loss(model, batch).backward()
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizers[kind].step()
            seconds[kind].append(time.perf_counter() - start)
    with torch.no_grad():
        batches = [windows(held, 8, stream(0, "validation", n)) for n in range(16)]
        return {
            kind: {
                "bits a byte": float(sum(loss(model.eval(), batch) for batch in batches) / len(batches)),
                "tokens a second": BATCH * T / float(torch.tensor(seconds[kind]).median()),
            }
            for kind, model in models.items()
        }


def main(steps: int = 800, seeds: int = 3) -> None:
    keep_freed_memory()
    torch.set_flush_denormal(True)
    settings = {
        "machine": platform.machine(),
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "steps": steps,
    }
    found = json.loads(RESULTS.read_text()) if RESULTS.exists() else {}
    runs = found["seeds"] if {**found, "seeds": None} == {**settings, "seeds": None} else []
    for seed in range(len(runs), seeds):
        runs.append(train(steps, seed))
        RESULTS.write_text(json.dumps({**settings, "seeds": runs}, indent=1) + "\n")
    table = Table("second layer", "bits a byte, each seed", "tokens a second / softmax's", title=f"{steps} steps")
    for kind in KINDS:
        losses = ", ".join(f"{run[kind]['bits a byte']:.3f}" for run in runs)
        pace = sum(run[kind]["tokens a second"] / run["softmax"]["tokens a second"] for run in runs) / seeds
        table.add_row(kind, losses, f"{pace:.2f}")
    Console().print(table)


if __name__ == "__main__":
    main(*map(int, sys.argv[1:]))
