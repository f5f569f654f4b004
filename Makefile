# Three commands to know:
#   make demo    a first experiment
#   make check   while you work: lint, types, import rules and the quick tests; under a minute on two idle
#                cores, once mypy has filled its cache
#   make test    everything, before a change is handed in: also the documentation, a browser, real processes and the
#                published records; about a quarter of an hour on two idle cores
PYTHON ?= python3
BIN := .venv/bin
# What `make check` tests: one client's mathematics, the algorithms, records and results, and the house rules.
QUICK := tests/core tests/learning tests/algorithms tests/results tests/test_house.py tests/flower/test_codec.py \
	tests/runs/test_asked.py tests/runs/test_records.py tests/runs/test_open_prepared.py

.PHONY: demo federation-demo check lint types quick test fuzz soak bench docs browser wheel installs clean

demo: .venv/runtime
	$(BIN)/perinvfl demo

# A server and four sites as processes on this machine, TLS and authentication on.
federation-demo: .venv/federation
	rm -rf runs/federation
	$(BIN)/perinvfl federation local experiments/federation.toml

check: .venv/dev
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target lint types quick

test: .venv/dev
	@$(MAKE) --no-print-directory --jobs=2 --output-sync=target browser docs lint types
	$(BIN)/pytest -n 2 -q --max-worker-restart=0

lint: .venv/dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports

types: .venv/dev
	$(BIN)/mypy

quick: .venv/dev
	$(BIN)/pytest -n 2 -q -m "not slow" $(QUICK)

# Odd experiment files, data files and messages, with a fresh seed, for as long as it is told: make fuzz SECONDS=600
fuzz: .venv/dev
	$(BIN)/python -m tests.fuzz --seconds $(or $(SECONDS),60)

# Two hours of runs with random faults, on one machine and across processes; what grows beyond the records fails it:
# make soak SECONDS=1200
soak: .venv/dev
	$(BIN)/python -m tests.soak --seconds $(or $(SECONDS),7200)

docs: .venv/dev
	$(BIN)/python -m sphinx --fresh-env --fail-on-warning --keep-going --quiet docs build/docs

# dist/: the wheel and the source archive.
wheel: .venv/dev
	$(BIN)/hatchling build

# The wheel installed by pip with each extra alone, and on every Python from 3.11 to 3.13 that is found; downloads PyTorch
# for each environment. The tests do the same with links to what is installed already.
installs: .venv/dev
	$(BIN)/python -m tests.install

# The report is tested in a real browser.
browser:
	@sh scripts/get_chromium.sh

# All targets as ratios in one table; make bench SHORT=1 takes some minutes.
bench: .venv/dev
	$(BIN)/python -m benchmarks $(if $(SHORT),--short)

# The environment, in two steps: what running needs, and what testing needs besides.
.venv/runtime: pyproject.toml constraints.txt
	$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("perinvfl needs Python 3.11 or later; try make PYTHON=python3.11")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable .
	touch $@

.venv/federation: .venv/runtime
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[federation]'
	touch $@

.venv/dev: .venv/runtime
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable '.[dev]'
	touch $@

clean:
	rm -rf .venv runs build
