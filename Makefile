# SPDX-License-Identifier: Apache-2.0
#
# Each target does its own set-up; `make help` lists them by what you came for.

BUILD ?= build
# Python tests run in an environment outside the checkout, so that `git clean` keeps it.
VENV ?= $(or $(FA3_VENV),$(HOME)/.cache/fa3/venv)
JOBS ?= $(shell nproc)
# Tests build fa3 again, as its users do. With ccache (tools/setup.sh) that takes seconds: it knows
# the objects of `make build` by their sources, in any folder.
export CCACHE_BASEDIR ?= $(CURDIR)
export CCACHE_NOHASHDIR ?= 1
LAUNCHER = $(if $(shell command -v ccache),$(foreach language,CXX CUDA,-DCMAKE_$(language)_COMPILER_LAUNCHER=ccache))
SOURCES = $(shell git ls-files '*.h' '*.cpp' '*.c' '*.cu' '*.cuh')

.PHONY: help build demo wheel deb docs test check headers format format-check layers lint tidy \
  arm asan tsan fuzz torch report figures test-python gpu-verify record-check clean

help:
	@sed -n -e 's/^#@ \(.*\)/\n\1/p' -e 's/^\([a-z -]*\):.*## \(.*\)/  make \1|\2/p' Makefile | \
	  awk -F'|' '{ if (NF == 2) printf "%-20s %s\n", $$1, $$2; else print }'

#@ To use fa3

# The command and the library alone; the CUDA kernels, which take minutes, where a GPU can run them.
HOPPER = $(shell nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | grep -m1 -x 9.0)
demo:  ## see it work: a transformer's Q, K, V and 16k tokens, checked (builds for a minute)
	@tools/setup.sh command
	@mkdir -p $(BUILD)
	@cmake -S . -B $(BUILD)/demo -G Ninja -DFA3_DEVELOPER=OFF \
	  -DFA3_CUDA=$(if $(HOPPER),ON,OFF) >$(BUILD)/demo.log 2>&1 || { cat $(BUILD)/demo.log; exit 1; }
	@grep -h '^-- fa3:' $(BUILD)/demo.log || true
	@echo "building libfa3 and the command $(if $(HOPPER),with,without) the GPU's kernels" \
	  "$(if $(HOPPER),(minutes),(no Hopper GPU is here))"
	@cmake --build $(BUILD)/demo -j $(JOBS)
	@$(BUILD)/demo/bin/fa3 demo
	@$(if $(HOPPER),$(BUILD)/demo/bin/fa3 demo --engine hopper --dtype bf16)

# For this machine, and from x86-64 for Arm hosts too.
MACHINE = $(shell uname -m)
ARM = $(if $(filter x86_64,$(MACHINE)),aarch64)
wheel: $(VENV)/bin/pytest  ## the Python wheels, with and without CUDA code, into build/wheel; tried
	@tools/setup.sh build $(if $(ARM),arm)
	@rm -rf $(BUILD)/wheel
	@$(VENV)/bin/python tools/build_wheel.py $(BUILD)/wheel $(MACHINE) $(ARM)
	@tools/try_wheel.sh $(BUILD)/wheel-venv $$(find $(BUILD)/wheel -name '*.whl')

deb:  ## the Debian package, into build/deb
	@tools/setup.sh build deb
	@cmake -S . -B $(BUILD)/deb -G Ninja -DFA3_DEVELOPER=OFF \
	  -DCMAKE_INSTALL_PREFIX=/usr $(LAUNCHER) $(CMAKE_FLAGS) >/dev/null
	@cmake --build $(BUILD)/deb -j $(JOBS) && cpack --config $(BUILD)/deb/CPackConfig.cmake -B $(BUILD)/deb

# OPTIONS: those of benchmarks/report.py, such as --quick, --only forward,decode, --again.
report: build $(VENV)/bin/pytest  ## measure all that this machine can run: docs/lab/report-MACHINE.md
	@$(VENV)/bin/python -c 'import torch, transformers' 2>/dev/null || $(MAKE) --no-print-directory torch
	@$(if $(HOPPER),cmake --build $(BUILD) --target fa3_ablation)
	@PYTHONPATH=$(abspath $(BUILD))/python FA3_LIBRARY=$(abspath $(BUILD))/lib/libfa3.so \
	  $(VENV)/bin/python benchmarks/report.py $(OPTIONS)

# Nothing is built for it: the reference comes from docstrings and comments (docs/conf.py). A warning
# and a dead link are errors.
docs: $(VENV)/bin/sphinx-build  ## the pages of docs/ and the API reference as a site, into build/docs/html
	@tools/setup.sh docs
	@mkdir -p $(BUILD)/docs
	@(cat docs/reference/Doxyfile; echo OUTPUT_DIRECTORY=$(BUILD)/docs/doxygen) | doxygen -
	@$(VENV)/bin/sphinx-build -q -E -W --keep-going -d $(BUILD)/docs/doctrees \
	  -D breathe_projects.fa3=$(abspath $(BUILD))/docs/doxygen/xml docs $(BUILD)/docs/html
	@python3 tools/check_site.py $(BUILD)/docs/html
	@echo "open $(BUILD)/docs/html/index.html"

$(VENV)/bin/sphinx-build: $(VENV)/bin/pytest requirements-docs.txt
	$(VENV)/bin/pip install -q --disable-pip-version-check -r requirements-docs.txt
	@touch $@

#@ To change fa3

# KERNELS=OFF leaves out the GPU's kernels, the most of it; all else is there, for tests. BF16 has half
# of them, SAMPLE one of each kind.
KERNELS ?= ON
build:  ## the library, the fa3 command, the Python package and the tests, into build/
	@tools/setup.sh build test
	@mkdir -p $(BUILD)
	@cmake -S . -B $(BUILD) -G Ninja -DFA3_PYTHON=ON -DFA3_KERNELS=$(KERNELS) $(LAUNCHER) $(CMAKE_FLAGS) >$(BUILD)/configure.log 2>&1 || \
	  { cat $(BUILD)/configure.log; exit 1; }
	@grep -h '^-- fa3:' $(BUILD)/configure.log || true
	@cmake --build $(BUILD) -j $(JOBS)

$(VENV)/bin/pytest: requirements-test.txt
	@tools/setup.sh test
	python3 -m venv $(VENV)
	$(VENV)/bin/pip install -q --disable-pip-version-check -r requirements-test.txt
	@touch $@

torch: $(VENV)/bin/pytest  ## torch, Transformers and JAX for the tests (2 GB), outside of the checkout
	$(VENV)/bin/pip install -q --disable-pip-version-check --no-deps -r requirements-torch.txt
	$(VENV)/bin/pip install -q --disable-pip-version-check -r requirements-hf.txt -r requirements-jax.txt

# With kernels where a GPU can run them, or where they are built already. FULL=1: longer case tables,
# more seeds, and every build that users make.
BUILT_KERNELS = $(shell sed -n 's/^FA3_KERNELS:[A-Z]*=//p' $(BUILD)/CMakeCache.txt 2>/dev/null)
test:  ## everything that can be tested on this machine (FULL=1: at length)
	@tools/setup.sh build test
	@$(MAKE) --no-print-directory -j2 $(VENV)/bin/pytest build \
	  KERNELS=$(or $(if $(HOPPER),ON),$(BUILT_KERNELS),OFF)
	@$(if $(FULL),,FA3_TEST_QUICK=1) $(VENV)/bin/python tools/run_tests.py $(BUILD)

# VENV: another environment, say one without torch.
test-python: build $(VENV)/bin/pytest  ## the Python tests alone
	@$(if $(FULL),,FA3_TEST_QUICK=1) $(VENV)/bin/python tools/run_tests.py $(BUILD) --python

check: format-check layers lint  ## formatting, layers, ruff, mypy

headers:  ## does every header compile alone? (two minutes on two cores)
	@tools/setup.sh build
	@python3 tools/check_headers.py

format:  ## clang-format every source
	@tools/setup.sh lint
	@clang-format-14 -i $(SOURCES)

format-check:
	@tools/setup.sh lint
	@clang-format-14 --dry-run --Werror $(SOURCES) && echo "format: clean"

layers:
	@python3 tools/check_layers.py

lint: $(VENV)/bin/pytest
	@$(VENV)/bin/ruff check -q . && $(VENV)/bin/ruff format -q --check . && echo "ruff: clean"
	@$(VENV)/bin/mypy --cache-dir $(BUILD)/mypy --no-error-summary && echo "mypy: clean"

tidy: build  ## clang-tidy over the library and the command
	@tools/setup.sh tidy
	@run-clang-tidy-14 -quiet -p $(BUILD) '(src/(api|cli|core|engine|plan|process|ring)|generated/engine/cpu)/.*[.]cpp'

# With SECONDS, each fuzzer goes on for that long, from what it found before, in build/fuzz.
SECONDS ?= 0
fuzz:  ## the fuzzers, by clang: corpora and a few thousand inputs, or SECONDS=300 of them
	@tools/setup.sh build test
	@cmake --preset fuzz $(LAUNCHER) >/dev/null && cmake --build --preset fuzz -j $(JOBS)
	@$(if $(filter 0,$(SECONDS)),ctest --preset fuzz -j $(JOBS), \
	  for fuzzer in npy calls lengths; do found=$(BUILD)/fuzz/tests/fuzz/found/$$fuzzer; \
	  $(BUILD)/fuzz/bin/fuzz_$$fuzzer -max_total_time=$(SECONDS) -timeout=60 -max_len=512 \
	  -artifact_prefix=$$found/ $$found tests/fuzz/corpus/$$fuzzer || exit 1; done)

# The suites that two cores do in little more than a minute, or with FULL=1 all of the CPU engine for
# each instruction set: some forty minutes.
arm:  ## for Arm hosts: cross-compiled, the CPU engine's suites under emulation (FULL=1: all)
	@tools/setup.sh build test arm
	@cmake --preset arm $(LAUNCHER) >/dev/null && cmake --build --preset arm -j $(JOBS)
	@qemu-aarch64-static -cpu max -L /usr/aarch64-linux-gnu build/arm/bin/fa3 doctor
	@ctest --preset $(if $(FULL),arm-full,arm) -j $(JOBS)
	@$(if $(FULL),,echo "arm: suites left out here run with make arm FULL=1")

asan tsan:  ## the C++ tests under a sanitizer
	@tools/setup.sh build test
	cmake --preset $@ >/dev/null && cmake --build --preset $@ -j $(JOBS) && ctest --preset $@ -j $(JOBS)

clean:  ## remove build/
	rm -rf $(BUILD)

#@ To release fa3

figures: $(VENV)/bin/pytest  ## every picture and report page, from the measured rows in docs/lab/results
	@$(VENV)/bin/python tools/draw_speed.py
	@$(VENV)/bin/python benchmarks/draw.py

gpu-verify:  ## on a machine with a Hopper GPU: verify the prebuilt kernels, write the record
	@python3 tools/gpu_verify.py --build $(BUILD)

record-check:  ## does the verification record match the kernels' sources?
	@python3 tools/gpu_verify.py --check
