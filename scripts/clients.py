"""The clients that the tests run against ELF. In Python: frameworks for retrieval, a generator of API clients, and the
SDK of the Model Context Protocol. In TypeScript: a generator of types, and what uses them."""

import shutil
import subprocess
import sys

from packages import ELF, ROOT, SetupError, install_venv, run, say, works

HOME = ELF / "clients"

PACKAGES = [
    "langchain-core==1.7.2",
    "llama-index-core==0.14.25",
    "mcp==2.3.0",
    "openapi-python-client==0.29.1",
]

NODE_HOME = ELF / "clients-node"

NODE_PACKAGES = [
    "@types/node@26.6.6",
    "openapi-fetch@0.17.0",
    "openapi-typescript@7.13.0",
    "typescript@5.9.3",
]


def set_up_clients():
    set_up(HOME, PACKAGES, install, "PYTHON")
    set_up(NODE_HOME, NODE_PACKAGES, install_node, "TYPESCRIPT")


def set_up(home, packages, install, language):
    wanted = home / "packages.txt"
    if wanted.exists() and wanted.read_text().split() == packages:
        say(f"clients: {home.relative_to(ROOT)}")
        return
    shutil.rmtree(home, ignore_errors=True)
    try:
        install(home)
    except SetupError as error:
        # The tests take a folder that is there for one with all packages.
        shutil.rmtree(home, ignore_errors=True)
        # Not every machine reaches an index of packages, and all other tests work without.
        say(f"NO {language} CLIENTS, SO THEIR TESTS ARE SKIPPED: {error}")
        return
    wanted.write_text("\n".join(packages) + "\n")
    say(f"clients: {home.relative_to(ROOT)}")


def install(folder):
    if not works([sys.executable, "-c", "import ensurepip"]):
        install_venv()
    say(f"installing the Python packages {', '.join(PACKAGES)}")
    run([sys.executable, "-m", "venv", str(folder)])
    run([str(folder / "bin" / "python"), "-m", "pip", "install", "--quiet", "--only-binary=:all:", *PACKAGES])


def install_node(folder):
    if not works(["node", "--version"]) or not shutil.which("npm"):
        raise SetupError("node or npm is not installed")
    say(f"installing the npm packages {', '.join(NODE_PACKAGES)}")
    folder.mkdir(parents=True)
    (folder / "package.json").write_text('{"private": true, "type": "module"}')
    command = ["npm", "install", "--silent", "--no-audit", "--no-fund", *NODE_PACKAGES]
    if subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL).returncode != 0:
        raise SetupError("npm could not install them")
