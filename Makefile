# Entry points for people: each target installs what is missing, configures, builds and runs. CMake does the building.
SHELL := /bin/bash
.DELETE_ON_ERROR:
.PHONY: demo test lint format asan tsan fuzz bench cuda install-test clean

JOBS ?= $(shell nproc)
WERROR ?= OFF
PYTHON ?= /usr/bin/python3
CTEST_ARGS ?=

packages := tools/packages.sh
venv := build/venv/requirements.installed

demo:
	@$(packages) build test bench
	@$(MAKE) --no-print-directory build/release/build.ninja
	@cmake --build build/release --target moxie_cli -- -j $(JOBS)
	@tools/demo.sh build/release/bin/moxie

test:
	@$(packages) build test bench
	@$(MAKE) --no-print-directory $(venv) build/release/build.ninja
	@cmake --build build/release -- -j $(JOBS)
	@tools/run_ctest.sh build/release -LE 'gpu|slow|fuzz' $(CTEST_ARGS)

lint:
	@$(packages) build lint
	@$(MAKE) --no-print-directory build/lint/build.ninja
	@tools/lint.sh build/lint $(JOBS)

format:
	@$(packages) lint
	@find include src cli tests bench fuzz examples -name '*.[ch]' -o -name '*.[ch]pp' | xargs clang-format-19 -i

# The fast tests once more, with AddressSanitizer and UndefinedBehaviorSanitizer.
asan:
	@$(packages) build test
	@$(MAKE) --no-print-directory build/asan/build.ninja
	@cmake --build build/asan -- -j $(JOBS)
	@tools/run_ctest.sh build/asan -L '^unit$$' $(CTEST_ARGS)

# What several threads do together, with ThreadSanitizer.
tsan:
	@$(packages) build test
	@$(MAKE) --no-print-directory build/tsan/build.ninja
	@cmake --build build/tsan --target moxie_base_tests moxie_kernels_cpu_tests moxie_kernels_tiles_tests -- -j $(JOBS)
	@TSAN_OPTIONS=halt_on_error=1 tools/run_ctest.sh build/tsan -L '^unit$$' $(CTEST_ARGS) \
	  -R '^(Team|Parallel|Catalog/CpuKernel|PortableExperts)'

# Feeds the parsers of safetensors headers and GGUF files for 30 seconds each.
fuzz:
	@$(packages) build fuzz
	@$(MAKE) --no-print-directory build/fuzz/build.ninja
	@cmake --build build/fuzz --target fuzz_header fuzz_gguf -- -j $(JOBS)
	@tools/run_ctest.sh build/fuzz -L '^fuzz$$' $(CTEST_ARGS)

bench:
	@$(packages) build test bench
	@$(MAKE) --no-print-directory build/release/build.ninja
	@cmake --build build/release -- -j $(JOBS)
	@for program in build/release/bin/moxie_bench_*; do "$$program" || exit; done

# The GPU kernels and their test program, with the checks of their machine code that need no GPU.
cuda:
	@$(packages) build test
	@$(MAKE) --no-print-directory $(venv)
	@tools/cuda_checks.sh $(JOBS) $(WERROR)

install-test:
	@$(packages) build test bench
	@$(MAKE) --no-print-directory build/release/build.ninja
	@cmake --build build/release -- -j $(JOBS)
	@tools/run_ctest.sh build/release -L '^install$$' $(CTEST_ARGS)

clean:
	rm -rf build

# Configuring again is ninja's business once build.ninja exists; only a change of WERROR is not its own.
build/%/build.ninja: CMakePresets.json build/%/werror.$(WERROR)
	cmake --preset $* -DMOXIE_WERROR=$(WERROR)
	@touch $@

.PRECIOUS: build/%/werror.$(WERROR)
build/%/werror.$(WERROR):
	@mkdir -p $(@D) && rm -f $(@D)/werror.* && touch $@

$(venv): tools/requirements.txt
	@rm -rf build/venv && mkdir -p build
	$(PYTHON) -m venv build/venv
	build/venv/bin/pip install --quiet --disable-pip-version-check -r tools/requirements.txt
	@cp tools/requirements.txt $@
