"""Downloads Python packages for the files inside of them, compiles tools written in Rust, and holds
helpers for the other scripts."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ELF = ROOT / ".elf"


class SetupError(Exception):
    """An error, with what to do about it."""


def say(line):
    print(f"setup: {line}", flush=True)


def pip():
    """The command line of a working pip. Makes one in .elf/venv if necessary."""
    venv_python = ELF / "venv" / "bin" / "python"
    for python in (sys.executable, str(venv_python)):
        if works([python, "-m", "pip", "--version"]):
            return [python, "-m", "pip"]
    if not works([sys.executable, "-c", "import ensurepip"]):
        install_venv()
    shutil.rmtree(ELF / "venv", ignore_errors=True)
    say("making .elf/venv, because this Python has no pip")
    run([sys.executable, "-m", "venv", str(ELF / "venv")])
    return [str(venv_python), "-m", "pip"]


def install_venv():
    """Debian ships Python without pip and without the module that installs it."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise SetupError("this Python has neither pip nor venv; run: sudo apt-get install python3-venv")
    say("installing python3-venv, because this Python has neither pip nor venv")
    run(["apt-get", "update", "-qq"])
    run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", "python3-venv"])


def download(package, python=None):
    """The package's wheel in .elf/wheels/; pip checks it against its index. `python` is the version that
    the wheel is for, if only its files matter."""
    wheels = ELF / "wheels"
    name, version = package.split("==")
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    if not list(wheels.glob(pattern)):
        say(f"downloading the Python package {name} {version}")
        part = fresh(ELF / "wheels.part")
        version_of = ["--python-version", python] if python else []
        run([*pip(), "download", "--quiet", "--no-deps", "--only-binary=:all:", *version_of, "--dest", str(part), package])
        wheels.mkdir(exist_ok=True)
        for wheel in part.iterdir():
            wheel.rename(wheels / wheel.name)
        part.rmdir()
    return next(wheels.glob(pattern))


def cargo_tool(name, version, *options):
    """The program of a crate, which cargo compiles into .elf/tools/ once."""
    folder = ELF / "tools" / f"{name}-{version}"
    program = folder / "bin" / name
    if not program.exists():
        say(f"compiling {name} {version}, which takes a minute or two")
        cargo = os.environ.get("CARGO", "cargo")
        run([cargo, "install", "--quiet", "--locked", "--root", str(folder), *options, f"{name}@{version}"])
    return str(program)


def fresh(folder):
    """The folder, empty."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def works(args):
    try:
        return subprocess.run(args, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
    except FileNotFoundError:
        return False


def run(args):
    if subprocess.run(args, stdin=subprocess.DEVNULL).returncode != 0:
        raise SetupError(f"failed: {' '.join(map(str, args))}")
