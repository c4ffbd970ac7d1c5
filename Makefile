# Every target does its own set-up. `make test TORCH=torch` takes the newest torch.
VENV  ?= .venv
TORCH ?= torch==2.13.0
PY    := $(VENV)/bin/python

.DEFAULT_GOAL := help
.PHONY: help demo demo-gpu demo-quick test test-all test-clickhouse test-mlflow test-programs test-slurm test-spark test-torchrec lint format bench bench-checkpoint docs clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## /\1\t/p' Makefile | expand -t 12

# torch stands in the same pip call as the project: alone, the project would take any build of it.
$(VENV)/.run: pyproject.toml
	python3 -m venv $(VENV)
	$(PY) -m pip install -q $(TORCH) -e .
	@touch $@

$(VENV)/.dev: pyproject.toml
	python3 -m venv $(VENV)
	$(PY) -m pip install -q $(TORCH) -e '.[dev]'
	@touch $@ $(VENV)/.run

$(VENV)/.docs: pyproject.toml
	python3 -m venv $(VENV)
	$(PY) -m pip install -q -e '.[docs]'
	@touch $@

# An environment of its own: torchrec and fbgemm go with one version of torch.
.venv-torchrec/.ready: pyproject.toml tests/torchrec/requirements.txt
	python3 -m venv .venv-torchrec
	.venv-torchrec/bin/python -m pip install -q $(TORCH) numpy pytest pytest-timeout -e .
	.venv-torchrec/bin/python -m pip install -q --no-deps -r tests/torchrec/requirements.txt
	@touch $@

# An environment of its own: trainers of others, and Ray, which brings its own of everything.
.venv-programs/.ready: pyproject.toml tests/programs/requirements.txt
	python3 -m venv .venv-programs
	.venv-programs/bin/python -m pip install -q $(TORCH) -r tests/programs/requirements.txt -e .
	@touch $@

# An environment of its own: a server of MLflow brings a hundred packages, and pins many of them.
.venv-mlflow/.ready: pyproject.toml tests/mlflow/requirements.txt
	python3 -m venv .venv-mlflow
	.venv-mlflow/bin/python -m pip install -q $(TORCH) -r tests/mlflow/requirements.txt -e .
	@touch $@

# An environment of its own: the engine alone has half a gigabyte.
.venv-clickhouse/.ready: pyproject.toml tests/clickhouse/requirements.txt
	python3 -m venv .venv-clickhouse
	.venv-clickhouse/bin/python -m pip install -q -r tests/clickhouse/requirements.txt -e '.[fleet]'
	@touch $@

# An environment of its own: Ibis says which Spark it goes with, and that brings a gigabyte.
.venv-spark/.ready: pyproject.toml tests/spark/requirements.txt
	python3 -m venv .venv-spark
	.venv-spark/bin/python -m pip install -q -r tests/spark/requirements.txt -e '.[fleet]'
	@touch $@

demo: $(VENV)/.run  ## one job with two kills and a hang, three ways: plain, --auto, building blocks
	$(PY) examples/demo.py $(DEMO)

demo-quick: $(VENV)/.run  ## train on two ranks, kill one, and see where the time went
	$(PY) examples/demo_quick.py

# With the python3 and the CUDA build of torch that are there: nothing is installed.
demo-gpu:  ## more than 10 GB of state and a kill a minute on one GPU: plain against Headway
	python3 benchmarks/gpu/demo.py $${OUT:-.}/demo_gpu.json

test: $(VENV)/.dev  ## run the tests, without the slow ones
	$(PY) -m pytest -n auto --dist loadfile -m 'not slow'

test-all: $(VENV)/.dev  ## run every test, and the programs of others
	$(PY) -m pytest --ignore tests/programs
	$(MAKE) test-programs

test-clickhouse: .venv-clickhouse/.ready  ## run the questions of a fleet on ClickHouse's own engine
	.venv-clickhouse/bin/python -m pytest tests/clickhouse

test-mlflow: .venv-mlflow/.ready  ## run the tests of the model registry, beside a real server of MLflow
	.venv-mlflow/bin/python -m pytest tests/mlflow

test-programs: .venv-programs/.ready .venv-torchrec/.ready  ## run programs of others under --auto, with kills
	.venv-programs/bin/python -m pytest -rs tests/programs --ignore tests/programs/test_auto_torchrec.py
	.venv-torchrec/bin/python -m pytest -rs tests/programs/test_auto_torchrec.py

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

lint: $(VENV)/.dev  ## check style, types and spelling
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy
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

docs: $(VENV)/.docs  ## build the documentation into site/
	$(VENV)/bin/mkdocs build --strict

clean:  ## remove the environment, caches and built files
	rm -rf $(VENV) .mypy_cache .pytest_cache .ruff_cache .hypothesis build dist site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
