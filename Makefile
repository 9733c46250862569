# Targets set up what they need and reuse it afterwards; `make` alone lists them.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
WORKERS ?= 2
CONSTRAINTS ?= constraints.txt

VENV := .venv
RUN := $(VENV)/bin/python
READY := $(VENV)/.ready

LOWEST_VENV := .venv-lowest
LOWEST_RUN := $(LOWEST_VENV)/bin/python
LOWEST_READY := $(LOWEST_VENV)/.ready
LOWEST_CONSTRAINTS := constraints-lowest.txt
# What meets torch and numpy alone does not meet those packages, nor do clusters, browsers and timings; digests of published
# runs name the tested numpy, and files that are written are checked by the tested ruff; the site is built with the tested
# set alone; models are converted as the tested transformers computes them; groups of four processes are launched with it,
# those of two with both. Everything else does.
LOWEST_IGNORED := ops tasks mixers docs cli/test_new.py distributed/test_families.py distributed/test_segments.py hub/test_convert.py \
  models/test_placement.py recomputed reports/test_browser.py studies/test_digests.py studies/test_judging.py \
  studies/test_lean.py studies/test_ray.py studies/test_replication.py studies/test_sizing.py studies/test_stacking.py \
  studies/test_statistics.py studies/test_verdicts.py studies/test_windows.py studies/test_workers.py \
  test_architecture.py test_benchmarks.py test_clusters.py test_dependencies.py test_duplicates.py test_gpu.py \
  test_negative_control.py test_reproduction.py test_sizes.py
LOWEST_TESTS := tests $(LOWEST_IGNORED:%=--ignore=tests/%)

# Later Pythons, each as `python<version>` on the path, or named: `make test-matrix PYTHON_3.13=/path/to/python3.13`.
MATRIX ?= 3.12 3.13
MATRIX_TESTS := tests/test_storage.py tests/tasks tests/data tests/experiments tests/models tests/cli

# One thread a process: tensors are small, and tests and demo run processes side by side.
export OMP_NUM_THREADS := 1
export GOMP_SPINCOUNT := 0
export MPLBACKEND := Agg
export TOKENIZERS_PARALLELISM := false
export PIP_DISABLE_PIP_VERSION_CHECK := 1

PYTEST := -m pytest -q -n $(WORKERS) --dist worksteal

.DEFAULT_GOAL := help
.PHONY: help setup demo docs test test-slow test-lowest test-matrix test-tools test-transformers test-gpu check format bench \
  clean distclean

help:  ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## /  \1 :: /' | awk -F ' :: ' '{printf "%-16s%s\n", $$1, $$2}'

setup: $(READY)  ## make .venv with the tested set

$(READY): pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
	  { echo "Python 3.11 or later is needed: make PYTHON=/path/to/python3.11"; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(RUN) -m pip install -q -c $(CONSTRAINTS) torch
	$(RUN) -m pip install -q -c $(CONSTRAINTS) -e '.[dev,cpu,docs]'
	@touch $@

demo: export HF_HUB_OFFLINE := 1
demo: $(READY)  ## train four mixers on two tasks: a table, figures and a page under results/demo
	$(RUN) -m hf_memory.cli demo --output-dir results/demo

docs: export HF_HUB_OFFLINE := 1
docs: $(READY)  ## build the site into build/docs, offline, with warnings as errors
	$(RUN) -m sphinx -q -W --keep-going -j $(WORKERS) -b html docs build/docs
	@echo "site: build/docs/index.html"

test: export HF_HUB_OFFLINE := 1
test: $(READY)  ## run the tests
	$(RUN) $(PYTEST)

test-slow: export HF_HUB_OFFLINE := 1
test-slow: $(READY)  ## run the tests marked slow
	$(RUN) $(PYTEST) -m slow --timeout 900

# Built from source distributions in part, so in an environment of their own.
.venv-tools/.ready: pyproject.toml $(CONSTRAINTS)
	$(PYTHON) -m venv --clear .venv-tools
	.venv-tools/bin/python -m pip install -q -c $(CONSTRAINTS) torch
	.venv-tools/bin/python -m pip install -q -c $(CONSTRAINTS) -e '.[cpu,tools]' pytest pytest-timeout
	@touch $@

test-tools: export HF_HUB_OFFLINE := 1
test-tools: .venv-tools/.ready  ## run the tests that need the packages of the extra `tools`: PEFT, TRL, lm-eval, DeepSpeed
	.venv-tools/bin/python -m pytest -q -m tools tests/tools

test-transformers: $(READY)  ## run the common tests of transformers on all types; they are fetched once
	tests="$$($(RUN) tests/upstream/fetch.py)" && HF_HUB_OFFLINE=1 HF_MEMORY_TRANSFORMERS_TESTS="$$tests" \
	  $(RUN) -m pytest -q -c tests/upstream/pytest.ini --rootdir . -n $(WORKERS) --dist loadscope tests/upstream

test-gpu: export HF_HUB_OFFLINE := 1
test-gpu: $(READY)  ## run the tests that need a CUDA device or the kernels' packages
	$(RUN) -m pytest -q -m 'gpu or kernels'

check: $(READY)  ## lint, format, types, architecture, dependencies, copies, sizes
	$(RUN) -m ruff check .
	$(RUN) -m ruff format --check .
	$(RUN) -m mypy
	$(RUN) -m pytest -q tests/test_architecture.py tests/test_dependencies.py tests/test_duplicates.py tests/test_sizes.py

format: $(READY)  ## apply what `make check` would ask for
	$(RUN) -m ruff check --fix .
	$(RUN) -m ruff format .

# torch first, so that nothing pulls in another build.
$(LOWEST_READY): pyproject.toml $(LOWEST_CONSTRAINTS)
	$(PYTHON) -m venv --clear $(LOWEST_VENV)
	$(LOWEST_RUN) -m pip install -q -c $(LOWEST_CONSTRAINTS) torch
	$(LOWEST_RUN) -m pip install -q -r $(LOWEST_CONSTRAINTS) -e '.[cpu]'
	@touch $@

test-lowest: export HF_HUB_OFFLINE := 1
test-lowest: $(LOWEST_READY)  ## run what meets other packages on the oldest releases that are accepted
	$(LOWEST_RUN) $(PYTEST) $(LOWEST_TESTS)

# torch comes from the package index, where its builds for Linux may be those for CUDA, of several gigabytes.
.venv-%/.ready: pyproject.toml $(CONSTRAINTS)
	$(or $(PYTHON_$*),python$*) -m venv --clear .venv-$*
	.venv-$*/bin/python -m pip install -q -c $(CONSTRAINTS) torch
	.venv-$*/bin/python -m pip install -q -c $(CONSTRAINTS) -e '.[cpu]' pytest pytest-xdist pytest-timeout tensorboard
	@touch $@

.PHONY: $(MATRIX:%=test-python-%)
$(MATRIX:%=test-python-%): export HF_HUB_OFFLINE := 1
$(MATRIX:%=test-python-%): test-python-%: .venv-%/.ready
	.venv-$*/bin/python $(PYTEST) $(MATRIX_TESTS)

test-matrix: $(MATRIX:%=test-python-%)  ## run a part of the tests on later releases of Python

bench: $(READY)  ## measure speed on this CPU, in ratios; written to results/cpu
	$(RUN) -m benchmarks.cpu --output results/cpu

clean:  ## remove caches and build products; results stay
	rm -rf build dist docs/mixers docs/tasks docs/reference docs/sources .pytest_cache .ruff_cache .mypy_cache
	find . -path './.venv*' -prune -o -name __pycache__ -type d -exec rm -rf {} +

distclean: clean  ## remove the environments as well
	rm -rf $(VENV) $(LOWEST_VENV) .venv-tools $(MATRIX:%=.venv-%)
