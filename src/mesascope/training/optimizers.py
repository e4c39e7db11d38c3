"""The plan's optimiser for named parameters, clipping, and loading from checkpoints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

import torch
from torch import nn

from mesascope.errors import ArgumentError, require_instance
from mesascope.shapes import Float, Tensor
from mesascope.training.plan import ParameterGroup, Training
from mesascope.training.processes import is_dtensor, split_like, undecayed


def trainable(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Weights that require gradients; raise if there are none, or if some were made in inference mode."""
    found = {name: weight for name, weight in weights.items() if weight.requires_grad}
    if not found:
        raise ArgumentError(
            f"a model must have parameters that require gradients to be trained, but none of its {len(weights)} does: "
            "call requires_grad_() on those to train."
        )
    shared = next((name for name, one in found.items() if _expanded(one)), None)
    if shared is not None:
        raise ArgumentError(
            f"a model to train must have memory of its own for each entry of a parameter, but {shared} is expanded: "
            "make it of weight.clone()."
        )
    made = next((name for name, weight in found.items() if weight.is_inference()), None)
    if made is not None:
        raise ArgumentError(
            f"a model to train must be made outside torch.inference_mode, but its parameter {made} was made inside: "
            "pass copy.deepcopy(model)."
        )
    return found


def _expanded(weight: Tensor) -> bool:
    """True if several entries share one place in memory."""
    return any(stride == 0 and size > 1 for stride, size in zip(weight.stride(), weight.shape, strict=True))


def make_optimizer(
    weights: Mapping[str, Tensor], plan: Training, module: nn.Module, groups: Sequence[ParameterGroup] = ()
) -> torch.optim.Optimizer:
    """The plan's optimiser; each weight uses the options of the first group that matches it, or the plan's.

    Parameters marked with ``_no_weight_decay`` in ``module`` have no weight decay unless a group matches them.
    """
    require_instance("parameter_groups", groups, Sequence, "pass a list of groups")
    for group in groups:
        require_instance("parameter_groups", group, ParameterGroup)
    parts = _parts(weights, plan, groups, undecayed(module))
    # Fused optimisers are several times as fast as torch's default, but do not support complex numbers, and ignore
    # the strides of weights and of loaded moments.
    fused = all(weight.is_floating_point() and weight.is_contiguous() for weight in weights.values())
    if plan.optimizer == "sgd":  # fused SGD does not support weights that are split over processes
        fused = fused and not any(map(is_dtensor, weights.values()))
        return torch.optim.SGD(parts, lr=plan.learning_rate, momentum=plan.momentum, fused=fused)
    kind = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}[plan.optimizer]
    return kind(parts, lr=plan.learning_rate, betas=plan.betas, eps=plan.eps, fused=fused)


def _parts(
    weights: Mapping[str, Tensor], plan: Training, groups: Sequence[ParameterGroup], marked: Sequence[str]
) -> list[dict[str, Any]]:
    """Parameter groups of the optimiser; groups without parameters are left out."""
    for pattern in (pattern for group in groups for pattern in group.names):
        if not any(_matches(name, pattern) for name in weights):
            raise ArgumentError(
                f"parameter_groups must name parameters that are trained, but {pattern!r} matches none of "
                f"{', '.join(sorted(weights))}: correct the pattern."
            )
    rest = [ParameterGroup(tuple(marked), weight_decay=0.0)] if marked else []
    every, parts = (*groups, *rest, ParameterGroup(("*",))), []
    for group in every:
        rate = plan.learning_rate if group.learning_rate is None else group.learning_rate
        decay = plan.weight_decay if group.weight_decay is None else group.weight_decay
        parts.append({"params": [], "lr": rate, "initial_lr": rate, "weight_decay": decay})
    for name, weight in weights.items():
        first = next(n for n, group in enumerate(every) if any(_matches(name, one) for one in group.names))
        parts[first]["params"].append(weight)
    return [part for part in parts if part["params"]]


def _matches(name: str, pattern: str) -> bool:
    return name == pattern or fnmatchcase(name, pattern)


def load_optimizer(
    optimizer: torch.optim.Optimizer, weights: Mapping[str, Tensor], tensors: Mapping[str, Tensor]
) -> None:
    """Load the moments ``optimizer/<moment>/<parameter>`` of a checkpoint."""
    names = {weight: name for name, weight in weights.items()}
    found: dict[str, dict[str, Tensor]] = {}
    for key in tensors:
        if key.startswith("optimizer/"):
            _, moment, name = key.split("/", 2)
            own = tensors[key].clone()
            if name not in weights:
                raise ArgumentError(
                    "a checkpoint must hold the optimiser's state of the weights that train, but holds that of "
                    f"{name}: start a new run."
                )
            found.setdefault(name, {})[moment] = split_like(weights[name], own) if own.ndim else own
    kind, moments = type(optimizer).__name__, {moment for own in found.values() for moment in own}
    if moments and (moments == {"momentum_buffer"}) != (kind == "SGD"):
        raise ArgumentError(
            f"a checkpoint must be of the plan's optimiser, {kind}, but has other moments "
            f"({', '.join(sorted(moments))}): start a new run."
        )
    ordered = [names[weight] for group in optimizer.param_groups for weight in group["params"]]
    state = {index: found[name] for index, name in enumerate(ordered) if name in found}
    optimizer.load_state_dict({"state": state, "param_groups": optimizer.state_dict()["param_groups"]})


def load_tensors(into: Mapping[str, Tensor], kind: str, tensors: Mapping[str, Tensor]) -> None:
    """Copy a checkpoint's ``<kind>/<name>`` into the tensor of each name; raise if the names differ."""
    found = {key.removeprefix(f"{kind}/") for key in tensors if key.startswith(f"{kind}/")}
    if found != set(into):
        raise ArgumentError(
            f"a checkpoint must hold the {kind} of the model that is trained, but only one of the two has "
            f"{', '.join(sorted(found ^ set(into)))}: start a new run."
        )
    for name, tensor in into.items():
        shape = tuple(tensors[f"{kind}/{name}"].shape)
        if shape != tuple(tensor.shape):
            raise ArgumentError(
                f"a checkpoint must hold the {kind} of the model that is trained, but has {name} of shape {shape} in "
                f"place of {tuple(tensor.shape)}: start a new run."
            )
    with torch.no_grad():
        for name, tensor in into.items():
            tensor.copy_(split_like(tensor, tensors[f"{kind}/{name}"]))


def member_norms(gradients: Sequence[Float[Tensor, "members ..."]]) -> Float[Tensor, " members"]:
    """Gradient norm of each member over all parameters."""
    return torch.stack([one.reshape(len(one), -1).norm(dim=1) for one in gradients]).norm(dim=0)


def clip(gradients: Sequence[Tensor], norms: Float[Tensor, "*members"], most: float) -> None:
    """Scale gradients in place to norms of at most ``most``; ``norms`` has one entry per member, or one for all."""
    factors = (most / norms.clamp_min(1e-30)).clamp_max(1.0)
    for one in gradients:
        one.mul_(factors.view(-1, *[1] * (one.ndim - 1)) if factors.ndim else factors)
