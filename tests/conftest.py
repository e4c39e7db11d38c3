"""Annotated shapes are checked at run time while testing, and all types but those of inner functions."""

import contextlib
import gc
import os
import shutil

os.environ.setdefault("OMP_NUM_THREADS", "1")  # two processes test side by side; children compute in the same order

import jaxtyping
import pytest
import shape_checker
from hypothesis import settings
from jaxtyping import config, install_import_hook
from xdist.scheduler import LoadScopeScheduling

with contextlib.suppress(ImportError):  # before any gradient; torch 2.9 has no backends in Python
    import simulated_device  # noqa: F401

jaxtyping.jaxtyped = shape_checker.jaxtyped
install_import_hook("mesascope", "shape_checker.check").__enter__()

# Collections of garbage walk a million objects of modules again and again: none until all tests are collected, and then
# of what came after, and rarely.
gc.disable()

settings.register_profile("same examples every time", derandomize=True, deadline=None)
settings.load_profile("same examples every time")


class ByModuleOrStudy(LoadScopeScheduling):
    """Tests of a module share a process, and so what its fixtures make, and those of a study share one."""

    def _split_scope(self, nodeid: str) -> str:
        module, _, test = nodeid.partition("::")
        by_study = module in ("tests/test_studies.py", "tests/test_devices_studies.py") and "[" in test
        return nodeid[nodeid.find("[") :] if by_study else module


def pytest_xdist_make_scheduler(config, log):
    return ByModuleOrStudy(config, log)


def pytest_collection_finish():
    gc.freeze()
    gc.set_threshold(20_000, 20, 20)
    gc.enable()


def pytest_runtest_setup():
    shape_checker.CALLS.clear()


@contextlib.contextmanager
def without_checks():
    before = config.jaxtyping_disable
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", before)


@pytest.fixture(autouse=True)
def own_studies():
    """Studies that a test loads from files are registered until its end."""
    from mesascope import records

    yield
    for entries in records._REGISTRY.values():
        for name in [name for name, entry in entries.items() if "file" in entry.facts]:
            del entries[name]


@pytest.fixture
def unchecked():
    """Without these checks, as users call it: what has the wrong type meets mesascope's own sentence."""
    with without_checks():
        yield


@pytest.fixture(scope="module")
def unchecked_module():
    """Whole modules that call what others check, and take a third less time so."""
    with without_checks():
        yield


@pytest.fixture(params=["at once", "in turn"])
def members(request, monkeypatch):
    """The two ways in which an ensemble runs its members, which depend on their size."""
    monkeypatch.setattr("mesascope.training.ensemble._BUSY", 2**27 if request.param == "at once" else -1)
    return request.param


@pytest.fixture(scope="module")
def browser():
    """Chromium without a window; tests are skipped where it or Playwright is missing."""
    reason = "Playwright is not installed: pip install playwright"
    api = pytest.importorskip("playwright.sync_api", reason=reason)
    chromium = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
    if chromium is None:
        pytest.skip("there is no chromium: apt-get install chromium")
    with api.sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield found
        found.close()
