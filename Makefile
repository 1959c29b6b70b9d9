# Everything works on a fresh machine with Python ≥ 3.10 and make; .venv is made when missing or stale.
PYTHON ?= python3
BIN := .venv/bin
# Not compiled: what is used will be, when it is first imported, and most of it never is.
INSTALL := $(BIN)/pip install --quiet --disable-pip-version-check --no-compile --constraint constraints.txt
# Kept, also where the environment says otherwise: each process of a test would compile all of torch again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test check results venv clean

demo: .venv/demo
	$(BIN)/halo demo

# Two at a time, each on one thread: together faster than one on two.
test: .venv/dev
	OMP_NUM_THREADS=1 $(BIN)/pytest --numprocesses 2 --dist worksteal

check: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# docs/results.md, from the stored runs.
results: .venv/dev
	$(BIN)/halo experiment show --runs results --format markdown > docs/.results.md
	mv docs/.results.md docs/results.md

venv: .venv/dev

clean:
	rm -rf .venv

$(BIN)/pip:
	$(PYTHON) -m venv .venv

# torch first and by itself: the pinned version, before another package can ask for a newer one.
.venv/demo: pyproject.toml constraints.txt | $(BIN)/pip
	$(INSTALL) torch
	$(INSTALL) --editable '.[demo]'
	touch $@

.venv/dev: pyproject.toml constraints.txt | $(BIN)/pip
	$(INSTALL) torch
	$(INSTALL) --editable '.[dev]'
	touch .venv/demo $@
