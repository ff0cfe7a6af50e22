# Everything from a bare machine with make and Python 3.11 or newer: `make demo`, `make test`.

SHELL := /bin/bash

VENV ?= .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
TORCH := $(shell grep '^torch==' constraints.txt)
# The newest versions instead of the oldest, in an environment of its own: make test NEWEST=1 VENV=.venv-newest
CONSTRAINTS := constraints.txt $(if $(NEWEST),constraints.newest.txt) $(if $(OLDEST),constraints.oldest.txt) \
	$(if $(CLIENTS),constraints.clients.txt)
PYTHON ?= $(shell for python in python3 python3.11 python3.12 python3.13; do \
	$$python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$python && break; done)

comma := ,

MODEL := build/tiny-qwen3-omni
PROMPT := examples/assets/prompt.txt
PICTURES := $(sort $(wildcard examples/assets/*.png))
RECORDINGS := $(sort $(wildcard examples/assets/*.wav))
ANSWER := build/answer
# Compiled modules are kept whatever the environment says: each worker, and each program that tests start, would compile all again.
PYTEST := env -u PYTHONDONTWRITEBYTECODE $(BIN)/pytest -n auto --dist loadfile --no-loadscope-reorder

.PHONY: demo check test browser clients oldest mutants lint types format docs surface examples clean
.DELETE_ON_ERROR:

demo: $(MODEL)/config.json
	@rm -f $(ANSWER).txt $(ANSWER).wav
	@set -o pipefail; $(BIN)/omni run $(MODEL) "$$(cat $(PROMPT))" \
		$(PICTURES:%=--image %) $(RECORDINGS:%=--audio %) --seed 1 --out $(ANSWER).wav | tee $(ANSWER).txt
	@echo
	@ls $(ANSWER).txt $(ANSWER).wav

# Before each commit, in about 3 minutes on two cores. Families, examples and benchmarks have none of the fast tests.
check: lint types
	$(PYTEST) -m "not gpu and not slow and not mutation and not clients and not thorough" tests/omni tests/connectors tests/stages

# A file's tests share what is costly to make, so a file stays in one process. tests/conftest.py orders the files, not their number of tests.
test: $(INSTALLED)
	$(PYTEST)

# LiveKit's and Pipecat's services against the server, in an environment of their own: they bring a hundred packages.
clients:
	$(MAKE) CLIENTS=1 VENV=.venv-clients .venv-clients/.installed
	.venv-clients/bin/pytest -m clients tests/omni/serve/test_clients.py tests/omni/serve/test_realtime_clients.py

# The server with the oldest packages that its extra allows, in an environment of their own.
oldest:
	$(MAKE) OLDEST=1 VENV=.venv-oldest .venv-oldest/.installed
	.venv-oldest/bin/pytest -n auto --dist loadfile --no-loadscope-reorder --ignore tests/omni/serve/test_page_browser.py tests/omni/serve

# The browser that tests of the server's page need; without one they are skipped. Debian's, where it may be installed.
browser:
	@test -n "$$OMNI_CHROMIUM" || command -v chromium chromium-browser google-chrome || { \
		test "$$(id -u)" = 0 && command -v apt-get > /dev/null && \
		apt-get update -q && apt-get install -y -q --no-install-recommends chromium; } || { \
		echo "install Chromium, or set OMNI_CHROMIUM to its path"; exit 1; }

# Plants faults and counts those that tests catch, other ones with make mutants MUTANTS="--seed 2 --count 60"; see CONTRIBUTING.md.
mutants: $(INSTALLED)
	PYTHONPATH=scripts $(BIN)/python -m mutants $(MUTANTS)

lint: $(INSTALLED)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(INSTALLED)
	$(BIN)/mypy

format: $(INSTALLED)
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

# The site, into build/site; a broken link or anchor and a page without a place in it are errors.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# The list of public names that a test compares with the sources; see docs/public.md.
surface:
	PYTHONPATH=scripts $(PYTHON) -m reference > tests/omni/public_surface.txt

# The third-party distributions in examples/ are what `omni new` writes. After a change of omni/cli/new/templates:
examples: $(INSTALLED)
	for each in family:pocket stage:scorer connector:inline processor:variety drafter:usual; do \
		kind=$${each%:*} name=$${each#*:} && rm -rf examples/$$kind build/omni-$$name && \
		$(BIN)/omni new $$kind $$name --into build && mv build/omni-$$name examples/$$kind || exit 1; done

clean:
	rm -rf build dist *.egg-info .mypy_cache .pytest_cache .ruff_cache .hypothesis

# A half-written checkpoint is made anew: it appears under its own name only when it is complete.
$(MODEL)/config.json: $(INSTALLED)
	rm -rf $(MODEL) $(MODEL).part
	$(BIN)/omni tiny $(MODEL).part --family qwen3_omni
	mv $(MODEL).part $(MODEL)
	touch $@

# torch goes first, and pinned: an open range with no torch present takes several gigabytes of CUDA libraries on some indexes.
$(INSTALLED): pyproject.toml $(CONSTRAINTS)
	@test -n "$(PYTHON)" || { echo "omni needs Python 3.11 or newer: install it, or run make PYTHON=/path/to/python3.11"; exit 1; }
	test -x $(BIN)/pip || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/pip install $(TORCH)
	cat $(CONSTRAINTS) | tac | awk -F== '!seen[$$1]++' > $(VENV)/constraints.txt  # of a package's versions, the last
	$(BIN)/pip install -c $(VENV)/constraints.txt -e '.[dev$(if $(CLIENTS),$(comma)clients)]'
	touch $@

$(VENV)/.docs: $(INSTALLED)
	$(BIN)/pip install -c $(VENV)/constraints.txt -e '.[docs]'
	touch $@
