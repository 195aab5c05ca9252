# Everything here needs python3 (3.11 or newer, with venv) and make:
#   make run         the demonstration: an agent repairs a small project
#   make test        the quick tests, for every change
#   make test-all    these and the slow ones: faults, hunts, soak, long sessions
#   make test-slow SEED=N   a fifteenth of the slow ones, chosen by N
#   make test-second a fifth of tests/unit with a second interpreter
# `uv` is used where it is installed, else venv and pip.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
BENCH  ?= loop
UV     ?= $(shell command -v uv 2>/dev/null)
INPUTS := pyproject.toml uv.lock Makefile

# Compiled modules are kept, whatever the caller says: the tests start the program some hundred times.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: run test test-slow test-second test-all lint format bench mutants clean

run: $(VENV)/.ready-run
	@scratch=$$(mktemp -d "$${TMPDIR:-/tmp}/agent-host-demo.XXXXXX") && \
	cp -R examples/payment-ledger/. "$$scratch" && \
	$(BIN)/agent-host run "The tests of this project fail. Find out why, fix the bug, and show that they pass." \
	    --workspace "$$scratch" --policy ci --gateway mock:examples/fix-the-bug.toml && \
	echo "workspace: $$scratch" >&2

# One process more than there are cores (see tests/conftest.py); `make test WORKERS=0` runs them all in one.
WORKERS ?= auto
PYTEST  := $(BIN)/python -m pytest -n $(WORKERS) --dist worksteal

test: $(VENV)/.ready-test
	$(PYTEST) -m "not slow" $(PYTEST_ARGS)

test-slow: $(VENV)/.ready-test
	$(PYTEST) -m slow $(if $(SEED),--sample $(SEED)) $(PYTEST_ARGS)

test-all: test test-slow

# With a second interpreter, where one is installed: SECOND=PATH names it, SEED=N takes the fifth of before once more, and
# FIFTH= all of tests/unit.
FIFTH = --fifth $(or $(SEED),$(shell date +%s))
test-second:
	@second="$(or $(SECOND),$$(PYTHON=$(PYTHON) .ci/second-python))"; if [ -z "$$second" ]; then \
	    echo "no second Python is installed (3.13, 3.12 or 3.11): tests/unit run with $(PYTHON) alone"; \
	else \
	    $(MAKE) --no-print-directory test VENV=.venv-second PYTHON="$$second" PYTEST_ARGS="tests/unit $(FIFTH) $(PYTEST_ARGS)"; \
	fi


lint: $(VENV)/.ready-lint
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy --num-workers 2
	$(BIN)/lint-imports

format: $(VENV)/.ready-lint
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# One benchmark, the loop unless named: make bench BENCH="policy --quick"
bench: $(VENV)/.ready-test
	$(BIN)/python -m benchmarks $(BENCH)

# Which small errors in policy and state no test notices: make mutants MUTANTS="policy --sample 300"
mutants: $(VENV)/.ready-test
ifdef MUTANTS
	$(BIN)/python -m tests.support.mutants $(MUTANTS)
else
	$(BIN)/python -m tests.support.mutants policy
	$(BIN)/python -m tests.support.mutants state
endif

clean:
	rm -rf .mutants $(VENV) .venv-second .venv-uv build dist .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

# One stamp a set of packages; a stamp is made anew when what it was made from changed.
ifneq ($(UV),)
# The system's certificates, like pip: a company's own proxy is known to them and not to uv. Two names, old and new.
export UV_NATIVE_TLS := 1
export UV_SYSTEM_CERTS := 1
export UV_COMPILE_BYTECODE ?= 1
export UV_PROJECT_ENVIRONMENT := $(VENV)
INSTALL = $(UV) sync --quiet --frozen --inexact --no-default-groups $(patsubst %,--group %,$(1))
$(VENV)/.made:
	@$(UV) venv --quiet --seed --allow-existing $(if $(filter-out python3,$(PYTHON)),--python $(PYTHON)) $(VENV) && touch $@
else
INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --editable . $(patsubst %,--group %,$(1))
$(VENV)/.made:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "agent-host needs Python 3.11 or newer")'
	$(PYTHON) -m venv $(VENV)
	@# Dependency groups need a pip of 2025 or later; the one that venv brings may be older.
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --upgrade "pip>=25.1"
	@touch $@
endif

$(VENV)/.ready-run: $(VENV)/.made $(INPUTS)
	@echo "preparing $(VENV)" >&2
	$(call INSTALL,)
	@$(BIN)/python -m compileall -q agent_host tool_runtime policy state config
	@touch $@

$(VENV)/.ready-test: $(VENV)/.made $(INPUTS)
	$(call INSTALL,test)
	@$(BIN)/python -m tests.support.node_packages
	@touch $@ $(VENV)/.ready-run

$(VENV)/.ready-lint: $(VENV)/.made $(INPUTS)
	$(call INSTALL,lint)
	@$(BIN)/python -m tests.support.node_packages
	@touch $@ $(VENV)/.ready-test $(VENV)/.ready-run
