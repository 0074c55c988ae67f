# `make` lists the targets. Needs make and Python 3.11 or newer (PYTHON=... chooses one); everything else goes into .venv.
# Works with GNU make 3.81 (macOS). All paths are relative, so the folder's own name may contain spaces.

RUN ?= open-nano
STEP ?= 48213
COUNT ?= 3
ARGS ?=
JOBS ?= auto
BIN := .venv/bin
GPU_PYTHON ?= $(BIN)/python
GPU_JOBS ?= 4
PYTHON_ANY ?= $(or $(PYTHON),python3)
TARGET ?= manifest
SECONDS ?= 600
export PYTHON TORCH
# The tests start hundreds of Pythons, and each would compile the package anew.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help verify nightly test test-gpu lint format bench wheel oldest lock release-check audit fuzz clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-13s %s\n", $$1, $$2 }' Makefile

verify: ## verify a step of the bundled run on the CPU (STEP=48213 RUN=open-nano)
	@sh tools/venv.sh verify
	$(BIN)/auditkit verify --run "$(RUN)" --step $(STEP)

nightly: ## verify and attest steps that a public beacon draws, keep all of it in build/nights (COUNT=3 RUN=open-nano)
	@sh tools/venv.sh verify
	@sh tools/nightly.sh $(BIN)/auditkit --run "$(RUN)" --count $(COUNT) --out build/nights $(ARGS)

test: ## run all tests; installs the CPU build of torch to compare with (ARGS="-k store")
	@sh tools/venv.sh torch
	$(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile $(ARGS)

test-gpu: ## run the kernels on the CUDA device here, under compute-sanitizer too (GPU_PYTHON=python3 has CuPy)
	$(GPU_PYTHON) -m pytest -q tests/kernels/test_on_cards.py $(ARGS)
	$(GPU_PYTHON) -m pytest -q -n $(GPU_JOBS) --dist loadfile tests/kernels -k "gpu or card" --ignore tests/kernels/test_on_cards.py $(ARGS)
	compute-sanitizer --tool memcheck --error-exitcode 9 $(GPU_PYTHON) -m tests.kernels.every_kernel
	compute-sanitizer --tool racecheck --error-exitcode 9 $(GPU_PYTHON) -m tests.kernels.every_kernel

lint: ## ruff, mypy --strict, import contracts, workflow files
	@sh tools/venv.sh dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	@sh tools/actionlint.sh

format: ## let ruff sort imports and format
	@sh tools/venv.sh dev
	$(BIN)/ruff check --select I --fix .
	$(BIN)/ruff format .

bench: ## measure, print a table, write it into docs/benchmarks.md (ARGS="command replay" chooses parts)
	@sh tools/venv.sh torch
	$(BIN)/python -m bench --write $(ARGS)

wheel: ## build sdist and wheel into dist/ and check what they contain and bring
	@sh tools/venv.sh dev
	$(BIN)/python tools/check_wheel.py

oldest: ## verify a step with the oldest allowed versions of numpy and all others
	@sh tools/venv.sh dev
	$(BIN)/python tools/check_oldest.py

lock: ## resolve the dependencies anew into requirements/ (for every platform, with digests)
	$(PYTHON_ANY) tools/release.py lock

release-check: ## build sdist and wheel twice, compare their bytes, install by the lock, write the SBOM into dist/
	$(PYTHON_ANY) tools/release.py check

audit: ## look every locked version up in the advisory database (needs the network)
	$(PYTHON_ANY) tools/release.py audit

fuzz: ## fuzz one target for some time (TARGET=manifest SECONDS=600; atheris, if installed, follows coverage)
	@sh tools/venv.sh dev
	$(BIN)/python -m tests.fuzz.run $(TARGET) --seconds $(SECONDS) $(ARGS)

clean: ## remove .venv, caches and builds
	rm -rf .venv build dist .bench .mypy_cache .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find auditkit bench trainer tests tools -name __pycache__ -type d -prune -exec rm -rf {} +
