# Tools and downloads, for services.sh. Needs: here, cache, say, fail.

# install_missing [PACKAGE...] installs what the parts need, and those
# packages of Debian.
install_missing() {
  local missing=() package
  have_java || missing+=(openjdk-17-jre-headless)
  command -v mvn >/dev/null || missing+=(maven)
  command -v curl >/dev/null || missing+=(curl)
  [[ -n $(postgres_bin) ]] || missing+=(postgresql)
  command -v redis-server >/dev/null || missing+=(redis-server)
  for package in "$@"; do
    [[ $(dpkg-query -W -f '${db:Status-Abbrev}' "$package" 2>/dev/null) == ii* ]] || missing+=("$package")
  done
  if ((${#missing[@]} > 0)); then install_packages "${missing[@]}"; fi
  fetch_kafka
  fetch_registry
  if [[ ${S3:-0} == 1 ]]; then fetch_s3; fi
}

have_java() {
  local version
  version=$(java -version 2>&1 | sed -n 's/.*version "\([0-9]*\).*/\1/p;q')
  [[ -n $version ]] && ((version >= 17))
}

# install_packages NAME... needs root and apt-get; elsewhere it says what to do.
install_packages() {
  if [[ $(id -u) != 0 ]] || ! command -v apt-get >/dev/null; then
    fail "please install $* (Debian's names), then run this again"
  fi
  say "installing $*"
  # Debian's packages would start servers of their own on the default ports.
  local policy=/usr/sbin/policy-rc.d placed=0
  if [[ ! -e $policy ]]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy"
    chmod 755 "$policy"
    placed=1
  fi
  local status=0
  { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@"; } \
    >"$dir/log/apt.log" 2>&1 </dev/null || status=$?
  if ((placed)); then rm -f "$policy"; fi
  if ((status)); then
    tail -n 5 "$dir/log/apt.log" >&2
    fail "apt-get could not install $*, see $dir/log/apt.log"
  fi
}

# maven ARGUMENTS... runs quietly, from a folder whose project is no concern.
maven() {
  (cd "$here" && mvn -q -B "$@") >"$dir/log/maven.log" 2>&1 </dev/null && return
  tail -n 15 "$dir/log/maven.log" >&2
  fail "Maven could not fetch what is needed, see $dir/log/maven.log"
}

fetch_kafka() {
  kafka_jars=$cache/kafka-4.3.1
  if [[ -d $kafka_jars ]]; then return; fi
  say "fetching Apache Kafka 4.3.1"
  rm -rf "$kafka_jars.new"
  maven org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies \
    -DincludeScope=runtime -DoutputDirectory="$kafka_jars.new"
  mv "$kafka_jars.new" "$kafka_jars"
}

fetch_registry() {
  registry_home=$cache/apicurio-registry-3.0.9
  if [[ -d $registry_home ]]; then return; fi
  say "fetching Apicurio Registry 3.0.9"
  rm -rf "$registry_home.new"
  mkdir -p "$registry_home.new"
  # Later versions of the plugin want the descriptor of the artifact's parent,
  # which is not published with it.
  maven org.apache.maven.plugins:maven-dependency-plugin:2.10:copy \
    -Dartifact=io.apicurio:apicurio-registry-app:3.0.9:tar.gz:all -DoutputDirectory="$registry_home.new"
  tar -xzf "$registry_home.new/apicurio-registry-app-3.0.9-all.tar.gz" -C "$registry_home.new"
  rm "$registry_home.new/apicurio-registry-app-3.0.9-all.tar.gz"
  mv "$registry_home.new" "$registry_home"
}

fetch_s3() {
  s3_gateway=$cache/versitygw
  if [[ -x $s3_gateway ]]; then return; fi
  command -v go >/dev/null || fail "please install Go: the S3 gateway is built from source"
  say "building the S3 gateway"
  GOBIN=$cache GOFLAGS= go install github.com/versity/versitygw/cmd/versitygw@v1.8.0 \
    >"$dir/log/go.log" 2>&1 || { tail -n 5 "$dir/log/go.log" >&2; fail "the S3 gateway could not be built"; }
}
