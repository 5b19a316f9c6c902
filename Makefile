# `make demo` and `make test` work on a bare checkout: each first builds the environment it needs in .venv.

PYTHON ?= python3
VENV ?= .venv
JOBS ?= 2
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt

.PHONY: help demo test browser test-slow lint format docs bench bench-small venv clean
.DEFAULT_GOAL := help

help:
	@echo "make demo        find wrong labels in the digits data set while a small network trains"
	@echo "make test        lint, types and the test suite"
	@echo "make test-slow   the tests left out of the plain suite"
	@echo "make lint        lint and types only"
	@echo "make format      rewrite the sources in the house format"
	@echo "make docs        the documentation as a site; writes site/index.html"
	@echo "make bench       what the monitor costs; writes results/overhead-<device>.json"
	@echo "make bench-small every method that finds wrong labels, on digits; writes results/labels-digits.jsonl"
	@echo "make venv        the development environment in $(VENV)"
	@echo "make clean       remove the environment, caches and scratch output"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "sgoif needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.ready-demo: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing what the demo needs into $(VENV) (first time: a few minutes)" >&2
	$(PIP) -e '.[cli,demo]'
	@touch $@

$(VENV)/.ready-dev: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing the development environment into $(VENV) (first time: a few minutes)" >&2
	$(PIP) -e '.[dev]'
	@touch $@ $(VENV)/.ready-demo

$(VENV)/.ready-docs: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing what the documentation needs into $(VENV) (first time: a few minutes)" >&2
	$(PIP) -e '.[docs]'
	@touch $@

# One of the rivals is its authors' own library.
$(VENV)/.ready-bench: $(VENV)/.ready-demo
	$(PIP) 'cleanlab>=2.7'
	@touch $@

venv: $(VENV)/.ready-dev

demo: $(VENV)/.ready-demo
	$(BIN)/sgoif demo --out runs/demo

lint: $(VENV)/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

test: lint browser
	$(BIN)/pytest -n $(JOBS)

# The page is tested in a real browser. Where none is installed and none can be, those tests say so and are left out.
browser:
	@command -v chromium chromium-browser google-chrome >/dev/null 2>&1 || [ -n "$$CHROMIUM" ] \
	  || { command -v apt-get >/dev/null 2>&1 && [ "$$(id -u)" = 0 ] \
	       && apt-get update -qq >/dev/null 2>&1 && apt-get install -y -qq chromium >/dev/null 2>&1; } \
	  || echo "no Chromium found and none could be installed: the tests of the page will be left out" >&2

test-slow: $(VENV)/.ready-dev
	$(BIN)/pytest -m slow

format: $(VENV)/.ready-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Strict: a broken link, a missing reference or a page outside the navigation is an error.
docs: $(VENV)/.ready-docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet --clean
	@echo "the documentation: site/index.html" >&2

bench: $(VENV)/.ready-demo
	$(BIN)/sgoif-bench overhead

bench-small: $(VENV)/.ready-bench
	$(BIN)/sgoif-bench labels --sets digits --noises symmetric-20,class-dependent-20 --methods all --seeds 0 \
	  --device cpu --workers $(JOBS) --out results/labels-digits.jsonl >/dev/null
	$(BIN)/sgoif-bench table results/labels-digits.jsonl

clean:
	rm -rf $(VENV) build dist site runs results/scratch .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
