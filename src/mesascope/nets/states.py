"""Decoding states, and functions that reorder, save and load them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, NamedTuple

import safetensors
import safetensors.torch
import torch
from torch.utils._pytree import tree_leaves, tree_map_only

from mesascope.errors import ArgumentError, ArgumentTypeError, refuse, require_instance
from mesascope.files import write_aside
from mesascope.nets.pretrained import path_of, written
from mesascope.ops import DeltaState, FixedRidgeState, LinearState, MesaState, RootedMesaState, SoftmaxState
from mesascope.shapes import Float, Tensor
from mesascope.streams import generator_on


class AttentionState(NamedTuple):
    """State of a layer: number of previous tokens, last inputs of its convolution (or last key), and its memory."""

    position: Tensor
    recent: Float[Tensor, "*batch taps channels"]
    memory: Any

    @property
    def batch(self) -> tuple[int, ...]:
        """Batch shape."""
        return tuple(self.recent.shape[:-2])


class PredictorState(NamedTuple):
    """State of a predictor: the last element, and the state of every layer."""

    last: Float[Tensor, "*batch d"]
    layers: tuple[AttentionState, ...]

    @property
    def batch(self) -> tuple[int, ...]:
        """Batch shape."""
        return tuple(self.last.shape[:-1])


_KINDS = {
    kind.__name__: kind
    for kind in (
        AttentionState, PredictorState, SoftmaxState, LinearState, DeltaState, MesaState, RootedMesaState,
        FixedRidgeState,
    )
}  # fmt: skip


def select_state(state: Any, indices: Tensor) -> Any:
    """Return the state of chosen sequences of a batch, in any order and with repeats, for example for beam search.

    Args:
        state: state of a layer, a transformer or a predictor.
        indices: integers ``(count,)`` into the first axis of the batch.

    >>> from mesascope.nets import AttentionConfig, LinearAttention
    >>> state = LinearAttention(AttentionConfig(width=4)).init_state(2)
    >>> select_state(state, torch.tensor([1, 1, 0])).memory.G.shape
    torch.Size([3, 1, 4, 4])
    """
    require_instance("indices", indices, Tensor)
    if indices.dtype != torch.int64 or indices.ndim != 1:
        shown = f"{indices.dtype} {tuple(indices.shape)}"
        refuse("indices", "be int64 of shape (count,)", shown, "pass torch.tensor([0, 0, 1]), say")
    sizes = {tensor.shape[0] if tensor.ndim else -1 for tensor in tree_leaves(state) if isinstance(tensor, Tensor)}
    if len(sizes) != 1 or min(sizes) < 0:
        refuse("state", "have a batch axis", type(state).__name__, "begin with init_state(batch)")
    (size,) = sizes
    if indices.numel() and not 0 <= int(indices.min()) <= int(indices.max()) < size:
        refuse("indices", f"lie in [0, {size})", indices.tolist(), "name sequences of the batch")
    return tree_map_only(Tensor, lambda tensor: tensor.index_select(0, indices.to(tensor.device)), state)


def save_state(state: Any, path: str | Path) -> None:
    """Write the state of a layer, a transformer or a predictor to one safetensors file.

    Raises:
        ArgumentError: the path cannot be written to.
    """
    tensors: dict[str, Tensor] = {}
    described = _described(state, "", tensors)
    with written("path", path) as file:
        write_aside(file, safetensors.torch.save(tensors, {"state": json.dumps(described)}))


def load_state(path: str | Path, device: torch.device | str = "cpu") -> Any:
    """Read the state that `save_state` wrote to ``path``.

    Raises:
        ArgumentError: the file is missing or damaged, or contains no state.
    """
    path, device = path_of("path", path), generator_on(device).device
    try:
        with safetensors.safe_open(path, "pt") as file:
            described = json.loads(file.metadata()["state"])
            return _restored(described, lambda name: file.get_tensor(name).to(device))
    except (OSError, safetensors.SafetensorError, LookupError, TypeError, ValueError) as error:
        raise ArgumentError(
            f"path must be a file that save_state wrote, but is {str(path)!r} ({error}): pass another."
        ) from None


def _described(state: Any, name: str, tensors: dict[str, Tensor]) -> Any:
    """Return a state's structure as JSON types, and add its tensors to ``tensors``."""
    if isinstance(state, Tensor):
        tensors[name] = state.detach().to("cpu", copy=True, memory_format=torch.contiguous_format)
        return name
    if state is None:
        return None
    kind = type(state).__name__
    if not isinstance(state, tuple) or (hasattr(state, "_fields") and kind not in _KINDS):
        raise ArgumentTypeError(
            f"state must be made of tensors, tuples and states of mesascope, but holds {kind}: use a plain tuple."
        )
    names = getattr(state, "_fields", range(len(state)))
    parts = [
        _described(part, f"{name}.{own}" if name else str(own), tensors) for own, part in zip(names, state, strict=True)
    ]
    return {"kind": kind, "parts": parts}


def _restored(described: Any, tensor: Any) -> Any:
    if described is None or isinstance(described, str):
        return described and tensor(described)
    parts = [_restored(part, tensor) for part in described["parts"]]
    return tuple(parts) if described["kind"] == "tuple" else _KINDS[described["kind"]](*parts)
