"""Every annotated shape and type is checked at run time while testing."""

import pytest
from hypothesis import settings
from jaxtyping import config, install_import_hook

install_import_hook("mesascope", "shape_checker.check").__enter__()

settings.register_profile("same examples every time", derandomize=True, deadline=None)
settings.load_profile("same examples every time")


@pytest.fixture
def unchecked():
    """Without these checks, as users call it: what has the wrong type meets mesascope's own sentence."""
    config.update("jaxtyping_disable", True)
    yield
    config.update("jaxtyping_disable", False)
