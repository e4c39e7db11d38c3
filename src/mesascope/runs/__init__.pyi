from .finding import find_runs as find_runs, newest_run as newest_run, open_run as open_run
from .results import Results as Results
from .run import Run as Run
