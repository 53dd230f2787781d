# Everything a contributor does, by one name each. Needs python3 (3.11 or newer, with venv), pip, make and git.
# `make PYTHON=/path/to/python` chooses the interpreter of a new .venv; by default the first one that is new enough.

.DEFAULT_GOAL := help
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DELETE_ON_ERROR:

PYTHON ?= $(shell for p in python3 python3.11 python3.12 python3.13 python3.14; do \
	"$$p" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && { echo "$$p"; break; }; done)
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --quiet --no-input install --constraint constraints.txt
# Three processes for two cores, since tests wait for timers and other processes half of their time; one file each at a time:
# tests of one file may share an expensive fixture. One process gets all clusters of real processes: with two clusters at once
# their nodes get too little of the processor, and hold elections that no test expects.
WORKERS ?= 3
# Hundreds of processes import the product: once compiled, they do so in two thirds of the time, also where Python may write no
# bytecode of its own (PYTHONDONTWRITEBYTECODE, as container images set it).
# Test modules are compiled as pytest does it: all of its processes collect them all, and each would do so for nine seconds.
COMPILE := $(BIN)/python -m compileall -q -j 0 -x '/(test_|conftest)[^/]*$$' cmdlog procedures replay snapshot tests bench && \
	PYTHONDONTWRITEBYTECODE= $(BIN)/python -m tests.kept_asserts
# Under the hash seed of sites small replays need no process of their own; tests of other seeds start theirs.
PYTEST := PYTHONHASHSEED=0 PYTHONDONTWRITEBYTECODE= $(BIN)/python -m pytest -q

help: ## this list
	@sed -nE 's/^([a-z-]+):.*## (.*)/\1\t\2/p' Makefile | while IFS=$$'\t' read -r name text; do printf '%-12s %s\n' "$$name" "$$text"; done

demo: $(VENV)/.installed ## install, then run the main job: load, kill -9, recover, prove
	$(BIN)/cmdlog demo

demo-cluster: $(VENV)/.installed ## install, then kill and stop the leaders of three nodes under load, change members, and prove
	$(BIN)/cmdlog cluster demo

demo-spark: $(VENV)/.installed-spark ## install Spark, then query, rebuild and back-fill a log on it
	$(BIN)/cmdlog spark demo

test: $(VENV)/.installed-test ## every test except torture, fuzz and sim
	@$(COMPILE)
	$(PYTEST) -n $(WORKERS) --dist loadfile

test-pure: $(VENV)/.installed-test ## tests of procedures and replay without the steps in C
	@$(COMPILE)
	CMDLOG_NATIVE=0 $(PYTEST) -n $(WORKERS) --dist loadfile tests/procedures tests/replay

check: lint types imports test ## what has to pass before a change is merged

check-fast: lint types imports test-fast ## the same without slow tests, under a minute

test-fast: $(VENV)/.installed-test
	@$(COMPILE)
	$(PYTEST) -n $(WORKERS) --dist loadfile -m 'not slow'

lint: $(VENV)/.installed-test ## format and rules of ruff
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: $(VENV)/.installed-test ## mypy --strict
	$(BIN)/mypy

imports: $(VENV)/.installed-test ## the import contract of the layers
	$(BIN)/lint-imports --no-logo

format: $(VENV)/.installed-test ## rewrite the code in the one format, sort imports
	$(BIN)/ruff check --select I --fix .
	$(BIN)/ruff format .

torture: $(VENV)/.installed-test ## kill the real server in a loop, for minutes: make torture SEEDS=200 CAMPAIGN_S=600
	SEEDS=$(if $(filter command line environment,$(origin SEEDS)),$(SEEDS)) $(PYTEST) -m torture --timeout 0

fuzz: $(VENV)/.installed-test ## random input and random faults, for minutes
	$(PYTEST) -m fuzz --timeout 0

SEEDS ?= 10000
CLUSTER_SEEDS ?= 500
MEMBER_SEEDS ?= 2000
ELECTION_SEEDS ?= 200
sim: $(VENV)/.installed-test ## simulate consensus and clusters: make sim SEEDS=10000 CLUSTER_SEEDS=500 MEMBER_SEEDS=2000
	$(BIN)/python -m tests.raft.sim --seeds $(SEEDS)
	$(BIN)/python -m tests.raft.sim --elections --seeds $(ELECTION_SEEDS)
	PYTHONHASHSEED=0 $(BIN)/python -m tests.cluster.sim --seeds $(CLUSTER_SEEDS)
	PYTHONHASHSEED=0 $(BIN)/python -m tests.cluster.sim --membership --seeds $(MEMBER_SEEDS)

mutants: $(VENV)/.installed-test ## plant every known defect in consensus core and cluster; each must be caught
	$(BIN)/python -m tests.raft.mutants
	PYTHONHASHSEED=0 $(BIN)/python -m tests.cluster.mutants

# One that fails does not keep the others from the report.
bench: $(VENV)/.installed ## run the benchmarks, write a page of all figures: make bench QUICK=1
	failed=0; for script in $(filter-out bench/report.py,$(wildcard bench/[!_]*.py)); do \
		echo "== $$script"; $(BIN)/python "$$script" $(if $(QUICK),--quick) || failed=1; done; \
	$(BIN)/python bench/report.py; exit $$failed

map: $(VENV)/.installed-test ## write the module maps from the docstrings
	$(BIN)/python -m tests.project.module_map

hashes: $(VENV)/.installed-test ## write the hashes of what a server's image installs, from constraints.txt
	$(BIN)/python -m tests.project.wheel_hashes

clean: ## remove what the tools wrote; .venv stays until `make distclean`
	rm -rf build dist bench/out *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find cmdlog procedures replay snapshot tests bench -name __pycache__ -type d -prune -exec rm -rf {} + 2>/dev/null || true

distclean: clean ## clean, and remove .venv and what was compiled
	rm -rf $(VENV) procedures/native/*.so cmdlog/api/native/*.so cmdlog/wal/native/*.so

$(BIN)/python:
	@[[ -n "$(PYTHON)" ]] || { echo 'cmdlog needs Python 3.11 or newer with venv: make PYTHON=/path/to/python3.11' >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Steps in C are built where a compiler is; the package works without.
NATIVE := $(wildcard procedures/native/*.[ch] cmdlog/api/native/*.c cmdlog/wal/native/*.[ch])

# The stamps are newer than what they were made from, so that an unchanged project installs nothing.
$(VENV)/.installed: pyproject.toml constraints.txt $(NATIVE) | $(BIN)/python
	$(PIP) --editable .
	@touch $@

$(VENV)/.installed-test: pyproject.toml constraints.txt $(NATIVE) | $(BIN)/python
	$(PIP) --editable '.[test]'
	@touch $(VENV)/.installed $@

$(VENV)/.installed-spark: pyproject.toml constraints.txt $(NATIVE) | $(BIN)/python
	$(PIP) --editable '.[spark,spark-java]'
	@touch $(VENV)/.installed $@

.PHONY: help demo demo-cluster demo-spark test test-fast test-pure check check-fast lint types imports format torture fuzz sim mutants bench map hashes clean distclean
