PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

PEER_PYTHON ?= $(BIN)/python

.PHONY: demo test lint bench mutants pages setup clean

$(STAMP): requirements.txt pyproject.toml setup.py $(wildcard tacit/native/src/*)
	$(PYTHON) -c "import sys; assert sys.version_info >= (3, 10), 'tacit needs Python 3.10 or newer'"
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.txt
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	touch $(STAMP)

setup: $(STAMP)

demo: $(STAMP)
	$(BIN)/tacit train digits --epsilon 3 --delta 1e-5

lint: $(STAMP)
	$(BIN)/ruff check tacit tests benchmarks
	$(BIN)/ruff format --check tacit tests benchmarks
	$(BIN)/mypy

test: $(STAMP) lint
	$(BIN)/python -m pytest -n auto --dist worksteal

bench: $(STAMP)
	$(BIN)/python benchmarks/clipping.py --quick --peer-python $(PEER_PYTHON) $(if $(FASTDP),--fastdp $(FASTDP))

MUTATION := build/mutation

$(MUTATION)/.installed: $(STAMP) benchmarks/requirements-mutation.txt
	rm -rf $(MUTATION)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --target $(MUTATION) \
		-r benchmarks/requirements-mutation.txt
	touch $@

mutants: $(MUTATION)/.installed
	PYTHONPATH=$(MUTATION) OMP_NUM_THREADS=1 $(BIN)/python benchmarks/mutants.py $(MUTANTS)

pages: $(STAMP)
	$(BIN)/python benchmarks/write_pages.py

clean:
	rm -rf $(VENV) build tacit/native/*.so *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
