"""The site, built by ``make docs``: offline, with warnings as errors."""

import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
os.environ.setdefault("HF_HUB_OFFLINE", "1")

import hf_memory

project = "hf_memory"
author = "The hf_memory authors"
copyright = author
release = hf_memory.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "docs.extensions.docstrings",
    "docs.extensions.mathml",
    "docs.extensions.pages",
]
exclude_patterns = ["extensions"]
suppress_warnings: list[str] = []

smartquotes_action = "qe"  # two hyphens are those of a flag

myst_enable_extensions = ["dollarmath", "deflist", "colon_fence"]
myst_heading_anchors = 3
autodoc_typehints = "signature"
autodoc_member_order = "bysource"
autodoc_class_signature = "mixed"
napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_use_ivar = True
napoleon_custom_sections = [("Class attributes", "Attributes")]
toc_object_entries_show_parents = "hide"
python_display_short_literal_types = True
maximum_signature_line_length = 88

html_theme = "furo"
html_title = "hf_memory"
html_math_renderer = "mathml"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_sphinx = False
html_theme_options = {"navigation_with_keys": True}
pygments_style = "friendly"
