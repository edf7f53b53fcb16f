# The two commands that matter are in the README and need no make:
#   go run ./examples/credit
#   go test ./...
.DEFAULT_GOAL := help
GOLANGCI := go run github.com/golangci/golangci-lint/v2/cmd/golangci-lint@v2.12.2

.PHONY: help
help: ## Show this help
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*## /\t/' | expand -t 12

.PHONY: demo
demo: ## Run the main job on the embedded emulators
	go run ./examples/credit

.PHONY: test
test: ## Run all tests; those of Google's emulators where they are installed
	go test ./...

.PHONY: short
short: ## Run the tests that take seconds, without Google's emulators
	go test -short ./...

.PHONY: race
race: ## Run the core packages' tests under the race detector
	go test -race -short ./emulator/... ./mapper/... ./tasks/... ./dashboard/...

.PHONY: simulate
SEEDS ?= 10000
simulate: ## Run the fault simulation on many seeds, SEEDS=10000; some hours on a core
	go test ./mapper -run TestSimulation -timeout 24h -args -seeds $(SEEDS)

.PHONY: fuzz
fuzz: ## Fuzz what parses and calculates, for half a minute each
	go test ./mapper/internal/keyspace -run '^$$' -fuzz FuzzBisectNames -fuzztime 30s
	go test ./mapper -run '^$$' -fuzz FuzzParseTask -fuzztime 30s
	go test ./mapper -run '^$$' -fuzz FuzzDeliveries -fuzztime 30s
	go test ./emulator/internal/gql -run '^$$' -fuzz FuzzParse -fuzztime 30s
	go test ./emulator/internal/tasksemu -run '^$$' -fuzz FuzzRequests -fuzztime 30s
	go test ./emulator/internal/collate -run '^$$' -fuzz FuzzKeyForm -fuzztime 30s
	for target in FuzzQuery FuzzRequests FuzzCursor; do \
		go test ./emulator/internal/dsemu -run '^$$' -fuzz "$$target\$$" -fuzztime 30s || exit 1; done

.PHONY: lint
lint: ## Check formatting, vet and lint
	@test -z "$$(gofmt -l .)" || { gofmt -l .; exit 1; }
	go vet ./...
	$(GOLANGCI) run ./...

.PHONY: ci
ci: ## Run what CI runs
	.ci/run
