"""Parameters without weight decay, marked by ``_no_weight_decay`` as in other libraries."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn


def undecayed(module: nn.Module) -> list[str]:
    """Names of the marked parameters."""
    return [name for name, weight in module.named_parameters() if getattr(weight, "_no_weight_decay", False)]


def mark_undecayed(module: nn.Module, names: Iterable[str]) -> None:
    """Mark parameters by name, for example those that replace marked ones."""
    for name in names:
        module.get_parameter(name)._no_weight_decay = True  # type: ignore[attr-defined]
