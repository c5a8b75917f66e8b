VENV ?= .venv
BIN := $(VENV)/bin
# The newest supported Python in PATH; another one: make install PYTHON=/path/to/python3.12
PYTHON ?= $(shell for version in 3.13 3.12 3.11 3; do \
	"python$$version" -c 'import sys; sys.exit(not (3, 11) <= sys.version_info[:2] <= (3, 13))' 2>/dev/null \
	&& { echo "python$$version"; break; }; done)
# PyTorch without CUDA if this machine has no NVIDIA driver; with it in any case: make install TORCH_INDEX=
TORCH_INDEX ?= $(shell [ "$$(uname)" = Linux ] && ! command -v nvidia-smi >/dev/null && [ ! -e /proc/driver/nvidia ] \
	&& echo https://download.pytorch.org/whl/cpu)
# uv installs in seconds what takes pip minutes. It takes a mirror and a certificate from pip's variables.
UV := $(shell command -v uv || echo $(BIN)/uv)
ifdef PIP_INDEX_URL
export UV_DEFAULT_INDEX ?= $(PIP_INDEX_URL)
endif
ifdef PIP_CERT
export SSL_CERT_FILE ?= $(PIP_CERT)
endif
# The lock files list every dependency with its hashes.
LOCKED := $(UV) pip install --quiet --python $(BIN)/python --no-deps --require-hashes --requirement
PROJECT := $(UV) pip install --quiet --python $(BIN)/python --no-deps --build-constraints constraints.txt --editable .
# One core a process; compiled files are kept. Three files at a time, since some tests wait for processes.
RUNNING := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=
FILES := -n 3 --dist loadfile --no-loadscope-reorder
# Optional dependencies that `make install` brings
EXTRAS := dev he lightning onnx notebooks slurm
PACKAGES := fedmerit fedmerit_deploy fedmerit_data fedmerit_evaluation fedmerit_dossier fedmerit_lab fedmerit_cli

.DEFAULT_GOAL := help
.PHONY: help install demo test test-all soak check docs lock clean

help: ## This list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-9s %s\n", $$1, $$2}'

$(VENV)/bin/python:
	@[ -n "$(PYTHON)" ] || { echo "No Python 3.11, 3.12 or 3.13 is in PATH. Install one (Debian, Ubuntu: apt install python3 \
	python3-venv; elsewhere: https://www.python.org/downloads), or name it: make $(MAKECMDGOALS) PYTHON=/path/to/python3" >&2; exit 1; }
	@echo "Python: $(PYTHON) ($$($(PYTHON) --version))"
	@$(PYTHON) -m venv $(VENV) || { rm -rf $(VENV); \
	echo "$(PYTHON) cannot make a virtual environment (Debian, Ubuntu: apt install python3-venv)" >&2; exit 1; }

$(VENV)/.uv: | $(VENV)/bin/python
	@command -v "$(UV)" >/dev/null || $(BIN)/python -m pip install --quiet --constraint constraints.txt uv
	@touch $@

$(VENV)/.torch: constraints.txt requirements/cuda.txt | $(VENV)/.uv
	@if [ -z "$(TORCH_INDEX)" ]; then $(LOCKED) requirements/cuda.txt; else \
	echo "PyTorch: the build for CPUs, since no NVIDIA driver is found (with CUDA: make install TORCH_INDEX=)"; \
	$(BIN)/python -m pip install --quiet --no-compile --no-deps --retries 1 --timeout 15 --constraint constraints.txt \
	--index-url "$(TORCH_INDEX)" torch || { echo "PyTorch for CPUs could not be installed from $(TORCH_INDEX), see above. \
	Name another index with this build (make $(MAKECMDGOALS) TORCH_INDEX=URL), or take the build with CUDA, 2.9 GB to \
	download and 6.5 GB on disk (make $(MAKECMDGOALS) TORCH_INDEX=)." >&2; exit 1; }; fi
	@touch $@

$(VENV)/.runtime: pyproject.toml requirements/runtime.txt $(VENV)/.torch
	@$(LOCKED) requirements/runtime.txt
	@$(PROJECT)
	@touch $@

$(VENV)/.installed: pyproject.toml requirements/development.txt $(VENV)/.torch
	@$(LOCKED) requirements/development.txt
	@$(PROJECT)
	@touch $@ $(VENV)/.runtime

install: $(VENV)/.installed ## A virtual environment in .venv, every dependency pinned, for use and development

demo: $(VENV)/.runtime ## Six generated hospitals, trained together and locally, a free rider, the report
	$(BIN)/fedmerit demo --out demo

test: $(VENV)/.installed ## The tests, three files at a time
	$(RUNNING) $(BIN)/python -m pytest $(FILES) -m 'not slow'

test-all: $(VENV)/.installed ## The tests, slow ones included, and the coverage of every package
	$(RUNNING) $(BIN)/python -m pytest $(FILES) $(PACKAGES:%=--cov=%) --cov-report=term:skip-covered

SOAK ?= --out soak
soak: $(VENV)/.installed ## An hour of faults without an admin, by seed; needs and sizes: make soak SOAK=--help
	$(RUNNING) PATH="$(abspath $(BIN)):$$PATH" $(BIN)/python tests/soak/soak.py $(SOAK)

check: $(VENV)/.installed ## Style (ruff), types (mypy), words and docstrings
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python docs/check_words.py
	$(BIN)/python docs/check_docstrings.py

docs: $(VENV)/.installed ## The documentation as a site, docs/site/index.html; a broken link is an error
	$(BIN)/sphinx-build --fresh-env --keep-going -W -q -b html docs docs/site

COMPILE := $(UV) pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --constraint constraints.txt \
	--custom-compile-command "make lock"
lock: $(VENV)/.uv ## The lock files of requirements/, after a change of pyproject.toml or constraints.txt
	@$(COMPILE) pyproject.toml --output-file requirements/cuda.txt
	@packages=$$(grep -oE '^(torch|triton|nvidia-[^=]*|cuda-[^=]*)==' requirements/cuda.txt | tr -d =); \
	others=$$(grep -oE '^[a-z0-9-]+==' requirements/cuda.txt | tr -d = | grep -vxE 'torch|triton|nvidia-.*|cuda-.*'); \
	$(COMPILE) pyproject.toml $$(printf -- ' --no-emit-package %s' $$others) --output-file requirements/cuda.txt; \
	$(COMPILE) pyproject.toml --extra he $$(printf -- ' --no-emit-package %s' $$packages) --output-file requirements/runtime.txt; \
	$(COMPILE) pyproject.toml $(EXTRAS:%=--extra %) $$(printf -- ' --no-emit-package %s' $$packages) \
	--output-file requirements/development.txt

clean: ## Remove the virtual environment and what the tools left
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis .coverage build docs/site docs/jupyter_execute *.egg-info
