# SPDX-License-Identifier: Apache-2.0
"""Links of the pages to files of the sources lead to pages of the site.

A text in a language that Pygments knows becomes a page with numbered lines; data (.json, .jsonl,
.txt) is copied. Links to folders, and to what does not exist, are warnings.
"""

import importlib
import operator
import shutil
from pathlib import Path

from docutils import nodes
from pygments import highlight
from pygments.formatters import HtmlFormatter
from pygments.lexers import TextLexer, get_lexer_for_filename
from pygments.util import ClassNotFound
from sphinx.addnodes import download_reference, pending_xref
from sphinx.util import logging

ROOT = Path(__file__).resolve().parents[3]
DATA = (".json", ".jsonl", ".txt", ".npy")
linked = set()


def to_pages(app, doctree):
    """Turns each link to a file of the sources into one to its place on the site."""
    folder = Path(app.env.doc2path(app.env.docname)).parent
    up = "../" * app.env.docname.count("/")
    links = [(link, link["reftarget"]) for link in doctree.findall(download_reference)]
    for link in doctree.findall(pending_xref):  # pages of another folder than docs/
        if link["refdomain"] == "doc" and link["reftarget"] not in app.env.found_docs:
            links.append((link, Path(app.srcdir, link["reftarget"] + ".md")))
    for link, target in links:
        target = (folder / target).resolve()
        if not target.is_file():
            logging.getLogger(__name__).warning("no such file: %s", target, location=link)
            continue
        path = target.relative_to(ROOT)
        linked.add(path)
        place = f"files/{path}" + ("" if path.suffix in DATA else ".html")
        link.replace_self(nodes.reference("", "", *link.children, refuri=up + place, internal=True))


def pages(app):
    """A page of the site for each linked file that is no data."""
    for path in sorted(path for path in linked if path.suffix not in DATA):
        try:
            lexer = get_lexer_for_filename(path.name.replace(".cuh", ".cu"))
        except ClassNotFound:
            lexer = TextLexer()
        code = highlight((ROOT / path).read_text(), lexer, HtmlFormatter(linenos="inline"))
        block = f'<div class="highlight-default notranslate">{code}</div>'
        body = f'<div class="source-page"><h1>{path}</h1>{block}</div>'
        yield f"files/{path}", {"title": str(path), "body": body}, "page.html"


def copy_data(app, failed):
    for path in [path for path in linked if path.suffix in DATA and not failed]:
        to = Path(app.outdir, "files", path)
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, to)


def follow(app, module, name):
    """The module whose source viewcode looks into; None leaves that to viewcode.

    A decorator that autodoc replaces by a dummy makes a function seem torch's, whose source is no
    page: such functions have no link to theirs.
    """
    try:
        value = operator.attrgetter(name)(importlib.import_module(module))
    except (AttributeError, ImportError):
        return None
    found = str(getattr(value, "__module__", None)).split(".")[0]
    return "fa3" if found in app.config.autodoc_mock_imports else None


def setup(app):
    app.connect("viewcode-follow-imported", follow)
    app.connect("doctree-read", to_pages)
    app.connect("html-collect-pages", pages)
    app.connect("build-finished", copy_data)
