PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready

.PHONY: demo test test-oldest test-newest fuzz check format docs bench peers catalogue results clean

# What only the tests need: the models of the catalogue and the zoo, and what transformers and timm import.
MODELS := torchvision timm transformers huggingface_hub tokenizers regex tqdm httpx2 httpcore2 h11 truststore

# torch comes first and by its pinned version, so that nothing else chooses a build of it; what only the tests need comes
# without dependencies for the same reason.
$(READY): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt torch setuptools
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-build-isolation -e ".[dev]"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt --no-deps $(MODELS)
	touch $(READY)

# Prints a table and writes partialfusion-demo.html.
demo: $(READY)
	$(BIN)/partialfusion demo

test: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist loadscope

# The core of the tests with the oldest versions that pyproject.toml allows, and with the newest that there are. PyPI has
# PyTorch for x86-64 Linux only with CUDA; where another index has a plain build, name it: make test-oldest INDEX=https://…
OLDEST := .venv-oldest
NEWEST := .venv-newest
CORE := tests/test_invariants.py tests/kernels tests/solvers tests/features tests/surgery tests/files tests/cli
LOWEST = $(shell sed -n '/^dependencies/,/^]/s/^ *"\(.*\)>=\(.*\)",/\1==\2/p' pyproject.toml)
LATEST = $(shell sed -n '/^dependencies/,/^]/s/^ *"\(.*\)>=.*",/\1/p' pyproject.toml)
define core-with
$(PYTHON) -m venv $(1)
$(1)/bin/python -m pip install --quiet --disable-pip-version-check $(if $(INDEX),--extra-index-url $(INDEX)) \
	$(2) pytest hypothesis scikit-learn pillow matplotlib
OMP_NUM_THREADS=1 PYTHONPATH=$(CURDIR)/src $(1)/bin/python -m pytest $(CORE)
endef
test-oldest:
	$(call core-with,$(OLDEST),$(LOWEST))
test-newest:
	$(call core-with,$(NEWEST),--upgrade $(LATEST))

# Twenty thousand changed files and 140 kills, in ten to fifteen minutes on two cores, calls from eight threads, twenty
# rounds each, and two hundred random networks; less of all is among the tests.
fuzz: $(READY)
	OMP_NUM_THREADS=1 PARTIALFUSION_THREADS=8,20 $(BIN)/python -m pytest tests/test_alone.py -k threads
	cd tests && OMP_NUM_THREADS=1 PYTHONPATH=. ../$(BIN)/python -m fuzz.networks
	cd tests && OMP_NUM_THREADS=1 PYTHONPATH=. ../$(BIN)/python -m fuzz

check: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python -m pytest tests/test_imports.py
	$(MAKE) docs

# Every warning is an error: a link, an anchor or a name of the reference that leads nowhere. The variable silences a
# notice of the theme about its own future.
docs: $(READY)
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# BENCH=scale runs one of them; DEVICE=cuda computes the heavy parts of large models there, and compares it with the CPU.
bench: $(READY)
	DEVICE=$(DEVICE) $(BIN)/python -m benchmarks $(or $(BENCH),$(if $(DEVICE),scale))

# PEERS="--only ours --again" measures our own rows anew; with a path to a clone, other tools run too.
peers: $(READY)
	OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.peers $(PEERS)

catalogue: $(READY)
	$(BIN)/python -m tests.catalogue

results: $(READY)
	$(BIN)/partialfusion study run
	$(BIN)/partialfusion study report

clean:
	rm -rf $(VENV) $(OLDEST) $(NEWEST) site .pytest_cache .mypy_cache .ruff_cache
