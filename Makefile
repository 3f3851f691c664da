# Every target works on a fresh clone. Variables: PYTHON (interpreter), PIP_FLAGS, PYTEST_FLAGS.
.DEFAULT_GOAL := help
.PHONY: help setup lint test test-fast test-slow arm64 ci demo site faults fuzz mutation golden format wheel clean

help: ## Show this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-10s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: ## Create .venv with prgec installed in editable mode; quick when nothing changed
	@.ci/run setup

lint: ## Run ruff, clang-format and mypy
	@.ci/run lint

test: ## Set up, lint, and run the default tests and every tenth of the slow ones
	@.ci/run setup lint test

test-fast: ## Run the default tests alone, in about five minutes
	@.ci/run test-fast

test-slow: ## Run the tests that take more than half a second each
	@.ci/run test-slow

arm64: ## Build the C++ driver for 64-bit ARM and train with it under qemu, beside this machine's
	@.ci/run arm64

ci: test ## What CI runs

demo: setup ## Fine-tune the bundled model: compile, run, accuracy before and after
	@.venv/bin/prgec demo

site: setup ## Write the site of the documents to build/site
	@NO_MKDOCS_2_WARNING=1 .venv/bin/mkdocs build --quiet && echo build/site/index.html

faults: setup ## Kill, interrupt and starve both drivers hundreds of times; nothing may be lost (FAULTS_FLAGS)
	@PATH="$(CURDIR)/.venv/bin:$$PATH" .venv/bin/python tools/faults.py $(FAULTS_FLAGS)

fuzz: setup ## Feed damaged files to every reader for some minutes; nothing may crash (FUZZ_FLAGS)
	@PATH="$(CURDIR)/.venv/bin:$$PATH" .venv/bin/python tools/fuzz.py $(FUZZ_FLAGS)

mutation: setup ## Change the code in small ways; a test must fail each time (MUTATION_FLAGS)
	@PATH="$(CURDIR)/.venv/bin:$$PATH" .venv/bin/python tools/mutation.py $(MUTATION_FLAGS)

golden: setup ## Accept the current text of every golden test; review the diff as code
	@EXPECTTEST_ACCEPT=1 .venv/bin/python -m pytest -q -m "not slow and not gpu" tests/passes

format: setup ## Format the sources
	@.venv/bin/ruff format .
	@git ls-files '*.cpp' '*.h' | xargs .venv/bin/clang-format -i
	@.venv/bin/ruff check --fix .

wheel: setup ## Build a wheel into dist/
	@.venv/bin/python -m pip wheel --quiet --no-deps --no-build-isolation -w dist .

clean: ## Remove .venv and everything built or cached in the tree
	@rm -rf .venv build dist .mypy_cache .ruff_cache .pytest_cache
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
