# `make demo` and `make test` work on a bare checkout: each first builds the environment it needs in .venv.

PYTHON ?= python3
VENV ?= .venv
# One more than two cores: many tests wait for processes that they have started.
JOBS ?= 3
BIN := $(VENV)/bin
comma := ,
# Whole files go to a worker, so that what a file trains for its tests is trained once; `conftest.py` says which first.
PYTEST := $(BIN)/pytest -n $(JOBS) --dist loadfile --no-loadscope-reorder
# Or each process of the tests would compile the sources anew.
unexport PYTHONDONTWRITEBYTECODE
# uv installs in a third of pip's time; where it cannot be had, or not find everything, pip does it.
PIP := $(BIN)/python -m pip --disable-pip-version-check install --quiet -c constraints.txt
UV := $(BIN)/uv pip install --quiet --python $(BIN)/python -c constraints.txt $(addprefix --find-links ,$(PIP_FIND_LINKS))
install = { [ -x $(BIN)/uv ] && $(UV) $(1); } || $(PIP) $(1)

.PHONY: help demo test test-bench test-all suite browser test-slow lint format docs tables bench bench-small venv clean
.DEFAULT_GOAL := help

help:
	@echo "make demo        find wrong labels in the digits data set while a small network trains"
	@echo "make test        lint, types, the tests of the library and the quick ones of the benchmarks"
	@echo "make test-bench  all tests of the benchmarks"
	@echo "make test-all    lint, types and all of these tests"
	@echo "make test-slow   the tests left out of the plain suite"
	@echo "make lint        lint, types and the direction of imports"
	@echo "make format      rewrite the sources in the house format"
	@echo "make docs        the documentation as a site; writes site/index.html"
	@echo "make bench       what the monitor costs; writes runs/overhead-<device>.json"
	@echo "make bench-small every method that finds wrong labels, on digits; writes runs/labels-digits.jsonl"
	@echo "make tables      the tables of the benchmark pages, from the result files"
	@echo "make venv        the development environment in $(VENV)"
	@echo "make clean       remove the environment, caches and scratch output"

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "sgoif needs Python 3.11 or newer; name one with: make PYTHON=python3.12 ..." >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	@$(PIP) uv || true

$(VENV)/.ready-demo: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing what the demo needs into $(VENV) (first time: a few minutes)" >&2
	@$(call install,-e '.[cli$(comma)demo]')
	@touch $@

$(VENV)/.ready-dev: pyproject.toml benchmarks/pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing the development environment into $(VENV) (first time: a few minutes)" >&2
	@$(call install,-e '.[dev]' -e benchmarks)
	@$(call install,--no-deps curvlinops-for-pytorch)
	@touch $@ $(VENV)/.ready-demo $(VENV)/.ready-bench

$(VENV)/.ready-docs: pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing what the documentation needs into $(VENV) (first time: a few minutes)" >&2
	@$(call install,-e '.[docs]')
	@touch $@

$(VENV)/.ready-bench: pyproject.toml benchmarks/pyproject.toml constraints.txt | $(BIN)/python
	@echo "installing the benchmarks into $(VENV) (first time: a few minutes)" >&2
	@$(call install,-e . -e 'benchmarks[cleanlab]')
	@touch $@ $(VENV)/.ready-demo

venv: $(VENV)/.ready-dev

demo: $(VENV)/.ready-demo
	$(BIN)/sgoif demo --out runs/demo

lint: $(VENV)/.ready-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo

test: lint browser
	$(PYTEST) -m 'not slow and not long'

test-bench: $(VENV)/.ready-dev
	$(PYTEST) benchmarks/tests

test-all: lint suite

suite: $(VENV)/.ready-dev browser
	$(PYTEST)

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

tables: $(VENV)/.ready-bench
	PYTHONPATH=benchmarks $(BIN)/python -m pages.fill

bench: $(VENV)/.ready-bench
	$(BIN)/sgoif-bench overhead

bench-small: $(VENV)/.ready-bench
	$(BIN)/sgoif-bench labels --sets digits --noises symmetric-20,class-dependent-20 --methods all --seeds 0 \
	  --device cpu --workers $(JOBS) --out runs/labels-digits.jsonl >/dev/null
	$(BIN)/sgoif-bench table runs/labels-digits.jsonl

clean:
	rm -rf $(VENV) build dist site runs .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
