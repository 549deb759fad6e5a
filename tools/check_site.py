# SPDX-License-Identifier: Apache-2.0
"""Do the links of a site lead somewhere?

    python3 tools/check_site.py build/docs/html

Every link and picture of every page must name a file of the site, and a fragment an element of it.
Links of one page to others on the web are not followed. Exits with 1 and names those that are dead.
"""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Page(HTMLParser):
    """The ids of a page, and what it links to."""

    def __init__(self, path: Path):
        super().__init__()
        self.ids, self.targets = set(), []
        self.feed(path.read_text())

    def handle_starttag(self, tag, attributes):
        for name, value in attributes:
            if name == "id" or (tag == "a" and name == "name"):
                self.ids.add(value)
            elif name in ("href", "src") and value:
                self.targets.append(value)


def dead(root: Path) -> list[str]:
    pages = {path: Page(path) for path in sorted(root.rglob("*.html"))}
    found = []
    for path, page in pages.items():
        for target in page.targets:
            parts = urlsplit(target)
            if parts.scheme or parts.netloc or target == "#":
                continue
            to = (path.parent / unquote(parts.path)).resolve() if parts.path else path
            is_there = to.is_file() and (to in pages or not parts.fragment)
            if parts.fragment and to in pages:
                is_there = unquote(parts.fragment) in pages[to].ids
            if not is_there:
                found.append(f"{path.relative_to(root)}: {target}")
    return found


def main():
    root = Path(sys.argv[1]).resolve()
    found = dead(root)
    print("\n".join(sorted(set(found))) or "links: none is dead")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
