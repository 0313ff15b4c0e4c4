#!/usr/bin/env python3
"""Counts what one person has to hold: lines, words, long functions.

    scripts/counts.py [FOLDER]...    a column for each checkout, the present one without an argument
"""

import re
import sys
from pathlib import Path

from packages import ROOT

LONG = 60


TESTS = re.compile(r"^#\[cfg\(test\)\]\n(?:#!?\[.*?\]\n)*mod (\w+)(?: \{\n.*?^\}\n|;\n)", re.M | re.S)


def rust(folder):
    """The files of a folder that are no tests, each as its lines without the module of its tests."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(folder.rglob("*.rs"))}
    tests = {path.parent / name for path, text in texts.items() for name in TESTS.findall(text)}
    tests |= {path.with_suffix("") / name for path, text in texts.items() for name in TESTS.findall(text)}
    for path, text in texts.items():
        if not tests & {path.with_suffix(""), *path.parents}:
            yield TESTS.sub("", text).splitlines()


def functions(lines):
    """How many lines each function has, as rustfmt indents it. A declaration in a trait has no body."""
    for first, line in enumerate(lines):
        found = re.match(r"( *)(?:pub(?:\([^)]*\))? )?(?:(?:const|async|unsafe) )*fn \w", line)
        if not found:
            continue
        for n, after in enumerate(lines[first:], 1):
            if after.endswith(";") and (n == 1 or after.startswith(found.group(1) + ")")):
                break
            if after == found.group(1) + "}" or (n == 1 and after.endswith("}")):
                yield n
                break


def words(paths):
    return sum(len(path.read_text(encoding="utf-8").split()) for path in paths)


def lines(folder, pattern):
    return sum(len(path.read_text(encoding="utf-8").splitlines()) for path in folder.rglob(pattern))


def rows(text):
    return len(re.findall(r"^\| (?!-)", text, re.M)) - 1


def counts(root):
    sources = list(rust(root / "src"))
    crates = [each for folder in sorted(root.glob("crates/*/src")) for each in rust(folder)]
    book = [root / "README.md", *(root / "docs").rglob("*.md"), *(root / "sql").rglob("*.md")]
    beside = [root / "CHANGELOG.md", *(root / "crates").rglob("*.md"), *(root / "examples").glob("*/README.md")]
    glossary = next((root / "docs").rglob("glossary.md"))
    decisions = "".join(path.read_text(encoding="utf-8") for path in (root / "docs").rglob("decisions.md"))
    by_hand = decisions.partition("\n## By hand\n")[2].partition("\n## ")[0]
    return {
        "files of src/": len(sources),
        "lines of src/, without tests": sum(map(len, sources)),
        "lines of crates/, without tests": sum(map(len, crates)),
        f"functions above {LONG} lines": sum(n > LONG for each in sources + crates for n in functions(each)),
        "lines of sql/": lines(root / "sql", "*.sql"),
        "migrations": len(list((root / "sql/migrations").glob("*.sql"))),
        "lines of tests/ and benches/": lines(root / "tests", "*.rs") + lines(root / "benches", "*.rs"),
        "lines of scripts/": lines(root / "scripts", "*.py"),
        "words of README, docs/ and sql/": words(book),
        "words of other pages": words(beside),
        "words of the README": words([root / "README.md"]),
        "words in the glossary": rows(glossary.read_text(encoding="utf-8")),
        "decisions": len(list((root / "docs").rglob("adr/*.md"))) or decisions.count("\n## "),
        "parts by hand": by_hand.count("\n- **"),
    }


def main(folders):
    columns = [counts(Path(folder).resolve()) for folder in folders or [ROOT]]
    for name in columns[0]:
        print(f"{name:34}", *(f"{column[name]:8,}" for column in columns))


if __name__ == "__main__":
    main(sys.argv[1:])
