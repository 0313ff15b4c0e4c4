#!/usr/bin/env python3
"""Checks every relative link of the documentation: the file is there, and has the heading.

    scripts/check_links.py
"""

import re
import subprocess
import sys

from packages import ROOT

LINK = re.compile(r"\]\(<?([^)\s>]+)>?\)")
FENCE = re.compile(r"^```.*?^```$", re.M | re.S)


def pages():
    listed = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md"]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, text=True, check=True).stdout.split("\n")
    # The notes of the demo and of the tests are no documentation.
    return [ROOT / name for name in names if name and not re.match(r"examples/notes/|tests/", name)]


def anchor(heading):
    """The anchor that GitHub and mdBook give a heading.

    >>> anchor("Is it exact: `elf verify`")
    'is-it-exact-elf-verify'
    >>> anchor("`[storage.qdrant]`")
    'storageqdrant'
    """
    text = LINK.sub("]", heading).replace("[", "").replace("]", "")
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")


def anchors(page):
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    return {anchor(heading) for heading in re.findall(r"^#+ (.*)$", text, re.M)}


def dead(page):
    text = FENCE.sub("", page.read_text(encoding="utf-8"))
    for link in LINK.findall(text):
        if re.match(r"[a-z]+:", link):
            continue
        path, _, wanted = link.partition("#")
        target = (page.parent / path).resolve() if path else page
        if not target.exists():
            yield f"{page.relative_to(ROOT)}: there is no {path}"
        elif wanted and target.suffix == ".md" and wanted not in anchors(target):
            yield f"{page.relative_to(ROOT)}: {path} has no heading #{wanted}"


def main():
    found = [problem for page in pages() for problem in dead(page)]
    print("\n".join(found) or "links: each leads to a file and a heading")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
