# Two commands do all on a fresh machine with git, make and Python 3.11 or newer: `make demo` and `make test`.
PYTHON ?= python3
HOUSE  := $(PYTHON) tests/house
PAPERS := $(sort $(notdir $(patsubst %/pyproject.toml,%,$(wildcard packages/*/pyproject.toml))))
UV      = $(or $(shell $(HOUSE)/uv.py),$(error no uv, and pip could not bring it))

# The data folder beside the checkout, where there is one; an empty value means "no data".
ifeq ($(origin NEURIPS26_DATA),undefined)
NEURIPS26_DATA := $(wildcard $(abspath $(CURDIR)/../shared/data))
endif
export NEURIPS26_DATA
export FLWR_TELEMETRY_ENABLED := 0
export FLWR_DISABLE_UPDATE_CHECK := 1
unexport VIRTUAL_ENV

.DEFAULT_GOAL := help
.PHONY: help setup demo test test-slow check bench wheels report readme new ci $(PAPERS)

help:  ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  make <paper>      set up and run one paper: $(PAPERS)"

setup:  ## one environment with every package, for development
	$(UV) sync --frozen --all-packages --all-extras --group dev --group check --group house

demo:  ## set up and run every paper's quick experiment, one page at the end
	@$(HOUSE)/demo.py

test:  ## set up and run every package's fast tests, each in an environment of its own
	@$(HOUSE)/run_tests.py

test-slow:  ## the slow group of every package instead of the fast tests
	@$(HOUSE)/run_tests.py --slow

$(PAPERS):
	@$(HOUSE)/demo.py $@

check:  ## format, lint, types, import contracts, dependencies, versions, workflow
	@$(UV) sync -q --frozen --all-packages --all-extras --group dev --group check --group house
	@$(UV) run -q --no-sync $(HOUSE)/check.py

bench:  ## speed of every package as ratios to its peers (PAPER=<slug> for one)
	@[ -z "$(PAPER)" ] || [ -d "packages/$(PAPER)" ] || { echo "bench: expected PAPER among $(PAPERS), got $(PAPER)"; exit 2; }
	@$(UV) sync -q --frozen --all-packages --all-extras --group dev
	@for f in packages/$(or $(PAPER),*)/benchmarks/speed.py; do \
	  [ -e "$$f" ] || continue; echo "== $$f"; $(UV) run -q --no-sync python $$f || exit 1; done

wheels:  ## build every member into dist/ and check the metadata
	@rm -rf dist
	$(UV) build -q --all-packages --out-dir dist
	@$(UV) run -q --frozen --only-group house twine check --strict dist/*

report:  ## the page over committed and quick records
	$(UV) run -q --frozen --all-packages neurips26 report

readme:  ## fill the claims tables of the READMEs from the committed records
	$(UV) run -q --no-sync neurips26 report --readme

new:  ## lay out an empty package: make new SLUG=my-paper
	@$(HOUSE)/new.py "$(SLUG)"

ci:  ## what .ci/run calls
	@$(HOUSE)/ci.py
