"""Configuration of the documentation site: `make docs`."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
import site_pages

import mesascope

project = "mesascope"
author = "The mesascope developers"
copyright = author
version = release = mesascope.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "sphinx.ext.viewcode", "sphinx_copybutton"]
exclude_patterns = ["results/**", "build/**", "**/.ipynb_checkpoints"]

html_theme = "furo"
html_title = f"mesascope {release}"
html_static_path = ["site"]
html_css_files = ["mesascope.css"]
html_extra_path = ["explore-page.html"]
html_copy_source = False
html_show_sphinx = False
# The theme's own names for pygments' styles; no font, script or image comes from another host.
pygments_style, pygments_dark_style = "tango", "monokai"

myst_enable_extensions = ["colon_fence", "dollarmath", "deflist"]
myst_heading_anchors = 4
# Outputs of the tutorials are committed: docs/notebooks.py executes those whose code has changed.
nb_execution_mode = "off"
nb_merge_streams = True

autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_inherit_docstrings = False
autodoc_preserve_defaults = True
python_use_unqualified_type_names = True
python_maximum_signature_line_length = 100
add_module_names = False
napoleon_numpy_docstring = False
napoleon_use_ivar = True
default_role = "py:obj"
copybutton_exclude = ".linenos, .gp, .go"


def setup(app):
    """Write the generated pages, and read links and docstrings as the site needs them."""
    app.connect("builder-inited", site_pages.write)
    app.connect("source-read", site_pages.link)
    app.connect("viewcode-follow-imported", site_pages.source)
    app.connect("autodoc-process-docstring", site_pages.escape, priority=100)
