"""Tokens a second of small language models in training and in decoding, by the kind of their second layer.

Two layers with MLPs, the first one softmax, the second softmax, linear, delta or mesa, without features and with those
of DPFP (nu = 3), at a context of 1,024, beside the softmax model in plain PyTorch and, on a GPU (all under bfloat16
autocast there), models with the layers of flash-linear-attention where it is installed; all take turns in one process.
Then milliseconds a token after 256 to 16,384 tokens, and bytes of the state. Writes benchmarks/results/language.json,
or language-gpu.json, and prints tables. Some ten minutes on two cores.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import platform
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn
from torch.nn import functional

from mesascope.language import language_model_config, next_token_loss
from mesascope.streams import stream
from mesascope.training import ModuleState, Training, keep_freed_memory

VOCABULARY, WIDTH, HEADS, CONTEXT, BATCH, ROUNDS = 4096, 256, 4, 1024, 4, 7
READ = (256, 1024, 4096, 16_384)
PLAN = Training(learning_rate=1e-3, optimizer="adamw", weight_decay=0.1, clip=1.0)
MODELS = {
    "softmax": ("softmax, softmax", 0),
    "linear": ("softmax, linear", 0),
    "delta": ("softmax, delta", 0),
    "mesa": ("softmax, mesa", 0),
    "linear, nu = 3": ("softmax, linear", 3),
    "mesa, nu = 3": ("softmax, mesa", 3),
}
DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
AUTOCAST = torch.bfloat16 if DEVICE == "cuda" else None
RESULTS = Path(__file__).parent / "results" / ("language-gpu.json" if DEVICE == "cuda" else "language.json")


class Attention(nn.Module):
    """Softmax attention as one writes it, by torch's own kernels."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, bias=False), nn.Linear(WIDTH, WIDTH, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        q, k, v = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in self.qkv(tokens).chunk(3, -1))
        read = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.out(read.transpose(1, 2).flatten(2))


class Block(nn.Module):
    """A layer of attention and an MLP."""

    def __init__(self, attention: nn.Module) -> None:
        super().__init__()
        self.norm, self.mlp_norm, self.attention = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH), attention
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, tokens: Tensor) -> Tensor:
        found = self.attention(self.norm(tokens))
        tokens = tokens + (found if isinstance(found, Tensor) else found[0])  # layers of fla give more besides
        return tokens + self.mlp(self.mlp_norm(tokens))


class Plain(nn.Module):
    """The model in plain PyTorch: a layer of softmax, and one of the attention that is given."""

    def __init__(self, second: nn.Module) -> None:
        super().__init__()
        self.embedding, self.places = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks, self.norm = nn.Sequential(Block(Attention()), Block(second)), nn.LayerNorm(WIDTH)

    def forward(self, tokens: Tensor) -> Tensor:
        places = self.places.weight[: tokens.shape[-1]]
        return self.norm(self.blocks(self.embedding(tokens) + places)) @ self.embedding.weight.mT


def layers_of_fla() -> dict[str, nn.Module]:
    """Layers of flash-linear-attention, whose kernels need a GPU: none where it is not installed, or there is none."""
    if DEVICE != "cuda" or importlib.util.find_spec("fla") is None:
        return {}
    layers = importlib.import_module("fla.layers")
    size = {"hidden_size": WIDTH, "num_heads": HEADS}
    return {
        "linear": layers.LinearAttention(**size, feature_map="identity"),
        "delta": layers.DeltaNet(**size, use_short_conv=False),
        "mesa": layers.MesaNet(**size, head_dim=WIDTH // HEADS),  # it has short convolutions always
    }


def network(name: str, positions: str = "learned") -> nn.Module:
    layers, nu = MODELS[name]
    config = language_model_config(
        layers, VOCABULARY, CONTEXT, width=WIDTH, n_heads=HEADS, mlp=4, dpfp=nu, tied=True, positions=positions
    )
    return config.build(stream(0, "init")).to(DEVICE)


def finished() -> None:
    if DEVICE == "cuda":
        torch.cuda.synchronize()


def trained(windows: Tensor) -> dict[str, dict[str, float]]:
    """Tokens a second of training steps, medians of turns, and parameters."""
    others = {"plain PyTorch": Attention(), **{f"fla, {name}": layer for name, layer in layers_of_fla().items()}}
    models = {name: Plain(layer).to(DEVICE) for name, layer in others.items()}
    models |= {name: network(name) for name in MODELS}
    steps: dict[str, Callable[[Tensor], Any]] = {
        name: ModuleState(model, next_token_loss, PLAN, autocast=AUTOCAST).update for name, model in models.items()
    }
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(ROUNDS + 1):
        for name, step in steps.items():
            finished()
            start = time.perf_counter()
            step(windows)
            finished()
            times[name].append(time.perf_counter() - start)
    tokens = windows.shape[0] * (windows.shape[1] - 1)
    return {
        name: {
            "tokens_per_second": tokens / statistics.median(own[1:]),
            "parameters": sum(weight.numel() for weight in models[name].parameters()),
        }
        for name, own in times.items()
    }


@torch.no_grad()
def decoded(name: str) -> list[dict[str, float]]:
    """Milliseconds a token and bytes of the state, after so many tokens."""
    model, found = network(name, "rotary").eval(), []
    state, read = model.init_state(1), 0
    tokens = torch.randint(VOCABULARY, (1, READ[-1]), generator=stream(0, "text")).to(DEVICE)
    for length in READ:
        for part in tokens[:, read:length].split(1024, 1):
            _, state = model.advance(part, state, last=1)
        read, after, times = length, state, []
        for _ in range(30):
            finished()
            start = time.perf_counter()
            _, after = model.step(tokens[:, 0], after)
            finished()
            times.append(time.perf_counter() - start)
        found.append({"read": length, "ms": 1e3 * statistics.median(times[5:]), "bytes": size(after)})
    return found


def size(state: Any) -> int:
    if isinstance(state, Tensor):
        return state.numel() * state.element_size()
    return sum(map(size, state)) if isinstance(state, tuple) else 0


def main() -> None:
    keep_freed_memory()
    windows = torch.randint(VOCABULARY, (BATCH, CONTEXT + 1), generator=stream(0, "text")).to(DEVICE)
    speeds, decoding = trained(windows), {name: decoded(name) for name in MODELS}
    machine = f"{platform.machine()}, {DEVICE}, {torch.get_num_threads()} threads, torch {torch.__version__}"
    RESULTS.write_text(json.dumps({"machine": machine, "training": speeds, "decoding": decoding}, indent=1) + "\n")
    softmax = speeds["softmax"]["tokens_per_second"]
    table = Table("model", "parameters", "tokens a second", "of softmax", title="training")
    for name, own in speeds.items():
        rate = own["tokens_per_second"]
        table.add_row(name, f"{own['parameters']:,}", f"{rate:,.0f}", f"{rate / softmax:.2f}")
    Console(width=110).print(table)
    table = Table("model", *(f"after {length:,}" for length in READ), title="decoding: ms a token, kB of the state")
    for name, rows in decoding.items():
        table.add_row(name, *(f"{row['ms']:.2f}, {row['bytes'] / 1e3:,.0f}" for row in rows))
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
