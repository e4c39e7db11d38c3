"""Attacks: each ends in one sentence, or in the right result. `one_sentence` is what all of them ask of an error."""

from sentences import one_sentence

__all__ = ["one_sentence"]
