#!/usr/bin/env bash
# Runs the tests of the real tier: the same tests as `make test` and those
# tagged kafka, against the real parts, started afresh and stopped at the end,
# however the run ends. Arguments go to `go test` in place of ./...
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
export S3=1
# Apart from `make services`, whose data and processes are the developer's.
export CARRIL_SERVICES_DIR=$root/.carril/test-services
services=deploy/services/services.sh
tests=

finish() {
  trap - EXIT INT TERM HUP
  if [[ -n $tests ]] && kill -TERM "$tests" 2>/dev/null; then wait "$tests" || true; fi
  "$services" down 2>/dev/null || echo "test-kafka: the services could not all be stopped" >&2
}
trap finish EXIT
trap 'exit 130' INT TERM HUP

"$services" down
rm -rf "${CARRIL_SERVICES_DIR:?}"
go build -o bin/withstack ./internal/testkit/withstack
"$services" up

set -a
. "$CARRIL_SERVICES_DIR/env"
CARRIL_TEST_TIER=real
CARRIL_TEST_KAFKA_BROKERS=$CARRIL_KAFKA_BROKERS
CARRIL_TEST_REGISTRY_URL=$CARRIL_REGISTRY_URL
CARRIL_TEST_POSTGRES_URL=$CARRIL_POSTGRES_URL
CARRIL_TEST_REDIS_URL=$CARRIL_REDIS_URL
CARRIL_TEST_STORAGE_URL=$CARRIL_STORAGE_URL
CARRIL_TEST_STORAGE_ACCESS_KEY=$CARRIL_STORAGE_ACCESS_KEY
CARRIL_TEST_STORAGE_SECRET_KEY=$CARRIL_STORAGE_SECRET_KEY
CARRIL_TEST_S3_GATEWAY=$root/.carril/cache/versitygw
set +a
# The product reads these: a test gives them where it wants them.
unset CARRIL_KAFKA_BROKERS CARRIL_REGISTRY_URL CARRIL_POSTGRES_URL CARRIL_REDIS_URL CARRIL_STORAGE_URL CARRIL_STORAGE_ACCESS_KEY CARRIL_STORAGE_SECRET_KEY

bin/withstack -external -count -- go test -json -count=1 -timeout 20m -tags kafka ${TESTFLAGS:-} "${@:-./...}" &
tests=$!
status=0
wait "$tests" || status=$?
tests=
exit "$status"
