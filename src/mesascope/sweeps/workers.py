"""Worker processes of dask.distributed: on this machine, of a running scheduler, or of a job queue."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Iterator, Sequence
from typing import Any

from mesascope.errors import ArgumentError, MesascopeError, one_line, require_choice, require_count, require_package
from mesascope.sweeps.crew import THREADS

QUEUES = {"slurm": "SLURMCluster", "pbs": "PBSCluster", "lsf": "LSFCluster"}
# A point stays on its worker while that lives. Each death of a worker is reported, so that we count them.
_SETTINGS = {
    "distributed.scheduler.allowed-failures": 0,
    "distributed.scheduler.worker-saturation": 1.0,
    "distributed.worker.profile.enabled": False,
    "distributed.worker.preload": ["mesascope.sweeps.crew"],
}


@contextlib.contextmanager
def connected(
    workers: int = 2, *, scheduler: str = "", queue: str = "", options: Sequence[str] = (), threads: int = 1
) -> Iterator[Any]:
    """Within this context, a ``dask.distributed.Client``; workers that were started for it end with it.

    Args:
        workers: number of worker processes to start.
        scheduler: address of a running scheduler, such as ``tcp://host:8786``, whose workers are used.
        queue: slurm, pbs or lsf: workers are jobs, and a job that ends is replaced.
        options: arguments ``name=value`` of dask-jobqueue's cluster, such as ``walltime=02:00:00``.
        threads: number of torch threads of each worker.

    Raises:
        MesascopeError: dask.distributed is not installed, or no scheduler answers.
    """
    distributed = require_package("distributed", "many workers", "cluster")
    require_count("workers", workers)
    require_count("threads", threads)
    if scheduler and queue:
        raise ArgumentError(f"queue must be left out beside a scheduler, but is {queue!r}: pass one of them.")
    import dask

    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # dead workers are replaced and counted here
    environment = dict.fromkeys(THREADS, threads) | {"DASK_LOGGING__DISTRIBUTED": "critical"}
    with dask.config.set({**_SETTINGS, "distributed.nanny.pre-spawn-environ": environment}):
        if scheduler:
            with _client(distributed, scheduler) as client:
                yield client
            return
        make = _local if not queue else lambda *own: queue_cluster(queue, *own, options)
        with make(workers, threads) as cluster, distributed.Client(cluster) as client:
            yield client


def queue_cluster(queue: str, workers: int, threads: int = 1, options: Sequence[str] = ()) -> Any:
    """The dask-jobqueue cluster of a job queue, with ``workers`` jobs of one worker each.

    dask-jobqueue's own configuration file applies to whatever ``options`` leave out.
    """
    require_choice("queue", queue, QUEUES)
    jobqueue = require_package("dask_jobqueue", f"--queue {queue}", "cluster")
    given = {"cores": "1", "processes": "1", "memory": "4GB"}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals:
            raise ArgumentError(f"--queue-option must be name=value, but is {option!r}: pass walltime=02:00:00, say.")
        given[name.replace("-", "_")] = value
    exports = [f"export {name}={threads}" for name in THREADS]
    try:
        counts = {name: int(given.pop(name)) for name in ("cores", "processes")}
        cluster = getattr(jobqueue, QUEUES[queue])(**counts, job_script_prologue=exports, **given)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"--queue-option must be arguments of dask-jobqueue's {QUEUES[queue]}, but are {' '.join(options)} "
            f"({one_line(error)}): correct them."
        ) from None
    cluster.adapt(minimum_jobs=workers, maximum_jobs=workers)
    return cluster


def _local(workers: int, threads: int) -> Any:
    from distributed import LocalCluster

    return LocalCluster(n_workers=workers, threads_per_worker=1, memory_limit=None, dashboard_address=None)


def _client(distributed: Any, scheduler: str) -> Any:
    try:
        return distributed.Client(scheduler, timeout="10s")
    except (OSError, ValueError, TypeError) as error:
        raise MesascopeError(
            f"scheduler must be the address of a dask scheduler, but {scheduler} does not answer "
            f"({type(error).__name__}): start one by dask scheduler, and pass the tcp:// address that it prints."
        ) from None

