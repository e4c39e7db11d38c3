"""Provenance of a run: device, machine, packages and commit. Imports torch only to query the device."""

from __future__ import annotations

import os
import platform
import subprocess
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mesascope.errors import ArgumentError, require_double
from mesascope.progress import tell

if TYPE_CHECKING:
    from mesascope.runs.run import Run

# Packages that can change the numbers of a run.
PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "pillow", "tokenizers")


def made_with(device: str, command: str) -> dict[str, Any]:
    """Provenance of a run that starts now, for config.json."""
    return {
        "device": device,
        "command": command.encode("utf-8", "replace").decode(),
        "created": datetime.now(UTC).isoformat(timespec="microseconds"),
        "versions": {name: installed(name) for name in ("mesascope", *PACKAGES)},
        "python": platform.python_version(),
        "machine": machine(device),
        "processor": _processor(),
        "git": _commit(),
    }


def tell_of_other_machine(run: Run) -> None:
    """Print changed versions of packages and, for an unfinished run, a changed GPU or number of threads."""
    versions = run.config.get("versions", {})
    pairs = [(f"{name} {then}", f"{name} {installed(name)}") for name, then in versions.items()]
    if "machine" in run.config and not run.is_finished:
        pairs.append((run.config["machine"], machine(run.config["device"])))
    for then, now in pairs:
        if then != now:
            tell(f"mesascope: {run.path} was begun with {then} and goes on with {now}: numbers may differ.")


def tell_device(asked: str, taken: str) -> None:
    """Print the device that ``auto`` has chosen. Call it after all arguments are checked."""
    if asked == "auto":
        tell(f"mesascope: --device auto takes {taken} ({machine(taken)}).")


def available_device(name: str) -> str:
    """Return ``name``, or for ``auto`` a GPU if there is one, else the CPU; raise if torch does not find the device.

    >>> available_device("cpu")
    'cpu'
    """
    import torch

    if name == "auto":
        return "cuda" if torch.cuda.is_available() else "cpu"
    require_double(name)
    there = ["cpu"]
    if torch.cuda.is_available():
        there += ["cuda", *(f"cuda:{index}" for index in range(torch.cuda.device_count()))]
    if name not in there:
        raise ArgumentError(f"device must be one that torch finds ({', '.join(there)}), but is {name!r}: pass cpu.")
    return name


def machine(device: str) -> str:
    """Name of the GPU, or architecture of the CPU and number of torch threads."""
    import torch

    if device.startswith("cuda"):
        return torch.cuda.get_device_name(device)
    return f"{platform.machine()}, threads: {torch.get_num_threads()}"


def _processor() -> str:
    """Model of the processor. The order of sums, and so their rounding, can depend on it."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        lines = []
    return next((line.partition(": ")[2] for line in lines if line.startswith("model name")), platform.processor())


def installed(package: str) -> str:
    """Version of a package, or "not installed"."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"


def git(folder: Path, *words: str) -> str:
    """Output of git in a folder; environment variables GIT_* are ignored.

    Raises:
        OSError, subprocess.SubprocessError: git is not installed, or fails.
    """
    own = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    command = ["git", "-C", str(folder), *words]
    return subprocess.run(command, capture_output=True, text=True, check=True, timeout=5, env=own).stdout.strip()


def _commit() -> str | None:
    """Commit of mesascope's own repository; None if its code is not tracked by a repository."""
    file = Path(__file__)
    try:
        git(file.parent, "ls-files", "--error-unmatch", file.name)
        return git(file.parent, "rev-parse", "HEAD")
    except (OSError, subprocess.SubprocessError):
        return None
