# SPDX-License-Identifier: Apache-2.0
#
# The commands of a newcomer. Each does its own set-up; `make help` lists them.

BUILD ?= build
# Python tests run in an environment outside the checkout, so that `git clean` keeps it.
VENV ?= $(or $(FA3_VENV),$(HOME)/.cache/fa3/venv)
JOBS ?= $(shell nproc)
SOURCES = $(shell git ls-files '*.h' '*.cpp' '*.c' '*.cu' '*.cuh')

.PHONY: help build demo test check format format-check layers lint tidy \
  asan tsan torch wheel gpu-verify record-check clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  make \1 - \2/p' Makefile

build:  ## the library, the fa3 command and the tests, into build/
	@tools/setup.sh build test
	@mkdir -p $(BUILD)
	@cmake -S . -B $(BUILD) -G Ninja -DFA3_PYTHON=ON $(CMAKE_FLAGS) >$(BUILD)/configure.log 2>&1 || \
	  { cat $(BUILD)/configure.log; exit 1; }
	@grep -h '^-- fa3:' $(BUILD)/configure.log || true
	@cmake --build $(BUILD) -j $(JOBS)

demo: build  ## attention on a real transformer's Q, K, V, and on 16k tokens
	@$(BUILD)/bin/fa3 demo

$(VENV)/bin/pytest: requirements-test.txt
	@tools/setup.sh test
	python3 -m venv $(VENV)
	$(VENV)/bin/pip install -q --disable-pip-version-check -r requirements-test.txt
	@touch $@

torch: $(VENV)/bin/pytest  ## torch and transformers for the Python tests (2 GB), outside of the checkout
	$(VENV)/bin/pip install -q --disable-pip-version-check --no-deps -r requirements-torch.txt
	$(VENV)/bin/pip install -q --disable-pip-version-check -r requirements-hf.txt

wheel: $(VENV)/bin/pytest  ## the Python wheel, into build/wheel, tried in a clean environment
	@tools/try_wheel.sh $(VENV) $(BUILD)

test: build $(VENV)/bin/pytest  ## everything that can be tested on this machine
	@$(VENV)/bin/python tools/run_tests.py $(BUILD)

check: format-check layers lint  ## formatting, layers, ruff

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

tidy: build  ## clang-tidy over the library and the command
	@tools/setup.sh tidy
	@run-clang-tidy-14 -quiet -p $(BUILD) 'src/(api|cli|core|engine|plan)/.*[.]cpp'

asan tsan:  ## the C++ tests under a sanitizer
	@tools/setup.sh build test
	cmake --preset $@ >/dev/null && cmake --build --preset $@ -j $(JOBS) && ctest --preset $@ -j $(JOBS)

gpu-verify:  ## on a machine with a Hopper GPU: verify the prebuilt kernels, write the record
	@python3 tools/gpu_verify.py --build $(BUILD)

record-check:  ## does the verification record match the kernels' sources?
	@python3 tools/gpu_verify.py --check

clean:  ## removes build/
	rm -rf $(BUILD)
