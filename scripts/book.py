#!/usr/bin/env python3
"""Builds the book of docs/ with the mdbook on the PATH, else with one that cargo compiles into .elf/.

mdbook runs this script too, with `supports` or without an argument: it copies docs/ alone, so a
link that leads out of docs/ becomes the path of the file in the repository.
"""

import json
import posixpath
import re
import shutil
import subprocess
import sys

from links import LINK
from packages import ROOT, SetupError, cargo_tool

VERSION = "0.5.4"


def build():
    # A debug build compiles in a third of the time, and makes this book in a second.
    mdbook = shutil.which("mdbook") or cargo_tool("mdbook", VERSION, "--debug", "--no-default-features", "--features", "search")
    subprocess.run([mdbook, "build"], cwd=ROOT, check=True)
    print("docs: .elf/book/index.html")


def preprocess():
    _, book = json.load(sys.stdin)
    for item in book.get("items") or book["sections"]:
        if "Chapter" in item:
            with_paths(item["Chapter"])
    json.dump(book, sys.stdout)


def with_paths(chapter):
    folder = posixpath.join("docs", posixpath.dirname(chapter["path"]))
    chapter["content"] = LINK.sub(lambda link: path_or_link(link, folder), chapter["content"])
    for item in chapter["sub_items"]:
        if "Chapter" in item:
            with_paths(item["Chapter"])


def path_or_link(link, folder):
    text, target = link["text"], link["target"]
    path = posixpath.normpath(posixpath.join(folder, target.partition("#")[0]))
    if re.match(r"[a-z]+:|#|/", target) or path.startswith("docs/"):
        return link[0]
    plain = text.strip("`")
    return f"`{path}`" if plain in path else f"{text} (`{path}`)"


if __name__ == "__main__":
    if sys.argv[1:2] == ["supports"]:
        sys.exit(0)
    if sys.argv[1:] == ["build"]:
        try:
            build()
        except SetupError as error:
            sys.exit(f"docs: {error}")
    else:
        preprocess()
