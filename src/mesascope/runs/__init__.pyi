from .finding import find_runs as find_runs, open_run as open_run
from .results import Results as Results
from .run import Run as Run
