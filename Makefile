# `make demo` and `make test` set up everything that they need. The first run compiles every
# dependency, which takes minutes; later runs take seconds.

CARGO ?= cargo
PYTHON ?= python3
export CARGO

MODEL = .elf/models/all-MiniLM-L6-v2
# Most tests wait more than they compute.
export RUST_TEST_THREADS ?= 4
# The server that DATABASE_URL names, else the one of `make setup`.
WITH_DATABASE = DATABASE_URL="$${DATABASE_URL:-$$(cat .elf/postgres.url)}"

.PHONY: help setup demo test test-slow lint bench deb docs screenshots sqlx pin stop clean

help:
	@echo "make demo    follow a table, import real notes, search them; KEEP=1 leaves the worker and its page running"
	@echo "make test    run the tests"
	@echo "make test-slow  run the tests that take minutes, with the release builds"
	@echo "make lint    check formatting, clippy, documentation, links, dependencies, scripts"
	@echo "make bench   measure, in a release build; NAME=worker takes one bench, QUICK=1 small sizes"
	@echo "make docs    build the book of docs/ into .elf/book/"
	@echo "make deb     make a Debian package of the server build"
	@echo "make screenshots  make the pictures in docs/screenshots/ again"
	@echo "make setup   put Postgres and a model under .elf/ (demo, test and bench do it too)"
	@echo "make sqlx    write .sqlx/ again, after a change of a query or a migration"
	@echo "make pin     write the digests of the images in deploy/docker behind their tags; asks the registries"
	@echo "make stop    stop Postgres"
	@echo "make clean   stop Postgres and remove .elf/"
	@echo "With DATABASE_URL set, these commands use that server and start no Postgres."

setup:
	@$(PYTHON) scripts/setup.py

demo: setup
	$(CARGO) build
	@$(WITH_DATABASE) ELF_DEMO_MODEL=$(MODEL) ELF_DEMO_DIR=.elf/demo $(CARGO) run --quiet -- demo $(if $(KEEP),--keep)

test:
	@$(PYTHON) scripts/setup.py tests
	$(WITH_DATABASE) TMPDIR="$$($(PYTHON) scripts/setup.py tmpdir)" $(CARGO) test --no-fail-fast

# All promises at real size, with the programs as they are shipped. The output of each test
# says what it compared and how long it ran; the last line names the builds and the engine.
SLOW = $(CARGO) test --test promises real_size:: -- --include-ignored --nocapture --test-threads 1

test-slow:
	@$(PYTHON) scripts/setup.py tests
	$(CARGO) build --release --bin elf --target-dir target
	BYTES=1000000 $(CARGO) test --release --package elf-chunk --lib -- --ignored
	$(WITH_DATABASE) ELF_TEST_PROGRAM=$(CURDIR)/target/release/elf $(SLOW)
	@if ! command -v qdrant >/dev/null; then \
	  echo "test-slow: passed with the default build on the engine in the process; no qdrant on the PATH, so it tried neither a server nor the server build"; exit; fi; \
	set -ex; $(CARGO) build --release --bin elf --no-default-features --features otlp --target-dir target/server; \
	$(WITH_DATABASE) ELF_TEST_PROGRAM=$(CURDIR)/target/server/release/elf $(SLOW); \
	set +x; echo "test-slow: passed with the default and the server build, on $$(qdrant --version)"

lint:
	$(CARGO) fmt --check
	$(CARGO) clippy --all-targets -- -D warnings
	$(CARGO) clippy --all-targets --no-default-features -- -D warnings
	RUSTDOCFLAGS="-D warnings" $(CARGO) doc --no-deps
	PYTHONPYCACHEPREFIX=.elf/pycache $(PYTHON) -W error -m py_compile scripts/*.py
	@$(PYTHON) scripts/links.py
	@$(PYTHON) scripts/deny.py
	@if command -v cargo-machete >/dev/null; then $(CARGO) machete; else echo "cargo-machete is not installed: skipped"; fi

# With a Qdrant server if there is one: the engine in the process turns on
# checks in shared dependencies that would slow down both sides.
# QUICK=1 proves that the benches run, in the build of the tests.
bench: setup
	@$(PYTHON) scripts/bench_data.py
	@if [ -n "$(QUICK)" ]; then build="--profile dev"; \
	elif [ -n "$$QDRANT_URL" ] || command -v qdrant >/dev/null; then build="--no-default-features --features local"; fi; \
	set -x; $(WITH_DATABASE) $(CARGO) bench $$build --bench bench -- $(if $(QUICK),--quick) $(NAME)

deb:
	@$(PYTHON) scripts/deb.py

docs:
	@$(PYTHON) scripts/book.py build

screenshots: setup
	$(WITH_DATABASE) $(CARGO) test --test promises -- --ignored --exact page::screenshots::screenshots search_page::screenshots

sqlx:
	@DATABASE_URL= $(PYTHON) scripts/setup.py
	@$(PYTHON) scripts/sqlx.py

pin:
	@$(PYTHON) scripts/pin_images.py

stop:
	@$(PYTHON) scripts/setup.py stop

clean:
	@$(PYTHON) scripts/setup.py clean
