"""Prometheus and promtool, which test the dashboard and the alerts. They come from
Debian's package `prometheus`. The script unpacks it into .elf/prometheus, because
installing it would start a server on this machine."""

import os
import shutil
import subprocess

from packages import ELF, ROOT, fresh, say, works

HOME = ELF / "prometheus"
PROGRAMS = ("prometheus", "promtool")


def set_up_prometheus():
    if all(map(shutil.which, PROGRAMS)):
        say("Prometheus: the one on the PATH")
        return
    if not HOME.exists():
        problem = fetch()
        if problem:
            # Not every machine has apt, and all other tests work without Prometheus.
            say(f"NO PROMETHEUS, SO THE TESTS COVER RULES AND DASHBOARD ONLY IN PART: {problem}")
            return
    say(f"Prometheus: {HOME.relative_to(ROOT)}")


def fetch():
    """Unpacks the package. Returns why that is impossible."""
    if not shutil.which("apt-get") or not shutil.which("dpkg-deb"):
        return "it is not on the PATH, and this system has no Debian packages"
    part = fresh(HOME.with_suffix(".part"))
    say("downloading the Debian package prometheus")
    if apt("download", "prometheus", folder=part):
        # The lists of packages are old or missing. Lists of our own need no rights.
        lists = fresh(ELF / "apt")
        (lists / "lists" / "partial").mkdir(parents=True)
        own = [f"Dir::State::Lists={lists / 'lists'}", f"Dir::Cache={lists}"]
        problem = apt("update", folder=part, options=own)
        problem = problem or apt("download", "prometheus", folder=part, options=own)
        shutil.rmtree(lists)
        if problem:
            return f"apt-get says: {problem}"
    package = next(part.glob("*.deb"))
    if not works(["dpkg-deb", "-x", str(package), str(part)]):
        return f"{package} cannot be unpacked"
    package.unlink()
    for name in PROGRAMS:
        if not works([str(part / "usr/bin" / name), "--version"]):
            return f"the {name} of the Debian package does not run here"
    part.rename(HOME)
    return None


def apt(*args, folder, options=()):
    """Runs apt-get in a folder. Returns its last line of output if it fails."""
    # apt-get would download as its own user, and that user cannot write here.
    options = [*options, *(["APT::Sandbox::User=root"] if os.geteuid() == 0 else [])]
    command = ["apt-get", "-qq", *(f"-o{option}" for option in options), *args]
    done = subprocess.run(command, cwd=folder, stdin=subprocess.DEVNULL, capture_output=True, text=True)
    if done.returncode == 0:
        return None
    words = (done.stderr or done.stdout).strip().splitlines()
    return words[-1] if words else f"exit code {done.returncode}"
