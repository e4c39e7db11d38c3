"""Every annotated shape and type is checked at run time while testing."""

from jaxtyping import install_import_hook

install_import_hook("mesascope", "shape_checker.check").__enter__()
