"""Files of tensors, with a checksum."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch

from mesascope.shapes import Tensor

__all__ = ["checksum", "read_tensors", "tensors_bytes"]


def tensors_bytes(tensors: Mapping[str, Tensor], **metadata: str) -> bytes:
    """Bytes of a safetensors file of contiguous tensors by name, with their checksum in its metadata."""
    return safetensors.torch.save(dict(tensors), {**metadata, "checksum": checksum(tensors)})


def read_tensors(file: Path) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors of a safetensors file on the CPU, mapped into memory, and its metadata.

    Raises:
        SafetensorError: the file is damaged. Files of other libraries have no checksum, so some damage stays
            undetected.
    """
    with safetensors.safe_open(file, "pt") as opened:
        metadata = opened.metadata() or {}
    tensors = safetensors.torch.load_file(file)
    if metadata.get("checksum", "") not in ("", checksum(tensors)):
        raise safetensors.SafetensorError("its tensors do not match their checksum")
    return tensors, metadata


def checksum(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 of tensors on the CPU by name, with their dtypes and shapes."""
    digest = hashlib.sha256()
    for name, tensor in sorted(tensors.items()):
        digest.update(f"{name} {tensor.dtype} {tuple(tensor.shape)}".encode())
        flat = tensor.flatten().clone(memory_format=torch.contiguous_format)  # one entry may have any stride
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()
