# Every target makes its own environment in .venv first; the README says how to do it by hand.
PYTHON ?= python3
BIN := .venv/$(if $(filter Windows_NT,$(OS)),Scripts,bin)
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test test-long test-gnu lessons docs lint lines clean

demo: .venv/demo  ## environment, model, first tokens
	$(BIN)/python -m tinyrvllm.generate --prompt "The capital of France is" -n 16 --temp 0
	$(BIN)/python -m tinyrvllm.generate --chat --prompt "Why is the sky blue?" -n 64 --seed 1
	@echo "The same model through the Metal kernels, on a software device (compiled on first use):"
	$(BIN)/python -m tinyrvllm.generate --device soft --prompt "The capital of France is" -n 16 --temp 0

# One BLAS thread for each of the two test processes.
test: lint  ## everything that fits in 15 minutes on 2 cores
	OPENBLAS_NUM_THREADS=1 $(BIN)/python -m pytest -n 2 --dist worksteal -m "not long"

test-long: .venv/dev  ## soaks, mutation and full tables
	$(BIN)/python -m pytest -m long

test-gnu: .venv/dev  ## the bridge on GNUstep's Objective-C runtime (Debian packages)
	apt-get install -y libobjc4 libgnustep-base1.28
	$(BIN)/python -m pytest tests/mtl/test_gnu.py

lessons: .venv/dev  ## every lesson on the software device, then our answers to the exercises
	@for lesson in lessons/[0-9]*.py; do \
	  echo "== $$lesson"; $(BIN)/python $$lesson --device soft || exit 1; done
	$(BIN)/python -m lessons.check --all --solutions

docs: .venv/dev  ## the site, in build/docs; runs every lesson, and no broken link is allowed
	$(BIN)/python -m sphinx -W --keep-going -q -b html -d build/doctrees docs build/docs
	@echo "open build/docs/index.html"

test-arm64: .venv/dev  ## the bridge as an arm64 program under qemu (Debian packages)
	apt-get install -y qemu-user
	$(BIN)/python -m tests.mtl.arm64

lint: .venv/dev
	$(BIN)/python -m ruff check
	$(BIN)/python -m mypy

lines:  ## the size budget: Python outside soft, in soft, and shaders
	@echo "python  $$(git ls-files 'tinyrvllm/*.py' | grep -v ^tinyrvllm/soft/ | xargs cat | wc -l) of 5000"
	@echo "soft    $$(git ls-files 'tinyrvllm/soft/*.py' | xargs cat | wc -l) of 5000"
	@echo "shaders $$(git ls-files 'tinyrvllm/shaders/*' | xargs cat | wc -l) of 2500"

clean:
	rm -rf .venv build dist *.egg-info

.venv/made:
	$(PYTHON) -m venv .venv
	touch $@

.venv/demo: .venv/made pyproject.toml constraints.txt
	$(PIP) --editable ".[soft]"
	touch $@

.venv/dev: .venv/demo
	$(PIP) --editable ".[cuda,dev,docs,hub,plots,soft]"
	touch $@
