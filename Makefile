# Millrace. `make help` lists the targets; each builds what it needs, once.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
MAKEFLAGS += --no-builtin-rules --no-print-directory
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

BUILD := build
TOKENIZERS := $(BUILD)/lib/libtokenizers.a
TOOLS := $(BUILD)/.tools-checked
GOLANGCI_VERSION := v2.15.0
GOLANGCI := $(BUILD)/tools/golangci-lint-$(GOLANGCI_VERSION)
ACTIONLINT_VERSION := v1.7.12
ACTIONLINT := $(BUILD)/tools/actionlint-$(ACTIONLINT_VERSION)

MODEL ?= models/tiny-chat
FUZZTIME ?= 20s
ARGS ?=
PYTHON ?= $(if $(wildcard .venv/bin/python),.venv/bin/python,python3)

# The tokenizer's Go package names its archive (-ltokenizers) but not its folder.
export CGO_ENABLED := 1
export CGO_LDFLAGS := -L$(CURDIR)/$(BUILD)/lib

VERSION = $(patsubst v%,%,$(shell git describe --tags --always --dirty 2>/dev/null || echo devel))
COMMIT = $(shell git rev-parse --short=12 HEAD 2>/dev/null || echo unknown)
GO_BUILD = go build -buildvcs=false -ldflags '-X main.version=$(VERSION) -X main.commit=$(COMMIT)'

##@ Use
.PHONY: run
run: build ## Start a server with the demo model: HTTP on 127.0.0.1:8080, NATS on 127.0.0.1:4222 (MODEL=DIR, ARGS="--flag ...")
	exec bin/millrace serve --model $(MODEL) $(ARGS)

.PHONY: bench
bench: build ## Measure prefill and decode of MODEL=DIR (ARGS="--prompt 512 --gen 32 --batch 1,8,16 --json")
	bin/millrace bench --model $(MODEL) $(ARGS)

.PHONY: bench-1b
bench-1b: build ## Measure a Llama of 1.1 billion random weights, made once in build/bench (2.2 GB)
	@[ -e $(BUILD)/bench/llama-1.1b/config.json ] || go run ./benchmarks/randmodel --out $(BUILD)/bench/llama-1.1b
	bin/millrace bench --model $(BUILD)/bench/llama-1.1b $(ARGS)

.PHONY: bench-peers
bench-peers: build ## Measure beside llama.cpp, OpenVINO GenAI and transformers, into benchmarks/results (ARGS="--quick"; 20 GB, once)
	@benchmarks/peers/install.sh
	go build -buildvcs=false -o $(BUILD)/peers/load ./benchmarks/peers/load
	$(BUILD)/peers/venv/bin/python benchmarks/peers/bench.py $(ARGS)

.PHONY: bench-stages
bench-stages: libs ## Measure each stage of the pipeline without a model, for benchstat (COUNT=6 BENCH=Chunk)
	go test -run '^$$' -bench '$(or $(BENCH),Chat|Push|Chunk|Token|Step|Sample|Streams|HTTP|Journal)' -count $(or $(COUNT),6) -benchmem \
	  ./tokenizer ./detok ./api/openai ./metrics ./compute/sched ./compute/sample ./actors/node ./durable/calls ./e2e

.PHONY: load
load: build ## Load a server of its own for 30 s with k6: HTTP and NATS, streams and cancels
	scripts/load.sh

.PHONY: load-full
load-full: build ## Latency against requests per second, with random arrivals and lengths: tables and pictures (RATES=2,4,8 STEP=30 KINDS="chat")
	scripts/load-full.sh $(ARGS)

.PHONY: cluster
cluster: libs ## Run NATS and two processes of each role on the loopback interface, until Ctrl-C (MODEL=DIR, ARGS="--each 3")
	go run ./e2e/chaos/up --model $(MODEL) $(ARGS)

##@ Build
.PHONY: build
build: libs ## Build bin/millrace
	$(GO_BUILD) -o bin/millrace ./cmd/millrace

.PHONY: libs
libs: | $(TOOLS) # side by side: cargo alone does not keep all cores busy
	@$(MAKE) --silent --jobs=2 $(TOKENIZERS) kernels

.PHONY: kernels
kernels: | $(TOOLS) # the generator knows what is out of date
	@scripts/build/kernels.sh release

$(TOKENIZERS): go.mod scripts/build/tokenizers.sh $(wildcard tokenizer/jinja/Cargo.* tokenizer/jinja/src/*.rs) | $(TOOLS)
	@scripts/build/tokenizers.sh

$(TOOLS): scripts/build/check-tools.sh
	@scripts/build/check-tools.sh go cxx cmake cargo git
	@mkdir -p $(BUILD) && touch $@

.PHONY: onednn
onednn: ## Fetch oneDNN into build/onednn, for the benchmark beside ours
	scripts/build/onednn.sh

.PHONY: page
page: ## Build the pages of api/web/page into api/web/dist, which is committed (Node 20.19 or later with npm)
	@scripts/build/page.sh

.PHONY: sycl
sycl: ## Build the SYCL backend, build/lib/libmillrace_sycl.so: with an installed oneAPI, or fetched wheels
	scripts/build/sycl.sh

.PHONY: cuda
cuda: ## Build the CUDA backend, build/lib/libmillrace_cuda.so: needs no CUDA toolkit and no GPU
	scripts/build/cuda.sh

.PHONY: env
env: ## Print what plain `go build` and `go test` need: eval "$(make env)"
	@echo "export CGO_ENABLED=1 CGO_LDFLAGS=$(CGO_LDFLAGS)"

.PHONY: clean
clean: ## Remove everything that was built
	rm -rf bin $(BUILD) examples/javascript/node_modules api/web/page/node_modules scripts/sdks/node_modules compute/device/kernels_id.h tokenizer/jinja/archive_id.h

##@ Check
.PHONY: test
test: test-kernels test-go ## Run all tests: kernels on every ISA of this machine, then Go, with the race detector where goroutines run

.PHONY: test-all
test-all: test-kernels libs python node ## The same with every model on every ISA, and all repetitions: what make test leaves out
	scripts/test-go.sh

.PHONY: test-models
test-models: libs ## Run every model on every ISA and backend
	go test -timeout 40m ./compute/device

.PHONY: test-hostile
test-hostile: libs ## Load every model's file with each of its fields at its extremes: a quarter of an hour
	go test -timeout 40m ./compute

.PHONY: smoke
smoke: build ## Start a server, stream over HTTP and NATS, kill it, start it again, and stop it: some seconds after the build
	scripts/smoke.sh

.PHONY: test-kernels
test-kernels: | $(TOOLS)
	@scripts/build/kernels.sh test
	scripts/test-kernels.sh build/kernels

.PHONY: python
python: # the official clients of OpenAI and NATS, which tests run against a server
	@scripts/build/python.sh

.PHONY: node
node: # the same for JavaScript
	@scripts/build/node.sh

.PHONY: test-sycl
test-sycl: sycl | $(TOOLS) ## Run the kernel harness on the SYCL backend
	@scripts/build/kernels.sh test
	scripts/test-sycl.sh

.PHONY: test-cuda
test-cuda: cuda | $(TOOLS) ## Run the kernel harness on the CUDA backend, on a GPU or else on the emulator (ARGS="--gtest_filter=...")
	@scripts/build/kernels.sh test
	scripts/test-cuda.sh $(ARGS)

.PHONY: sycl-isa
sycl-isa: sycl ## Compile every SYCL kernel for Intel GPUs with ocloc; fail on spills and missing matrix instructions (ARGS="--each-once")
	scripts/sycl-isa $(ARGS)

.PHONY: sycl-aot
sycl-aot: sycl ## Compile the SYCL device code ahead of time with icpx; without one, check what can be
	scripts/test-sycl-aot.sh

.PHONY: test-client
test-client: ## Build client and the Go examples as another module does: without cgo, from an empty module cache
	scripts/test-client.sh

# -count 1, because go test keeps a result whatever changes outside of its module.
.PHONY: test-chart
test-chart: ## Render the Helm chart with Helm's packages and the manifests with Kustomize's, and compare them
	cd deploy/helm/test && CGO_ENABLED=0 go test -count 1 ./...

.PHONY: test-page
test-page: build ## Compare api/web/dist with a fresh build, and test the pages in Chromium (SHOTS=DIR for screenshots)
	scripts/test-page.sh

.PHONY: test-go
test-go: libs python node
	scripts/test-go.sh --short

.PHONY: sdks
sdks:
	@scripts/sdks/install.sh

.PHONY: test-sdks
test-sdks: build sdks ## Run the official clients, LangChain, LiteLLM, instructor and the AI SDK against a server, and checks of the APIs' specifications
	scripts/sdks/run.sh

.PHONY: test-agents
test-agents: build ## Run Codex CLI, Claude Code, opencode, aider, llm, lm-eval, guidellm and promptfoo as they are (installs 9 GB)
	scripts/agents/install.sh
	go build -o build/agents/scripted ./scripts/agents/scripted
	scripts/agents/run.sh

.PHONY: fuzz-api
fuzz-api: build sdks ## Send EXAMPLES (50) random requests to every operation of /openapi.json, and check each answer against it
	scripts/sdks/fuzz.sh $(or $(EXAMPLES),50)

.PHONY: race
race: libs python node ## Run the Go tests under the race detector
	go test -race -timeout 40m ./...

.PHONY: test-quick
test-quick: libs python node ## Run the Go tests without the race detector
	go test ./...

.PHONY: chaos
chaos: libs ## Run the fault suite: kills, cut networks, mixed pools, updates under load, up to 50 minutes (ARGS="--scenario kills --seed 7")
	go run ./e2e/chaos $(ARGS)

.PHONY: chaos-quick
chaos-quick: libs ## Run the part of the fault suite that CI runs: one kill of each role, and a mixed pool; every stream compared
	go test -tags chaos -count 1 -timeout 10m ./e2e/chaos

.PHONY: attack
attack: libs ## Attack a server from outside: every attack must be refused or bounded, about five minutes (ARGS="--only tenants")
	go run ./e2e/attack $(ARGS)

.PHONY: sanitize
sanitize: | $(TOOLS) ## Run the kernel tests under AddressSanitizer and UBSan (PARTS=N: every Nth of them)
	@scripts/build/kernels.sh sanitize
	scripts/test-kernels.sh build/kernels-sanitize $(PARTS)

.PHONY: fuzz
fuzz: libs ## Run every Go fuzz target for FUZZTIME (20s)
	scripts/fuzz.sh $(FUZZTIME)

.PHONY: lint
lint: libs $(GOLANGCI) $(ACTIONLINT) ## Check format and lint: golangci-lint, clang-format, shellcheck where installed, workflows, commit titles, English
	$(GOLANGCI) run --build-tags chaos ./...
	cd benchmarks/k6 && ../../$(GOLANGCI) run ./...
	cd deploy/helm/test && CGO_ENABLED=0 ../../../$(GOLANGCI) run ./...
	ACTIONLINT=$(ACTIONLINT) scripts/lint.sh

$(GOLANGCI): | $(TOOLS)
	@echo "golangci-lint $(GOLANGCI_VERSION): go install (a few minutes, once)"
	@mkdir -p $(@D)
	CGO_LDFLAGS= GOBIN=$(CURDIR)/$(@D) go install github.com/golangci/golangci-lint/v2/cmd/golangci-lint@$(GOLANGCI_VERSION)
	@mv $(@D)/golangci-lint $@

$(ACTIONLINT): | $(TOOLS)
	@mkdir -p $(@D)
	CGO_LDFLAGS= GOBIN=$(CURDIR)/$(@D) go install github.com/rhysd/actionlint/cmd/actionlint@$(ACTIONLINT_VERSION)
	@mv $(@D)/actionlint $@

.PHONY: audit
audit: ## Look the pinned Python packages up in PyPI's advisories (govulncheck and cargo deny run in .github/workflows/audit.yml)
	scripts/audit.sh

.PHONY: sbom
sbom: libs ## Write what bin/millrace is made of, as CycloneDX: build/sbom-go.json, build/sbom-rust.json
	CGO_LDFLAGS= GOFLAGS= go run github.com/CycloneDX/cyclonedx-gomod/cmd/cyclonedx-gomod@v1.9.0 app -json -licenses -main cmd/millrace -output $(BUILD)/sbom-go.json .
	CARGO_TARGET_DIR=$(BUILD)/tools/cargo cargo install --quiet --locked --root $(BUILD)/tools cargo-cyclonedx@0.5.9
	$(BUILD)/tools/bin/cargo-cyclonedx cyclonedx --manifest-path tokenizer/jinja/Cargo.toml --format json --override-filename sbom-rust
	mv tokenizer/jinja/sbom-rust.json $(BUILD)/
	rm -f $(BUILD)/tokenizers/sbom-rust.json

.PHONY: notices
notices: libs ## Write the licenses of all that is linked into bin/millrace: build/THIRD_PARTY_NOTICES
	go run ./scripts/build/notices >$(BUILD)/THIRD_PARTY_NOTICES.new
	mv $(BUILD)/THIRD_PARTY_NOTICES.new $(BUILD)/THIRD_PARTY_NOTICES

.PHONY: release
release: ## Make the release archive, .deb and wheel of this commit and machine, with sums and SBOM, in build/release, and check them
	scripts/release.sh $(RELEASE)

.PHONY: format
format: libs $(GOLANGCI) ## Rewrite Go and C++ in the project's format
	$(GOLANGCI) fmt
	git ls-files -z '*.cpp' '*.hpp' '*.h' | xargs -0 -r clang-format -i

.PHONY: fixtures
fixtures: ## Make the small models of the tests again (needs Python with torch and transformers)
	for script in scripts/fixtures/make_*.py; do $(PYTHON) $$script; done

.PHONY: generate
generate: ## Make the generated Go code again (protobuf messages between processes)
	scripts/build/generate.sh

.PHONY: help
help:
	@awk 'BEGIN { FS = ":.*## " } \
		/^##@/ { printf "\n%s\n", substr($$0, 5) } \
		/^[a-z0-9-]+:.*## / { printf "  %-12s %s\n", $$1, $$2 }' Makefile
