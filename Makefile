# Everything sets itself up: a virtual environment in .venv, made again when pyproject.toml changes.
# Needs python3 (3.11 or newer, with venv) and make. Another Python: make test PYTHON=python3.13

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PACKAGE := $(VENV)/.package
READY := $(VENV)/.ready
BROWSER := $(VENV)/.browser
FUZZ := $(VENV)/.fuzz
DOCS := $(VENV)/.docs
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check

# Tests start hundreds of processes: each of them loads compiled modules, also where the environment forbids to write them.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-all tests test-nodes check types types-of-tests style imports page reference docs pictures bench contract sim fuzz dist compat release clean help

help:
	@echo "make demo      an order survives three kill -9, with proof (about ten seconds)"
	@echo "make test      all checks, and the tests of a change; ends with the ten slowest"
	@echo "make test-all  all checks and all tests, also those marked 'full'; make test TEST_ALL=1 is the same"
	@echo "make test-nodes  the tests over HTTP and of the scenarios, with three nodes instead of one server"
	@echo "make check     linters, formatter, types, import rules"
	@echo "make reference  what is made from the code: the client without await, parts of docs/reference"
	@echo "make docs      the documentation as a site, in build/site"
	@echo "make pictures  the pictures of the operator's page in README and docs"
	@echo "make contract  what of the contract is proven"
	@echo "make sim       bad days, simulated: SEEDS=2000, or SEED=7 for one of them; see docs/explanation/simulator.md"
	@echo "make fuzz      generated requests to every route of a server: SECONDS=60 SEED=1"
	@echo "make bench     what Backstay costs, in one table with budgets: AGAINST=COMMIT ONLY=w1,w2 ROUNDS=10 JSON=file"
	@echo "make dist      wheel, sdist, SBOM and checksums in dist/, built and checked; make release tags the commit, too"
	@echo "make compat    the wheel with each Python that is at hand, with the oldest and the newest dependencies"
	@echo "make clean     remove what the targets above have made"

demo: $(PACKAGE)
	@$(BIN)/dw demo

# Many tests wait for processes of their own: more of them at once than there are cores.
JOBS ?= $(shell echo $$(( $$(getconf _NPROCESSORS_ONLN) * 3 / 2 )))

# `make test` leaves out what is marked `full` (see CONTRIBUTING.md), unless somebody asks for everything: with TEST_ALL=1, in the
# environment too, or with [test-all] in the message of the last commit.
TEST_ALL ?= $(shell git log -1 --format=%B 2> /dev/null | grep -F -o -m 1 '[test-all]')
SELECT = $(if $(TEST_ALL),,-m 'not full')

test: check tests

test-all:
	$(MAKE) test TEST_ALL=1

tests: $(BROWSER)
	$(BIN)/python -m tools.run_tests -n $(JOBS) --dist worksteal --durations 10 $(SELECT)

# Every request goes to any of three nodes of one PostgreSQL: with links between them, without, and without sessions that show
# who is alive.
NODE_TESTS := tests/interop tests/remote tests/scenarios
test-nodes: $(READY)
	$(BIN)/pytest -n $(JOBS) --nodes 3 $(NODE_TESTS)
	$(BIN)/pytest -n $(JOBS) --nodes 3 --links off $(NODE_TESTS)
	$(BIN)/pytest -n $(JOBS) --nodes 3 --sessions no tests/interop tests/scenarios

# The parts at the same time.
check: $(READY)
	@$(MAKE) --no-print-directory -j 3 types-of-tests types style imports page

types: $(READY)
	$(BIN)/pyright src examples

types-of-tests: $(READY)
	$(BIN)/pyright -p tests/pyrightconfig.json

style: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

imports: $(READY)
	$(BIN)/lint-imports

page: $(READY)
	$(BIN)/oxlint --deny-warnings --no-error-on-unmatched-pattern src/backstay/waterline/static
	$(BIN)/oxfmt --check src/backstay/waterline/static/js

reference: $(READY)
	$(BIN)/python -m tools.sync_client
	$(BIN)/python -m tools.reference

docs: $(DOCS)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict
	@echo "built: build/site/index.html"

# The pictures of README and docs, from a real server with a run in every state.
pictures: $(BROWSER)
	$(BIN)/python -m tests.waterline.shots docs/images --only overview,run-approval-1,run-shipping-1 --width 1280

contract: $(READY)
	$(BIN)/python tests/contract.py

SEEDS ?= 200
sim: $(READY)
	@$(BIN)/python -m tests.sim $(if $(SEED),--seed $(SEED),--seeds $(SEEDS)) $(if $(FIRST),--first $(FIRST)) \
	  $(if $(FAULTS),--faults '$(FAULTS)') $(if $(OPERATIONS),--operations $(OPERATIONS)) \
	  $(if $(INSTANCES),--instances $(INSTANCES)) $(if $(PLACES),--places $(PLACES)) $(if $(STORE),--store $(STORE)) \
	  $(if $(FAR),--far $(FAR)) $(if $(LINKS),--links $(LINKS)) $(if $(PUBLISHED),--published $(PUBLISHED)) \
	  $(if $(LINK),--link) $(if $(LOG),--log $(LOG))

SECONDS ?= 60
fuzz: $(FUZZ)
	$(BIN)/python -m tests.fuzz --seconds $(SECONDS) --seed $(or $(SEED),1)

bench: $(READY)
	$(BIN)/python bench/run.py $(if $(AGAINST),--against $(AGAINST)) $(if $(ONLY),--only $(ONLY)) $(if $(ROUNDS),--rounds $(ROUNDS)) \
	  $(if $(JSON),--json $(JSON))

dist: $(READY)
	$(BIN)/python -m tools.release --only-build

release: $(READY)
	$(BIN)/python -m tools.release

compat: $(READY)
	$(BIN)/python -m tools.compat $(if $(TESTS),--tests)

# What the demo and the README need: the package.
$(PACKAGE): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' \
	  || { echo "Backstay needs Python 3.11 or newer; name one with: make $(MAKECMDGOALS) PYTHON=python3.12" >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null \
	  || { echo "this Python cannot make virtual environments; on Debian and Ubuntu: apt install python3-venv" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)
	$(PIP) --editable .
	@touch $@

# What checks and tests need: its development tools as well.
$(READY): $(PACKAGE)
	$(PIP) --editable '.[dev]'
	@touch $@

# What the tests of the operator's page need: a Chromium, the machine's own or one that is installed; and where there is npm,
# TypeScript, which checks the types of its modules.
$(BROWSER): tools/chromium.py $(READY)
	$(BIN)/python -m tools.chromium
	@! command -v npm > /dev/null || npm install --silent --no-audit --no-fund --prefix $(VENV)/typescript typescript@7 \
	  || echo "TypeScript cannot be installed; the types of the page's modules are not checked" >&2
	@touch $@

# What only fuzzing needs, and what would make every other run of the tests slower to begin.
$(FUZZ): $(READY)
	$(PIP) --editable '.[dev,fuzz]'
	@touch $@

# What only the site needs.
$(DOCS): $(READY)
	$(PIP) --editable '.[dev,docs]'
	@touch $@

clean:
	rm -rf $(VENV) build dist .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find src tests examples bench -name __pycache__ -type d -prune -exec rm -rf {} +
