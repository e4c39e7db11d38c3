"""Networks saved as folders with a config and weights."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import safetensors
from torch import nn
from torch.nn.utils.parametrize import is_parametrized
from torch.nn.utils.prune import is_pruned

import mesascope
from mesascope.errors import ArgumentError, ArgumentTypeError, one_line, refuse, require_instance
from mesascope.files import write_aside
from mesascope.modules import names_of, put
from mesascope.nets.checks import check_held
from mesascope.nets.layers import UndecayedParameter, module_text
from mesascope.records import from_record, to_record
from mesascope.tensors import read_tensors, tensors_bytes

_CONFIG, _WEIGHTS = "config.json", "model.safetensors"
Net = TypeVar("Net", bound="Pretrained")


class Pretrained(nn.Module):
    """A network that is built from its ``config``, and saved in a folder as its config and weights."""

    config: Any

    built_from: ClassVar[type | None] = None
    """Class of the config if it is not registered: the record of such a config contains no name."""

    def __init__(self, config: Any = None, kind: type = object) -> None:
        super().__init__()
        require_instance("config", config, kind)
        self.config = config

    def __repr__(self) -> str:
        return super().__repr__() if getattr(self, "config", None) is None else module_text(self)

    def save_pretrained(self, folder: str | Path) -> None:
        """Write the network's config to ``config.json`` and its weights to ``model.safetensors`` in a folder.

        The folder is created if it does not exist. Weights keep their dtype.

        Raises:
            ArgumentError: the folder cannot be written to, or weights are on the device "meta".
        """
        if self.config is None:
            remedy = "build it from one, or save its weights"
            refuse("the network", "be built from a config", type(self).__name__, remedy)
        if is_pruned(self) or any(map(is_parametrized, self.modules())):
            refuse(
                "the network", "have plain weights", "pruned or parametrized", "call prune.remove, say, or save weights"
            )
        weights = {name: weight.detach().clone().contiguous() for name, weight in self.state_dict().items()}
        for name, weight in weights.items():
            check_held("the network", weight)
            weights[name] = weight.cpu()
        with written("folder", folder) as path:
            record = to_record(self.config)
            own = {"mesascope": mesascope.__version__, "config": json.dumps(record)}
            write_aside(path / _WEIGHTS, tensors_bytes(weights, **own))
            write_aside(path / _CONFIG, (json.dumps(record, indent=2) + "\n").encode())

    @classmethod
    def from_pretrained(cls: type[Net], folder: str | Path) -> Net:
        """Load onto the CPU the network that `save_pretrained` wrote to ``folder``.

        Raises:
            ArgumentError: a file is missing or damaged, or the config is not that of the weights.
            ArgumentTypeError: the folder contains a registered network of another class (ArgumentError for others).
        """
        path = path_of("folder", folder)
        try:
            record = json.loads((path / _CONFIG).read_text())
            net = cls._build(record)
            weights, made = read_tensors(path / _WEIGHTS)
            _fill(net, weights)
            if "config" in made and json.loads(made["config"]) != record:
                raise ValueError(f"its {_CONFIG} differs from the config in {_WEIGHTS}")
        except (safetensors.SafetensorError, json.JSONDecodeError, UnicodeDecodeError) as error:
            file = path / (_WEIGHTS if isinstance(error, safetensors.SafetensorError) else _CONFIG)
            raise ArgumentError(
                f"{file} must be whole, but is damaged ({one_line(error)}): save the network again."
            ) from None
        except (OSError, ValueError, RuntimeError, ArgumentTypeError) as error:
            why = " ".join(str(error).split())  # often a sentence of ours, which is not to be cut
            raise ArgumentError(
                f"folder must be one that save_pretrained wrote, but is {str(path)!r} ({why}): pass another."
            ) from None
        if not isinstance(net, cls):
            raise ArgumentTypeError(
                f"folder must hold a network of type {cls.__name__}, but {str(path)!r} holds one of type "
                f"{type(net).__name__}: call {type(net).__name__}.from_pretrained."
            )
        return net

    @classmethod
    def _build(cls, record: Any) -> nn.Module:
        if cls.built_from is None and isinstance(record, dict) and "kind" not in record:
            raise ArgumentTypeError(
                f"folder must hold a network of type {cls.__name__}, but its {_CONFIG} names no kind of network: call "
                "from_pretrained of the class that was saved."
            )
        config = from_record(record, cls.built_from)
        if cls.built_from is not None and "kind" not in record:
            return cls(config)
        if record["kind"] != "net":
            refuse("kind", "be 'net'", record["kind"], "pass the record of a network")
        return config.build()


def path_of(argument: str, value: str | Path) -> Path:
    """A `Path` from a string or a path."""
    require_instance(argument, value, str | Path)
    return Path(value).expanduser()


@contextmanager
def written(argument: str, value: str | Path) -> Iterator[Path]:
    """Within this context, errors of writing to the path become an `ArgumentError`."""
    path = path_of(argument, value)
    try:
        yield path
    except (OSError, ValueError, safetensors.SafetensorError) as error:
        raise ArgumentError(
            f"{argument} must be writable, but is {str(path)!r} ({one_line(error)}): pass another."
        ) from None


def _fill(net: nn.Module, weights: dict[str, Any]) -> None:
    """Load weights of any dtype into a network, including buffers that are still None in it.

    Weights are copied: tensors of a file are unaligned views of its bytes, for which matrix products are slower and
    round differently.
    """
    undecayed = {name for name, one in net.named_parameters() if isinstance(one, UndecayedParameter)}
    weights = {
        name: UndecayedParameter(weight.clone()) if name in undecayed else weight.clone()
        for name, weight in weights.items()
    }
    for name, buffer in net._buffers.items():
        if buffer is None and name in weights:
            setattr(net, name, weights[name])
    aliases = {alias: first for first, *others in names_of(net).values() for alias in others}
    net.load_state_dict(weights, assign=True)
    own = dict(net.named_parameters()) | dict(net.named_buffers())
    put(net, {alias: own[first] for alias, first in aliases.items() if alias in own})
