# Front door over the CMake presets. `make help` lists what there is.
SHELL   := /bin/sh
PREFIX  ?= /usr/local
T       ?= 60
N       ?= 200
SEED    ?= 1
SUITE   ?= gemm
MAKEFLAGS += --no-print-directory

.NOTPARALLEL:
.DEFAULT_GOAL := all
.PHONY: all demo examples check test nightly test-neon test-opencl test-nvrtc test-cuda sanitize-cuda golden debug asan tsan fuzz mutate mutate-tests soak fmt fmt-check lint docs api \
        install bench clean help setup-build setup-test setup-opencl setup-neon setup-lint setup-bench

all: setup-build ## build the library, the programs, the tests and the examples in build/
	@tools/build.sh release

demo: setup-build ## train a language model on Quern's own sources for a minute, and let it write (STEPS: how long)
	@tools/build.sh release quern_program
	@tools/demo.sh $(STEPS)

examples: setup-build ## build and run the example programs
	@tools/examples.sh

check: setup-test ## the quick tests: unit tests and one pass of the operation driver (two minutes on two cores)
	@/usr/bin/python3 tools/test.py quick $(STEPS)

test: setup-test setup-opencl setup-neon ## everything CI runs (half an hour on two cores; STEPS="value grad": only those)
	@/usr/bin/python3 tools/test.py all $(STEPS)

nightly: setup-test setup-opencl setup-neon ## the long forms: all cases on all devices, all networks for all GPU targets (SEED=N)
	@/usr/bin/python3 tools/test.py nightly $(STEPS)

test-neon: setup-test setup-neon ## the operation driver on AArch64: cross compiler and qemu-user
	@tools/neon.sh

test-opencl: setup-test setup-opencl all ## the operation driver on OpenCL, by PoCL where there is no GPU
	@tools/opencl.sh build

test-nvrtc: setup-test all ## every kernel of the operation driver compiled as CUDA C, without a GPU (TARGETS="sm_90 ...")
	@tools/nvrtc.sh build $(TARGETS)

test-cuda: setup-test all ## the operation driver on an NVIDIA GPU; skipped where there is none
	@tools/cuda.sh build

sanitize-cuda: setup-test all ## the operation driver on an NVIDIA GPU under compute-sanitizer (TOOLS="memcheck racecheck")
	@tools/sanitize_cuda.sh build $(TOOLS)

golden: setup-test all ## rewrite tests/golden/: kernels as the compiler makes them now
	@build/tests/golden/test_golden --update

debug: setup-build ## build with assertions in build/debug/
	@tools/build.sh debug

asan: setup-test ## unit tests and quick driver under the address and undefined-behavior sanitizers
	@tools/sanitize.sh asan

tsan: setup-test ## unit tests and quick driver under the thread sanitizer
	@tools/sanitize.sh tsan

fuzz: setup-test ## run every fuzz target for T=60 seconds
	@tools/fuzz.sh $(T)

mutate: setup-test ## plant N=200 mutations (SEED=1); 95 % of them must be noticed by the tests
	@/usr/bin/python3 tools/mutate.py --n $(N) --seed $(SEED) $(MUTATE)

mutate-tests: setup-test all ## the tests that mutants have to pass, on the unchanged sources
	@tools/kill.sh build

soak: setup-test ## property tests with new seeds under the sanitizer, then fuzzing, for T seconds each
	@tools/soak.sh $(T)

fmt: setup-lint ## format all C sources
	@tools/fmt.sh

fmt-check: setup-lint ## say which C sources are not formatted
	@tools/fmt.sh --check

lint: setup-test setup-lint fmt-check ## formatting and clang-tidy
	@tools/lint.sh

bench: setup-bench all ## measure SUITE=gemm against the peers; JSON to build/bench-SUITE.json (BENCH: more options)
	@build/quern bench $(SUITE) --json build/bench-$(SUITE).json $(BENCH)

docs: setup-test all ## rewrite the generated parts of docs/, and check the examples in the text
	@/usr/bin/python3 tools/docs.py --update

api: all ## renew what follows from the public headers: api.def, place.h, docs/reference.md
	@/usr/bin/python3 tools/api.py --update

install: all ## install under PREFIX=/usr/local (DESTDIR is honored)
	@cmake --install build --prefix $(PREFIX)

clean: ## remove build/
	rm -rf build

help: ## this list
	@sed -n 's/^\([a-z-]*\):[^#]*## /\1\t/p' $(MAKEFILE_LIST) | awk -F'\t' '{printf "  make %-13s %s\n", $$1, $$2}'

setup-build:
	@tools/setup.sh build
setup-test:
	@tools/setup.sh build test
setup-opencl:
	@tools/setup.sh build opencl
setup-neon:
	@tools/setup.sh build neon
setup-lint:
	@tools/setup.sh build lint
setup-bench:
	@tools/setup.sh build bench
