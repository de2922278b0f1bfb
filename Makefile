# Two commands matter: `make demo` and `make test`. Both work as the first and only command on a bare
# Debian-like machine with cargo and Python 3.10+.

VENV := .venv
PY := $(VENV)/bin/python
BENCH_ENV := .bench-env
REQUIREMENTS := bindings/python/requirements.txt
PACKAGE := bindings/python/python/forebay
# nextest where it is installed, cargo's own runner elsewhere.
RUN_TESTS := $(shell cargo nextest --version >/dev/null 2>&1 && echo "nextest run --cargo-profile ci" || echo "test --profile ci --lib --bins --tests")
DENY_VERSION := 0.20.2

.PHONY: help setup build demo test test-long lint rust-tests python-tests deny bench-env wheel requirements clean

help: ## what there is
	@grep -E '^[a-z-]+:.*##' Makefile | sed 's/:.*## /\t/' | expand -t 16

setup: $(VENV)/.ready

$(VENV)/.ready: $(REQUIREMENTS) tools/setup.sh
	@tools/setup.sh $(VENV) $(REQUIREMENTS)

build: setup ## the program and the Python package, optimised, into .venv
	cargo build --release --locked -p forebay-cli
	mkdir -p $(PACKAGE)/bin && cp target/release/forebay $(PACKAGE)/bin/forebay
	VIRTUAL_ENV=$(abspath $(VENV)) $(VENV)/bin/maturin develop --release --locked -q -m bindings/python/Cargo.toml

demo: build ## four training jobs on generated images, sharing and each on its own
	target/release/forebay demo --python $(PY)

test: setup lint rust-tests python-tests ## everything CI runs, under 20 minutes on two cores

test-long: export FOREBAY_TEST_LONG = 1
test-long: export PROPTEST_CASES = 10000
test-long: setup lint rust-tests python-tests deny ## the full counts, and cargo-deny

lint: setup
	cargo fmt --all --check
	cargo clippy --profile ci --locked --workspace --all-targets -- -D warnings
	$(VENV)/bin/ruff check bindings/python examples
	$(VENV)/bin/ruff format --check bindings/python examples
	$(VENV)/bin/mypy --strict --config-file bindings/python/pyproject.toml $(PACKAGE)

rust-tests: setup
	cargo $(RUN_TESTS) --locked --workspace
	cargo test --profile ci --doc --locked --workspace

python-tests: setup
	cargo build --profile ci --locked -p forebay-cli
	VIRTUAL_ENV=$(abspath $(VENV)) $(VENV)/bin/maturin develop --profile ci --locked -q -m bindings/python/Cargo.toml
	FOREBAY_BIN=$(abspath target/ci/forebay) $(PY) -m pytest -q bindings/python

deny: ## licences, sources and advisories of all dependencies
	cargo deny --version >/dev/null 2>&1 || cargo install --locked cargo-deny@$(DENY_VERSION)
	cargo deny --locked check bans licenses sources
	cargo deny --locked check advisories || echo "NOTE: advisories were not checked (is the network there?)"

bench-env: build ## a Python environment with every loader that `forebay bench` compares
	crates/cli/bench-env.sh $(BENCH_ENV)
	VIRTUAL_ENV=$(abspath $(BENCH_ENV)) $(VENV)/bin/maturin develop --release --locked -q -m bindings/python/Cargo.toml

wheel: build ## an abi3 wheel that carries the program, in target/wheels
	$(VENV)/bin/maturin build --release --locked -m bindings/python/Cargo.toml

requirements: setup ## pin requirements.in anew
	$$(command -v uv || echo $(VENV)-uv/bin/uv) pip compile --universal --python-version 3.10 --no-header -q bindings/python/requirements.in -o $(REQUIREMENTS)

clean:
	rm -rf target $(VENV) $(VENV)-uv $(BENCH_ENV) $(PACKAGE)/bin data
