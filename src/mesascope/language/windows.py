"""Windows of a corpus: random for training, evenly spaced for evaluation."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch

from mesascope.errors import refuse, require_count, require_instance
from mesascope.language.shards import Corpus, open_corpus
from mesascope.records import register
from mesascope.shapes import Int, Tensor
from mesascope.training import is_rank_zero
from mesascope.validate import Several


@register("family", "text-windows", of="text")
@dataclass(frozen=True)
class TextWindows:
    """Windows of ``length`` tokens from a corpus, starting at any token.

    Args:
        folder: folder of the corpus, from `prepare`.
        split: train or validation.
        checksum: checksum of the corpus, so that a record identifies the text; not checked if empty.

    Raises:
        ArgumentError: there is no corpus, it has another checksum, or its split is shorter than a window.
    """

    folder: str
    length: Several
    split: Literal["train", "validation"] = "train"
    checksum: str = ""

    def __post_init__(self) -> None:
        object.__setattr__(self, "_corpus", open_corpus(self.folder))
        if self.checksum not in ("", self.corpus.checksum):
            refuse("folder", f"hold the text of checksum {self.checksum}", self.folder, "prepare that text again")
        if is_rank_zero():
            self.corpus.verify(self.split)
        if self.corpus.tokens(self.split) < self.length:
            most = self.corpus.tokens(self.split)
            refuse("length", f"be at most {most}, the tokens of {self.split}", self.length, "lower it, or add text")

    @property
    def corpus(self) -> Corpus:
        return self._corpus  # type: ignore[attr-defined]

    def sample(self, batch: int, generator: torch.Generator) -> Int[Tensor, "batch length"]:
        """Draw windows uniformly, on the generator's device."""
        batch = require_count("batch", batch, least=0)
        require_instance("generator", generator, torch.Generator)
        last = self.corpus.tokens(self.split) - self.length
        starts = torch.randint(last + 1, (batch,), generator=generator, device=generator.device)
        return self._at(starts.cpu().numpy()).to(generator.device)

    def spread(self, most: int) -> Int[Tensor, "count length"]:
        """At most ``most`` windows, evenly spaced over the text without overlap."""
        most = require_count("most", most)
        places = self.corpus.tokens(self.split) // self.length
        count = min(most, places)
        return self._at(np.arange(count) * places // count * self.length)

    def _at(self, starts: np.ndarray) -> Tensor:
        return torch.from_numpy(self.corpus.windows(self.split, starts, self.length))
