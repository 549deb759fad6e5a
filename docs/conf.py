# SPDX-License-Identifier: Apache-2.0
"""The site of `make docs`: the pages of docs/, and the API reference of docs/reference.

Python's part is made from docstrings, without the compiled module, torch and Transformers, which
autodoc replaces by dummies: it is the same on every machine. The C and C++ part is made from the
comments in include/fa3, through Doxygen; `make docs` says where that has written.
"""

import sys
from pathlib import Path
from unittest.mock import MagicMock

from sphinx.addnodes import pending_xref

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "python"))

project = "fa3"
extensions = ["breathe", "myst_parser", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
exclude_patterns = ["lab"]
html_theme = "furo"
html_title = "fa3"
html_static_path = ["reference/static"]
html_css_files = ["site.css"]
html_copy_source = False
html_show_copyright = False
root_doc = "reference/index"

nitpicky = True  # a reference to nothing is a warning
nitpick_ignore_regex = [
    (r"c(pp)?:identifier", r"u?int\d+_t|size_t|std(::\w+)?"),
    (r"cpp:identifier", r"fa3|fa3_\w+|FA3_\w+"),  # the namespace, and the names of the C page
]
default_role = "code"
highlight_language = "none"  # blocks that name no language are shell sessions and drawings
maximum_signature_line_length = 80
autodoc_mock_imports = ["fa3._native", "jax", "torch"]
sys.modules["transformers"] = MagicMock(__version__="5.23.0")  # which fa3.hf compares
autodoc_typehints = "none"
myst_heading_anchors = 4

breathe_default_project = "fa3"
breathe_domain_by_file_pattern = {"*/fa3.h": "c", "*/ring.h": "c"}


def unlink(app, doctree):
    """Links to files and folders that are not pages of the site become their words.

    Links to what does not exist stay, and are errors.
    """
    folder = Path(app.srcdir, app.env.docname).parent
    for link in list(doctree.findall(pending_xref)):
        if link["refdomain"] == "doc":
            is_page = link["reftarget"] in app.env.found_docs
            target = Path(app.srcdir, link["reftarget"] + ".md")
        else:
            is_page = link["reftype"] != "myst"
            target = folder / link["reftarget"]
        if not is_page and target.exists():
            link.replace_self(link.children)


def setup(app):
    app.connect("doctree-read", unlink)
