"""Sphinx configuration of the site: `make docs`.

Pages are the Markdown files here; those of the lessons are made from lessons/*.py, which are run,
unless TINYRVLLM_LESSONS=text asks for their text alone (a matter of seconds instead of minutes).
"""

import os
import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent)]

import api_pages
import lesson_pages

import tinyrvllm

project = "tinyrvllm"
copyright = "the tinyrvllm authors, Apache-2.0"
release = version = tinyrvllm.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "plain_docstrings",
    "sphinx.ext.viewcode",
]
exclude_patterns = ["_build", "lessons/pictures"]
suppress_warnings = ["toc.not_included"]  # a page may be written before it has its place

highlight_language = "text"
html_theme = "furo"
html_title = "tinyrvllm"
html_static_path = ["static"]
html_css_files = ["site.css"]

myst_enable_extensions = ["colon_fence"]
myst_heading_anchors = 3

autodoc_member_order = "bysource"
autodoc_typehints = "description"
autodoc_default_options = {"members": True, "show-inheritance": False}
autodoc_preserve_defaults = True
napoleon_google_docstring = True

api_pages.write(HERE / "api")
lesson_pages.write(
    HERE.parent / "lessons",
    HERE / "lessons",
    execute=os.environ.get("TINYRVLLM_LESSONS", "run") == "run",
)
