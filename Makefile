# Relative paths only: make splits names at spaces, and the checkout's folder may hold one.
.DEFAULT_GOAL := help
# A process for each core, at most four; the tests of a file stay together, for they share what takes long to make.
# Files in their order, not those with the most tests first: the one that places and routes has three.
PARALLEL = -n auto --maxprocesses 4 --dist loadfile --no-loadscope-reorder
# The rings of tests: tests/support/rings.py. The second without what is also in the third.
SECOND = -m "(rtl or thorough) and not nightly and not compare"
# The tests start Python some hundred times, so modules are compiled once, whatever the environment says.
test test-rtl test-nightly test-compare test-board test-all: export PYTHONDONTWRITEBYTECODE =
.PHONY: demo train-demo test test-rtl test-nightly test-compare test-board test-all fuzz figures release lint types clean help
# What runs through pynq, in an environment of its own: pynq needs an older NumPy than the rest.
BOARD_TESTS = tests/conformance/test_devices.py tests/runtime/devices/test_pynq.py tests/hw/handoff/test_write.py -k "pynq or handoff"

demo: ## quantize the embedded model and let it talk, within a memory budget
	@.ci/environment check
	@.ci/environment run
	@.venv/bin/python -m edgedec.demo

train-demo: ## go on with the training of the embedded pair, at the lowest priority; STEPS=20 for a smoke run
	@.ci/environment train
	@nice -n 19 .venv/bin/python -m edgedec.quantize.demo_pair.train $(if $(shell command -v g++),--compile) \
		$(if $(STEPS),--steps $(STEPS) -o build/demo-pair-$(STEPS),-o build/demo-pair)

test: ## the first ring of tests, before each commit: under three minutes on two cores
	@.ci/environment dev
	@.venv/bin/pytest $(PARALLEL)

test-rtl: ## the second ring: long simulations, synthesis, place and route, device pynq, whole products
	@.ci/environment dev
	@if .ci/environment board; then .venv-board/bin/pytest -q $(BOARD_TESTS); else echo "going on without device pynq"; fi
	@.venv/bin/pytest $(PARALLEL) $(SECOND)

test-nightly: ## third ring: whole tokens on RTL, proofs, benches, mutation; after changes of hw/, sim/ or boards/; commit its stamp
	@.ci/environment dev
	@if .ci/environment board-all; then $(MAKE) --no-print-directory test-board; else echo "going on without device pynq"; fi
	@nice .venv/bin/pytest $(PARALLEL) --stamp nightly

test-compare: ## third ring: comparisons with torch, transformers and llama.cpp; after changes of families or readers; commit its stamp
	@.ci/environment all
	@nice .venv/bin/pytest $(PARALLEL) --stamp compare

test-board: ## the tests of device pynq alone, those of the third ring too
	@.ci/environment board-all
	@.venv-board/bin/pytest -m "nightly or not nightly" $(BOARD_TESTS)

test-all: ## lint, types and all three rings
	@.ci/environment all
	@$(MAKE) --no-print-directory -j1 lint types test test-rtl test-nightly test-compare

fuzz: ## 100,000 inputs for each reader of checkpoints; FUZZ="--readers gguf --inputs 5000"; see docs/reports/fuzzing.md
	@.ci/environment dev
	@.venv/bin/python -m tests.attacks.fuzz.campaign $(FUZZ)

figures: ## write all tables of README.md and docs/ that a program can say, in some minutes; those that are measured stay
	@.ci/environment dev
	@.venv/bin/python -m benchmarks.accelerator.speed --write-docs
	@.venv/bin/python -m benchmarks.accelerator.memory_model --write-docs
	@.venv/bin/python -m benchmarks.accelerator.resources --write-docs
	@.venv/bin/python -m benchmarks.accelerator.options --write-docs
	@.venv/bin/python -m benchmarks.accelerator.device_users --write-docs
	@.venv/bin/python -m benchmarks.memory.sizes --write-docs
	@.venv/bin/python -m benchmarks.speculation.draft_law --write-docs
	@.venv/bin/python -m benchmarks.speculation.estimates --write-docs
	@.venv/bin/python -m benchmarks.quality.ternary_head --write-docs
	@.venv/bin/python -m tests.mutation.campaign --plan --write-docs
	@.venv/bin/python -m tests.quantize.readers.support.make_formats_page
	@.venv/bin/python -m tests.edgedec.families.support.make_family_table
	@.venv/bin/python .ci/command_line_page.py
	@.venv/bin/python .ci/draw_layers.py

release: ## build and check sdist and wheels of the last commit, in dist/; RELEASE=--twice builds twice and compares
	@.ci/environment run
	@nice .venv/bin/python .ci/release.py $(RELEASE)

lint: ## ruff: rules and format; openings of docstrings and comments
	@.ci/environment dev
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/python .ci/prose.py

types: ## mypy --strict over every Python file
	@.ci/environment dev
	@.ci/types

clean: ## remove .venv, caches and packages that were built; build/ keeps what you made there
	rm -rf .venv .venv-board .typing dist *.egg-info build/lib build/lib.* build/bdist.* build/objects runtime/kernels/*.so runtime/loop/*.so
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis .coverage htmlcov
	find . -name __pycache__ -prune -exec rm -rf {} +

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile
