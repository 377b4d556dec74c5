#!/usr/bin/env bash
# Starts and stops the real parts on this machine: Apache Kafka, Apicurio
# Registry, PostgreSQL and Redis, and an S3 gateway when S3=1.
#
#   services.sh up      start what does not run, wait until each part answers
#   services.sh down    stop what up started; the data stays
#   services.sh status  say what runs
#   services.sh install [PACKAGE...]
#                       install and fetch what up needs, and more of Debian's
#                       packages, without starting anything
#
# Everything lies in CARRIL_SERVICES_DIR (.carril/services unless told): data,
# logs, the chosen loopback ports, pid files, and the file `env` with the
# addresses. Downloads are kept in .carril/cache. Missing tools are installed
# with apt-get where that is possible.
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
dir=${CARRIL_SERVICES_DIR:-$root/.carril/services}
cache=$root/.carril/cache

. "$here/process.sh"
. "$here/install.sh"
. "$here/parts.sh"

up() {
  trap 'say "not all parts could be started, stopping the others"; stop_all' EXIT
  install_missing
  # Chosen here, one by one: the parts start beside each other.
  local part
  for part in postgres kafka controller redis registry s3; do port "$part" >/dev/null; done
  start_postgres
  start_kafka &
  local kafka=$!
  start_redis
  start_registry
  wait "$kafka"
  if [[ ${S3:-0} == 1 ]]; then start_s3; fi
  trap - EXIT
  write_env
  say "ready, addresses in $dir/env"
}

stop_all() {
  stop_part s3 TERM
  stop_part registry TERM
  stop_part redis TERM
  stop_part kafka TERM
  stop_part postgres INT
  rm -f "$dir/env"
}

status() {
  local part
  for part in kafka registry postgres redis s3; do
    if alive "$part"; then echo "$part: running, pid $(pid_of "$part")"; else echo "$part: stopped"; fi
  done
}

write_env() {
  {
    echo "CARRIL_KAFKA_BROKERS=127.0.0.1:$(port kafka)"
    echo "CARRIL_REGISTRY_URL=http://127.0.0.1:$(port registry)/apis/ccompat/v7"
    echo "CARRIL_POSTGRES_URL=postgres://postgres@127.0.0.1:$(port postgres)/carril?sslmode=disable"
    echo "CARRIL_REDIS_URL=redis://127.0.0.1:$(port redis)/0"
    if alive s3; then
      echo "CARRIL_STORAGE_URL='$(s3_url)'"
      echo "CARRIL_STORAGE_ACCESS_KEY=$s3_access"
      echo "CARRIL_STORAGE_SECRET_KEY=$s3_secret"
    fi
  } >"$dir/env.new"
  mv "$dir/env.new" "$dir/env"
}

mkdir -p "$dir/log" "$dir/pid" "$cache"
dir=$(cd "$dir" && pwd)
exec 9>"$dir/lock"
flock -w 300 9 || fail "another services.sh works on $dir"

case ${1:-} in
  up) up ;;
  down) stop_all ;;
  status) status ;;
  install) install_missing "${@:2}" ;;
  *) fail "usage: services.sh up|down|status|install [PACKAGE...]" ;;
esac
