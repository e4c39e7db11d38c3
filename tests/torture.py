"""Kill a run at random moments until it is finished, as often as it takes to kill 100 processes; see docs/torture.md.

``python tests/torture.py [KILLS]``; not a part of the tests, as it takes some ten minutes.
"""

from __future__ import annotations

import platform
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from importlib.metadata import version
from pathlib import Path

from tiny_study import contents

STUDY = Path(__file__).with_name("tiny_study.py")
SETTINGS = [
    *("--training.steps", "60", "--training.checkpoint-every", "2", "--training.evaluate-every", "5"),
    *("--seeds", "2", "--tasks", "2000"),
]
PAGE = Path(__file__).parents[1] / "docs" / "torture.md"


def started(*arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, str(STUDY), *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def command(path: Path) -> list[object]:
    """Command that starts the run, or continues it if it exists."""
    if (path / "config.json").exists():
        return ["run", "tiny", "--resume", path]
    return ["run", "tiny", *SETTINGS, "--out", path]


def uninterrupted(path: Path) -> tuple[dict[str, bytes], float, float]:
    """Its files, and the seconds until it begins and from then to its end."""
    start = time.monotonic()
    process = started(*command(path))
    for _ in range(2):
        process.stdout.readline()  # the question and the folder
    begun = time.monotonic()
    _, err = process.communicate()
    assert process.returncode == 0, err
    return contents(path), begun - start, time.monotonic() - begun


def state(path: Path) -> str:
    """Progress of a killed run, in words."""
    if not (path / "config.json").exists():
        return "before it began"
    half = [file for file in path.rglob("*.aside") if file.name != ".config.json.aside"]
    if half:
        name = half[0].name.lstrip(".").removesuffix(".aside")
        return "with a checkpoint half written" if name.isdecimal() else f"with {name} half written"
    if (path / "claims.json").exists():
        return "while its report was written"
    if (path / "results" / "index.json").exists():
        return "while it was measured or drawn"
    return "while it trained" if (path / "metrics.jsonl").exists() else "before its first step"


def kills(folder: Path, right: dict[str, bytes], begins: float, lasts: float, wanted: int, chance: random.Random):
    """Number of runs that were killed and finished, and the places of ``wanted`` kills."""
    places: Counter[str] = Counter()
    runs = 0
    while sum(places.values()) < wanted:
        path, finished = folder / f"killed-{runs}", False
        while not finished:
            process = started(*command(path))
            try:
                process.wait(chance.uniform(0, begins) if chance.random() < 0.1 else begins + chance.uniform(0, lasts))
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.communicate()
                places[state(path)] += 1
                continue
            _, err = process.communicate()
            assert process.returncode == 0, err
            finished = True
        runs += 1
        assert contents(path) == right, f"{path} differs from the uninterrupted run"
        print(f"{runs} runs, {sum(places.values())} kills", flush=True)
    return runs, places


def pairs(folder: Path, right: dict[str, bytes], begins: float, chance: random.Random, wanted: int = 10) -> int:
    """Two processes at once on one folder, new or killed: one goes on, the other is refused or finds it finished."""
    refused = 0
    for index in range(wanted):
        path = folder / f"pair-{index}"
        if index % 2:
            first = started(*command(path))
            time.sleep(begins + chance.uniform(0, 1))
            first.kill()
            first.communicate()
        both = [started(*command(path)) for _ in range(2)]
        said = [process.communicate()[1] for process in both]
        codes = sorted(process.returncode for process in both)
        assert codes in ([0, 0], [0, 2]), said
        assert "Traceback" not in "".join(said), said
        refused += codes == [0, 2]
        assert contents(path) == right, f"{path} differs from the uninterrupted run"
    return refused


def full_disks(folder: Path, right: dict[str, bytes], sizes: range) -> tuple[int, int] | None:
    """Runs on disks with ``sizes`` kilobytes left, resumed when there was more: how many, and how many found them full.

    None where this machine mounts none.
    """
    place, full = folder / "disk", 0
    place.mkdir()
    for size in sizes:
        if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", place], capture_output=True).returncode:
            return None
        try:
            path, ballast = place / "run", place / "ballast"
            ballast.write_bytes(bytes((1024 - size) * 1024))
            process = started(*command(path))
            _, err = process.communicate()
            if process.returncode:
                said = err.splitlines()[-1]
                assert (process.returncode, said.count("its disk is full")) == (2, 1), err
                assert "Traceback" not in err, err
                full += 1
            ballast.unlink()
            process = started(*command(path))
            _, err = process.communicate()
            assert process.returncode == 0, err
            assert contents(path) == right, f"on {size} kB it differs from the uninterrupted run"
        finally:
            subprocess.run(["umount", place], check=True)
    return len(sizes), full


def main() -> None:
    wanted, chance, start = int(sys.argv[1]) if len(sys.argv) > 1 else 100, random.Random(0), time.monotonic()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        right, begins, lasts = uninterrupted(folder / "whole")
        runs, places = kills(folder, right, begins, lasts, wanted, chance)
        refused = pairs(folder, right, begins, chance)
        disks = full_disks(folder, right, range(0, 240, 20))
    versions = ", ".join(f"{package} {version(package)}" for package in ("mesascope", "torch", "numpy"))
    fell = "\n".join(f"| {place} | {count} |" for place, count in sorted(places.items(), key=lambda item: -item[1]))
    full = (
        f"{disks[0]} runs started on disks with 0 to 220 kB free. {disks[1]} of them reported a full disk. After space "
        "was freed, all finished with files equal to those of the uninterrupted run."
        if disks
        else "Left out: this machine mounts no disk of a given size."
    )
    minutes = (time.monotonic() - start) / 60
    PAGE.write_text(
        f"""# Kills, simultaneous runs and full disks

Written by `make torture` (`python tests/torture.py {wanted}`):
{versions}, Python {platform.python_version()},
{platform.machine()}, {minutes:.0f} minutes. The run is the study of `tests/tiny_study.py`: two layers
are trained for 60 steps with a checkpoint every two steps; then the run is measured, judged, drawn and reported. All
files except configuration, times and report must be equal, byte for byte, to those of an uninterrupted run.

**Kills.** We killed {sum(places.values())} processes by SIGKILL at random moments, and continued each
run by `--resume` until it was finished. All {runs} runs have files equal to those of the uninterrupted run.
Where the kills fell:

| the run was killed | times |
|---|---|
{fell}

**Two at once.** In each of 10 trials, two processes started or resumed a run in one folder at the same moment.
{refused} times the second one was refused, {10 - refused} times the first had already finished. All runs have files
equal to those of the uninterrupted run.

**Full disks.** {full}
"""
    )
    print(PAGE.read_text())


if __name__ == "__main__":
    main()
