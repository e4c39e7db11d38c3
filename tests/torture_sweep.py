"""Kill sweeps at random moments until 200 processes or groups of processes are dead; see docs/torture-sweep.md.

``python tests/torture_sweep.py [KILLS]``; the suite kills two (`test_sweeps`), as 200 take half an hour.
"""

from __future__ import annotations

import contextlib
import os
import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil

ROOT = Path(__file__).parents[1]
PAGE = ROOT / "docs" / "torture-sweep.md"
FUNCTION = [f"{Path(__file__).resolve()}:slow_error", "--set", "size=1,2,3", "--set", "noise=0,0.5", "--seeds", "0:4"]
STUDY = [
    f"{Path(__file__).resolve().with_name('tiny_study.py')}:STUDY", "--seeds", "0:2", "--set", "tasks=200,300",
    "--set", "training.steps=20", "--set", "training.checkpoint-every=2",
]  # fmt: skip
# A worker alone, the command that started the sweep, and both as a machine that is lost.
KINDS = ("worker", "driver", "machine")


def slow_error(settings: Any, seed: int) -> dict[str, float]:
    """Error of the mean of a few random numbers."""
    chance = random.Random(seed)
    time.sleep(0.1)
    return {"error": abs(sum(chance.gauss(0, 1 + settings["noise"]) for _ in range(settings["size"])))}


@dataclass
class Torture:
    """Sweeps of one command, killed at random moments, and compared with an undisturbed one."""

    command: list[str]
    folder: Path
    chance: random.Random
    lasts: float = 0.0
    kills: Counter[str] = field(default_factory=Counter)
    sweeps: int = 0

    def started(self, out: Path) -> subprocess.Popen[str]:
        own = ["--resume", str(out)] if (out / "sweep.json").exists() else [*self.command, "--out", str(out)]
        return subprocess.Popen(
            [sys.executable, "-m", "mesascope", "sweep", *own], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, start_new_session=True, env=os.environ | {"OMP_NUM_THREADS": "1"},
        )  # fmt: skip

    def undisturbed(self) -> dict[str, bytes]:
        """Files of a sweep that nothing disturbs; how long it takes."""
        start = time.monotonic()
        process = self.started(self.folder / "whole")
        _, err = process.communicate()
        assert process.returncode == 0, err
        self.lasts = time.monotonic() - start
        return contents(self.folder / "whole")

    def killed(self, right: dict[str, bytes], wanted: Counter[str]) -> None:
        """Sweeps until all the wanted kills have happened, each finished and compared."""
        while wanted:
            out = self.folder / f"killed-{self.sweeps}"
            while not self._session(out, wanted):
                pass
            assert contents(out) == right, f"{out} differs from the undisturbed sweep"
            self.sweeps += 1
            print(f"{self.sweeps} sweeps, {sum(self.kills.values())} kills: {dict(self.kills)}", flush=True)

    def _session(self, out: Path, wanted: Counter[str]) -> bool:
        """Start or resume a sweep and kill; True if it finished."""
        process, start, alone = self.started(out), time.monotonic(), True
        while wanted:
            kind = self.chance.choice(sorted(wanted))
            pause = self.chance.uniform(0, self.lasts if kind != "worker" else self.lasts / 2)
            try:
                process.wait(pause)
                break
            except subprocess.TimeoutExpired:
                if not kill(process.pid, kind, self.chance):
                    continue
            alone = False
            self.kills[kind] += 1
            wanted[kind] -= 1
            wanted += Counter()  # drops those that are 0
            if kind != "worker":
                process.communicate()
                return False
        _, err = process.communicate(timeout=600)
        assert process.returncode == 0, err
        if alone:  # it outran the kill
            self.lasts = min(self.lasts, time.monotonic() - start)
        return True


def kill(driver: int, kind: str, chance: random.Random) -> bool:
    """SIGKILL to a process of a sweep, or to all; False if there is no worker yet."""
    if kind == "machine":
        os.killpg(driver, signal.SIGKILL)
        return True
    if kind == "driver":
        os.kill(driver, signal.SIGKILL)
        return True
    workers = []
    for child in psutil.Process(driver).children():
        with contextlib.suppress(psutil.Error):  # it has just ended
            workers += [child] if "dask_worker" in " ".join(child.cmdline()) else []
    if workers:
        chance.choice(workers).kill()
    return bool(workers)


def contents(out: Path) -> dict[str, bytes]:
    """The gathered table, and all that results of points depend on."""
    apart = {"config.json", "timing.json", "report.html", ".lock", "sweep.json"}
    files = (file for file in out.rglob("*") if file.is_file() and file.name not in apart)
    return {str(file.relative_to(out)): file.read_bytes() for file in files if file.parent != out / "logs"}


def main() -> None:
    wanted, start = int(sys.argv[1]) if len(sys.argv) > 1 else 200, time.monotonic()
    tortures: dict[str, Torture] = {}
    with tempfile.TemporaryDirectory() as name:
        for place, (title, command, share) in enumerate((("function", FUNCTION, 0.75), ("study", STUDY, 0.25))):
            torture = tortures[title] = Torture(command, Path(name) / title, random.Random(place))
            each = round(wanted * share / len(KINDS) + 0.5)
            torture.killed(torture.undisturbed(), Counter(dict.fromkeys(KINDS, each)))
    rows = "\n".join(
        f"| {title} | {' | '.join(str(one.kills[kind]) for kind in KINDS)} | {one.sweeps} |"
        for title, one in tortures.items()
    )
    total = sum(sum(one.kills.values()) for one in tortures.values())
    versions = ", ".join(f"{package} {version(package)}" for package in ("mesascope", "distributed", "torch", "numpy"))
    PAGE.write_text(
        f"""# Killed sweeps

Written by `make torture` (`python tests/torture_sweep.py {wanted}`):
{versions}, Python {platform.python_version()},
{platform.machine()}, {(time.monotonic() - start) / 60:.0f} minutes.

{total} times, we sent SIGKILL at a random moment: to a worker of a sweep, to the command that had started it (the
driver), or to the process group of both, as if the machine failed. A dead driver was started again by `--resume`.
Each sweep has two workers. *Function* calls a function for 4 seeds at each of 6 settings; *study* runs the study of
`tests/tiny_study.py` at 2 settings, with a checkpoint every second step.

| task | worker killed | driver killed | group killed | sweeps finished |
|---|---|---|---|---|
{rows}

In every finished sweep, the gathered table and all files of its points (except configurations, times, reports and
locks) were byte-identical to those of a sweep that nothing disturbed.
"""
    )
    print(PAGE.read_text())


if __name__ == "__main__":
    main()
