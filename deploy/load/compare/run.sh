#!/usr/bin/env bash
# The comparison on the services that `make services` has started, or that
# CARRIL_* name. `test` runs its tests; anything else are the harness's flags.
set -euo pipefail

cd "$(dirname "${BASH_SOURCE[0]}")"
services=../../../.carril/services/env
if [[ -z ${CARRIL_KAFKA_BROKERS:-} && -f $services ]]; then
  set -a
  . "$services"
  set +a
fi
if [[ ${1:-} == test ]]; then
  shift
  go vet ./...
  exec go test -count=1 "$@" ./...
fi
go build -o ../../../bin/compare .
exec ../../../bin/compare "$@"
