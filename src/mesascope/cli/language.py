"""``mesascope language prepare | train | evaluate | sample | inspect``."""

from __future__ import annotations

import math
import re
import shlex
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Literal

import tyro

from mesascope.cli.run import Group, asked_preset, one_of, with_fields
from mesascope.errors import ArgumentError
from mesascope.text import counted

# A shell passes an escape such as \n as a backslash and a letter.
_ESCAPE = re.compile(r"\\(?:[abfnrtv0\\]|x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4})")


@dataclass(frozen=True)
class Prepare:
    """Tokenize text files into a folder, with a share of the documents for validation.

    PATHS are files or folders of plain text, JSONL, Parquet or Arrow; Python's standard library if not given. After an
    interruption, the same command continues.
    """

    paths: tyro.conf.Positional[tuple[str, ...]] = ()  # Files and folders of text.
    out: Path = Path("corpus")  # Folder of the tokens.
    tokenizer: str = "bytes"  # bytes, bpe:VOCABULARY to train byte pairs on this text, or a tokenizer.json.
    validation: float = 0.01  # Share of the documents for validation; with a single document, the end of its text.
    field: str = "text"  # Field that contains the text, in JSONL, Parquet and Arrow rows.
    delimiter: str | None = None
    """Separator of the documents in a plain text file, with Python's escapes such as \\n and \\t; if not given, a file
    is one document."""
    broken: Literal["skip", "refuse"] = "skip"  # Treatment of lines that are not valid UTF-8, JSON or text.

    def __call__(self) -> None:
        from mesascope.language import prepare

        delimiter = self.delimiter
        if delimiter is not None:
            delimiter = _ESCAPE.sub(lambda found: found.group().encode().decode("unicode_escape"), delimiter)
        try:
            corpus = prepare(
                self.paths or None, self.out, self.tokenizer, validation=self.validation, field=self.field,
                delimiter=delimiter, broken=self.broken,
            )  # fmt: skip
        except (KeyboardInterrupt, OSError) as stop:
            if self.out.exists():  # a folder without a saved position is removed
                stop.add_note(shlex.join(["mesascope", *sys.argv[1:]]))
            raise
        for split, own in corpus.index.splits.items():
            print(f"{split}: {own.tokens:,} tokens of {counted(own.documents, 'document')}")
        print(f"vocabulary: {corpus.index.vocabulary:,} tokens; {counted(corpus.index.skipped, 'line')} left out")
        print(f"corpus: {self.out.resolve()}")


@dataclass(frozen=True)
class Train:
    """Train a language model on a corpus.

    The preset sets all settings; the flags below change single settings. mesascope language train --resume DIR
    continues an interrupted training, with the same result.
    """

    settings: Annotated[Any, tyro.conf.arg(name="")]
    preset: Literal["quick", "paper"] = "quick"
    """Settings to start from: quick takes minutes on two cores, paper has the settings of von Oswald (2024)."""
    seed: int = 0
    """Seed of the initial weights and of the order of the text."""
    out: Path | None = None
    """Folder of the run; runs/language-<time> if not given."""
    device: str = "auto"
    """Device to compute on: cpu, cuda, cuda:1, ...; auto chooses a GPU if there is one."""
    resume: Path | None = None
    """Folder of a run to continue. No other flag may be given: all settings are read from its config.json."""
    estimate: bool = False
    """Run only a few steps, and print the hours and memory that the training would take in one process."""

    def __call__(self) -> None:
        if self.estimate:
            from mesascope.language import estimate_language_model

            print(estimate_language_model(self.settings, self.device))
            print("left out: evaluations and checkpoints")
            return
        from mesascope.language import resume_language_run, train_language_model
        from mesascope.language.losses import SIGN
        from mesascope.measurement import Measurement
        from mesascope.training import distributed_context, is_rank_zero, keep_freed_memory, on_rank_zero

        keep_freed_memory()
        folder = self.resume or self.out or Path("runs") / f"language-{datetime.now():%Y%m%d-%H%M%S}"
        with distributed_context() as several:
            if several and not (self.resume or self.out):
                raise ArgumentError("out must be given where several processes train, but is not: pass --out DIR.")
            run = on_rank_zero(lambda: self._run(folder), lambda: resume_language_run(folder))
            if is_rank_zero():
                print(f"run directory: {run.path}\ndevice: {run.config['device']}", flush=True)
            try:
                train_language_model(run)
            except (KeyboardInterrupt, OSError) as stop:
                stop.add_note(shlex.join(["mesascope", "language", "train", "--resume", str(run.path)]))
                raise
            if not is_rank_zero():
                return
        last = run.metrics("model")[-1]
        loss, score = (
            Measurement(last[name], last.get(f"{name}_stderr", math.nan), 1) for name in ("loss", "in_context_score")
        )
        print(f"validation loss {loss} nats per token")
        print(f"in-context score {score} ({SIGN})")
        print(f"model: {(run.path / 'model').resolve()}")

    def _run(self, folder: Path) -> Any:
        from mesascope.language import new_language_run, resume_language_run

        if self.resume is not None:
            return resume_language_run(folder)
        command = shlex.join(["mesascope", *sys.argv[1:]])
        return new_language_run(self.settings, folder, seed=self.seed, device=self.device, command=command)


@dataclass(frozen=True)
class _OfModel:
    """Arguments of commands that run a language model."""

    model: tyro.conf.Positional[str]  # Run of a training, or folder of a model.
    device: str = "auto"  # Device to compute on: cpu, cuda, cuda:1, ...; auto chooses a GPU if there is one.


@dataclass(frozen=True)
class _OnCorpus(_OfModel):
    """Flags of commands that run a model on a corpus."""

    corpus: Path = Path("corpus")  # Folder from mesascope language prepare, with the model's tokenizer.
    split: Literal["train", "validation"] = "validation"  # Part of the corpus.


@dataclass(frozen=True)
class Evaluate(_OnCorpus):
    """Measure the loss of a language model on a corpus, and its decrease along the window.

    MODEL is the run of a training, or the folder of a model.
    """

    windows: int = 256  # Maximum number of windows to read.

    def __call__(self) -> None:
        from mesascope.language import evaluate, load_language_model

        print(evaluate(*load_language_model(self.model, self.device), self.corpus, self.split, self.windows))


@dataclass(frozen=True)
class Sample(_OfModel):
    """Print a continuation of a text by a language model.

    MODEL is the run of a training, or the folder of a model.
    """

    prompt: str = ""  # Text to continue; a new document if not given.
    tokens: int | None = None
    """Maximum number of tokens to sample; 200 if not given, or fewer if the model's learned positions run out."""
    temperature: float = 1.0  # Sampling temperature; 0 always takes the likeliest token.
    top_p: float = 1.0  # Sample from the likeliest tokens whose probabilities sum to this value.
    seed: int = 0  # Seed of the sampling.

    def __call__(self) -> None:
        from mesascope.language import generate, load_language_model

        pieces = generate(
            *load_language_model(self.model, self.device), self.prompt, tokens=self.tokens,
            temperature=self.temperature, top_p=self.top_p, seed=self.seed,
        )  # fmt: skip
        print(self.prompt, end="")
        for piece in pieces:
            print(piece, end="", flush=True)
        print()


@dataclass(frozen=True)
class Inspect(_OnCorpus):
    """Measure how a language model's heads copy, complete, forget, and solve least squares, and draw attention maps.

    MODEL is a run folder or a model folder.
    """

    windows: int = 32  # Maximum number of windows to read.
    out: Path | None = None  # Folder of the figures; MODEL/inspection if not given.
    seed: int = 0  # Seed of the random tokens that test copying and completion.

    def __call__(self) -> None:
        from mesascope.cli.inspection import draw_inspection
        from mesascope.language import corpus_windows, inspect, load_language_model

        model, tokenizer = load_language_model(self.model, self.device)
        found = inspect(model, corpus_windows(model, tokenizer, self.corpus, self.split, self.windows), self.seed)
        print(found.table())
        copying, induction = found.scores.uniform
        print(f"a head with uniform attention has copying {copying:.4f} and induction {induction:.4f}")
        out = self.out or Path(self.model) / "inspection"
        draw_inspection(found, out)
        print(f"figures: {out.resolve()}")


LANGUAGE = {"prepare": Prepare, "train": Train, "evaluate": Evaluate, "sample": Sample, "inspect": Inspect}


def language_command(arguments: Sequence[str]) -> Any:
    """Type of ``mesascope language`` with its subcommands; the flags of ``train`` default to the chosen preset.

    Only ``train`` imports the module of the settings, which imports torch.
    """
    settings: tuple[str, Any, Any] = ("settings", tyro.conf.Suppress[Any], None)
    if list(arguments[:2]) == ["language", "train"]:
        from mesascope.language.learning import PRESETS

        own = PRESETS.get(asked_preset(arguments), PRESETS["quick"])
        settings = ("settings", Annotated[type(own), tyro.conf.arg(name="")], own)
    commands = LANGUAGE | {"train": with_fields(Train, Train.__doc__, settings)}
    kinds = one_of(Annotated[kind, tyro.conf.subcommand(name)] for name, kind in commands.items())
    doc = "Language models: prepare text, train on it, evaluate, sample, inspect."
    return with_fields(Group, doc, ("command", kinds))
