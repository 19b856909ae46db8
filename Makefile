# What there is to do here. Each target installs what it needs by itself
# (scripts/need), and nothing where all of it is there; `quick` and `miri` only
# say what is missing.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help

# Where rustup puts cargo, and Debian its servers.
export PATH := $(or $(CARGO_HOME),$(HOME)/.cargo)/bin:$(PATH):/usr/sbin:/sbin

# Optimised, but quick to build: one profile for the demo and the tests.
PROFILE := quick
# Arguments passed through: make demo ARGS=--load, make bench ARGS=--quick.
ARGS ?=
# How often `make crash` kills a process.
CRASHES := 100

# How long `make fuzz` gives to each target.
SECONDS_EACH := $(if $(filter environment command,$(origin SECONDS)),$(SECONDS),60)

BUILD_TOOLS := cargo cc
TEST_TOOLS := $(BUILD_TOOLS) curl nginx nginx-stream haproxy haproxy-exporter promtool dnsmasq node cache-suite ab wrk venv chromium mke2fs systemd postgres psql mariadb mariadb-client redis openssl bind pebble h2spec grpc-interop connect-conformance nghttp go cargo-deb
RELEASE_TOOLS := $(BUILD_TOOLS) profdata ab nghttp openssl
BENCH_TOOLS := $(RELEASE_TOOLS) nginx nginx-stream haproxy fonts
POLICY_TOOLS := $(BUILD_TOOLS) nginx nginx-fair haproxy fonts
PACKAGE_TOOLS := $(RELEASE_TOOLS) cargo-deb cargo-generate-rpm cargo-cyclonedx cross umoci
PACKAGE_TEST_TOOLS := cargo-deb lintian mmdebstrap rpm qemu umoci crun curl
CHECK_TOOLS := cargo-deny cargo-machete
PICTURE_TOOLS := $(BUILD_TOOLS) chromium fonts pngquant venv

.PHONY: help demo quick test test-http2 it crash cache-crash cache-pauses cache-scale hit-ratios loom miri check format lint rustdoc supply-chain release bench bench-files bench-policies simulate many-hosts changes fuzz docs screenshots packages test-packages setup

help: ## Say what there is to do
	@sed -n 's/^\([a-z0-9-]*\):.*## /  make \1\t/p' Makefile | expand -t 24

demo: ## Run the load balancer with test origins (ARGS=--load sends requests, "--load --cache" has a cache, --tcp carries TCP, --tls encrypts)
	@scripts/need $(BUILD_TOOLS)
	@echo "demo: building and starting evenkeel demo $(ARGS)"
	@exec cargo run --profile $(PROFILE) -- demo $(ARGS)

# The mutation test of the configuration tries one character of SAMPLE.
SAMPLE := 50

quick: ## Check format and lints, and run unit, configuration and docs tests
	@scripts/need --check $(BUILD_TOOLS)
	@$(MAKE) format lint
	@echo "quick: unit tests, tests of the configuration and of the documentation"
	@EVENKEEL_TEST_SAMPLE=$(SAMPLE) EVENKEEL_TEST_NO_MOUNT=1 cargo test --quiet --workspace --profile $(PROFILE) \
		--lib --bins --test config --test docs

# Tests of the whole program wait more than they work: two cores run three at a time.
TEST_THREADS := $(shell cores=$$(nproc); echo $$((cores < 3 ? 3 : cores)))
test it: export RUST_TEST_THREADS ?= $(TEST_THREADS)

# Its own folder: the flag would have everything else built anew.
LOOM := RUSTFLAGS="--cfg loom" cargo test --quiet --release --package evenkeel-policy --test loom --target-dir target/loom

# The tests leave cores idle, which loom uses meanwhile: it gives way to them.
test: ## Run all tests
	@scripts/need $(TEST_TOOLS)
	@echo "test: cargo test --workspace"
	@if [ "$$(id -u)" != 0 ] || ! [ -w /dev/fuse ]; then \
		echo "test: without root and /dev/fuse no slow disk can be made: the tests that need one are left out"; \
		export EVENKEEL_TEST_NO_MOUNT=1; \
	fi; \
	cargo test --workspace --profile $(PROFILE) --no-run; \
	mkdir -p target/loom; \
	nice -n 19 env $(LOOM) >target/loom/log 2>&1 & loom=$$!; \
	trap 'kill $$loom 2>/dev/null || true' EXIT; \
	failed=0; \
	cargo test --workspace --profile $(PROFILE) --no-fail-fast || failed=1; \
	echo "loom: cargo test --test loom"; \
	wait $$loom || failed=1; \
	cat target/loom/log; \
	exit $$failed

test-http2: ## Run the suites of HTTP/2 whole, of which `make test` runs a part
	@scripts/need $(TEST_TOOLS)
	@echo "test-http2: cargo test --package evenkeel-it http2:: $(ARGS)"
	@cargo build --profile $(PROFILE) --package evenkeel
	@EVENKEEL_TEST_HTTP2=whole cargo test --profile $(PROFILE) --package evenkeel-it -- http2:: $(ARGS)

it: ## Run the tests of the whole program (ARGS=cache:: runs a part)
	@scripts/need $(TEST_TOOLS)
	@echo "it: cargo test --package evenkeel-it $(ARGS)"
	@cargo build --profile $(PROFILE) --package evenkeel
	@cargo test --profile $(PROFILE) --package evenkeel-it -- $(ARGS)

crash: ## Kill a process that writes a cache on a disk CRASHES=100 times
	@scripts/need $(BUILD_TOOLS)
	@echo "crash: killing a writer $(CRASHES) times"
	@EVENKEEL_TEST_CRASHES=$(CRASHES) cargo test --quiet --profile $(PROFILE) --lib -- \
		cache::disk::tests::crash

loom: ## Check the hand-over of slots under every order of memory accesses
	@scripts/need $(BUILD_TOOLS)
	@echo "loom: cargo test --test loom"
	@$(LOOM)

# An interpreter is slow: a few inputs of each property, and of the fuzz corpus.
# Balancers and budgets are left out, whose tests take thousands of turns and whose
# crate has no unsafe code; of `net`, what asks the kernel for more than Miri knows.
MIRI := MIRIFLAGS=-Zmiri-disable-isolation PROPTEST_CASES=1 cargo +nightly miri test --quiet --lib

miri: ## Run the unit tests of parsers, decisions and the event loop in Miri
	@scripts/need --check $(BUILD_TOOLS) miri
	@echo "miri: cargo +nightly miri test"
	@$(MIRI) --package evenkeel-net -- buffer:: clock:: descriptors:: prefetch:: tasks:: timer::tests::d
	@$(MIRI) --package evenkeel-proto
	@$(MIRI) --package evenkeel-policy -- --skip balance:: --skip budget::

check: format lint rustdoc supply-chain test ## Check format, lints and documentation, and run all tests

format:
	@scripts/need $(BUILD_TOOLS)
	@echo "check: cargo fmt"
	@cargo fmt --all --check

lint:
	@scripts/need $(BUILD_TOOLS)
	@echo "check: cargo clippy"
	@cargo clippy --quiet --workspace --all-targets -- --deny warnings

rustdoc:
	@scripts/need $(BUILD_TOOLS)
	@echo "check: cargo doc"
	@RUSTDOCFLAGS="--deny warnings" cargo doc --quiet --workspace --no-deps --document-private-items

release: ## Build target/optimised/evenkeel, laid out by a profile of itself at work
	@scripts/need $(RELEASE_TOOLS)
	@scripts/release

supply-chain: ## Check licences and sources of dependencies, and that each is used
	@scripts/need $(BUILD_TOOLS) $(CHECK_TOOLS)
	@echo "check: cargo deny, cargo machete"
	@cargo deny --log-level error check bans licenses sources
	@cargo machete

packages: ## Build .deb, .rpm, .tar.gz and container image for amd64 and arm64 (ARGS=--plain is quicker)
	@scripts/need $(PACKAGE_TOOLS)
	@echo "packages: target/packages (three release builds: half an hour on two cores)"
	@scripts/packages $(ARGS)

test-packages: ## Install and run what `make packages` built, as root
	@scripts/need $(PACKAGE_TEST_TOOLS)
	@scripts/test-packages

bench: ## Compare with the bare relay, nginx and HAProxy (ARGS="--quick --case 1k-64")
	@scripts/need $(BENCH_TOOLS)
	@echo "bench: make release, then evenkeel-lab bench $(ARGS)"
	@$(MAKE) release
	@exec cargo run --quiet --release --package evenkeel-lab -- bench --evenkeel target/optimised/evenkeel $(ARGS)

bench-files: ## Compare files with nginx and lighttpd, as root (ARGS="--quick --case cold-64")
	@scripts/need $(RELEASE_TOOLS) nginx
	@echo "bench-files: make release, then evenkeel-lab bench-files $(ARGS)"
	@$(MAKE) release
	@exec cargo run --quiet --release --package evenkeel-lab -- bench-files --evenkeel target/optimised/evenkeel $(ARGS)

simulate: ## Simulate the balancers under virtual time (ARGS="--scenario S3 --seed 1")
	@scripts/need $(BUILD_TOOLS)
	@echo "simulate: evenkeel-lab simulate $(ARGS)"
	@exec cargo run --quiet --profile $(PROFILE) --package evenkeel-lab -- simulate $(ARGS)

many-hosts: ## Measure what 10,000 hosts cost over one (ARGS="--hosts 1000")
	@scripts/need $(RELEASE_TOOLS)
	@echo "many-hosts: make release, then evenkeel-lab many-hosts $(ARGS)"
	@$(MAKE) release
	@exec cargo run --quiet --release --package evenkeel-lab -- many-hosts --evenkeel target/optimised/evenkeel $(ARGS)

changes: ## Change the program under load: nothing is lost (ARGS="--suite upgrades")
	@scripts/need $(RELEASE_TOOLS) dnsmasq
	@echo "changes: make release, then evenkeel-lab changes $(ARGS)"
	@$(MAKE) release
	@exec cargo run --quiet --release --package evenkeel-lab -- changes --evenkeel target/optimised/evenkeel $(ARGS)

cache-crash: ## Kill Evenkeel with 1,000,000 cached pages 100 times (3 GB; ARGS="--kills 10")
	@scripts/need $(RELEASE_TOOLS)
	@echo "cache-crash: make release, then evenkeel-lab cache-crash $(ARGS)"
	@$(MAKE) release
	@exec cargo run --quiet --release --package evenkeel-lab -- cache-crash --evenkeel target/optimised/evenkeel $(ARGS)

cache-pauses: ## Look for pauses while 1,000,000 cached pages are evicted and purged
	@scripts/need $(RELEASE_TOOLS)
	@echo "cache-pauses: make release, then evenkeel-lab cache-pauses $(ARGS)"
	@$(MAKE) release
	@exec cargo run --quiet --release --package evenkeel-lab -- cache-pauses --evenkeel target/optimised/evenkeel $(ARGS)

cache-scale: ## Measure CPU and memory of up to 10,000,000 cached pages (6 GB; ARGS="--on-disk 0")
	@scripts/need $(RELEASE_TOOLS)
	@echo "cache-scale: make release, then evenkeel-lab cache-scale $(ARGS)"
	@$(MAKE) release
	@exec cargo run --quiet --release --package evenkeel-lab -- cache-scale --evenkeel target/optimised/evenkeel $(ARGS)

hit-ratios: ## Compare what the cache in memory keeps with the policies of libCacheSim
	@scripts/need $(BUILD_TOOLS) venv libcachesim
	@echo "hit-ratios: eight traces, then scripts/hit-ratios (ten minutes)"
	@cargo bench --quiet --package evenkeel-cache --bench hit_ratios -- --write $(CURDIR)/target/hit-ratios
	@exec .venv/bin/python scripts/hit-ratios target/hit-ratios

bench-policies: ## Run the scenarios of the balancers (ARGS="--scenario S2 --quick")
	@scripts/need $(POLICY_TOOLS)
	@echo "bench-policies: building with --release, then evenkeel-lab policies $(ARGS)"
	@cargo build --quiet --release --package evenkeel --package evenkeel-lab
	@exec cargo run --quiet --release --package evenkeel-lab -- policies $(ARGS)

# What it finds new goes to fuzz/target/corpus; fuzz/corpus holds what was kept.
fuzz: ## Run each fuzz target for SECONDS=60
	@scripts/need $(BUILD_TOOLS) cargo-fuzz
	@test -d fuzz || { echo "fuzz: there are no fuzz targets yet" >&2; exit 1; }
	@export RUSTC_BOOTSTRAP=1; for target in $$(cargo fuzz list); do \
	    echo "fuzz: $$target for $(SECONDS_EACH) s"; \
	    mkdir -p "fuzz/corpus/$$target" "fuzz/target/corpus/$$target"; \
	    cargo fuzz run "$$target" "fuzz/target/corpus/$$target" "fuzz/corpus/$$target" \
	        -- -max_total_time=$(SECONDS_EACH); \
	done

docs: ## Write the reference from the code, build the book, and the API's pages
	@scripts/need $(BUILD_TOOLS) mdbook
	@echo "docs: docs/configuration.md and docs/configuration.schema.json"
	@BLESS=1 cargo test --quiet --profile $(PROFILE) -p evenkeel-config --test config derived_pages_are_up_to_date
	@echo "docs: docs/metrics.md"
	@BLESS=1 cargo test --quiet --profile $(PROFILE) --lib every_metric_is_documented
	@echo "docs: docs/command-line.md"
	@BLESS=1 cargo test --quiet --profile $(PROFILE) --package evenkeel --test cli the_page_of_the_command_line
	@echo "docs: target/book/index.html (evenkeel files target/book)"
	@mdbook build
	@echo "docs: target/doc/evenkeel/index.html"
	@cargo doc --quiet --workspace --no-deps

screenshots: ## Take the pictures of the status page that the documentation shows
	@scripts/need $(PICTURE_TOOLS)
	@cargo build --quiet --profile $(PROFILE) --package evenkeel
	@echo "screenshots: docs/images (two minutes, most of them under load)"
	@.venv/bin/python scripts/screenshots target/$(PROFILE)/evenkeel docs/images

setup: ## Install everything that any target needs
	@scripts/need $(TEST_TOOLS) $(PICTURE_TOOLS) $(BENCH_TOOLS) $(POLICY_TOOLS) $(PACKAGE_TOOLS) $(PACKAGE_TEST_TOOLS) $(CHECK_TOOLS) mdbook cargo-fuzz miri
	@echo "setup: everything is there"
