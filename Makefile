# Two commands on a bare machine with Python 3.11+, git and make:
#   make demo    makes the virtual environment, installs, runs the main job
#   make test    the same, then formatting, types and all tests that need no GPU

PYTHON ?= python3
VENV ?= .venv
# One torch for everyone. On a machine with an index that only has CUDA builds this downloads several gigabytes;
# TORCH="torch==2.13.0 --index-url https://download.pytorch.org/whl/cpu" takes the CPU build.
TORCH ?= torch==2.13.0

BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check -q

.PHONY: demo test lint types unit oracle bench clean

demo: $(VENV)/.demo
	$(BIN)/flexsdpa demo

test: lint types unit

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.dev
	$(BIN)/mypy

unit: $(VENV)/.dev
	$(BIN)/python -m pytest -m "not gpu"

# Asks cuDNN about described cards; about 3 GB of downloads and an hour of two cores. Goes on where it stopped.
oracle: $(VENV)/.dev
	$(BIN)/flexsdpa oracle run
	$(BIN)/flexsdpa oracle check

bench: $(VENV)/.dev
	$(BIN)/python benchmarks/cpu.py
	$(BIN)/python benchmarks/decisions.py

$(VENV)/.python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "flexsdpa needs Python 3.11 or newer; say which: make PYTHON=python3.12 ..."; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) install $(TORCH)
	@touch $@

$(VENV)/.demo: $(VENV)/.python pyproject.toml
	$(PIP) install -e '.[demo]'
	@touch $@

$(VENV)/.dev: $(VENV)/.demo pyproject.toml
	$(PIP) install 'pytest>=8.3' 'hypothesis>=6.120' 'ruff==0.17.6' 'mypy==2.4.1' 'matplotlib>=3.9'
	@touch $@

clean:
	rm -rf $(VENV) .pytest_cache .mypy_cache .ruff_cache .hypothesis
