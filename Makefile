# Two commands to know: `make demo` and `make test`.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo federation-demo test bench docs browser clean

demo: .venv/runtime
	$(BIN)/perinvfl run experiments/demo.toml

# A server and four sites as processes on this machine, TLS and authentication on.
federation-demo: .venv/federation
	rm -rf runs/federation
	$(BIN)/python -m scripts.federation_demo

test: .venv/dev browser docs
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/pytest -n 2 -q

docs: .venv/dev
	$(BIN)/python -m sphinx --fresh-env --fail-on-warning --keep-going --quiet docs build/docs

# The report is tested in a real browser.
browser:
	@sh scripts/get_chromium.sh

bench: .venv/dev
	$(BIN)/python -m benchmarks

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
