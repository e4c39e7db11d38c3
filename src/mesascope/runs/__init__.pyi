from .claims import Bound as Bound, Claim as Claim, judge as judge
from .directory import SCHEMA as SCHEMA, RunDirectory as RunDirectory, find_runs as find_runs
