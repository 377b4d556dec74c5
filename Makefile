# `make` alone lists the targets. Recipes are one line where they can be: what
# is longer lives in deploy/services and in internal/testkit/withstack.

SHELL := /bin/bash
.DEFAULT_GOAL := help

# The packages to test: make test PKG=./internal/devstack
PKG ?= ./...
# Further flags of `go test`: TESTFLAGS="-p 1 -v" make test
TESTFLAGS ?=
export TESTFLAGS
GOTOOL := go tool -modfile=internal/tools/go.mod

##@ Run
.PHONY: run
run: build ## build and start everything in one process on embedded parts (carril dev)
	exec bin/carril dev

.PHONY: build
build: ## build bin/carril
	go build -o bin/carril ./cmd/carril

##@ Test
.PHONY: test
test: bin/withstack ## test all packages against one embedded stack; PKG=./folder for some
	exec bin/withstack -count -- go test -json $(TESTFLAGS) $(PKG)

.PHONY: test-kafka
test-kafka: ## test against a real Kafka, registry, PostgreSQL, Redis and S3 gateway, started for the run
	exec deploy/services/test-kafka.sh $(PKG)

.PHONY: test-faults
test-faults: ## the full matrix of faults on real parts, each run judged by a ledger (about 40 minutes)
	exec deploy/services/test-faults.sh $(PKG)

.PHONY: bench
bench: build ## measure each part against its baseline in the same run
	exec bin/carril bench all

.PHONY: load-compare
load-compare: build ## one blast beside codes through Carril, asynq, River and a FIFO, on `make services`; ARGS=test for its tests
	exec deploy/load/compare/run.sh $(ARGS)

##@ Services
.PHONY: services
services: ## start a real Kafka, registry, PostgreSQL and Redis (S3=1: and an S3 gateway) in .carril/services
	exec deploy/services/services.sh up

.PHONY: services-down
services-down: ## stop what `make services` started; its data stays
	exec deploy/services/services.sh down

##@ Code
.PHONY: lint
lint: ## check formatting, imports, errors, comments, the generated query code, and that queries name their partitions
	$(GOTOOL) golangci-lint run
	$(GOTOOL) sqlc diff
	go -C internal/partitionlint test ./...
	go -C internal/partitionlint build -o $(CURDIR)/bin/partitionlint .
	bin/partitionlint

.PHONY: generate
generate: ## write the query code anew from the SQL files
	$(GOTOOL) sqlc generate

.PHONY: help
help: ## list the targets
	@awk 'BEGIN {FS = ":.*## "} \
	  /^##@/ {printf "\n%s\n", substr($$0, 5)} \
	  /^[a-z-]+:.*## / {printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

.PHONY: bin/withstack
bin/withstack:
	@go build -o $@ ./internal/testkit/withstack
