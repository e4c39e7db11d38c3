"""Schemas of the files of a run, and a remedy for each file that is damaged."""

from __future__ import annotations

from typing import Annotated, Any, Literal, NamedTuple, NotRequired, TypedDict

import msgspec

from mesascope.errors import refuse
from mesascope.evidence.schema import ClaimRecord, Whole64

SCHEMA = 2
KINDS = ("study", "training", "benchmark", "identification", "sweep")

# Name of a stage or a figure, and of its file.
Name = Annotated[str, msgspec.Meta(pattern=r"^(?!\.{1,2}$)[^/\\\x00\r\n]+$")]


class Config(TypedDict):
    """config.json of any run."""

    schema: int
    kind: Literal[KINDS]  # type: ignore[valid-type]
    id: str
    settings: Any
    seed: Whole64
    hash: NotRequired[str]
    question: NotRequired[str]
    source: NotRequired[str]
    deviations: NotRequired[list[str]]
    command: NotRequired[str]
    created: NotRequired[str]
    versions: NotRequired[dict[str, str]]
    python: NotRequired[str]
    machine: NotRequired[str]
    processor: NotRequired[str]
    git: NotRequired[str | None]


class StudyConfig(Config):
    """config.json of a study's run."""

    study: str
    preset: str
    settings: dict[str, Any]
    device: str
    begun_on: NotRequired[str]  # first device and machine, if the run was resumed on another
    reuse: NotRequired[str]
    defined_in: NotRequired[str]
    images: NotRequired[dict[str, str]]  # checksums of the images of each task family
    code: NotRequired[str]  # SHA-256 of the file of a user's own study when the run began


class SweepConfig(TypedDict):
    """sweep.json in the folder of a sweep: its settings and seeds when it was last started."""

    schema: int
    task: str
    place: str
    preset: str
    settings: dict[str, list[Any]]
    seeds: str
    device: str


class StageEntry(TypedDict):
    """One entry of results/index.json."""

    sha256: str
    settings: str
    code: str


# finished.json: checksums of a finished run's files by name.
Left = dict[Literal["claims.json", "metrics.jsonl", "results/index.json", "identification.json"], str]


class Manifest(TypedDict):
    """manifest.json of a checkpoint."""

    schema: int
    step: Whole64
    key: str
    config: dict[str, Any]
    sha256: str
    versions: NotRequired[dict[str, str]]
    result: NotRequired[str]


class MetricsRow(TypedDict):
    """Required fields of each line of metrics.jsonl; metrics (numbers or null) follow."""

    training: str
    step: Whole64
    seed: int


class Schema(NamedTuple):
    """Type of a file's content, and the remedy if the content has another type."""

    holds: Any
    remedy: str


FILES = {
    "config.json": Schema(Config, "restore it, or start a new run"),
    "sweep.json": Schema(SweepConfig, "restore it, or start the sweep again in the same folder"),
    "claims.json": Schema(list[ClaimRecord], "write it again by mesascope report"),
    "finished.json": Schema(Left, "restore it, or delete it, and mesascope report writes it again"),
    "identification.json": Schema(dict[str, Any], "restore it, or identify again"),
    "timing.json": Schema(dict[str, Annotated[float, msgspec.Meta(ge=0)]], "delete it, as no result depends on it"),
    "index.json": Schema(dict[Name, StageEntry], "restore it, or delete it and --resume the run to measure again"),
    "captions.json": Schema(dict[Name, str], "delete it, and mesascope report writes it again"),
    "manifest.json": Schema(Manifest, "restore it, or start a new run"),
    "metrics.jsonl": Schema(MetricsRow, "restore it, or start a new run"),
}


def require_name(argument: str, name: Any) -> None:
    """Raise unless ``name`` can be the name of a file: non-empty text without slashes, of 200 bytes at most."""
    if problem(name, Name) or len(name.encode("utf-8", "surrogatepass")) > 200:
        refuse(argument, "be non-empty text without slashes, of 200 bytes at most", name, "choose another")


def problem(value: Any, holds: Any) -> str | None:
    """Error message for a JSON value that is not of the type ``holds``; None if it is.

    >>> problem({"training": "a", "seed": 0}, MetricsRow)
    'Object missing required field step'
    >>> problem({"training": "a", "seed": 0, "step": "5"}, MetricsRow)
    'Expected int, got str at step'
    >>> problem({"training": "a", "seed": 0, "step": 5, "mse": 0.5}, MetricsRow)
    """
    if holds is Config and isinstance(value, dict) and value.get("kind") == "study":
        holds = StudyConfig
    try:
        msgspec.convert(value, holds)
        if holds is MetricsRow:
            msgspec.convert({k: v for k, v in value.items() if k not in MetricsRow.__annotations__}, _NUMBERS)
    except msgspec.ValidationError as error:
        return str(error).replace("`", "").replace(" - at $.", " at ").replace(" - at $", " at ")
    return None


_NUMBERS = dict[str, float | None]
