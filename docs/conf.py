"""How Sphinx builds the site: ``sphinx-build -W -n docs build/docs``."""

from __future__ import annotations

import importlib.metadata
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # for `made`, which makes pages of what dagad says of itself

project = "dagad"
author = "The dagad developers"
copyright = f"2026, {author}"
release = version = importlib.metadata.version("dagad")

extensions = [
    "made.site",  # before the others: it writes pages that they read
    "myst_nb",
    "numpydoc",
    "sphinx.ext.autodoc",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["made"]

# Pages are MyST. The tests run the code on them, in order, and compare what it prints with what is shown
# (tests/docs/test_pages.py); notebooks are shown as they were saved, and other tests run those.
nb_execution_mode = "off"
myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 4
nitpick_ignore = [("py:class", "concurrent.futures._base.CancelledError")]  # of Python's own, which is offline
suppress_warnings = ["misc.highlighting_failure"]  # what a program printed is in no language

# Neighbours are not needed to read what `dagad.interop` says, and take seconds to import.
autodoc_mock_imports = ["blackjax", "jax", "nutpie", "optax", "pymc", "pytensor", "torch"]
autodoc_typehints = "none"  # numpydoc's sections say it in words
autodoc_member_order = "bysource"
default_role = "literal"  # `made.site` links those that are public names
numpydoc_show_class_members = False
numpydoc_xref_param_type = False
numpydoc_class_members_toctree = False
add_module_names = False
python_use_unqualified_type_names = True

html_theme = "pydata_sphinx_theme"
html_title = "dagad"
html_static_path = ["made/static"]
templates_path = ["made/templates"]
html_favicon = "made/static/icon.svg"
html_css_files = ["site.css"]
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "navbar_align": "left",
    "header_links_before_dropdown": 7,
    "show_toc_level": 2,
    "show_prev_next": True,
    "navigation_depth": 2,
    "secondary_sidebar_items": ["page-toc"],
    "footer_start": ["copyright"],
    "footer_end": [],
    "pygments_light_style": "a11y-high-contrast-light",
    "pygments_dark_style": "a11y-high-contrast-dark",
}
html_context = {"default_mode": "auto"}
html_sidebars = {"gallery/index": [], "index": []}
copybutton_prompt_text = r">>> |\.\.\. |\$ "
copybutton_prompt_is_regexp = True
