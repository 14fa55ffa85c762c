# Everything a developer types. Each target installs what it needs by itself.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
SHIPPED := .venv-operator
UV := $(shell command -v uv || echo .tools/uv/bin/uv)
CLUSTER ?= devcluster
NAME ?= dev
TORCHTPU := .venv-torchtpu
RL := .venv-rl
SYSTEMS := .venv-systems
DOCS := .venv-docs
SEEDS ?= 0-19999
SOAK_SECONDS ?= 600
LONG := tests/cluster/faults/test_rollout.py tests/cluster/inference/test_analysis.py tests/cluster/inference/test_failing.py \
	tests/cluster/inference/test_revisions.py tests/cluster/inference/test_by_hand.py tests/cluster/inference/test_autoscaler.py \
	tests/cluster/bad_input tests/cluster/dashboard \
	tests/cluster/operations tests/cluster/chart tests/cluster/client/test_page.py tests/e2e/serving tests/e2e/rollout_load \
	tests/e2e/test_ray.py tests/e2e/test_quickstart.py tests/e2e/test_hang.py tests/e2e/test_multislice.py
ROLLOUT_SPACE ?= all

help: ## Show the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | awk -F':.*## ' '{printf "  %-16s %s\n", $$1, $$2}'

.tools/uv/bin/uv:
	@$(PYTHON) -m venv .tools/uv && .tools/uv/bin/pip install --quiet uv

$(VENV)/.installed: pyproject.toml requirements/dev.lock | $(UV)
	@$(UV) venv --quiet --allow-existing --python $(PYTHON) $(VENV)
	@$(UV) pip sync --quiet --compile-bytecode --python $(BIN)/python --require-hashes requirements/dev.lock
	@$(UV) pip install --quiet --python $(BIN)/python --no-deps --editable .
	@touch $@

$(SHIPPED)/.installed: pyproject.toml requirements/operator.lock | $(UV)
	@$(UV) venv --quiet --allow-existing --python $(PYTHON) $(SHIPPED)
	@$(UV) pip sync --quiet --compile-bytecode --python $(SHIPPED)/bin/python --require-hashes requirements/operator.lock
	@$(UV) pip install --quiet --python $(SHIPPED)/bin/python --no-deps --editable .
	@touch $@

venv: $(VENV)/.installed ## Create the Python environment from the lock

$(TORCHTPU)/.installed: requirements/runtime-torchtpu-cpu.lock | $(UV)
	@$(UV) venv --quiet --allow-existing --python $(PYTHON) $(TORCHTPU)
	@$(UV) pip sync --quiet --compile-bytecode --python $(TORCHTPU)/bin/python --require-hashes requirements/runtime-torchtpu-cpu.lock
	@touch $@

$(RL)/.installed: requirements/rl.lock | $(UV)
	@$(UV) venv --quiet --allow-existing --python $(PYTHON) $(RL)
	@$(UV) pip sync --quiet --compile-bytecode --python $(RL)/bin/python --require-hashes requirements/rl.lock
	@touch $@

$(SYSTEMS)/.installed: requirements/systems.lock | $(UV)
	@$(UV) venv --quiet --allow-existing --python $(PYTHON) $(SYSTEMS)
	@$(UV) pip sync --quiet --compile-bytecode --python $(SYSTEMS)/bin/python --require-hashes requirements/systems.lock
	@touch $@

$(DOCS)/.installed: requirements/docs.lock | $(UV)
	@$(UV) venv --quiet --allow-existing --python $(PYTHON) $(DOCS)
	@$(UV) pip sync --quiet --python $(DOCS)/bin/python --require-hashes requirements/docs.lock
	@touch $@

docs: $(DOCS)/.installed ## Build the documentation into dist/docs; a broken link is an error
	@NO_MKDOCS_2_WARNING=1 $(DOCS)/bin/mkdocs build --strict --clean

torchtpu: $(TORCHTPU)/.installed ## Create the environment with torch and torch_tpu (6 GB)

rl: $(RL)/.installed ## Create the environment with TRL and OpenEnv beside them (7 GB)

systems: $(SYSTEMS)/.installed ## Create the environment with Transformers, TorchTitan and ExecuTorch beside them (8 GB)

lock: | $(UV) ## Re-resolve the locks (UPGRADE=1 to move to newer versions)
	@hack/lock.sh $(UV) $(if $(UPGRADE),--upgrade)

fmt: venv ## Format and fix what can be fixed
	@$(BIN)/ruff format . && $(BIN)/ruff check --fix .

check: venv ## Lint, types, import contracts, generated files
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy operator/tpu_operator runtime/tpu_runtime hack tests
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python -m tpu_operator.api.crd --check crds
	@$(BIN)/python -m tpu_operator.api.reference --check docs/api.md
	@$(BIN)/python -m hack.dependencies --check docs/dependencies.md
	@$(BIN)/python -m hack.reasons --check docs/reasons.md
	@$(BIN)/python -m hack.migration --check docs/migrate-from-torch-xla.md

generate: venv ## Write generated files (crds/, docs/api.md, docs/dependencies.md, docs/reasons.md, tables of docs/migrate-from-torch-xla.md)
	@$(BIN)/python -m tpu_operator.api.crd --write crds
	@$(BIN)/python -m tpu_operator.api.reference --write docs/api.md
	@$(BIN)/python -m hack.dependencies --write docs/dependencies.md
	@$(BIN)/python -m hack.reasons --write docs/reasons.md
	@$(BIN)/python -m hack.migration --write docs/migrate-from-torch-xla.md

unit: venv ## Tests without a cluster
	@$(BIN)/pytest tests/unit tests/property

binaries: ## Build Kubernetes and the other tools of the local cluster, once for a user
	@$(PYTHON) -m hack.devcluster binaries >/dev/null

cluster-test: venv binaries ## The operator against a real control plane with fake nodes
	@$(BIN)/pytest tests/cluster --ignore tests/cluster/faults $(addprefix --ignore ,$(filter tests/cluster/%,$(LONG)))

faults: venv binaries ## The operator killed and cut off at every turn
	@$(BIN)/pytest tests/cluster/faults

operations: venv binaries ## Changes of specs, generated from the CRD, in sequences (OPS_SEEDS=0-9)
	@$(BIN)/pytest tests/cluster/operations

bad-input: venv binaries ## 5,000 odd objects at the API server, with the operator at work on them (BAD_OBJECTS=5000)
	@$(BIN)/pytest -o log_cli=true --log-cli-level=INFO tests/cluster/bad_input

chart-test: venv binaries ## helm upgrade, uninstall and install under twenty running jobs, and the chart's rights
	@$(BIN)/pytest tests/cluster/chart

e2e: venv binaries images ## Images, chart and jobs on real kubelets
	@$(BIN)/pytest tests/e2e

bench: venv $(SHIPPED)/.installed binaries ## Compare the operator with the least possible and with its peers (ARGS="--help")
	@$(BIN)/python -m tests.bench $(ARGS)

bench-launcher: venv torchtpu ## Measure what the launcher costs, beside plain torchrun (ARGS="--help")
	@$(BIN)/python -m tests.bench.launcher $(ARGS)

soak: soak-cluster soak-simulation soak-rollout ## Random faults for ten minutes, 20,000 simulated lives, and all rollouts

soak-cluster: venv binaries ## Ten minutes of faults beside a real control plane (SOAK_SECONDS=600)
	@SOAK_SECONDS=$(SOAK_SECONDS) $(BIN)/pytest -o log_cli=true --log-cli-level=INFO tests/cluster/faults/test_soak.py

soak-simulation: venv ## 20,000 lives of a simulated cluster (SEEDS=0-19999), hours
	@SIM_SEED=$(SEEDS) $(BIN)/pytest -q --maxfail 20 tests/sim/test_sim.py

soak-rollout: venv ## Every state of larger rollouts (ROLLOUT_SPACE=all, or 2/8 for a part), hours
	@ROLLOUT_SPACE=$(ROLLOUT_SPACE) $(BIN)/pytest -q tests/unit/core/inference/test_rollout_space.py

test: venv binaries images ## Everything but TorchTPU, systems, the soak, the benchmarks and test-long
	@$(BIN)/pytest --numprocesses 2 tests --ignore tests/torchtpu --ignore tests/systems $(addprefix --ignore ,$(LONG))

test-long: venv binaries images ## What takes minutes more: every field changed, serving behind Envoy, rollouts under load, a Ray cluster, hangs, multislice
	@$(BIN)/pytest $(LONG)

test-torchtpu: venv torchtpu binaries images ## The real TorchTPU, emulated: collectives, training, a killed rank
	@$(BIN)/pytest tests/torchtpu

test-rl: venv rl binaries images ## Reinforcement learning: TRL, OpenEnv and a rollout engine learn, also on real kubelets
	@$(BIN)/pytest tests/systems/rl

test-systems: venv systems ## Transformers, TorchTitan and ExecuTorch, by the recipes in examples/
	@$(BIN)/pytest tests/systems/test_*.py

images: venv ## Build the operator and runtime images
	@hack/images.sh

sbom: venv ## Write what is in each image as CycloneDX to dist/sbom/
	@hack/sbom.sh $(BIN)

release: venv | $(UV) ## Build wheel, sources, chart, images and SBOMs into dist/release/ (SNAPSHOT=1 without a section in CHANGELOG.md)
	@hack/release.sh $(UV) $(BIN)

devcluster-up: ## Start a local cluster of 4 TPU nodes (NAME=, ARGS="--fake-nodes 64")
	@CLUSTER=$(CLUSTER) $(PYTHON) -m hack.devcluster up --name $(NAME) $(ARGS)

devcluster-down: ## Stop the local cluster and remove all of it
	@CLUSTER=$(CLUSTER) $(PYTHON) -m hack.devcluster down --name $(NAME)

demo: venv ## Run examples/hello-jax.yaml on a local cluster, from nothing
	@hack/demo.sh

.PHONY: systems test-systems bad-input docs chart-test bench-launcher sbom release soak-rollout operations help venv torchtpu test-torchtpu rl test-rl lock fmt check generate unit binaries cluster-test faults e2e bench soak soak-cluster soak-simulation test test-long images devcluster-up devcluster-down demo
