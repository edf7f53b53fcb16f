# The two commands that matter are in the README and need no make:
#   go run ./examples/credit
#   go test ./...
.DEFAULT_GOAL := help
GO ?= go
GOLANGCI := $(GO) run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.12.2

.PHONY: help
help: ## Show this help
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

.PHONY: demo
demo: ## Run the main job on the embedded emulators
	$(GO) run ./examples/credit

.PHONY: test
test: ## Run all tests; those of Google's emulators where they are installed
	$(GO) test ./...

.PHONY: short
short: ## Run the tests that take seconds, without Google's emulators
	$(GO) test -short ./...

.PHONY: race
race: ## Run the core packages' tests under the race detector
	$(GO) test -race -short ./emulator/... ./mapper/... ./tasks/... ./dashboard/...

.PHONY: simulate
SEEDS ?= 10000
simulate: ## Run the fault simulation on many seeds, SEEDS=10000; some hours on a core
	$(GO) test ./mapper/protocol -run TestSimulation -timeout 24h -args -seeds $(SEEDS)

.PHONY: fuzz
FUZZTIME ?= 30s
FUZZ ?= Fuzz
fuzz: ## Fuzz what parses and calculates, every target for half a minute; FUZZTIME=30s FUZZ=FuzzQuery
	@targets=$$(grep -roE '^func $(FUZZ)[A-Za-z0-9_]*' --include='*_test.go' . | sed -E 's,/[^/]*:func , ,' | sort -u); \
	test -n "$$targets" || { echo "there is no fuzz target that begins with $(FUZZ)"; exit 1; }; \
	echo "$$targets" | while read -r pkg target; do \
		echo "$$pkg $$target"; \
		$(GO) test $$pkg -run '^$$' -fuzz "^$$target\$$" -fuzztime $(FUZZTIME) </dev/null || exit 1; done

.PHONY: mutations
mutations: ## Change every condition that decides about a promise, and see that tests notice; some hours
	$(GO) run ./internal/mutation/mutate

.PHONY: lint
lint: ## Check formatting, vet and lint
	@test -z "$$(gofmt -l .)" || { gofmt -l .; exit 1; }
	$(GO) vet ./...
	$(GOLANGCI) run ./...

.PHONY: ci
ci: ## Run what CI runs
	.ci/run

.PHONY: nightly
nightly: ## Run what takes longer than CI may, for some hours
	.ci/nightly
