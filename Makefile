# Each target sets up .venv by itself when it is missing or pyproject.toml has changed.
PYTHON ?= python3.11
BASE ?= HEAD
VENV   := .venv
BIN    := $(VENV)/bin
READY  := $(VENV)/.ready
export PIP_DISABLE_PIP_VERSION_CHECK := 1
export HF_HUB_OFFLINE := 1

# Real data and weights for `make pacs` and the tests that want them, where they are at hand.
ifneq ($(wildcard ../shared/data/PACS),)
export DSPREG_ROOT ?= $(abspath ../shared/data)
export DSPREG_WEIGHTS ?= $(abspath ../shared/weights/tf_efficientnet_lite0.safetensors)
endif

.DEFAULT_GOAL := help
.PHONY: help notebooks demo test lint agreement agreement-emoji averages kills faults soak reliability-figures integrations sweeps ray pairs same parity pacs maps bench docs docs-serve docs-version evidence evidence-open evidence-pack evidence-tables pacs-erm-variance pacs-variants pacs-ruler pacs-arms pacs-c digits-premise wheel clean

help:  ## this list
	@grep -E '^[a-z-]+:.*##' Makefile | sed -E 's/^([a-z-]+):.*## /  make \1\t/' | expand -t 25

$(READY): pyproject.toml constraints.txt
	@echo "Setting up $(VENV): downloads torch the first time, a few minutes."
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet -c constraints.txt -e '.[dev]'
	@touch $(READY)

demo: $(READY)  ## train and measure on the embedded digits, ending in demo/index.html
	$(BIN)/python examples/quickstart.py --out demo

test: lint  ## ruff, mypy and the whole test suite
	$(BIN)/python -m pytest -n 2 -q

lint: $(READY)  ## ruff and mypy
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(VENV)/.docs: $(READY) pyproject.toml
	$(BIN)/pip install --quiet -c constraints.txt -e '.[docs]'
	@touch $@

docs: $(VENV)/.docs  ## build the documentation into build/site; every warning is an error; needs no network
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --clean --strict

docs-serve: $(VENV)/.docs  ## serve it on http://127.0.0.1:8000, built anew when a page changes
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

docs-version: $(VENV)/.docs  ## add VERSION=0.2 to the versions on the local branch gh-pages, as the latest; nothing is pushed
	@test -n "$(VERSION)" || (echo "say which: make docs-version VERSION=0.2"; exit 2)
	NO_MKDOCS_2_WARNING=1 PATH="$(abspath $(BIN)):$$PATH" $(BIN)/mike deploy --update-aliases $(VERSION) latest
	$(BIN)/mike set-default latest

kills: $(READY)  ## thirty trainings killed at random moments, and compared with one left alone
	$(BIN)/python tests/faults/kill.py --runs 30

faults: $(READY)  ## kills, crashes, damage, claims, limits, mutants: a round of 45 minutes on two cores
	@mkdir -p build
	$(BIN)/python tests/faults/campaign.py faults --results build/faults.jsonl
	$(BIN)/python tests/faults/figures.py --results build/faults.jsonl

soak: $(READY)  ## the same at full length, hours, resumable part by part; leaves the record of the figures
	$(BIN)/python tests/faults/campaign.py soak

reliability-figures: $(READY)  ## the table of figures of the last full run
	$(BIN)/python tests/faults/figures.py

integrations:  ## trackers and frameworks in an environment of their own, since some of them want older packages
	$(PYTHON) -m venv build/integrations
	build/integrations/bin/pip install --quiet -e '.[dev,tensorboard,mlflow,wandb,trackio]'
	build/integrations/bin/python -m pytest -q tests/integrations tests/training/test_trackers.py

sweeps: $(READY)  ## a sweep of 72 runs killed ten times, and compared with one left alone: a quarter of an hour
	$(BIN)/python tests/slow/sweeps.py

ray: $(READY)  ## 72 runs on a Ray cluster while nodes, processes and sweepers are killed: ten minutes
	$(BIN)/python tests/slow/ray_nodes.py

pairs: $(READY)  ## every method around every other: the laws, or the message
	$(BIN)/python tests/slow/pairs.py

same: $(READY)  ## every method trained with BASE and with this tree, files compared to the byte: ten minutes
	$(BIN)/python tests/slow/compare_revisions.py $(BASE)

parity: $(READY)  ## how near every method is to its plain re-derivation
	$(BIN)/python -m pytest -q tests/algorithms --parity -k steps_are_those

pacs: $(READY)  ## PACS without sketch, ERM and DSP-Reg, two seeds: an hour; needs DSPREG_ROOT and DSPREG_WEIGHTS
	$(BIN)/python bench/pacs.py --out build/pacs

notebooks: $(READY)  ## execute the notebooks of examples/ again, with their outputs
	cd examples && ../$(BIN)/jupyter execute --inplace *.ipynb

maps: $(READY)  ## c of one layer before and after training, ERM and DSP-Reg, on PACS: an hour; needs the same
	$(BIN)/python bench/maps.py --out build/maps

bench: $(READY)  ## what everything costs, and how exact it is: an hour on one thread
	$(BIN)/pip install --quiet -c constraints.txt -e '.[bench]'
	$(BIN)/python bench/exactness.py
	$(BIN)/python bench/engines.py
	$(BIN)/python bench/environments.py
	$(BIN)/python bench/noise_floor.py
	$(BIN)/python bench/sensitivity.py
	$(BIN)/python bench/sensitivity.py --part memory
	$(BIN)/python bench/sensitivity.py --part growth
	$(BIN)/python bench/penalty.py
	$(BIN)/python bench/penalty.py --part layout
	$(BIN)/python bench/penalty.py --part memory
	$(BIN)/python bench/leases.py
	$(BIN)/python bench/startup.py
	$(BIN)/python bench/stores.py
	for part in images parameters domains runs; do $(BIN)/python bench/scale.py --part $$part || exit; done
	$(BIN)/python bench/algorithms.py
	$(BIN)/python bench/algorithms.py --part digits --out build/digits
ifdef DSPREG_ROOT
	$(BIN)/python bench/penalty.py --part run
endif
ifdef DOMAINBED
	$(BIN)/python bench/against_domainbed.py --domainbed $(DOMAINBED) --json build/against.json
endif

evidence: $(READY)  ## the evidence for the defaults, on PACS: four hours on one thread, resumable but for the first
	$(BIN)/python bench/trajectory.py --out build/trajectory
	$(BIN)/python bench/kinks.py
	$(BIN)/python bench/noise.py --out build/noise
	$(BIN)/python bench/noise.py --out build/noise --model resnet50 --images 16 64 256 512 --most-output 256 --estimators persample signed minibatch

build/places:  # relative paths, for records say where files lay
	@mkdir -p build
	@test -n "$(DSPREG_ROOT)" -a -n "$(DSPREG_WEIGHTS)" || (echo "set DSPREG_ROOT to the folder that holds PACS and DSPREG_WEIGHTS to Lite0's file"; exit 3)
	@ln -sfn $(DSPREG_ROOT) build/data
	@ln -sfn $(DSPREG_WEIGHTS) build/lite0.safetensors
	@touch $@

evidence-open: $(READY)  ## unpack the records of the evidence into build/evidence, where they are not there yet
	$(BIN)/python evidence/archives.py open build/evidence

evidence-pack: $(READY)  ## pack build/evidence into the archives again, with their checksums
	$(BIN)/python evidence/archives.py pack build/evidence

evidence-tables: $(READY)  ## print evidence/tables.md and draw the plots of docs/understand/evidence.md from the archives
	@mkdir -p build
	$(BIN)/python evidence/make_tables.py --out docs/images > build/tables.md
	mv build/tables.md evidence/tables.md

pacs-erm-variance: evidence-open build/places  ## ERM on PACS, five seeds: its variance between seeds; two hours on one core
	$(BIN)/dspreg sweep evidence/pacs/ruler.yaml --store build/evidence/pacs/store
	$(MAKE) evidence-pack

pacs-variants: evidence-open build/places  ## the frozen protocol's variants, PACS and digits: over a day on one core, resumable
	$(BIN)/dspreg sweep evidence/pacs/first.yaml --store build/evidence/pacs/store
	$(BIN)/dspreg sweep evidence/pacs/second.yaml --store build/evidence/pacs/store
	$(BIN)/dspreg sweep evidence/digits/arms.yaml --store build/evidence/digits/store
	$(BIN)/dspreg sweep evidence/digits/notes.yaml --store build/evidence/digits/store
	$(BIN)/dspreg sweep evidence/digits/compose.yaml --store build/evidence/digits/store
	$(BIN)/dspreg sweep evidence/digits/batch.yaml --store build/evidence/digits/batch
	$(BIN)/dspreg sweep evidence/pacs/third.yaml --store build/evidence/pacs/store
	$(MAKE) evidence-pack

agreement: evidence-open build/places  ## the second frozen protocol on PACS: agreement and its control, ERM, SAM, consensus, DSP-Reg; resumable
	for part in primary averaged; do \
	  $(BIN)/dspreg sweep evidence/agreement/$$part.yaml --store build/evidence/agreement/store || exit; done
	for part in consensus dsp_reg; do \
	  $(BIN)/dspreg sweep evidence/agreement/$$part.yaml --store build/evidence/agreement/later || exit; done
	$(MAKE) evidence-pack

agreement-emoji: evidence-open build/places  ## its confirmation on emoji, made by evidence/emoji/prepare.py in build/emoji
	$(BIN)/dspreg sweep evidence/agreement/emoji.yaml --store build/evidence/agreement/emoji
	$(MAKE) evidence-pack

averages: evidence-open build/places  ## the third protocol: averaged weights, EWC and a linear probe beside ERM and DSP-Reg; resumable
	$(BIN)/dspreg sweep evidence/averages/digits.yaml --store build/evidence/averages/digits
	for lr in 0.0001 0.001 0.01; do \
	  $(BIN)/dspreg sweep evidence/averages/probe-tune.yaml --set lr=$$lr --store build/evidence/averages/probe-tune || exit; done
	$(BIN)/dspreg sweep evidence/averages/probe.yaml --store build/evidence/averages/probe
	for part in pacs pacs-others; do \
	  $(BIN)/dspreg sweep evidence/averages/$$part.yaml --store build/evidence/averages/pacs || exit; done
	$(MAKE) evidence-pack

pacs-ruler: pacs-erm-variance  # the names that the frozen protocol and its README knew
pacs-arms: pacs-variants

pacs-c: $(READY) build/places  ## c during ERM and DSP-Reg, and how similar the penalties are: some hours on one core, resumable
	$(BIN)/dspreg sweep evidence/pacs/c.yaml --store build/c
	$(BIN)/python evidence/c_along.py build/c --root build/data --out evidence/pacs/c.jsonl
	$(BIN)/python evidence/choices.py build/c --root build/data --out evidence/pacs/choices.jsonl
	$(BIN)/python evidence/patterns.py build/c --root build/data --out evidence/pacs/patterns.jsonl
	$(BIN)/python evidence/readings.py build/c --root build/data --out evidence/pacs/readings.jsonl
	$(BIN)/python evidence/premise.py build/c --root build/data --out evidence/pacs/premise.jsonl

digits-premise: $(READY)  ## does c of the sources know the unseen domain, on the digits: half an hour on one core, resumable
	$(BIN)/dspreg sweep evidence/digits/premise.yaml --store build/digits-premise
	$(BIN)/python evidence/premise.py build/digits-premise --steps 0 40 120 199 --out evidence/digits/premise.jsonl

wheel: $(READY)  ## build wheel and sdist twice, compare, and try the wheel in a clean environment outside the repository
	bash tests/try_wheel.sh $(PYTHON)

clean:  ## remove the environment and everything built
	rm -rf $(VENV) build dist demo
