# The two commands: `make demo` and `make test`. Everything lives in .venv, which is made when it is missing.

PYTHON ?= $(shell for p in python3 python3.13 python3.12 python3.11 python; do \
	$$p -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)
VENV ?= .venv
BIN := $(VENV)/bin
NATIVE := $(foreach kind,CMakeLists.txt *.h *.inc *.cpp,$(wildcard src/forerun/native/$(kind)))
ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help install demo test native lint types docs oracle format clean

help: ## Show what there is
	@grep -E '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | expand -t 12

install: $(VENV)/.base ## Make .venv and install forerun into it
	@echo "the command is $(BIN)/forerun"

demo: $(VENV)/.base ## Answer a question with speculation, then without, and compare
	@$(BIN)/python examples/compare.py

test: $(VENV)/.base $(VENV)/.extra-test ## Run all tests (ARGS="tests/unit -k stop" for some)
	$(BIN)/python -m pytest $(ARGS)

native: $(VENV)/.base $(VENV)/.extra-native ## Build the C++ tests of the compiled core and run them
	$(BIN)/cmake -S src/forerun/native -B build/native -DFORERUN_MODULE=OFF -DFORERUN_TESTS=ON
	$(BIN)/cmake --build build/native --parallel 2
	$(BIN)/ctest --test-dir build/native --no-tests=error --output-on-failure

lint: $(VENV)/.base $(VENV)/.extra-lint ## Check style and formatting
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(VENV)/.base $(VENV)/.extra-lint $(VENV)/.extra-test ## Check types
	$(BIN)/mypy src tests examples

docs: $(VENV)/.base $(VENV)/.extra-docs ## Build the documentation as a site, in build/site
	$(BIN)/mkdocs build --strict

oracle: $(VENV)/.base $(VENV)/.extra-oracle ## Install transformers, which some tests compare with

format: $(VENV)/.base $(VENV)/.extra-lint ## Rewrite sources in the project's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## Remove .venv and caches
	rm -rf $(VENV) build .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "forerun needs Python 3.11 or newer; install it, or say make PYTHON=/path/to/python"; exit 1; }
	@echo "making $(VENV)"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); echo "python cannot make a virtual environment;" \
		"install its venv module (python3-venv on Debian and Ubuntu)"; exit 1; }

# An editable install: Python files are used in place, so only these call for another one.
$(VENV)/.base: pyproject.toml $(NATIVE) | $(BIN)/python
	@echo "installing forerun into $(VENV)"
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable .
	@touch $@

# An extra's packages alone: installing `.[extra]` would build forerun once more.
$(VENV)/.extra-%: pyproject.toml | $(VENV)/.base
	@echo "installing what '$*' needs"
	@$(BIN)/python -c "import tomllib; \
	print(*tomllib.load(open('pyproject.toml', 'rb'))['project']['optional-dependencies']['$*'], sep='\n')" > $(VENV)/$*.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement $(VENV)/$*.txt
	@touch $@
