"""Worker processes of dask.distributed: on this machine, of a running scheduler, or of a job queue."""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from mesascope.errors import ArgumentError, MesascopeError, one_line, require_choice, require_count, require_package
from mesascope.sweeps.crew import THREADS

# Cluster of dask-jobqueue and command that submits jobs, by queue.
QUEUES = {"slurm": ("SLURMCluster", "sbatch"), "pbs": ("PBSCluster", "qsub"), "lsf": ("LSFCluster", "bsub")}
# Report each death of a worker, as `Crew` counts them.
_SETTINGS = {"distributed.scheduler.allowed-failures": 0, "distributed.worker.profile.enabled": False}
# Seconds between two checks for dead workers, and within which the first worker must start.
_EVERY, _FIRST = 0.1, 120.0


@contextlib.contextmanager
def connected(
    workers: int = 2, *, scheduler: str = "", queue: str = "", options: Sequence[str] = (), threads: int = 1
) -> Iterator[Any]:
    """Context manager that yields a ``dask.distributed.Client``. Workers that it starts are stopped at exit.

    Args:
        workers: number of worker processes to start.
        scheduler: address of a running scheduler, such as ``tcp://host:8786``, whose workers are used.
        queue: slurm, pbs or lsf. Workers are jobs of this queue; a job that ends is replaced.
        options: arguments ``name=value`` of dask-jobqueue's cluster, such as ``walltime=02:00:00``.
        threads: number of torch threads of each worker.

    Raises:
        MesascopeError: dask.distributed is not installed, or no scheduler or worker answers.
    """
    distributed = require_package("distributed", "many workers", "cluster")
    require_count("workers", workers)
    require_count("threads", threads)
    if scheduler and queue:
        raise ArgumentError(f"queue must be left out beside a scheduler, but is {queue!r}: pass one of them.")
    if queue in QUEUES and shutil.which(command := QUEUES[queue][1]) is None:
        raise MesascopeError(
            f"queue {queue} must have its command {command} on this machine, but it is not found: start the "
            "sweep where jobs are submitted."
        )
    from dask import config  # after the check that dask is installed

    logging.getLogger("distributed").setLevel(logging.CRITICAL)  # dead workers are replaced and counted here
    with config.set(_SETTINGS):
        if scheduler:
            with _client(distributed, scheduler) as client:
                yield client
        elif queue:
            with queue_cluster(queue, workers, threads, options) as cluster, distributed.Client(cluster) as client:
                yield client
        else:
            with _local(distributed, workers, threads) as client:
                yield client


def queue_cluster(queue: str, workers: int, threads: int = 1, options: Sequence[str] = ()) -> Any:
    """The dask-jobqueue cluster of a job queue, with ``workers`` jobs of one worker each.

    By default, a job has 1 core and 1 process. dask-jobqueue's configuration file sets other missing options; without
    it, a job has 4 GB.
    """
    require_choice("queue", queue, QUEUES)
    jobqueue = require_package("dask_jobqueue", f"--queue {queue}", "cluster")
    from dask import config  # after the check that dask is installed

    given = {"cores": "1", "processes": "1"}
    for option in options:
        name, equals, value = option.partition("=")
        if not equals:
            raise ArgumentError(f"--queue-option must be name=value, but is {option!r}: pass walltime=02:00:00, say.")
        given[name.replace("-", "_")] = value
    given.setdefault("memory", config.get(f"jobqueue.{given.get('config_name', queue)}.memory", None) or "4GB")
    exports = [f"export {name}={threads}" for name in THREADS]
    try:
        counts = {name: int(given.pop(name)) for name in ("cores", "processes")}
        usual = {"job_script_prologue": exports, "scheduler_options": {"dashboard_address": ":0"}}
        cluster = getattr(jobqueue, QUEUES[queue][0])(**counts, **usual, **given)
    except (TypeError, ValueError) as error:
        raise ArgumentError(
            f"--queue-option must be arguments of dask-jobqueue's {QUEUES[queue][0]}, but are {' '.join(options)} "
            f"({one_line(error)}): correct them."
        ) from None
    cluster.adapt(minimum_jobs=workers, maximum_jobs=workers)
    return cluster


@contextlib.contextmanager
def _local(distributed: Any, workers: int, threads: int) -> Iterator[Any]:
    """Client of a scheduler in this process; worker processes that die are replaced."""
    with (
        distributed.LocalCluster(n_workers=0, dashboard_address=":0") as cluster,
        distributed.Client(cluster) as client,
        _Processes(cluster.scheduler_address, workers, threads) as processes,
    ):
        try:
            client.wait_for_workers(1, timeout=_FIRST)
        except TimeoutError:
            raise MesascopeError(
                f"a worker must start within {_FIRST:.0f} seconds, but none has ({processes.said()}): try again."
            ) from None
        yield client


class _Processes:
    """Worker processes on this machine; they end when this process ends."""

    def __init__(self, address: str, workers: int, threads: int) -> None:
        self._command = [
            *(sys.executable, "-m", "distributed.cli.dask_worker", address, "--nthreads", "1", "--no-nanny"),
            *("--no-dashboard", "--memory-limit", "0", "--preload", "mesascope.sweeps.crew"),
        ]
        own = {"DASK_LOGGING__DISTRIBUTED": "critical", "DASK_DISTRIBUTED__WORKER__PROFILE__ENABLED": "False"}
        self._environment = {**os.environ, **dict.fromkeys(THREADS, str(threads)), **own}
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        self._processes = [self._started() for _ in range(workers)]
        self._over = threading.Event()
        self._keeper = threading.Thread(target=self._keep, daemon=True)

    def _started(self) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            self._command, env=self._environment, stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=self._errors
        )

    def _keep(self) -> None:
        while not self._over.wait(_EVERY):
            for index, process in enumerate(self._processes):
                if process.poll() is not None:
                    process.communicate()  # closes its pipe
                    self._processes[index] = self._started()

    def said(self) -> str:
        """The last line that a worker wrote to standard error."""
        self._errors.seek(0)
        return one_line((self._errors.read().decode(errors="replace").strip().splitlines() or ["no error output"])[-1])

    def __enter__(self) -> _Processes:
        self._keeper.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._over.set()
        self._keeper.join()
        for process in self._processes:
            process.kill()
            process.communicate()
        self._errors.close()


def _client(distributed: Any, scheduler: str) -> Any:
    try:
        return distributed.Client(scheduler, timeout="10s")
    except (OSError, ValueError, TypeError) as error:
        raise MesascopeError(
            f"scheduler must be the address of a dask scheduler, but {scheduler} does not answer "
            f"({type(error).__name__}): start one by dask scheduler, and pass the tcp:// address that it prints."
        ) from None
