# Every target does its own set-up: a Debian 12 or 13 with root or sudo is enough.
# What a lab needs is built once and cached in $EVERSTEP_CACHE (~/.cache/everstep).
SUDO := $(shell [ "$$(id -u)" = 0 ] || echo sudo -E)
RUN := .venv/bin

.PHONY: demo test test-torch test-torch-lab fuzz check lab down setup clean

demo: setup ## a GPU dies under a training job on a real cluster, and the job goes on; FRAMEWORK=torch: with PyTorch
	$(SUDO) $(RUN)/everstep demo $(if $(FRAMEWORK),--framework $(FRAMEWORK)) $(ARGS)

test: setup ## every test: unit, contract, crash, lab; those on the lab beside all others
	$(SUDO) $(RUN)/pytest -n 2 --dist loadgroup $(ARGS)

test-torch: ## the SDK with torch, Lightning, transformers and an object server, in an environment of its own (5 GB, made once)
	$(SUDO) scripts/setup python
	$(SUDO) scripts/test-torch $(ARGS)

test-torch-lab: setup ## the ways to start a PyTorch training, on a lab; 5 GB, so not in `make test` nor in .ci/run
	$(SUDO) $(RUN)/pytest tests/lab/heals/torch_launchers.py $(ARGS)

fuzz: ## the SDK's proofs in their long form: 1,000 kills, 1,000 stops (an hour)
	$(SUDO) scripts/setup python
	EVERSTEP_FUZZ_KILLS=1000 EVERSTEP_FUZZ_TRIALS=1000 $(RUN)/pytest checkpoint/tests/test_kill.py \
		checkpoint/tests/test_agreement.py checkpoint/tests/test_store.py $(ARGS)

check: ## style, types, the direction of imports
	$(SUDO) scripts/setup python
	$(RUN)/ruff check
	$(RUN)/ruff format --check
	$(RUN)/mypy
	$(RUN)/lint-imports

lab: setup ## a lab to play with; `make down` ends it
	$(SUDO) $(RUN)/everstep lab up $(ARGS)

down:
	$(SUDO) $(RUN)/everstep lab down --all

setup:
	@$(SUDO) scripts/setup

clean: down
	rm -rf .venv .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
