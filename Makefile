# All commands for users and developers: `make help` lists them.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SETUP := $(VENV)/.setup-done
RUN := .venv-run

# Hundreds of processes of the tests import the same modules: without byte code each compiles them again, for a second.
unexport PYTHONDONTWRITEBYTECODE

CHECK_PYTHON = $(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed, this is " + sys.version.split()[0] + "; set PYTHON=/path/to/python3.11")'

include generators/targets.mk

.PHONY: help
help: ## Show this list.
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-16s %s\n", $$1, $$2}'

# uv takes a fraction of pip's time. It goes to the index that pip is set to; where more of pip's settings is needed to get
# there, uv fails, and pip installs.
define INSTALL_REQUIREMENTS
index="$${UV_DEFAULT_INDEX:-$${PIP_INDEX_URL:-$$($(BIN)/pip config get global.index-url 2> /dev/null || true)}}"; \
if [ -n "$$index" ]; then export UV_DEFAULT_INDEX="$$index"; fi; \
$(BIN)/uv pip install --quiet --python $(BIN)/python --compile-bytecode --require-hashes -r requirements/dev.txt \
  || $(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/dev.txt
endef

$(SETUP): requirements/uv.txt requirements/dev.txt pyproject.toml
	@$(CHECK_PYTHON)
	@echo "setting up the virtual environment in $(VENV)"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/uv.txt
	@$(INSTALL_REQUIREMENTS)
	@$(BIN)/pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
	@touch $@

.PHONY: setup
setup: $(SETUP) ## Set up the virtual environment, Go, the control plane's programs (minutes the first time, then nothing).
	@$(BIN)/tpu-rehearsal build > /dev/null

# The set-up and the build are silent for minutes, so their duration comes first.
.PHONY: first-run
first-run:
	@test -e $(SETUP) || echo "The first run takes about ten minutes: it installs Python packages in $(VENV) and builds etcd, Kubernetes and JobSet from source. Later runs take a minute."

.PHONY: demo
demo: first-run setup ## Run a JobSet until nothing is left, on a local control plane. KEEP=1 keeps everything running.
	@$(BIN)/tpu-rehearsal demo

.PHONY: demo-kueue
demo-kueue: first-run setup ## Run two JobSets queued by Kueue. Builds Kueue (ten minutes). KEEP=1 as above.
	@$(BIN)/tpu-rehearsal demo --kueue

.PHONY: demo-gce
demo-gce: first-run setup ## Run a JobSet on a TPUNodeGroup until nothing is left: machines join a local control plane. KEEP=1 as above.
	@$(BIN)/tpu-rehearsal demo-gce

.PHONY: demo-ipu
demo-ipu: first-run setup ## Run pods with IPUs from waiting to released, on a local control plane with a simulated V-IPU server. KEEP=1 as above.
	@$(BIN)/tpu-rehearsal demo-ipu

.PHONY: demo-page
demo-page: $(SETUP) ## Serve the status page of a simulated cluster with 200 slices, at 30 times real speed; needs no Go.
	@$(BIN)/python -m tests.simulation.demo_page $(ARGS)

.PHONY: screenshots
screenshots: $(SETUP) ## Make the pictures of docs/status-page.md from a simulated cluster; needs Chromium.
	@$(BIN)/python -m tests.page.screenshots

# What the controller imports, and no tools of developers.
$(RUN)/.setup-done: requirements/run.txt
	@$(CHECK_PYTHON)
	@echo "setting up the virtual environment in $(RUN)"
	@$(PYTHON) -m venv $(RUN)
	@$(RUN)/bin/pip install --quiet --disable-pip-version-check --require-hashes -r requirements/run.txt
	@touch $@

.PHONY: run
run: $(RUN)/.setup-done ## Run the controller with the kubeconfig's current context and GKE.
	@$(RUN)/bin/python -m provisioner run $(ARGS)

# For two cores, and three more: one waits for the simulation, which has processes of its own at a low priority, and
# end-to-end tests mostly wait. What shares a worker, in which order: tests/conftest.py.
WORKERS := -n 5 --no-loadscope-reorder

.PHONY: test
# The programs of the control planes collect garbage less often: a sixth less of their time.
test: export GOGC = 800
test: setup ## Run all checks and tests, including the end-to-end tests.
# Beside mypy, which has one core: otherwise each worker rewrites the asserts of all test modules in a new checkout.
	@$(BIN)/pytest --collect-only -q > /dev/null 2>&1 & rewriting=$$!; \
	$(MAKE) --no-print-directory lint; \
	wait $$rewriting || true
	@$(BIN)/tpu-rehearsal build --lws > /dev/null
# Five workers and their control planes share the cores here, so a test takes a multiple of its own time.
	@$(BIN)/pytest $(WORKERS) --timeout=40 -m 'not nightly'

.PHONY: test-nightly
test-nightly: setup ## Run the tests that `make test` leaves out: of simulators, demos, tools of the tests and planted bugs.
	@$(BIN)/pytest -n auto --timeout=60 -m nightly

.PHONY: test-operators
test-operators: setup ## Run the tests with Kueue and KubeRay, which takes minutes, and the first time a quarter of an hour.
	@TPU_PROVISIONER_OPERATORS=1 $(BIN)/pytest --timeout=180 tests/e2e/test_kueue.py tests/e2e/test_kuberay.py

# Slices of all kinds, webhooks, scheduling gates and machines that join.
VERSIONS_TESTS := $(addprefix tests/,$(addsuffix .py,$(addprefix e2e/test_,newest life jobs leaderworkersets offline partition_admission node_groups placement_policy placement_webhook assignment) deploy/test_webhook))

.PHONY: test-versions
test-versions: setup ## Run a few tests on each pair of versions of Kubernetes and JobSet; the first time builds for an hour.
	@for kubernetes in 1.35 pinned 1.37; do for jobset in pinned 0.12; do \
	  echo "Kubernetes $$kubernetes, JobSet $$jobset"; \
	  export REHEARSAL_KUBERNETES="$${kubernetes#pinned}" REHEARSAL_JOBSET="$${jobset#pinned}"; \
	  $(BIN)/tpu-rehearsal build --lws > /dev/null && $(BIN)/pytest $(VERSIONS_TESTS) || exit 1; \
	done; done

# Tracing makes most tests two to three times as slow, so their time limit is longer, too.
.PHONY: coverage
coverage: setup ## Run all tests and measure which code they run: at least 90 percent.
	@$(BIN)/tpu-rehearsal build --lws > /dev/null
	@$(BIN)/pytest $(WORKERS) --timeout=60 --cov --cov-report=term:skip-covered --cov-fail-under=90

.PHONY: test-quick
test-quick: $(SETUP) ## Run the tests that need no control plane.
	@$(BIN)/pytest -m 'not e2e and not nightly'

.PHONY: explore
explore: $(SETUP) ## Try new examples in the property tests; `make test` tries the same ones each time.
	@$(BIN)/pytest $(WORKERS) --timeout=1200 --hypothesis-profile=new -m 'hypothesis and not e2e'

.PHONY: lint
lint: $(SETUP) ## Check style, types and layers.
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports --no-cache

.PHONY: format
format: $(SETUP) ## Format the code.
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

SEEDS ?= 1000
FIRST ?= 0

.PHONY: simulate
simulate: $(SETUP) ## Simulate the whole controller under faults, from SEEDS seeds, the first of them FIRST.
	@$(BIN)/python -m tests.simulation --seeds $(SEEDS) --first $(FIRST)

.PHONY: simulate-nodegroups
simulate-nodegroups: $(SETUP) ## Simulate the controller of node groups under faults, from SEEDS seeds, the first of them FIRST.
	@$(BIN)/python -m tests.nodegroups.simulation --seeds $(SEEDS) --first $(FIRST)

.PHONY: simulate-partitions
simulate-partitions: $(SETUP) ## Simulate the controller of IPU partitions under faults, from SEEDS seeds, the first of them FIRST.
	@$(BIN)/python -m tests.partitions.simulation --seeds $(SEEDS) --first $(FIRST)

SAMPLE ?= 300
SEED ?= 1
GOAL ?= 95

.PHONY: mutate
mutate: $(SETUP) ## Try SAMPLE random mutations of the code, drawn by SEED: the tests must detect GOAL percent of them.
	@$(BIN)/python -m tests.mutation --sample $(SAMPLE) --seed $(SEED) --goal $(GOAL)

.PHONY: histories
histories: $(SETUP) ## Compare 200 runs of each simulation, and 200 sets of manifests, with the recordings; ARGS=--write records them.
	@$(BIN)/python -m tests.support.simulations.histories $(ARGS)

.PHONY: bench
bench: setup ## Measure the figures of docs/develop/performance.md.
	@$(BIN)/python -m benchmarks

.PHONY: docs
docs: $(SETUP) ## Generate the pages of settings, metrics, Events, API and fields from the code, the pictures in docs from their texts, and the README's recording.
	@$(BIN)/python docs/settings_table.py slices > docs/settings.md
	@$(BIN)/python docs/settings_table.py nodegroups > docs/node-groups/settings.md
	@$(BIN)/python docs/settings_table.py partitions > docs/partitions/settings.md
	@$(BIN)/python docs/metrics_table.py > docs/metrics.md
	@$(BIN)/python docs/api_table.py > docs/api.md
	@$(BIN)/python docs/node_group_table.py > docs/node-groups/fields.md
	@$(BIN)/python docs/events_table.py
	@$(BIN)/python docs/diagram.py
	@$(BIN)/python -m tests.docs.recording

.PHONY: site
site: $(SETUP) ## Build the documentation's site into build/site. A broken link or anchor fails.
	@$(BIN)/sphinx-build --quiet --fail-on-warning --keep-going -c docs -d build/site-cache . build/site
	@echo "open build/site/index.html"

COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-emit-index-url --no-annotate --custom-compile-command "make lock"

.PHONY: lock
lock: $(SETUP) ## Update the pins of all dependencies.
	@$(COMPILE) pyproject.toml --output-file requirements/run.txt
	@$(COMPILE) pyproject.toml --group dev --constraint requirements/run.txt --output-file requirements/dev.txt
	@echo 'hatchling>=1.27' | $(COMPILE) --constraint requirements/dev.txt - --output-file requirements/build.txt
	@echo 'uv' | $(COMPILE) --constraint requirements/dev.txt - --output-file requirements/uv.txt
