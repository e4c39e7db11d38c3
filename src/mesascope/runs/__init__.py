"""Everything on disk about a run. `mesascope.runs.checkpoints` alone imports torch, and is imported by its name."""

from mesascope.runs.claims import Bound, Claim, judge
from mesascope.runs.directory import SCHEMA, RunDirectory, find_runs

__all__ = ["SCHEMA", "Bound", "Claim", "RunDirectory", "find_runs", "judge"]
