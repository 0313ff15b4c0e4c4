"""A Python with the clients that the tests run against ELF: frameworks for retrieval, a generator of API
clients, and the SDK of the Model Context Protocol."""

import shutil
import sys

from packages import ELF, ROOT, SetupError, install_venv, run, say, works

HOME = ELF / "clients"

PACKAGES = [
    "langchain-core==1.7.2",
    "llama-index-core==0.14.25",
    "mcp==2.3.0",
    "openapi-python-client==0.29.1",
]


def set_up_clients():
    wanted = HOME / "packages.txt"
    if wanted.exists() and wanted.read_text().split() == PACKAGES:
        say(f"clients: {HOME.relative_to(ROOT)}")
        return
    try:
        install(HOME)
    except SetupError as error:
        # The tests take a Python that is there for one with all packages.
        shutil.rmtree(HOME, ignore_errors=True)
        # Not every machine reaches an index of Python packages, and all other tests work without.
        say(f"NO PYTHON CLIENTS, SO THE TESTS OF THE CLIENTS ARE SKIPPED: {error}")
        return
    wanted.write_text("\n".join(PACKAGES) + "\n")
    say(f"clients: {HOME.relative_to(ROOT)}")


def install(folder):
    shutil.rmtree(folder, ignore_errors=True)
    if not works([sys.executable, "-c", "import ensurepip"]):
        install_venv()
    say(f"installing the Python packages {', '.join(PACKAGES)}")
    run([sys.executable, "-m", "venv", str(folder)])
    run([str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--only-binary=:all:", *PACKAGES])
