#!/usr/bin/env python3
"""Makes the Debian package of the server build and prints where it is.

    scripts/deb.py            a release build, which takes minutes
    scripts/deb.py dev        packs the existing target/debug/elf, to try the packaging

Cargo.toml, [package.metadata.deb], lists the files of the package. The program itself
writes the man pages and completions, to .elf/deb/.
"""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

from packages import ELF, ROOT, SetupError, cargo_tool, fresh, run

CARGO = os.environ.get("CARGO", "cargo")
CARGO_DEB_VERSION = "3.8.0"
# The file name of each shell's completion, as in Cargo.toml.
COMPLETIONS = {"bash": "elf", "zsh": "_elf", "fish": "elf.fish"}


def target_folder():
    metadata = subprocess.run(
        [CARGO, "metadata", "--format-version=1", "--no-deps"], cwd=ROOT, stdout=subprocess.PIPE
    )
    if metadata.returncode != 0:
        raise SetupError("cargo metadata failed")
    return Path(json.loads(metadata.stdout)["target_directory"])


def generate(binary):
    """The man pages and completions of the program."""
    folder = fresh(ELF / "deb")
    man = fresh(folder / "man")
    run([str(binary), "man", str(man)])
    for shell, name in COMPLETIONS.items():
        path = folder / "completions" / name
        path.parent.mkdir(exist_ok=True)
        with open(path, "wb") as file:
            if subprocess.run([str(binary), "completions", shell], stdout=file).returncode != 0:
                raise SetupError(f"elf completions {shell} failed")


def main(profile):
    if profile not in ("release", "dev"):
        raise SetupError(f"{profile!r} is not one of: release, dev")
    if not shutil.which("dpkg-shlibdeps"):
        raise SetupError("dpkg-shlibdeps is missing; run: sudo apt-get install dpkg-dev")
    tool = cargo_tool("cargo-deb", CARGO_DEB_VERSION)
    folder = target_folder()
    if profile == "release":
        run([CARGO, "build", "--release", "--locked", "--no-default-features", "--features", "otlp", "--bin", "elf"])
    generate(folder / ("release" if profile == "release" else "debug") / "elf")
    package = folder / "debian"
    options = ["--strip"] if profile == "release" else ["--no-strip", "--fast"]
    done = subprocess.run(
        [tool, "--no-build", "--no-dbgsym", "--profile", profile, "--output", f"{package}/", *options],
        cwd=ROOT, stdout=subprocess.PIPE, universal_newlines=True,
    )
    if done.returncode != 0:
        raise SetupError("cargo-deb failed")
    print(done.stdout.strip().splitlines()[-1])


if __name__ == "__main__":
    try:
        main(sys.argv[1] if len(sys.argv) > 1 else "release")
    except SetupError as error:
        sys.exit(f"deb: {error}")
