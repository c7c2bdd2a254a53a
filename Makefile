# Two commands do all set-up on a fresh Debian 12 machine, as root: `make demo`, `make test`.
SHELL := /bin/sh
PYTHON := .venv/bin/python
PYTEST := $(PYTHON) -m pytest
SCRIPTS := hooks/qemu packaging/place-hook tests/setup.sh .ci/run packaging/completion/vgpu-hook \
	$(wildcard packaging/common.sh packaging/*/build.sh packaging/deb/debian/*.p* packaging/deb/debian/tests/hook) \
	$(wildcard tests/testbed/image/*.sh tests/simhost/tools/*)

.PHONY: help demo test check lint unit quick simulated proof packages libvirt hosts testhost installed simhost soak fuzz \
	mutations bench rules docs deb rpm dist setup clean

help:  ## Show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

demo: setup  ## Show the main job on a real kernel, in a VM
	$(PYTHON) -m tests.testbed.demo

test: lint unit simulated proof packages  ## Everything that CI runs
	@$(MAKE) --no-print-directory --jobs 2 --output-sync=target libvirt hosts  # one CPU each
	@$(MAKE) --no-print-directory testhost

check: lint unit quick  ## The fast part: lint, types, unit tests, the simulated host's first ones

lint: setup
	$(PYTHON) -m ruff check .
	$(PYTHON) -m ruff format --check .
	$(PYTHON) -m mypy
	shellcheck $(SCRIPTS)

unit: setup
	$(PYTEST) tests/unit
	@echo "again with the newest libraries of PyPI (pydantic 2):"
	.venv2/bin/python -m pytest -p no:cacheprovider tests/unit/test_config.py \
		tests/unit/test_domain.py tests/unit/test_placement.py

QUICK := test_start_stop test_vendor_vfio test_arrivals test_gpu_states
quick: setup
	$(PYTEST) --numprocesses 2 --dist loadfile $(QUICK:%=tests/simulated/%.py)

simulated: setup
	$(PYTEST) --numprocesses 2 --dist loadfile tests/simhost tests/simulated

proof: setup  ## Any order of events, any crash, any fault, and each public report
	$(PYTEST) --numprocesses 2 --dist worksteal tests/model tests/crash tests/reports

packages: setup  ## The packages, built, checked and installed; the docs, and each command that they show
	$(PYTEST) --numprocesses 2 --dist loadfile tests/packaging tests/docs

libvirt: setup  ## Tests with the libvirtd of this machine, in namespaces of its own
	$(PYTEST) tests/libvirt tests/simlibvirt

hosts: setup  # what `testhost` would build first
	$(PYTHON) -m tests.testbed build

testhost: setup  ## Tests on a real kernel, in a VM
	$(PYTEST) --numprocesses 2 --dist loadfile tests/testhost

installed: setup  ## The package on fresh hosts of Debian 12 and 13 while VMs run (an hour at first)
	$(PYTEST) -v tests/installed

HOST ?= nvidia-two-t4
simhost: setup  ## A shell on a simulated host, without a GPU: make simhost HOST=l40s
	$(PYTHON) -m tests.simhost $(HOST)

soak: setup  ## Long runs: hours on the simulated host, then on the test host
	CRASH_POINTS=all $(PYTEST) --numprocesses 2 tests/soak/test_model.py tests/crash tests/soak/test_crash.py
	TESTHOST_KINDS=all $(PYTEST) --numprocesses 2 --dist loadfile tests/testhost
	$(PYTEST) --ignore tests/soak/test_model.py --ignore tests/soak/test_crash.py tests/soak tests/installed

FUZZ_SECONDS ?= 600
fuzz: setup  ## Anything on the hook's stdin, for FUZZ_SECONDS (ten minutes)
	$(PYTHON) -m tests.fuzz $(FUZZ_SECONDS)

mutations: setup  ## Break each rule in a copy, and see that a test notices
	$(PYTHON) -m tests.mutations

bench: setup  ## Figures: what the hook costs (medians and spread)
	$(PYTHON) -m tests.bench

rules: setup  ## Write the tests of each rule into docs/rules.md
	$(PYTHON) -m tests.rules_table

docs: setup  ## Write the man pages' option parts and the completion, from the parser and the settings
	$(PYTHON) -m tests.docs

deb:  ## Build the Debian package into dist/
	packaging/deb/build.sh dist

rpm:  ## Build the rpms into dist/; elsewhere than on Fedora only for looking at
	packaging/rpm/build.sh dist

dist:  ## Build the wheel and the source archive into dist/
	packaging/pypi/build.sh dist

setup:
	@sh tests/setup.sh

clean:  ## Remove what was built here; the test host's cache stays
	rm -rf .venv .venv2 dist build .mypy_cache .ruff_cache .pytest_cache .hypothesis *.egg-info
