# Every target makes .venv by itself, from the lock file, and is quick when nothing changed.
PYTHON ?= python3
# loadgroup: the tests of a module, and all that use Spark, stay together, so that what they share is made once.
PYTEST_ARGS ?= -n auto --dist loadgroup --no-loadscope-reorder
# How often `make soak` kills a process at work on each store.
KILLS ?= 2000
# How many worlds `make simulate` runs, and the first of their seeds.
SEEDS ?= 2000
FIRST ?= 0
# How long `make nemesis` goes on.
MINUTES ?= 2
VENV := .venv
BIN := $(VENV)/bin
LOCK := requirements/dev.lock
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.DEFAULT_GOAL := help
.PHONY: help demo test lint format bench soak simulate nemesis exhaustive mutate docs lock clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.installed ## see messages put back in order (ARGS="--seed 7" and the like)
	@$(BIN)/seriatim demo $(ARGS)

test: lint ## lint, types and every test
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(VENV)/.installed ## ruff (lint and format) and mypy --strict
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet
	@$(BIN)/mypy --no-error-summary

format: $(VENV)/.installed ## repair layout and import order
	@$(BIN)/ruff check --fix --quiet
	@$(BIN)/ruff format --quiet

bench: $(VENV)/.installed ## what each part costs, beside its peers and limits: core, ordered drain, Spark, Pub/Sub server, pipes, Sparkplug
	@$(BIN)/python -m bench.core
	@$(BIN)/python -m bench.ordered_drain
	@$(BIN)/python -m bench.spark
	@$(BIN)/python -m bench.wire
	@$(BIN)/python -m bench.pipes
	@$(BIN)/python -m bench.sparkplug
	@$(BIN)/python -m bench.ordering_locks

soak: $(VENV)/.installed ## property and crash tests, for much longer (KILLS=2000 for each store)
	@HYPOTHESIS_PROFILE=soak SOAK_KILLS=$(KILLS) $(BIN)/python -m pytest $(PYTEST_ARGS) -m "hypothesis or soak"

simulate: $(VENV)/.installed ## run simulated worlds from seeds (SEEDS=2000 FIRST=0, ARGS="--record")
	@$(BIN)/python -m tests.simulation --seeds $(SEEDS) --first $(FIRST) $(ARGS)

nemesis: $(VENV)/.installed ## torment real processes and judge what their clients saw (MINUTES=2, ARGS="--mode sqlite --seed 7")
	@$(BIN)/python -m tests.nemesis --minutes $(MINUTES) $(ARGS)

exhaustive: $(VENV)/.installed ## visit every state of small worlds of the core's machines (ARGS="--only lanes --record")
	@$(BIN)/python -m tests.exhaustive $(ARGS)

mutate: $(VENV)/.installed ## mutation testing of the machines (ONLY="core.lane engine" and the like)
	@$(BIN)/python -m bench.mutate $(ONLY)

docs: $(VENV)/.installed ## redraw the generated parts of the docs
	@$(BIN)/python -m docs.diagrams
	@$(BIN)/python -m docs.proof_page

lock: ## pin every dependency again
	@PYTHON=$(PYTHON) requirements/lock $(LOCK)

clean: ## remove what the other targets made
	@rm -rf $(VENV) build dist mutants tests/server/node/node_modules .pytest_cache .mypy_cache .ruff_cache .hypothesis

$(VENV)/.locked: $(LOCK)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Seriatim needs Python 3.11 or newer. Name one: make PYTHON=python3.12 <target>" >&2; exit 1; }
	@echo "Making $(VENV) from $(LOCK) ..."
	@$(PYTHON) -m venv --clear $(VENV)
	@$(PIP) install --require-hashes -r $(LOCK)
	@touch $@

# --no-build-isolation: the build back end comes from the lock too, so nothing unpinned is ever fetched.
$(VENV)/.installed: $(VENV)/.locked pyproject.toml
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@$(PIP) check
	@touch $@
