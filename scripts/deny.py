#!/usr/bin/env python3
"""Runs cargo-deny over deny.toml. It always checks licences, sources and versions. It
checks known vulnerabilities if it can fetch their database.

It uses the cargo-deny on the PATH, else one that cargo compiles into .elf/. A debug build of it
compiles in a minute and a half, once, and checks in three seconds.
"""

import shutil
import subprocess
import sys

from packages import ROOT, SetupError, cargo_tool

VERSION = "0.20.2"


def main():
    deny = shutil.which("cargo-deny") or cargo_tool("cargo-deny", VERSION, "--debug")
    check(deny, "bans", "licenses", "sources")
    if subprocess.run([deny, "fetch", "db"], cwd=ROOT, stderr=subprocess.DEVNULL).returncode == 0:
        check(deny, "--disable-fetch", "advisories")
    else:
        print("deny: advisories SKIPPED, cargo-deny cannot fetch the database of vulnerabilities from here")


def check(deny, *what):
    if subprocess.run([deny, "check", "--hide-inclusion-graph", *what], cwd=ROOT).returncode != 0:
        raise SetupError("cargo-deny refuses a dependency of the build; see its output and deny.toml")


if __name__ == "__main__":
    try:
        main()
    except SetupError as error:
        sys.exit(f"deny: {error}")
