# Works from a bare checkout: every target first installs what it needs into .venv, once.

PYTHON ?= python3
TORCH_INDEX ?=
COVERAGE_MIN ?= 90
# On two cores: a sixth of the time a test waits, for a server, a sandbox or a browser.
TEST_PROCESSES ?= 3
ARGS ?=

PYTEST := --numprocesses $(TEST_PROCESSES) --dist loadfile --no-loadscope-reorder
SYSTEM_PACKAGES := chromium openssl zstd

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet
INSTALL := $(PIP) install --constraint constraints.txt
LINTED := art_gym art_trainer envs wrappers recipes tests benchmarks docs integrations

.DEFAULT_GOAL := help
.PHONY: help setup setup-system train train-llm test test-all test-integrations test-gpu bench-check lint format docs release clean

help: ## Show this list.
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "make %-18s %s\n", $$1, $$2}' $(firstword $(MAKEFILE_LIST))

setup: $(VENV)/.dev ## Install the project and its development tools into .venv.

train: $(VENV)/.train ## Train an agent to search a mailbox; ARGS="…" goes to `art-trainer train`.
	$(BIN)/art-trainer train --recipe email $(ARGS)

train-llm: $(VENV)/.train ## The same with SmolLM2-135M-Instruct, which reads English; takes half an hour or more.
	$(BIN)/art-trainer train --recipe email-smollm2 $(ARGS)

# Tests start many processes of this project's: only the first has to compile it.
test: export PYTHONDONTWRITEBYTECODE =
test: $(VENV)/.dev ## Run the tests that fit into four minutes; ARGS="…" goes to pytest.
	$(BIN)/python -m pytest $(PYTEST) -m "not e2e and not slow" $(ARGS)

test-all: export PYTHONDONTWRITEBYTECODE =
test-all: $(VENV)/.dev ## Run all tests, the slow and end-to-end ones too, and check the coverage; ARGS="…" goes to pytest.
	$(BIN)/python -m pytest $(PYTEST) --cov --cov-report= $(ARGS)
	$(BIN)/python -m coverage report --include "art_gym/*,envs/*" --sort cover --skip-covered \
		--fail-under $(COVERAGE_MIN)

setup-system: ## Install the Debian packages that tests use: a browser, openssl, zstd.
	apt-get update -qq && apt-get install -qq --no-install-recommends $(SYSTEM_PACKAGES)

test-integrations: $(VENV)/.dev ## Run other people's libraries on the environments; ARGS="…" goes to integrations/run.py.
	$(BIN)/python integrations/run.py $(ARGS)

test-gpu: $(VENV)/.dev ## On a machine with an NVIDIA GPU: the tests and the claims that only a GPU can show.
	$(BIN)/python -m pytest tests/art_trainer/test_gpu.py
	PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True $(BIN)/python benchmarks/bench_gpu.py --check

bench-check: $(VENV)/.dev ## Compare the quick benchmarks with benchmarks/baselines; ARGS="…" goes to check_baselines.py.
	$(BIN)/python benchmarks/check_baselines.py $(ARGS)

lint: $(VENV)/.dev ## Check style and types.
	$(BIN)/ruff check $(LINTED)
	$(BIN)/ruff format --check $(LINTED)
	$(BIN)/mypy

format: $(VENV)/.dev ## Fix the style where ruff can.
	$(BIN)/ruff check --fix $(LINTED)
	$(BIN)/ruff format $(LINTED)

docs: $(VENV)/.dev ## Build the documentation site into build/site; any warning is an error.
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict $(ARGS)

release: ## Build and try what would be uploaded, and upload nothing: make release VERSION=0.1.0
	.ci/release $(VERSION)

clean: ## Remove caches and build outputs; .venv and runs/ stay.
	rm -rf build dist *.egg-info .coverage* htmlcov .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find art_gym art_trainer envs wrappers tests benchmarks -name __pycache__ -prune -exec rm -rf {} +

# A stamp says what is installed; pip runs again only after a change of what it would install. The build tool
# comes from the constraints too, so the project is built without an isolated environment of other versions.
$(VENV)/.python:
	@command -v $(PYTHON) > /dev/null || \
		{ echo "$(PYTHON) is not there; name a Python of at least 3.11: make PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; v = sys.version_info; sys.exit(None if v >= (3, 11) else "$(PYTHON) is Python %d.%d; name one of at least 3.11: make PYTHON=python3.12" % v[:2])'
	$(PYTHON) -m venv $(VENV)
	@touch $@

$(VENV)/.torch: constraints.txt $(VENV)/.python
	@echo "Installing into $(VENV) (the first time this takes a few minutes) …"
	$(INSTALL) --no-deps $(addprefix --extra-index-url ,$(TORCH_INDEX)) torch setuptools
	@touch $@

$(VENV)/.train: pyproject.toml constraints.txt $(VENV)/.torch
	$(INSTALL) --no-build-isolation --editable ".[train]"
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt $(VENV)/.torch
	$(INSTALL) --no-build-isolation --editable ".[dev]"
	@touch $@ $(VENV)/.train
