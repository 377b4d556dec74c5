#!/usr/bin/env bash
# Runs the matrix of faults: processes killed at exact steps, brokers, databases
# and registries that stop, hang, refuse or fill up, each run judged by a ledger
# of what was sent and what came of it. The real parts are started afresh, the
# tests stop and start them, and everything is stopped at the end, however the
# run ends. The rows' figures are printed last. Arguments choose packages; a row
# alone: TESTFLAGS='-run TestFaultBroker' make test-faults.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
cd "$root"
dir=$root/.carril/fault-services
export CARRIL_SERVICES_DIR=$dir
services=deploy/services/services.sh
figures=$root/.carril/fault-figures
tests=

finish() {
  trap - EXIT INT TERM HUP
  if [[ -n $tests ]] && kill -TERM "$tests" 2>/dev/null; then wait "$tests" || true; fi
  CARRIL_SERVICES_DIR=$dir "$services" down 2>/dev/null || echo "test-faults: the services could not all be stopped" >&2
}
trap finish EXIT
trap 'exit 130' INT TERM HUP

"$services" down
rm -rf "${CARRIL_SERVICES_DIR:?}"
mkdir -p "$root/.carril"
: >"$figures"
go build -o bin/withstack ./internal/testkit/withstack
"$services" up

set -a
. "$CARRIL_SERVICES_DIR/env"
CARRIL_TEST_TIER=real
CARRIL_TEST_KAFKA_BROKERS=$CARRIL_KAFKA_BROKERS
CARRIL_TEST_REGISTRY_URL=$CARRIL_REGISTRY_URL
CARRIL_TEST_POSTGRES_URL=$CARRIL_POSTGRES_URL
CARRIL_TEST_REDIS_URL=$CARRIL_REDIS_URL
CARRIL_TEST_STORAGE_URL=${CARRIL_STORAGE_URL:-}
CARRIL_TEST_SERVICES_DIR=$CARRIL_SERVICES_DIR
CARRIL_TEST_FIGURES=$figures
set +a
# The product reads these: a test gives them where it wants them.
unset CARRIL_KAFKA_BROKERS CARRIL_REGISTRY_URL CARRIL_POSTGRES_URL CARRIL_REDIS_URL CARRIL_STORAGE_URL CARRIL_SERVICES_DIR

# One package after the other, and one test after the other in it: they stop what
# the others would need. The short forms of the rows that need no real parts of
# their own run here too, on the real ones.
rows='Fault|TestKillAtEveryStep|TestDatabaseTrouble|TestCommitOfUnknownOutcome|TestModelWithRandomCrashes|TestBrokerTrouble|TestDependencyAway'
packages=(./internal/stream ./internal/pg ./ingestor ./processor/archive ./cmd/carril/e2e)
if (($#)) && [[ $* != ./... ]]; then packages=("$@"); fi
bin/withstack -external -count -- go test -json -count=1 -timeout 90m -p 1 -tags faults -run "$rows" ${TESTFLAGS:-} "${packages[@]}" &
tests=$!
status=0
wait "$tests" || status=$?
tests=
echo "rows of the matrix:"
sed 's/^/  /' "$figures"
exit "$status"
