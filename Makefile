# One command each. `make test` is what CI runs; it sets itself up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: install test lint format types test-slow test-all readme paper bench bench-billion bench-peers clean

install: $(STAMP)

# No Debian package is needed beyond python3 with venv; the rule that installs missing ones, as
# root, is here so that tests which need them have their place.
$(VENV)/bin/python:
	@if ! $(PYTHON) -c "import ensurepip, venv" 2>/dev/null; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -qq && apt-get install -y -qq python3-venv; \
	  else echo "python3 lacks the venv module: install python3-venv" >&2; exit 1; fi; fi
	$(PYTHON) -m venv $(VENV)

$(STAMP): pyproject.toml $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[test]"
	@touch $(STAMP)

lint: $(STAMP)
	$(BIN)/ruff format --check src tests scripts benchmarks
	$(BIN)/ruff check src tests scripts benchmarks

types: $(STAMP)
	$(BIN)/mypy

test: lint types
	$(BIN)/python -m pytest --numprocesses=auto

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow --numprocesses=auto

# Everything: with the heavy extras (Dask, Ray, Spark), PostgreSQL, and the long runs.
test-all: test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable ".[test,dask,ray,spark,postgres]"
	@command -v java >/dev/null || apt-get install -y -qq openjdk-17-jre-headless
	$(BIN)/python -m pytest -m "cluster or spark or postgres"
	$(BIN)/python -m pytest -m slow --numprocesses=auto

format: $(STAMP)
	$(BIN)/ruff format src tests scripts benchmarks
	$(BIN)/ruff check --fix src tests scripts benchmarks

readme: $(STAMP)
	$(BIN)/python scripts/readme.py README.md docs/planning.md docs/from-laptop-to-cluster.md --write

# docs/paper and docs/curse-of-horizon: figures, theory, claims. Half an hour on 2 cores.
paper: $(STAMP)
	$(BIN)/reweigh reproduce all -o build/paper --overwrite
	cp build/paper/*.csv build/paper/*.svg build/paper/run.json docs/paper/
	$(BIN)/reweigh reproduce all -o build/first-look --replicates 16 --overwrite
	cp build/first-look/run.json docs/paper/run-first-look.json
	$(BIN)/python scripts/theory_checks.py
	$(BIN)/python scripts/curse_of_horizon.py --write
	$(BIN)/python scripts/claims.py --write

# What everything costs, as ratios, into docs/benchmarks.md and .json; 5 GB of files go to build/.
bench: $(STAMP)
	$(BIN)/python -W ignore benchmarks/page.py --stream-rows 250000000 --folder build/stream

bench-billion: $(STAMP)
	$(BIN)/python -W ignore benchmarks/stream.py --rows 1000000000 --repeats 1

bench-peers: $(STAMP)
	$(BIN)/python -W ignore benchmarks/peers.py

clean:
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
