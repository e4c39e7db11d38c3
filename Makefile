# make demo, make studies, make test and make bench set up .venv on first use; Python compiles what is imported.
PYTHON ?= python3
BIN := .venv/bin

# Processes of their own start in half the time with the bytecode of the last one.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo studies test test-all lint docs bench mutations torture

demo: .venv/installed
	$(BIN)/mesascope run one-step --preset quick
	@echo "to use mesascope in this terminal: . $(BIN)/activate"
	@echo "to drag the points of a task: $(BIN)/pip install '.[explore]' && $(BIN)/mesascope explore --open"

studies: .venv/installed
	for study in two-steps softmax finite-tasks; do $(BIN)/mesascope run $$study || exit 1; done

# Two processes test side by side, each with one thread.
test: .venv/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest

lint: .venv/installed-dev
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/python -m pytest --doctest-modules src/mesascope

# Tutorials whose code has changed are executed; warnings are errors.
docs: .venv/installed-docs
	$(BIN)/python docs/notebooks.py
	$(BIN)/python -m sphinx --quiet --jobs 2 --fail-on-warning docs build/site
	@echo "open build/site/index.html"

test-all: .venv/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m ""

mutations: .venv/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python tests/mutations.py

torture: .venv/installed-dev
	OMP_NUM_THREADS=1 $(BIN)/python tests/torture.py
	OMP_NUM_THREADS=1 $(BIN)/python tests/torture_mesa.py
	OMP_NUM_THREADS=1 $(BIN)/python tests/torture_sweep.py

bench: .venv/installed-dev
	$(BIN)/python benchmarks/training.py
	$(BIN)/python benchmarks/mesa.py
	$(BIN)/python benchmarks/sequences.py
	$(BIN)/python benchmarks/meta.py
	$(BIN)/python benchmarks/language.py
	$(BIN)/python benchmarks/sweeps.py

.venv/bin/python:
	$(PYTHON) -m venv .venv

.venv/installed: .venv/bin/python pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt torch
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable .
	touch $@

.venv/installed-docs: .venv/installed-dev
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable '.[docs]'
	touch $@

.venv/installed-dev: .venv/installed
	$(BIN)/pip install --quiet --no-compile --constraint constraints.txt --editable '.[dev]'
	touch $@
