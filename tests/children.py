"""Processes that tests start, kill and wait for: forks of one that has imported what they need, which takes seconds.

`Popen` starts what ``python ARGUMENTS`` would run: a script, or ``-m`` and a module. As a script, this file is the
process that forks; it reads a request a line, and answers each by a line.
"""

import atexit
import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from pathlib import Path

__all__ = ["Popen", "run", "two_of"]


class Popen:
    """A started process, with what `subprocess.Popen` has of the same names; outputs are read with `output`."""

    _server: subprocess.Popen | None = None

    def __init__(self, arguments, env=None):
        self._files = [tempfile.NamedTemporaryFile() for _ in range(2)]  # noqa: SIM115
        self.returncode = None
        own = {"arguments": [*map(str, arguments)], "env": env or {}, "folder": os.getcwd()}
        self.pid = self._asked({**own, "files": [file.name for file in self._files]})

    @classmethod
    def _asked(cls, request):
        if cls._server is None:
            cls._server = subprocess.Popen(
                [sys.executable, __file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                env=os.environ | {"OMP_NUM_THREADS": "1"},
            )  # fmt: skip
            atexit.register(cls._ended)
        server = cls._server
        server.stdin.write(json.dumps(request) + "\n")
        server.stdin.flush()
        return json.loads(server.stdout.readline())

    @classmethod
    def _ended(cls):
        cls._server.stdin.close()
        cls._server.stdout.close()
        cls._server.wait()

    def poll(self):
        if self.returncode is None:
            self.returncode = self._asked({"ended": self.pid})
        return self.returncode

    def wait(self, timeout=240):
        end = time.monotonic() + timeout
        while self.poll() is None:
            if time.monotonic() > end:
                self.kill()
                raise TimeoutError(self.output())
            time.sleep(0.01)
        return self.returncode

    def send_signal(self, number):
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self):
        self.send_signal(signal.SIGKILL)

    def output(self):
        """Text on standard output and on standard error."""
        return tuple(Path(file.name).read_text() for file in self._files)


def run(*arguments, env=None):
    """A process that has ended, with what `subprocess.run` returns."""
    process = Popen(arguments, env)
    process.wait()
    return subprocess.CompletedProcess(arguments, process.returncode, *process.output())


def two_of(arguments, port):
    """Two processes with the environment that torchrun gives to those of one machine."""
    shared = {
        "MASTER_ADDR": "localhost", "MASTER_PORT": str(port), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2",
        "GROUP_RANK": "0", "TORCHELASTIC_RUN_ID": "tests",
    }  # fmt: skip
    return [Popen(arguments, {**shared, "RANK": str(rank), "LOCAL_RANK": str(rank)}) for rank in range(2)]


def serve():
    import matplotlib.backends.backend_svg  # noqa: F401
    import pytest  # noqa: F401
    import scipy.stats  # noqa: F401
    import torch._decomp.decompositions_for_jvp
    import torch._dynamo
    import torch.distributed
    import torch.optim  # noqa: F401

    from mesascope import language, reports, runs, studies, training  # noqa: F401
    from mesascope.records import registered

    registered("study")
    gc.freeze()  # so that no child walks, and copies, what all share
    for line in sys.stdin:
        request = json.loads(line)
        answer = ended(request["ended"]) if "ended" in request else started(request)
        print(answer if answer is not None else "null", flush=True)


def ended(pid):
    """Exit code of a child, negative for a signal; None while it runs."""
    found, status = os.waitpid(pid, os.WNOHANG)
    return os.waitstatus_to_exitcode(status) if found else None


def started(request):
    pid = os.fork()
    if pid:
        return pid
    for number, place in enumerate(request["files"], start=1):
        os.dup2(os.open(place, os.O_WRONLY), number)
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.update(request["env"])
    os.chdir(request["folder"])
    os._exit(exit_code(request["arguments"]))


def exit_code(arguments):
    """Exit code of a program, by python's rules."""
    try:
        if arguments[0] == "-m":
            sys.argv = arguments[1:]
            runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
        else:
            sys.argv, sys.path[0] = arguments, str(Path(arguments[0]).parent)
            runpy.run_path(arguments[0], run_name="__main__")
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stdout.flush()
    sys.stderr.flush()
    return code


if __name__ == "__main__":
    serve()
