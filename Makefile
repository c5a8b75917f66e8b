VENV ?= .venv
PYTHON ?= python3.11
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# One core a process; what is compiled is kept. Three files at a time: some wait for processes.
RUNNING := OMP_NUM_THREADS=1 PYTHONDONTWRITEBYTECODE=
FILES := -n 3 --dist loadfile --no-loadscope-reorder

.DEFAULT_GOAL := help
.PHONY: help install demo test test-all check docs clean

help: ## This list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-9s %s\n", $$1, $$2}'

install: $(INSTALLED) ## A virtual environment in .venv with every dependency pinned

$(INSTALLED): pyproject.toml constraints.txt
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --constraint constraints.txt --editable '.[dev,he,onnx,notebooks,slurm]'
	touch $@

demo: $(INSTALLED) ## Six generated hospitals, trained together and alone, a free rider, the report
	$(BIN)/fedmerit demo --out demo

test: $(INSTALLED) ## The tests, three files at a time
	$(RUNNING) $(BIN)/python -m pytest $(FILES) -m 'not slow'

test-all: $(INSTALLED) ## The tests, slow ones included
	$(RUNNING) $(BIN)/python -m pytest $(FILES)

check: $(INSTALLED) ## Style (ruff) and types (mypy)
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: $(INSTALLED) ## The documentation as a site, docs/site/index.html; a broken link is an error
	$(BIN)/sphinx-build -W -q -b html docs docs/site

clean: ## Remove the virtual environment and what the tools left
	rm -rf $(VENV) .mypy_cache .ruff_cache .pytest_cache .hypothesis build docs/site *.egg-info
