# Two commands for people: make demo, make check. CMake, Ninja and CTest do the work; the presets are
# release, debug, cuda, clang, asan, tsan and fuzz (CMakePresets.json).
PRESET ?= release
PROMPT ?= Once upon a time there was a little girl who
JOBS   ?= $(shell nproc)
BUILD  := build/$(PRESET)

.PHONY: all demo check timing long asan deps build fuzz clean
all: build

demo: build
	$(BUILD)/nybble run -p "$(PROMPT)"

# Two tests more than there are cores: those of ranks on hosts, and of the server, mostly wait.
check: build
	ctest --test-dir $(BUILD) --output-on-failure -j $$(($(JOBS) + 2)) -LE timing

# Tests that compare times: only a quiet machine can say.
timing: build
	ctest --test-dir $(BUILD) --output-on-failure -L timing

# What make check takes a part of: a hundred updates of weights, and some that fail at every single read and step of
# the commit, of every rank (a third there), the reference perplexity over the whole text (a quarter there), experts
# over ranks in every way for every model, hosts with longer cuts and every model on three of them, and ninety random models.
long: build
	NYBBLE_LONG=1 ctest --test-dir $(BUILD) --output-on-failure -R 'golden.test_(update|live)|cli.test_(device|eval|ranks|random_models)|dist.test_hosts'

# Everything but servers and hosts under the address and undefined-behaviour sanitizers.
asan:
	@scripts/install-deps.sh ci
	@cmake --preset asan -DNYBBLE_EMULATE=ON > /dev/null
	@cmake --build build/asan -j $(JOBS)
	ctest --preset asan -j $(JOBS) -LE 'http|dist|timing'

deps:
	@scripts/install-deps.sh build

build: deps
	@cmake --preset $(PRESET) > /dev/null
	@cmake --build $(BUILD) -j $(JOBS)

# Five minutes a target: make fuzz; SECONDS=30 make fuzz for a short turn.
fuzz:
	@scripts/install-deps.sh ci
	@cmake --preset fuzz > /dev/null
	@cmake --build build/fuzz -j $(JOBS)
	@scripts/fuzz.sh build/fuzz $(or $(SECONDS),300)

clean:
	rm -rf build
