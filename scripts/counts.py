#!/usr/bin/env python3
"""Counts what one person has to hold: lines, words, long functions.

    scripts/counts.py [FOLDER]...    a column for each checkout, the present one without an argument
"""

import re
import sys
from pathlib import Path

from packages import ROOT

LONG = 60


def rust(folder):
    """The files of a folder that are no tests, each as its lines without the module of its tests."""
    for path in sorted(folder.rglob("*.rs")):
        if "tests" in path.relative_to(folder).with_suffix("").parts:
            continue
        text = path.read_text(encoding="utf-8")
        yield re.sub(r"^#\[cfg\(test\)\]\nmod \w+ \{\n.*?^\}\n", "", text, flags=re.M | re.S).splitlines()


def functions(lines):
    """How many lines each function has, as rustfmt indents it."""
    for first, line in enumerate(lines):
        found = re.match(r"( *)(?:pub(?:\([^)]*\))? )?(?:(?:const|async|unsafe) )*fn \w", line)
        if found and not line.endswith(";"):
            end = found.group(1) + "}"
            yield next((n for n, after in enumerate(lines[first:], 1) if after == end or after.endswith("}") and n == 1), 1)


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
        "decisions": len(list((root / "docs").rglob("adr/*.md"))) or sum(
            path.read_text(encoding="utf-8").count("\n## ") for path in (root / "docs").rglob("decisions.md")),
    }


def main(folders):
    columns = [counts(Path(folder).resolve()) for folder in folders or [ROOT]]
    for name in columns[0]:
        print(f"{name:34}", *(f"{column[name]:8,}" for column in columns))


if __name__ == "__main__":
    main(sys.argv[1:])
