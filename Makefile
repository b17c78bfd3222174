# Every target sets up .venv by itself; needs Python 3.11 or newer, and make.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow lint format lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(READY) ## Train on a small data set and show the result
	@$(BIN)/python -m autogp.demo

test: lint ## Lint, types and all tests but the slow ones
	$(BIN)/python -m pytest

test-slow: $(READY) ## The proofs and soak tests that take minutes
	$(BIN)/python -m pytest -m slow -o timeout=7200

lint: $(READY) ## Lint, formatting and types
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyright

format: $(READY) ## Put the code in the house's format
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

lock: ## Resolve the newest dependencies anew and pin them
	rm -rf .venv && $(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet torch==2.13.0
	$(BIN)/pip install --quiet --editable . --group dev
	(head -1 requirements.lock; $(BIN)/pip freeze --exclude-editable | sed 's/+cpu//') > requirements.new
	mv requirements.new requirements.lock && touch $(READY)

clean: ## Remove what the targets made
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis demo

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("autogp needs Python 3.11 or newer: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $(READY)
