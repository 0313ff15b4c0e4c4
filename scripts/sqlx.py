#!/usr/bin/env python3
"""Writes .sqlx/: the facts that the macros of sqlx read about every query from a database
with ELF's schema. With them, other builds need no database.

It needs the Postgres of `make setup`. Run it after a change of a query or of
the schema.
"""

import os
import shutil
import subprocess
import sys
import uuid

from packages import ELF, ROOT, SetupError, fresh
from postgres import URL_FILE, Server

SQL = ROOT / "sql"


def main():
    server = Server()
    admin_url = URL_FILE.read_text().strip() if URL_FILE.exists() else None
    if not server.running(admin_url):
        raise SetupError("Postgres is not running; run make setup, without DATABASE_URL")
    database = f"elf_sqlx_{uuid.uuid4().hex}"
    url = f"{admin_url.rpartition('/')[0]}/{database}"
    psql(server, admin_url, f"create database {database}")
    try:
        psql(server, url, f"\\i '{SQL}/init.sql'")
        for migration in sorted(SQL.glob("migrations/*.sql")):
            psql(server, url, migration.read_text())
        prepare(url)
    finally:
        psql(server, admin_url, f"drop database {database} with (force)")


def psql(server, url, sql):
    args = [server.program("psql"), url, "-X", "--quiet", "--set=ON_ERROR_STOP=1"]
    if not sql.startswith(("create database", "drop database", "-- no-transaction")):
        args.append("--single-transaction")
    if server.run(args, stdin=None, input=sql, text=True).returncode != 0:
        raise SetupError(f"psql failed on: {sql[:60]}")


def prepare(url):
    """Compiles against the database; the macros then save its answers."""
    saved = fresh(ELF / "sqlx.part")
    (ROOT / "src" / "lib.rs").touch()  # or cargo would not expand the macros again
    env = os.environ | {"SQLX_OFFLINE": "false", "SQLX_OFFLINE_DIR": str(saved), "DATABASE_URL": url}
    cargo = os.environ.get("CARGO", "cargo")
    if subprocess.run([cargo, "check", "--lib"], cwd=ROOT, env=env).returncode != 0:
        raise SetupError("cargo check failed; .sqlx/ is as it was")
    shutil.rmtree(ROOT / ".sqlx", ignore_errors=True)
    saved.rename(ROOT / ".sqlx")
    print(f"sqlx: {len(list((ROOT / '.sqlx').iterdir()))} queries in .sqlx/")


if __name__ == "__main__":
    try:
        main()
    except SetupError as error:
        sys.exit(f"sqlx: {error}")
