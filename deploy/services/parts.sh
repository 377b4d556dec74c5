# The parts themselves, for services.sh. Needs: dir, process.sh, install.sh.

# postgres_bin prints the folder of the newest PostgreSQL that can open the
# cluster, 15 or later when there is none yet; nothing when there is none.
postgres_bin() {
  local pinned bin major best='' newest=0
  pinned=$(cat "$(postgres_home)/data/PG_VERSION" 2>/dev/null || true)
  for bin in /usr/lib/postgresql/*/bin "$(dirname "$(readlink -f "$(command -v postgres || echo /none/postgres)")")"; do
    [[ -x $bin/postgres && -x $bin/initdb ]] || continue
    major=$("$bin/postgres" --version | sed 's/.*) \([0-9]*\).*/\1/')
    if [[ -n $pinned && $major != "$pinned" ]]; then continue; fi
    if ((major >= 15 && major > newest)); then best=$bin newest=$major; fi
  done
  echo "$best"
}

# as_postgres prefixes a command that must not run as root.
as_postgres=()
if [[ $(id -u) == 0 ]]; then
  owner=nobody
  if id postgres >/dev/null 2>&1; then owner=postgres; fi
fi
become() {
  if [[ $(id -u) != 0 ]]; then return; fi
  if id postgres >/dev/null 2>&1; then owner=postgres; fi
  as_postgres=(setpriv --reuid="$owner" --regid="$(id -g "$owner")" --clear-groups)
}

# postgres_home is in dir, unless the user who runs PostgreSQL cannot go there.
postgres_home() {
  become
  if ((${#as_postgres[@]} == 0)) || "${as_postgres[@]}" test -x "$dir"; then
    echo "$dir/postgres"
  else
    echo "/var/lib/carril-services-$(printf %s "$dir" | cksum | cut -d' ' -f1)"
  fi
}

# postgres_buffers is an eighth of the machine's memory, 256 MB to 2 GB: with
# them, and with checkpoints that are far apart, an append's rate stays flat over
# millions of rows (docs/decisions/append.md). Every page that is touched after a
# checkpoint goes whole into the log, and the fence's keys touch them all.
postgres_buffers() {
  local kb mb
  kb=$(sed -n 's/^MemTotal: *\([0-9]*\) kB/\1/p' /proc/meminfo 2>/dev/null)
  mb=$((${kb:-0} / 8 / 1024))
  ((mb > 2048)) && mb=2048
  ((mb < 256)) && mb=256
  echo "${mb}MB"
}

# postgres_compression is lz4 where this build knows it.
postgres_compression() {
  if "$1/pg_config" --configure 2>/dev/null | grep -q with-lz4; then echo lz4; else echo on; fi
}

start_postgres() {
  if alive postgres; then return; fi
  local home bin
  home=$(postgres_home)
  become
  bin=$(postgres_bin)
  [[ -n $bin ]] || fail "no PostgreSQL 15 or later that fits $home was found"
  if [[ ! -e $home/data/PG_VERSION ]]; then
    rm -rf "$home"
    mkdir -p "$home"
    if ((${#as_postgres[@]} > 0)); then chown "$owner" "$home"; fi
    (cd / && "${as_postgres[@]}" "$bin/initdb" -A trust --no-sync -U postgres -E UTF8 --locale=C.UTF-8 -D "$home/data.new") \
      >"$dir/log/initdb.log" 2>&1 || { cat "$dir/log/initdb.log" >&2; fail "initdb failed"; }
    mv "$home/data.new" "$home/data"
  fi
  keep_port postgres
  launch postgres "${as_postgres[@]}" "$bin/postgres" -D "$home/data" -p "$(port postgres)" \
    -c listen_addresses=127.0.0.1 -c unix_socket_directories= \
    -c max_connections=300 -c shared_buffers="$(postgres_buffers)" -c max_locks_per_transaction=128 -c jit=off \
    -c max_wal_size=16GB -c checkpoint_timeout=30min -c wal_compression="$(postgres_compression "$bin")"
  await postgres sql postgres 'select 1'
  create_database carril
  create_database apicurio
}

sql() { psql -X -q -h 127.0.0.1 -p "$(port postgres)" -U postgres -d "$1" -Atc "$2"; }

create_database() {
  if [[ $(sql postgres "select 1 from pg_database where datname = '$1'") != 1 ]]; then
    sql postgres "create database $1"
  fi
}

start_kafka() {
  if alive kafka; then return; fi
  local home=$dir/kafka
  mkdir -p "$home"
  keep_port kafka
  keep_port controller
  kafka_properties >"$home/server.properties"
  if [[ ! -e $home/data/meta.properties ]]; then
    java -cp "$kafka_jars/*" -Dlog4j2.configurationFile="$here/log4j2.properties" kafka.tools.StorageTool \
      format --ignore-formatted --cluster-id carril-services-000001 --config "$home/server.properties" >"$dir/log/format.log" 2>&1 ||
      { tail -n 15 "$dir/log/format.log" >&2; fail "Kafka's storage could not be formatted"; }
  fi
  launch kafka java -Xms256m -Xmx1g -Dlog4j2.configurationFile="$here/log4j2.properties" -cp "$kafka_jars/*" \
    kafka.Kafka "$home/server.properties"
  await kafka kafka_answers
}

kafka_answers() { grep -q 'Kafka Server started' "$dir/log/kafka.log" && listens "$(port kafka)"; }

# One node: every internal topic has one replica. Topics are made by those who
# own them, never by a stray produce.
kafka_properties() {
  cat <<PROPERTIES
process.roles=broker,controller
node.id=1
controller.quorum.voters=1@127.0.0.1:$(port controller)
listeners=PLAINTEXT://127.0.0.1:$(port kafka),CONTROLLER://127.0.0.1:$(port controller)
advertised.listeners=PLAINTEXT://127.0.0.1:$(port kafka)
controller.listener.names=CONTROLLER
inter.broker.listener.name=PLAINTEXT
listener.security.protocol.map=PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT
log.dirs=$dir/kafka/data
auto.create.topics.enable=false
default.replication.factor=1
offsets.topic.replication.factor=1
transaction.state.log.replication.factor=1
transaction.state.log.min.isr=1
share.coordinator.state.topic.replication.factor=1
share.coordinator.state.topic.min.isr=1
group.initial.rebalance.delay.ms=0
PROPERTIES
}

start_redis() {
  if alive redis; then return; fi
  mkdir -p "$dir/redis"
  keep_port redis
  launch redis redis-server --bind 127.0.0.1 --port "$(port redis)" --dir "$dir/redis" \
    --save '' --appendonly yes --daemonize no
  await redis redis_answers
}

redis_answers() {
  local answer
  exec 4<>"/dev/tcp/127.0.0.1/$(port redis)" || return 1
  printf 'PING\r\n' >&4
  read -r -t 2 answer <&4
  exec 4>&-
  [[ $answer == +PONG* ]]
}

# The registry keeps its ids in PostgreSQL: in memory, records would outlive
# the schemas that they name.
start_registry() {
  if alive registry; then return; fi
  keep_port registry
  launch registry java -Xmx512m \
    -Dquarkus.http.host=127.0.0.1 -Dquarkus.http.port="$(port registry)" \
    -Dapicurio.storage.kind=sql -Dapicurio.storage.sql.kind=postgresql \
    -Dapicurio.datasource.url="jdbc:postgresql://127.0.0.1:$(port postgres)/apicurio" \
    -Dapicurio.datasource.username=postgres -Dapicurio.datasource.password=unused \
    -jar "$registry_home/apicurio-registry-app-3.0.9-runner.jar"
  await registry registry_call GET /subjects
  registry_call PUT /config '{"compatibility":"FULL_TRANSITIVE"}' >/dev/null ||
    fail "the registry does not take its compatibility level"
}

registry_call() {
  curl -sf -m 10 -X "$1" ${3:+-H 'Content-Type: application/json' -d "$3"} \
    "http://127.0.0.1:$(port registry)/apis/ccompat/v7$2"
}

s3_access=carril
s3_secret=carril-loopback-only

start_s3() {
  if alive s3; then return; fi
  mkdir -p "$dir/s3/carril" # a folder here is a bucket
  keep_port s3
  launch s3 env ROOT_ACCESS_KEY=$s3_access ROOT_SECRET_KEY=$s3_secret \
    "$s3_gateway" --port "127.0.0.1:$(port s3)" posix "$dir/s3"
  await s3 curl -s -m 5 -o /dev/null "http://127.0.0.1:$(port s3)/"
}

s3_url() { echo "s3://carril?endpoint=http://127.0.0.1:$(port s3)&path_style=true"; }
