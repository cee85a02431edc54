# Every target makes the environment it needs; nothing else has to be installed first.
#   make run     a cluster on this machine: scheduler and agent, real GPUs if there are any, else virtual ones
#   make page    the dashboard, into src/gpuyard/page, with the machine's Node or one from PyPI; `make run` does it, too
#   make test    set-up, checks and all tests: what has to pass before anything is merged
#   make quick   style, types, unit tests and stories without the slow ones: while you work, in less than 90 seconds
#   make check   style, types, import rules
#   make bench   the benchmarks of engine and journal, as JSON, into build/
#   make tables  the tables of the documentation, from benchmarks/results
#   make results [TRACES=FOLDER]   the results of the simulator's tables anew, from public traces, then the tables; takes an hour or more
#   make proto   the messages of proto/ as Python, into src/gpuyard/live/wire
#   make docs    the drawings and tables of the manual that are made from the code
#   make site    the manual as a site with search, into build/site
#   make changelog VERSION=x.y.z   the section of a version in CHANGELOG.md, from the files of changes/
#   make clean   remove all generated files

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Python keeps what it has compiled, whatever the environment says: tests start some thousand processes.
unexport PYTHONDONTWRITEBYTECODE
# Two more than there are cores, and 8 at most: a test that waits for a process leaves its core idle.
WORKERS ?= $(shell n=$$(nproc); [ $$n -gt 6 ] && echo 8 || expr $$n + 2)

.PHONY: run page test quick check style bench tables results proto docs site changelog clean
.DEFAULT_GOAL := test

# Without the page (no network for its build) the scheduler works, too.
run: $(VENV)/.core
	@$(MAKE) --no-print-directory page || echo "The dashboard could not be built; the cluster starts without it."
	@$(BIN)/gpuyard up

PAGE := src/gpuyard/page/index.html
PAGE_SOURCES := $(shell find dashboard/src dashboard/public dashboard/*.* src/gpuyard/cli/sample_workload.json -type f 2>/dev/null)
page: $(PAGE)
$(PAGE): $(PAGE_SOURCES) tools/page_build.py | $(VENV)/.core
	@$(BIN)/python -m tools.page_build

# mypy uses one core for a minute when it has no cache, and so does the compiler of the planner: each on one core. Without it every
# worker of pytest would compile the same functions.
test: style $(PAGE)
	@mkdir -p build
	@$(BIN)/python -m tools.debian_tools || echo "Tests with a real Prometheus will try it again."
	@$(BIN)/mypy > build/mypy.log 2>&1 & types=$$!; \
	$(BIN)/python -c 'from gpuyard.cli.plan.first_use import compile_all; compile_all()'; \
	$(BIN)/pytest -n $(WORKERS) --dist worksteal; tests=$$?; \
	[ $$tests != 1 ] || { $(BIN)/python -m tools.repeat_failed; tests=$$?; }; \
	wait $$types; types=$$?; cat build/mypy.log; [ $$tests = 0 ] && [ $$types = 0 ]

quick: style
	@$(BIN)/mypy
	@$(BIN)/pytest -q -n $(WORKERS) --dist worksteal -p no:schemathesis -m 'not slow' tests/unit tests/simulation

check: style
	@$(BIN)/mypy

style: $(VENV)/.dev
	@$(BIN)/ruff check . && $(BIN)/ruff format --check .
	@$(BIN)/lint-imports --no-cache

bench: $(VENV)/.core
	@mkdir -p build
	$(BIN)/python benchmarks/engine.py --json > build/bench-engine.json
	$(BIN)/python benchmarks/journal.py --json > build/bench-journal.json
	@echo "written: build/bench-engine.json build/bench-journal.json"

TRACES ?= ../shared/traces
tables: $(VENV)/.core
	@$(BIN)/python benchmarks/tables.py

# One after the other; each continues after an interruption if the commit is the same.
results: $(VENV)/.dev
	@for part in published mixes parts elastic; do \
	  $(BIN)/python benchmarks/policies.py $$part $(foreach folder,$(TRACES),--traces $(folder)) || exit 1; done
	@$(BIN)/python benchmarks/heterogeneous.py --traces $(firstword $(TRACES))
	@$(BIN)/python benchmarks/tables.py

proto: $(VENV)/.dev
	@mkdir -p build/proto
	@$(BIN)/python -m grpc_tools.protoc -I proto --python_out=build/proto --pyi_out=build/proto proto/gpuyard/v1/agents.proto
	@cp build/proto/gpuyard/v1/agents_pb2.py build/proto/gpuyard/v1/agents_pb2.pyi src/gpuyard/live/wire/

docs: $(VENV)/.core
	@$(BIN)/python -m tools.manual --out docs/manual

site: $(VENV)/.dev
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet
	@echo "written: build/site; read it with: $(BIN)/python -m http.server --directory build/site"

changelog: $(VENV)/.dev
	@[ -n "$(VERSION)" ] || { echo "name the version: make changelog VERSION=x.y.z"; exit 2; }
	@$(BIN)/towncrier build --yes --version $(VERSION)

clean:
	rm -rf $(VENV) build dist dashboard/node_modules src/gpuyard/page .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Debian splits venv off from python3; the second line says so instead of pip's stack trace.
$(VENV)/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "gpuyard needs Python 3.11 or newer; name one with: make PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); [ "$$(id -u)" = 0 ] && apt-get update -qq && apt-get install -y -qq python3-venv && $(PYTHON) -m venv $(VENV); } \
	  || { rm -rf $(VENV); echo "This Python has no venv; install it with: sudo apt-get install python3-venv"; exit 1; }

$(VENV)/.core: pyproject.toml | $(VENV)/bin/python
	@$(BIN)/pip install --quiet --editable .
	@touch $@

# The browser tests drive Debian's chromium; its own fonts draw boxes for Chinese.
$(VENV)/.dev: pyproject.toml | $(VENV)/bin/python
	@$(BIN)/pip install --quiet --editable '.[dev]'
	@command -v chromium > /dev/null || { [ "$$(id -u)" = 0 ] && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends chromium fonts-wqy-microhei > /dev/null; } \
	  || echo "The browser tests are skipped without chromium; install it with: sudo apt-get install chromium fonts-wqy-microhei"
	@touch $(VENV)/.core $@
