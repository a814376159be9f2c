# What a newcomer and CI run. Needs Python 3.10 or newer with venv, git and make; everything else goes into .venv.
#
#   make demo       install, fetch the embedded model, run examples/extract_contacts.py
#   make test       lint, types and the default tests (under 10 minutes on 2 cores)
#   make test-all   the same with the slow tests (under 40 minutes on 2 cores)
#   make test-gpu   what needs an NVIDIA GPU
#   make docs       the site out of docs/, in build/site; a link that leads nowhere is an error

PYTHON ?= python3
VENV ?= .venv
# One thread a worker: two workers share the two cores that the time limits are made for. Files are taken in the order
# of tests/conftest.py, long ones first; xdist's own order leaves files of few tests, however long, to the end.
WORKERS ?= 2
PYTEST_ARGS ?=

BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
INSTALLED_DEV := $(VENV)/.installed-dev
INSTALLED_DOCS := $(VENV)/.installed-docs
FARM := build/types
PYTEST = RADICEL_REQUIRE_MODEL=1 OMP_NUM_THREADS=1 TOKENIZERS_PARALLELISM=false \
	$(BIN)/python -m pytest -n $(WORKERS) --dist loadfile --no-loadscope-reorder $(PYTEST_ARGS)

.PHONY: demo test test-all test-gpu docs lint types format model install install-dev farm clean

demo: model
	$(BIN)/python examples/extract_contacts.py
	@echo "Next: . $(VENV)/bin/activate, then 'Your first program' in README.md"

test: lint types model
	$(PYTEST) -m "not slow and not gpu"

test-all: lint types model
	$(PYTEST)

test-gpu: install-dev model
	RADICEL_REQUIRE_MODEL=1 $(BIN)/python -m pytest tests/gpu tests/kernels -m gpu $(PYTEST_ARGS)

# The reference is read out of the sources' docstrings; nothing is run and nothing is fetched.
docs: $(INSTALLED_DOCS) farm
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --config-file .mkdocs.yml

lint: install-dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: install-dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: install-dev farm
	$(BIN)/mypy --config-file pyproject.toml

# The package's folders as an installation lays them out, made of links: type checkers do not follow the import hook
# of an editable install. Made anew each time, so that new files are in it.
farm:
	@rm -rf $(FARM) && mkdir -p $(FARM)/radicel
	@for path in lang/*; do ln -s "$(CURDIR)/$$path" $(FARM)/radicel/; done
	@ln -s "$(CURDIR)/runtime" "$(CURDIR)/kernels" $(FARM)/radicel/

model: $(INSTALLED)
	$(BIN)/radicel pull

install: $(INSTALLED)

install-dev: $(INSTALLED_DEV)

$(BIN)/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Radicel needs Python 3.10 or newer, and $(PYTHON) is " + sys.version.split()[0] + "; say which to use: make PYTHON=python3.12")'
	$(PYTHON) -m venv $(VENV)

$(INSTALLED): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --disable-pip-version-check -e .
	@touch $@

$(INSTALLED_DEV): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --disable-pip-version-check -e '.[dev]'
	@touch $(INSTALLED) $@

$(INSTALLED_DOCS): pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --disable-pip-version-check -e '.[docs]'
	@touch $(INSTALLED) $@

clean:
	rm -rf build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -not -path './.venv/*' -prune -exec rm -rf {} +
