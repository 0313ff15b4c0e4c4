#!/usr/bin/env python3
"""Checks the links between pages: that each file and each heading is there, and that docs/SUMMARY.md
lists every page of docs/. It asks no other server."""

import os
import re
import sys
from functools import cache
from pathlib import Path
from urllib.parse import unquote

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("README.md", "CHANGELOG.md", "docs/**/*.md", "sql/**/*.md", "examples/**/*.md", "crates/**/*.md", "deploy/**/*.md")
# Notes and documents that ELF reads, not pages.
DATA = ("examples/notes", "examples/questions/corpus")

LINK = re.compile(r"(?P<image>!?)\[(?P<text>(?:[^\[\]]|\[[^\[\]]*\])*)\]\((?P<target>[^()\s]+)(?:\s+\"[^\"]*\")?\)")
# `[name]: target`, and HTML.
OTHER = re.compile(r"^ {0,3}\[[^\]]+\]:\s+(?P<target>\S+)|<(?:a|img)\b[^>]*?\b(?:href|src)=\"(?P<html>[^\"]+)\"", re.M)
FENCE = re.compile(r"^(?P<fence>`{3,}|~{3,}).*?^(?P=fence)[ \t]*$", re.M | re.S)
CODE = re.compile(r"(?P<ticks>`+)(?!`).*?(?<!`)(?P=ticks)(?!`)", re.S)
COMMENT = re.compile(r"<!--.*?-->", re.S)


def pages(root):
    found = {path for pattern in PAGES for path in root.glob(pattern)}
    return sorted(path for path in found if not path.relative_to(root).as_posix().startswith(DATA))


def prose(text):
    """The text without blocks of code and comments; line numbers stay."""
    def blank(match):
        return "\n" * match[0].count("\n")
    return COMMENT.sub(blank, FENCE.sub(blank, text))


def targets(page):
    """Each link of a page: its line and where it leads."""
    text = prose(page.read_text(encoding="utf-8"))
    # Code in the text of a link is no code to skip: only its target counts.
    text = CODE.sub(lambda code: re.sub(r"[\[\]()<]", "x", code[0]), text)
    found = [(match.start(), match["target"]) for match in LINK.finditer(text)]
    for match in LINK.finditer(text):
        # A picture that is a link.
        found += [(match.start(), inner["target"]) for inner in LINK.finditer(match["text"])]
    found += [(match.start(), match["target"] or match["html"]) for match in OTHER.finditer(text)]
    return [(text.count("\n", 0, start) + 1, target) for start, target in sorted(found)]


@cache
def anchors(page):
    """The anchors of the headings of a page, as GitHub and mdBook make them."""
    found = {}
    for heading in re.findall(r"^#{1,6}[ \t]+(.+?)[ \t#]*$", prose(page.read_text(encoding="utf-8")), re.M):
        heading = LINK.sub(lambda link: link["text"], heading)
        name = re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-")
        found[name] = found.get(name, -1) + 1
    return {f"{name}-{i}" if i else name for name, count in found.items() for i in range(count + 1)}


def problem(root, page, target):
    """What is wrong with a link, or None."""
    if re.match(r"[a-z][a-z0-9+.-]*:", target):
        return None
    path, _, anchor = target.partition("#")
    if target.startswith("/"):
        return "starts at /; a relative path works in the repository and in the book"
    file = Path(os.path.normpath(page.parent / unquote(path))) if path else page
    if root not in (file, *file.parents) or not file.exists():
        return "no such file"
    if "#" in target and (file.suffix != ".md" or unquote(anchor) not in anchors(file)):
        return "no such heading"
    return None


def check(root):
    wrong, links = [], 0
    for page in pages(root):
        for line, target in targets(page):
            links += 1
            if what := problem(root, page, target):
                wrong.append(f"{page.relative_to(root)}:{line}: {target}: {what}")
    summary = root / "docs" / "SUMMARY.md"
    listed = {(summary.parent / target).resolve() for _, target in targets(summary)}
    wrong += [f"docs/SUMMARY.md: {page.relative_to(root)} is missing"
              for page in pages(root) if summary.parent in page.parents and page != summary and page not in listed]
    return wrong, links


def main():
    wrong, links = check(ROOT)
    print("\n".join(wrong) if wrong else f"links: {links} links lead where they say")
    sys.exit(bool(wrong))


if __name__ == "__main__":
    main()
