# Every target does its own set-up. `make test TORCH=torch` takes the newest torch.
VENV  ?= .venv
TORCH ?= torch==2.13.0
PY    := $(VENV)/bin/python
EXTRAS     := ed25519,fast,fleet,fsspec,mlflow,onnx,pandas,postgres,serve,tensorboard,wandb,zstd
TEST_TOOLS := httpx httpx2 hypothesis pytest pytest-timeout pytest-xdist prometheus-client safetensors

.DEFAULT_GOAL := help
.PHONY: help demo demo-gpu demo-quick quality test test-all test-clickhouse test-failed test-lowest test-mlflow test-programs test-python test-pythons test-slurm test-spark test-torchrec lint format bench bench-checkpoint docs surface clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 12

# torch stands in the same pip call as the project: alone, the project would take any build of it.
$(VENV)/.run: pyproject.toml
	@echo "installing Headway and $(TORCH) into $(VENV): about a minute"
	@python3 -m venv $(VENV)
	@$(PY) -m pip install -q $(TORCH) -e '.[torch]'
	@touch $@

$(VENV)/.dev: pyproject.toml
	@echo "installing Headway, $(TORCH) and the tools of developers into $(VENV): about two minutes"
	python3 -m venv $(VENV)
	$(PY) -m pip install -q $(TORCH) -e '.[dev]'
	@touch $@ $(VENV)/.run

$(VENV)/.dev-full: $(VENV)/.dev
	@echo "installing the packages of slow tests into $(VENV)"
	$(PY) -m pip install -q $(TORCH) -e '.[dev-full]'
	@touch $@

$(VENV)/.docs: pyproject.toml
	@echo "installing MkDocs into $(VENV)"
	python3 -m venv $(VENV)
	$(PY) -m pip install -q -e '.[docs]'
	@touch $@

# An environment of its own: torchrec and fbgemm go with one version of torch.
.venv-torchrec/.ready: pyproject.toml tests/torchrec/requirements.txt
	@echo "installing the packages of 'make test-torchrec' into .venv-torchrec: some minutes"
	python3 -m venv .venv-torchrec
	.venv-torchrec/bin/python -m pip install -q $(TORCH) numpy pytest pytest-timeout -e .
	.venv-torchrec/bin/python -m pip install -q --no-deps -r tests/torchrec/requirements.txt
	@touch $@

# An environment of its own: trainers of others, and Ray, which brings its own of everything.
.venv-programs/.ready: pyproject.toml tests/programs/requirements.txt
	@echo "installing the packages of 'make test-programs' into .venv-programs: some minutes"
	python3 -m venv .venv-programs
	.venv-programs/bin/python -m pip install -q $(TORCH) -r tests/programs/requirements.txt -e .
	@touch $@

# An environment of its own: a server of MLflow brings a hundred packages, and pins many of them.
.venv-mlflow/.ready: pyproject.toml tests/mlflow/requirements.txt
	@echo "installing the packages of 'make test-mlflow' into .venv-mlflow: some minutes"
	python3 -m venv .venv-mlflow
	.venv-mlflow/bin/python -m pip install -q $(TORCH) -r tests/mlflow/requirements.txt -e .
	@touch $@

# An environment of its own: the engine alone has half a gigabyte.
.venv-clickhouse/.ready: pyproject.toml tests/clickhouse/requirements.txt
	@echo "installing the packages of 'make test-clickhouse' into .venv-clickhouse: some minutes"
	python3 -m venv .venv-clickhouse
	.venv-clickhouse/bin/python -m pip install -q -r tests/clickhouse/requirements.txt -e '.[fleet]'
	@touch $@

# An environment of its own: Ibis says which Spark it goes with, and that brings a gigabyte.
.venv-spark/.ready: pyproject.toml tests/spark/requirements.txt
	@echo "installing the packages of 'make test-spark' into .venv-spark: some minutes"
	python3 -m venv .venv-spark
	.venv-spark/bin/python -m pip install -q -r tests/spark/requirements.txt -e '.[fleet]'
	@touch $@

# An environment of its own: the lowest version of each package that an extra allows.
.venv-lowest/.ready: pyproject.toml
	@echo "installing the lowest versions of all extras into .venv-lowest"
	.ci/uv venv -q --clear .venv-lowest
	VIRTUAL_ENV=.venv-lowest .ci/uv pip install -q --resolution lowest-direct -e '.[$(EXTRAS)]'
	VIRTUAL_ENV=.venv-lowest .ci/uv pip install -q $(TORCH) $(TEST_TOOLS)
	@touch $@

# An environment for each Python: with all that tests need, and without torch.
.venv-python%/.ready: pyproject.toml
	@echo "installing Headway and the tools of tests, without torch, into .venv-python$*"
	.ci/uv venv -q --clear --python $$(.ci/find-python $*) .venv-python$*
	VIRTUAL_ENV=.venv-python$* .ci/uv pip install -q -e '.[test]'
	@touch $@

# An environment of its own: headway is installed into it from a copy of the tree.
.venv-quality/.ready: pyproject.toml
	python3 -m venv .venv-quality
	.venv-quality/bin/python -m pip install -q $(TORCH) -e '.[dev]' coverage cosmic-ray editables
	@touch $@

demo: $(VENV)/.run  ## one job with two kills and a hang, three ways: plain, --auto, building blocks
	$(PY) examples/demo.py $(DEMO)

demo-quick: $(VENV)/.run  ## train on two ranks, kill one, and see where the time went
	$(PY) examples/demo_quick.py

# With the python3 and the CUDA build of torch that are there: nothing is installed.
demo-gpu:  ## more than 10 GB of state and a kill a minute on one GPU: plain against Headway
	python3 benchmarks/gpu/demo.py $${OUT:-.}/demo_gpu.json

test: $(VENV)/.dev  ## run the tests, without the slow ones
	$(PY) -m pytest -n auto --dist loadgroup --no-loadscope-reorder -m 'not slow'

test-failed: $(VENV)/.dev  ## run the tests that failed last, one after the other
	$(PY) -m pytest -n 0 --last-failed --last-failed-no-failures none -m 'not slow'

test-all: $(VENV)/.dev-full  ## run every test, and the programs of others
	HEADWAY_TEST_PROFILE=full $(PY) -m pytest --ignore tests/programs
	$(MAKE) test-programs

test-clickhouse: .venv-clickhouse/.ready  ## run the questions of a fleet on ClickHouse's own engine
	.venv-clickhouse/bin/python -m pytest tests/clickhouse

test-lowest: .venv-lowest/.ready  ## run the tests of the extras with the lowest versions they allow
	.venv-lowest/bin/python -m pytest -n 2 -m 'not slow' tests/unit/serve tests/unit/fleet tests/unit/sim \
	    tests/unit/report tests/unit/export tests/unit/web tests/unit/journal tests/unit/test_run.py \
	    tests/unit/storage tests/unit/compile/cache tests/unit/checkpoint/store tests/unit/checkpoint/format \
	    tests/unit/checkpoint/test_compress.py
	.venv-lowest/bin/python -m pytest tests/unit/publish/test_registry.py tests/unit/publish/test_onnx.py

test-mlflow: .venv-mlflow/.ready  ## run the tests of the model registry, beside a real server of MLflow
	.venv-mlflow/bin/python -m pytest tests/mlflow

test-programs: .venv-programs/.ready .venv-torchrec/.ready  ## run programs of others under --auto, with kills
	.venv-programs/bin/python -m pytest -rs tests/programs --ignore tests/programs/test_auto_torchrec.py
	.venv-torchrec/bin/python -m pytest -rs tests/programs/test_auto_torchrec.py

# Without torch: tests that need it skip. `make test-python VERSION=3.12` runs one version.
VERSION ?= 3.11
test-python: .venv-python$(VERSION)/.ready
	.venv-python$(VERSION)/bin/python -m pytest -n 2 -m 'not slow' --at-least 3500 tests/unit tests/truth

PYTHONS ?= 3.11 3.12 3.13 3.14
test-pythons:  ## run the tests that need no torch on every Python from 3.11 to 3.14 that is here
	@set -e; for version in $(PYTHONS); do \
	    if .ci/find-python $$version >/dev/null; then $(MAKE) test-python VERSION=$$version; \
	    else echo "Python $$version was not found: nothing was tested on it"; fi; done

# Debian's packages; their services are not started, the tests run daemons of their own.
test-slurm: $(VENV)/.dev  ## run the tests beside a real Slurm of one and two nodes (as root, on Debian)
	{ command -v slurmctld && command -v slurmdbd && command -v mariadbd && command -v munged; } \
	    >/dev/null || { apt-get update -qq && \
	    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
	    slurm-wlm slurmdbd mariadb-server munge; }
	$(PY) -m pytest -rs tests/integration/test_slurm.py tests/integration/test_slurm_schedule.py

test-spark: .venv-spark/.ready  ## run the questions of a fleet on a real Spark of two workers
	command -v java >/dev/null || { apt-get update -qq && \
	    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
	    default-jre-headless; }
	.venv-spark/bin/python -m pytest tests/spark

test-torchrec: .venv-torchrec/.ready  ## run the tests of the TorchRec adapter, beside a real TorchRec
	.venv-torchrec/bin/python -m pytest tests/torchrec

lint: $(VENV)/.dev  ## check style, types, import layers and spelling
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
	$(VENV)/bin/lint-imports
	$(VENV)/bin/codespell

format: $(VENV)/.dev  ## rewrite the code in the project's style
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

bench: $(VENV)/.dev  ## run every benchmark
	set -e; for name in recorder ledger classify truth_against_peers; do \
	    echo "== $$name"; $(PY) benchmarks/$$name.py; done

# Makes .venv-checkpoint for the packages that it compares with (benchmarks/peers.py).
bench-checkpoint: $(VENV)/.dev  ## measure saves and restores, beside torch's and those of others
	$(PY) benchmarks/checkpoint.py
	$(PY) benchmarks/checkpoint.py --dense

quality: .venv-quality/.ready  ## measure coverage and mutants of each package by its own tests
	.venv-quality/bin/python -m tools.quality $(QUALITY)

docs: $(VENV)/.docs  ## build the documentation into site/
	$(VENV)/bin/mkdocs build --strict

surface: $(VENV)/.dev  ## write down everything that others rely on: docs/reference/surface.txt
	$(PY) -m tools.surface --write

clean:  ## remove the environment, caches and built files
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
