# `make demo` and `make test` set up all they need. The first run compiles every
# dependency, which takes minutes; the next ones take seconds.

CARGO ?= cargo
PYTHON ?= python3
export CARGO
# Queries are checked against .sqlx/, so that building needs no database.
export SQLX_OFFLINE = true

MODEL = .elf/models/all-MiniLM-L6-v2
# The server that DATABASE_URL names, else the one of `make setup`.
WITH_DATABASE = DATABASE_URL="$${DATABASE_URL:-$$(cat .elf/postgres.url)}"

.PHONY: help setup demo test lint bench deb screenshots sqlx stop clean

help:
	@echo "make demo    import real notes, index them, search them; KEEP=1 leaves the worker and its page running"
	@echo "make test    run the tests"
	@echo "make lint    formatting, clippy, documentation, scripts"
	@echo "make bench   measure, in a release build"
	@echo "make deb     a Debian package of the server build"
	@echo "make screenshots  the pictures in docs/screenshots/ anew; takes a Qdrant on the PATH"
	@echo "make setup   Postgres and a model under .elf/ (the others do it too)"
	@echo "make sqlx    after a change of a query or a migration: write .sqlx/ anew"
	@echo "make stop    stop Postgres"
	@echo "make clean   stop Postgres and remove .elf/"
	@echo "With DATABASE_URL set, that server is used and no Postgres is started."

setup:
	@$(PYTHON) scripts/setup.py

demo: setup
	$(CARGO) build
	@$(WITH_DATABASE) ELF_DEMO_MODEL=$(MODEL) ELF_DEMO_DIR=.elf/demo $(CARGO) run --quiet -- demo $(if $(KEEP),--keep)

test:
	@$(PYTHON) scripts/setup.py tests
	$(WITH_DATABASE) $(CARGO) test --no-fail-fast

lint:
	$(CARGO) fmt --check
	$(CARGO) clippy --all-targets -- -D warnings
	$(CARGO) clippy --all-targets --no-default-features -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps
	PYTHONPYCACHEPREFIX=.elf/pycache $(PYTHON) -W error -m py_compile scripts/*.py
	@if command -v cargo-deny >/dev/null; then $(CARGO) deny check; else echo "cargo-deny is not installed: skipped"; fi
	@if command -v cargo-machete >/dev/null; then $(CARGO) machete; else echo "cargo-machete is not installed: skipped"; fi

# Against a Qdrant server where there is one: the engine in the process turns on
# checks in shared dependencies that would slow both sides down.
bench: setup
	@if [ -n "$$QDRANT_URL" ] || command -v qdrant >/dev/null; then features=--no-default-features; fi; \
	set -x; $(WITH_DATABASE) $(CARGO) bench $$features --bench chunker --bench worker --bench rebuild --bench scaling --bench bulk

deb:
	@$(PYTHON) scripts/deb.py

screenshots: setup
	$(WITH_DATABASE) $(CARGO) test --test promises -- --ignored --exact page::screenshots

sqlx:
	@DATABASE_URL= $(PYTHON) scripts/setup.py
	@$(PYTHON) scripts/sqlx.py

stop:
	@$(PYTHON) scripts/setup.py stop

clean:
	@$(PYTHON) scripts/setup.py clean
