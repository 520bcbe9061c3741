# Every target makes .venv by itself, from the lock file, and is quick when nothing changed.
PYTHON ?= python3
# loadgroup: the tests of a module, and all that use Spark, stay together, so that what they share is made once.
PYTEST_ARGS ?= -n auto --dist loadgroup --no-loadscope-reorder
# How often `make soak` kills a process at work on each store.
KILLS ?= 2000
# How often members of a Kafka group are disturbed in `make soak`.
DISTURBANCES ?= 1000
# Of how many moments it makes images, of what a disk may hold after its power failed.
IMAGES ?= 20000
# How many worlds `make simulate` runs, and the first of their seeds.
SEEDS ?= 2000
FIRST ?= 0
# How long `make nemesis` goes on.
MINUTES ?= 2
# The Spark of `make test-spark`, and which tests it runs.
VERSION ?= 4.2.1
TESTS ?= tests/spark
# Older PySparks leave sockets to the garbage collector.
OLD_SPARK := -W ignore::ResourceWarning -W ignore::pytest.PytestUnraisableExceptionWarning
VENV := .venv
BIN := $(VENV)/bin
SPARK_VENV := .venv-spark-$(VERSION)
LOCK := requirements/dev.lock
# The Spark of `make test-integration`, for which there are connectors.
INTEGRATION_VENV := .venv-integration
INTEGRATION_LOCK := requirements/integration.lock
# Clients of the servers that `make bench-ordering` compares with ours.
ORDERING_VENV := .venv-ordering
ORDERING_LOCK := requirements/ordering.lock
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet

.DEFAULT_GOAL := help
.PHONY: help demo test test-fast test-spark test-integration lint format bench bench-ordering soak simulate nemesis exhaustive mutate generate docs site lock dist clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.installed ## see messages put back in order (ARGS="--seed 7" and the like)
	@$(BIN)/seriatim demo $(ARGS)

test: lint ## lint, types and every test
	@$(BIN)/python -m pytest $(PYTEST_ARGS)

test-fast: $(VENV)/.installed ## the tests that need no Spark and no servers, in less than two minutes
	@HYPOTHESIS_PROFILE=fast $(BIN)/python -m pytest --fast $(PYTEST_ARGS)

test-spark: $(SPARK_VENV)/.installed ## the Spark tests on another Spark (VERSION=4.1.4 TESTS=tests/spark/frames)
	@$(SPARK_VENV)/bin/python -m pytest $(PYTEST_ARGS) $(OLD_SPARK) $(TESTS)

test-integration: $(INTEGRATION_VENV)/.installed ## with the real parts, fetched by Maven: Kafka, Delta, Iceberg, S3 (PYTEST_ARGS="-k kafka" and the like)
	@$(INTEGRATION_VENV)/bin/python -m pytest $(PYTEST_ARGS) $(OLD_SPARK) tests/integration

lint: $(VENV)/.installed ## ruff (lint and format) and mypy --strict
	@$(BIN)/ruff check --quiet
	@$(BIN)/ruff format --check --quiet
	@$(BIN)/mypy --no-error-summary

format: $(VENV)/.installed ## repair layout and import order
	@$(BIN)/ruff check --fix --quiet
	@$(BIN)/ruff format --quiet

bench: $(VENV)/.installed ## what each part costs, beside its peers and limits: core, ordered drain, publishing, outbox, Spark, Pub/Sub server, pipes, Sparkplug, Kafka, console
	@$(BIN)/python -m bench.core
	@$(BIN)/python -m bench.ordered_drain
	@$(BIN)/python -m bench.profiles
	@$(BIN)/python -m bench.publishing
	@$(BIN)/python -m bench.outbox
	@$(BIN)/python -m bench.kernel
	@$(BIN)/python -m bench.spark_state
	@$(BIN)/python -m bench.spark
	@$(BIN)/python -m bench.wire
	@$(BIN)/python -m bench.pipes
	@$(BIN)/python -m bench.sparkplug
	@$(BIN)/python -m bench.ordering_locks
	@$(BIN)/python -m bench.kafka
	@$(BIN)/python -m bench.console

bench-ordering: $(ORDERING_VENV)/.installed ## the same ordered work on ours and on other servers, every run judged (ARGS="--quick", "--before COMMIT --record")
	@$(ORDERING_VENV)/bin/python -m bench.ordering $(ARGS)

soak: $(VENV)/.installed ## property, crash and power-loss tests, fuzzing and a day of work, for much longer (KILLS=2000 for each store, DISTURBANCES=1000 on Kafka, IMAGES=20000)
	@HYPOTHESIS_PROFILE=soak SOAK_KILLS=$(KILLS) SOAK_IMAGES=$(IMAGES) $(BIN)/python -m pytest $(PYTEST_ARGS) -m "hypothesis or soak"
	@DISTURBANCES=$(DISTURBANCES) $(BIN)/python -m pytest $(PYTEST_ARGS) -m soak tests/integration/kafka/test_fire.py
	@$(BIN)/python -m tests.fuzz --seconds 60
	@$(BIN)/python -m tests.day

simulate: $(VENV)/.installed ## run simulated worlds from seeds (SEEDS=2000 FIRST=0, ARGS="--record")
	@$(BIN)/python -m tests.simulation --seeds $(SEEDS) --first $(FIRST) $(ARGS)

nemesis: $(VENV)/.installed ## torment real processes and judge what their clients saw (MINUTES=6 reaches every mode, ARGS="--mode sqlite --seed 7")
	@$(BIN)/python -m tests.nemesis --minutes $(MINUTES) $(ARGS)

exhaustive: $(VENV)/.installed ## visit every state of small worlds of the core's machines (ARGS="--only lanes --record")
	@$(BIN)/python -m tests.exhaustive $(ARGS)

mutate: $(VENV)/.installed ## mutation testing of the machines (ONLY="core.lanes.lane engine" and the like)
	@$(BIN)/python -m bench.mutate $(ONLY)

generate: $(VENV)/.installed ## write the blocking API from the async one
	@$(BIN)/python -m tools.blocking_api

docs: $(VENV)/.installed ## redraw the generated parts of the docs
	@$(BIN)/python -m docs.admin_api
	@$(BIN)/python -m docs.architecture
	@$(BIN)/python -m docs.diagrams
	@$(BIN)/python -m docs.proof_page
	@$(BIN)/python -m docs.public_api
	@$(BIN)/python -m bench.record
	@$(BIN)/python -m bench.mutate --page

site: $(VENV)/.installed ## build the docs as a site, in site/; any warning or broken link is an error
	@NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet --site-dir site

lock: ## pin every dependency again
	@PYTHON=$(PYTHON) requirements/lock

dist: $(VENV)/.installed ## build the wheel and the source archive, in dist/
	@$(BIN)/python -m hatchling build

clean: ## remove what the other targets made
	@rm -rf $(VENV) .venv-spark-* $(INTEGRATION_VENV) $(ORDERING_VENV) build dist site mutants tests/server/node/node_modules .pytest_cache .mypy_cache .ruff_cache .hypothesis

# A .venv that is there is brought up to date, which takes seconds; `make clean` first makes exactly what is locked.
$(VENV)/.locked: $(LOCK)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Seriatim needs Python 3.11 or newer. Name one: make PYTHON=python3.12 <target>" >&2; exit 1; }
	@echo "Making $(VENV) from $(LOCK) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(PIP) install --require-hashes -r $(LOCK)
	@touch $@

# --no-build-isolation: the build back end comes from the lock too, so nothing unpinned is ever fetched.
$(VENV)/.installed: $(VENV)/.locked pyproject.toml
	@$(PIP) install --no-deps --no-build-isolation --editable .
	@$(PIP) check
	@touch $@

# All that is locked, and before it on the path something else, such as another Spark: $(call with_more,folder,what pip is to install)
define with_more
	@echo "Making $(1) ..."
	@$(PYTHON) -m venv $(1)
	@{ $(BIN)/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))'; echo "$(CURDIR)/src"; } \
	  > $$($(1)/bin/python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/locked.pth
	@$(1)/bin/python -m pip --disable-pip-version-check --quiet install --ignore-installed $(2)
	@touch $(1)/.installed
endef

$(SPARK_VENV)/.installed: $(VENV)/.installed
	$(call with_more,$(SPARK_VENV),"pyspark==$(VERSION)")

$(INTEGRATION_VENV)/.installed: $(VENV)/.installed $(INTEGRATION_LOCK)
	$(call with_more,$(INTEGRATION_VENV),--require-hashes -r $(INTEGRATION_LOCK))

$(ORDERING_VENV)/.installed: $(VENV)/.installed $(ORDERING_LOCK)
	$(call with_more,$(ORDERING_VENV),--require-hashes -r $(ORDERING_LOCK))
