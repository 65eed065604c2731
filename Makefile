# Everything a newcomer needs: make demo, make test. See README.md.
SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
CARGO ?= cargo
TARGET ?= target
PREFIX ?= /usr/local
DESTDIR ?=
TRIPLE := x86_64-unknown-linux-gnu

.PHONY: all deps build build-debug static test lint docs bench demo long guest guest-test guest-power install uninstall rollback clean

all: build

deps: ## install what is missing (Debian packages; a Rust toolchain when there is none)
	@scripts/deps

# atenea-init and atenea-guest run inside the sandbox and are static, so that they need nothing of
# what is there. `--target` keeps the flag away from build scripts and macros.
static: deps
	@RUSTFLAGS="-C target-feature=+crt-static" $(CARGO) build --quiet --locked --release \
	  --target $(TRIPLE) --target-dir $(TARGET)/static -p atenea-init -p atenea-guest

build: static ## release binaries in target/release
	@$(CARGO) build --quiet --locked --release --target-dir $(TARGET) -p atenea-sup
	@install -m 0755 $(TARGET)/static/$(TRIPLE)/release/atenea-init \
	  $(TARGET)/static/$(TRIPLE)/release/atenea-guest $(TARGET)/release/

build-debug: static
	@$(CARGO) build --quiet --locked --target-dir $(TARGET) -p atenea-sup
	@install -m 0755 $(TARGET)/static/$(TRIPLE)/release/atenea-init \
	  $(TARGET)/static/$(TRIPLE)/release/atenea-guest $(TARGET)/debug/

test: build-debug ## all tests
	@scripts/test

lint: deps
	@$(CARGO) fmt --check
	@$(CARGO) clippy --quiet --locked --workspace --all-targets --target-dir $(TARGET) -- -D warnings

docs: deps ## generated pages: error codes, command reference
	@$(CARGO) run --quiet --locked --target-dir $(TARGET) -p atenea-model-tests --bin gen-docs

demo: build ## show the main job on real input
	@scripts/demo $(TARGET)/release/atenea-sup

bench: build ## measure launch, journal and restart
	@$(CARGO) build --quiet --locked --release --target-dir $(TARGET) \
	  -p atenea-journal --example append_bench -p atenea-sup --example restart_bench
	@scripts/bench $(TARGET)/release/atenea-sup

long: build ## the long lanes
	@scripts/soak $(TARGET)/release/atenea-sup 200
	@scripts/killall $(TARGET)/release/atenea-sup 20
	@$(TARGET)/release/atenea-sup drill --all
	@scripts/broken $(TARGET)
	@PROPTEST_CASES=3000 $(CARGO) test --quiet --locked --target-dir $(TARGET) -p atenea-model-tests --test model
	@$(MAKE) --no-print-directory guest-test
	@$(MAKE) --no-print-directory guest-power N=10

install: ## programs, units, manual pages and completion below PREFIX; `make build` first
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" scripts/install install $(TARGET)/release

uninstall:
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" scripts/install uninstall

rollback: ## back to the version that was installed before
	@PREFIX="$(PREFIX)" DESTDIR="$(DESTDIR)" scripts/install rollback

# A Debian 13 guest without acceleration: systemd, and control groups of version 2 alone.
guest: ## make the guest's disk, kernel and initrd in target/guest
	@scripts/deps guest
	@fixtures/vm/image $(TARGET)/guest

guest-test: build guest ## tests of the real kernel, and the program itself, in the guest
	@/usr/bin/python3 fixtures/vm/test.py $(TARGET) $(SUITES)

N ?= 2
guest-power: build guest ## cut the power N times while the guest works on runs
	@/usr/bin/python3 fixtures/vm/power.py $(TARGET)/release $(N) $(SEED)

clean:
	@$(CARGO) clean --target-dir $(TARGET)
