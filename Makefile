# One command each. `make test` is what CI runs; it sets itself up.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# Spark's tests need Java 17 and 0.5 GB of PySpark; `make test SPARK=no` leaves them out.
SPARK ?= yes
ifeq ($(SPARK),yes)
EXTRAS := test,docs,spark
else ifeq ($(SPARK),no)
EXTRAS := test,docs
SELECTED := -m "not slow and not cluster and not postgres and not heavy and not spark"
else
$(error SPARK is yes or no, not $(SPARK))
endif
STAMP := $(VENV)/.installed-spark-$(SPARK)

# d3rlpy pins an old Gymnasium, so its test has an environment of its own (with PyTorch 2 GB);
# `make test D3RLPY=no` leaves it out. PyTorch is held at a version with a CPU build.
D3RLPY ?= yes
ifeq ($(filter $(D3RLPY),yes no),)
$(error D3RLPY is yes or no, not $(D3RLPY))
endif
TORCH ?= torch==2.13.0
APART := build/d3rlpy
APART_PIP := $(APART)/bin/python -m pip install --quiet --disable-pip-version-check

.PHONY: install java browser d3rlpy test lint format types test-slow test-all readme docs notebooks paper study study-memory study-verdicts study-efficiency study-continuous bench bench-billion bench-peers bench-check clean

install: $(STAMP)

# Debian packages that are missing are installed where that is allowed: as root.
$(VENV)/bin/python:
	@if ! $(PYTHON) -c "import ensurepip, venv" 2>/dev/null; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    apt-get update -qq && apt-get install -y -qq python3-venv; \
	  else echo "python3 lacks the venv module: install python3-venv" >&2; exit 1; fi; fi
	$(PYTHON) -m venv $(VENV)

$(STAMP): pyproject.toml $(VENV)/bin/python
	$(PIP) --editable ".[$(EXTRAS)]"
	$(PIP) --no-deps --editable studies
	@# ICU-Sepsis for its tables alone: what it depends on is never imported
	$(PIP) --no-deps "icu-sepsis>=2,<3"
	@touch $(STAMP)

java:
ifeq ($(SPARK),yes)
	@if ! java -version 2>&1 | grep -Eq 'version "(1[7-9]|[2-9][0-9])'; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    export DEBIAN_FRONTEND=noninteractive; apt-get update -qq && \
	    { apt-get install -y -qq openjdk-17-jre-headless || apt-get install -y -qq default-jre-headless; }; \
	  else echo "Spark's tests need Java 17 or later: install openjdk-17-jre-headless, or give" \
	    "SPARK=no" >&2; exit 1; fi; fi
endif

# Chromium for the report's tests. Without it they are skipped, and say so.
browser:
	@if ! command -v chromium >/dev/null; then \
	  if [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	    export DEBIAN_FRONTEND=noninteractive; apt-get update -qq && \
	    apt-get install -y -qq --no-install-recommends chromium; \
	  else echo "chromium is not installed: the report's tests in a browser will be skipped" >&2; fi; fi

$(APART)/.installed: pyproject.toml | $(VENV)/bin/python
	$(PYTHON) -m venv $(APART)
	@{ $(APART_PIP) "$(TORCH)" && $(APART_PIP) --editable ".[d3rlpy]" pandas pytest; } || { \
	  echo "d3rlpy with PyTorch could not be installed, so its test cannot run. TORCH='torch>=2'" \
	    "takes another PyTorch; D3RLPY=no leaves the test out" >&2; exit 1; }
	@touch $(APART)/.installed

d3rlpy: $(if $(filter yes,$(D3RLPY)),$(APART)/.installed)
ifeq ($(D3RLPY),yes)
	$(APART)/bin/python -m pytest -m heavy tests/adapters/test_d3rlpy.py
else
	@echo "D3RLPY=no: d3rlpy's own datasets are not tested"
endif

lint: $(STAMP)
	$(BIN)/ruff format --check src tests studies scripts benchmarks
	$(BIN)/ruff check src tests studies scripts benchmarks

types: $(STAMP)
	$(BIN)/mypy

test: java browser lint types d3rlpy
	$(BIN)/python -m pytest --numprocesses=auto $(SELECTED)

test-slow: $(STAMP)
	$(BIN)/python -m pytest -m slow --numprocesses=auto

# Everything: with the other heavy extras (Dask, Ray), PostgreSQL, and the long runs.
test-all: test
	$(PIP) --editable ".[$(EXTRAS),dask,ray,postgres]"
	$(BIN)/python -m pytest -m "cluster or postgres"
	$(BIN)/python -m pytest -m slow --numprocesses=auto

format: $(STAMP)
	$(BIN)/ruff format src tests studies scripts benchmarks
	$(BIN)/ruff check --fix src tests studies scripts benchmarks

readme: $(STAMP)
	$(BIN)/python scripts/readme.py README.md $(wildcard docs/*.md docs/howto/*.md docs/concepts/*.md) --write

# The documentation site, into build/site; the guides as notebooks, into build/notebooks.
docs: $(STAMP)
	$(BIN)/python -W ignore scripts/pictures.py
	$(BIN)/zensical build --clean --strict

notebooks: $(STAMP)
	$(BIN)/python scripts/notebooks.py build/notebooks docs/tutorial.md $(filter-out docs/howto/index.md,$(wildcard docs/howto/*.md)) $(wildcard docs/concepts/*.md) docs/adapters.md docs/planning.md docs/from-laptop-to-cluster.md docs/intervals.md

# docs/paper and docs/curse-of-horizon: figures, theory, claims. Half an hour on 2 cores.
paper: $(STAMP)
	$(BIN)/reweigh reproduce all -o build/paper --overwrite
	cp build/paper/*.csv build/paper/*.svg build/paper/run.json docs/paper/
	$(BIN)/reweigh reproduce all -o build/first-look --replicates 16 --overwrite
	cp build/first-look/run.json docs/paper/run-first-look.json
	$(BIN)/python studies/scripts/theory_checks.py
	$(BIN)/python scripts/curse_of_horizon.py --write
	$(BIN)/python scripts/claims.py --write

# docs/trust: how often intervals cover, by world, size, estimator and verdict. Hours on 2 cores; it
# goes on where it was ended. A small version, into build: make study STUDY=--small; only what
# docs/trust lacks: make study STUDY="--missing --write"
STUDY ?= --write
study: $(STAMP)
	$(BIN)/python -W ignore studies/scripts/trust.py $(STUDY)

# docs/trust/memory.md: how much an estimate should remember. Goes on where it was ended; a small
# version, into build, takes seconds: make study-memory STUDY_MEMORY=--small
STUDY_MEMORY ?= --write
study-memory: $(STAMP)
	$(BIN)/python -W ignore studies/scripts/memory_study.py $(STUDY_MEMORY)

# docs/trust/verdicts.md: are green verdicts right, and right ones green? The same options:
# make study-verdicts STUDY_VERDICTS=--small
STUDY_VERDICTS ?= --write
study-verdicts: $(STAMP)
	$(BIN)/python -W ignore studies/scripts/verdict_study.py $(STUDY_VERDICTS)

# docs/trust/efficiency.md: how close the default comes to the least possible error. The same options:
# make study-efficiency STUDY_EFFICIENCY=--small
STUDY_EFFICIENCY ?= --write
study-efficiency: $(STAMP)
	$(BIN)/python -W ignore studies/scripts/efficiency_study.py $(STUDY_EFFICIENCY)

# docs/trust/continuous.md: features in the place of states. The same options:
# make study-continuous STUDY_CONTINUOUS=--small
STUDY_CONTINUOUS ?= --write
study-continuous: $(STAMP)
	$(BIN)/python -W ignore studies/scripts/continuous_study.py $(STUDY_CONTINUOUS)

# What everything costs, as ratios, into docs/benchmarks.md and .json; 5 GB of files go to build/.
bench: $(STAMP)
	$(BIN)/python -W ignore benchmarks/page.py --stream-rows 250000000 --folder build/stream

# A billion rows from files, as a part of the same page; 20 GB go to build/.
bench-billion: $(STAMP)
	$(BIN)/python -W ignore benchmarks/page.py --billion --folder build/stream

# Other libraries on the same data, into docs/benchmarks-peers.md; they are installed in build/peers.
bench-peers: $(STAMP)
	cd benchmarks && ../$(BIN)/python -W ignore -m peers

# The ratios of tests/test_speed.py alone; `benchmarks/speed.py --write` records them anew.
bench-check: $(STAMP)
	$(BIN)/python -W ignore benchmarks/speed.py

clean:
	rm -rf $(VENV) build dist .cache .pytest_cache .mypy_cache .ruff_cache .hypothesis
