# SPDX-License-Identifier: Apache-2.0
"""tools/check_site.py, which make docs runs over the built site, names every link that is dead."""

import subprocess
import sys

import pytest
from builds import ROOT

GOOD = '<h1 id="top">A</h1><a href="sub/b.html#there">b</a><a href="#top">up</a><img src="p.svg">'


@pytest.fixture
def site(tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "p.svg").write_text("<svg/>")
    (tmp_path / "a.html").write_text(GOOD)
    (tmp_path / "sub" / "b.html").write_text('<p id="there"><a href="../a.html">a</a></p>')
    return tmp_path


def check(site):
    command = [sys.executable, ROOT / "tools" / "check_site.py", site]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.returncode, done.stdout


def test_a_site_whose_links_lead_somewhere_passes(site):
    assert check(site) == (0, "links: none is dead\n")


@pytest.mark.parametrize(
    "link",
    ['<a href="c.html">c</a>', '<a href="sub/b.html#gone">b</a>', '<a href="#gone">here</a>',
     '<img src="gone.svg">', '<a href="sub">a folder</a>'],
)  # fmt: skip
def test_a_dead_link_is_named(site, link):
    (site / "a.html").write_text(GOOD + link)
    code, said = check(site)
    assert code == 1
    assert said == f"a.html: {link.split(chr(34))[1]}\n"


def test_links_to_the_web_are_not_followed(site):
    (site / "a.html").write_text(GOOD + '<a href="https://arxiv.org/abs/2407.08608">paper</a>')
    assert check(site)[0] == 0
