"""Costs of a training: the steps to measure its time from, and its peak memory."""

from __future__ import annotations

import sys

import torch

# Least and most steps whose time is measured.
_LEAST, _MOST = 2, 50


def steps_to_time(first: float, seconds: float) -> int:
    """Number of steps that take about so many seconds, if one takes ``first``; at least 2, and at most 50."""
    return min(max(int(seconds / max(first, 1e-3)), _LEAST), _MOST)


def reset_peak_memory(device: torch.device) -> None:
    """Let `peak_gigabytes` of a GPU start anew; that of a process cannot."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)


def peak_gigabytes(device: torch.device) -> float | None:
    """Peak memory in GB: tensors on a GPU since `reset_peak_memory`, or this process so far; None if unknown."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    if sys.platform == "win32":
        return None
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
