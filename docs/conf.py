# SPDX-License-Identifier: Apache-2.0
"""The site of `make docs`: the pages of docs/, and the API reference of docs/reference.

Python's part is made from docstrings and stubs, without the compiled module, torch and
Transformers, which autodoc replaces by dummies: it is the same on every machine. The C and C++ part
is made from the comments in include/fa3, through Doxygen; `make docs` says where that has written.
"""

import re
import sys
from pathlib import Path
from unittest.mock import MagicMock

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "docs/reference/extensions")]

project = "fa3"
release = re.search(r'^version = "(.*)"$', (ROOT / "pyproject.toml").read_text(), re.M)[1]
extensions = [
    "breathe",
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "source_pages",
    "stub_types",
]
templates_path = ["reference/templates"]
html_theme = "furo"
html_title = f"fa3 {release}"
html_static_path = ["reference/static"]
html_css_files = ["site.css"]
html_show_copyright = False
root_doc = "index"

nitpicky = True  # a reference to nothing is a warning
nitpick_ignore_regex = [
    (r"c(pp)?:identifier", r"u?int\d+_t|size_t|std(::\w+)?"),
    (r"cpp:identifier", r"fa3|fa3_\w+|FA3_\w+"),  # the namespace, and the names of the C page
    (r"py:class", r"(?!fa3\.).*"),  # types of Python, NumPy and torch
]
default_role = "code"
highlight_language = "none"  # blocks that name no language are shell sessions and drawings
maximum_signature_line_length = 80
autodoc_mock_imports = ["fa3._native", "jax", "torch"]
sys.modules["transformers"] = MagicMock(__version__="5.23.0")  # which fa3.hf compares
sys.modules["transformers.integrations.sdpa_attention"] = MagicMock()
autodoc_typehints = "signature"
myst_enable_extensions = ["attrs_inline", "colon_fence"]
myst_heading_anchors = 4

breathe_default_project = "fa3"
breathe_domain_by_file_pattern = {"*/fa3.h": "c", "*/fp8.h": "c", "*/mla.h": "c", "*/ring.h": "c"}
