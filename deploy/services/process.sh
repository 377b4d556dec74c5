# Processes, ports and waiting, for services.sh. Needs: dir.

say() { echo "services: $*" >&2; }
fail() { say "$*"; exit 1; }

# port NAME prints the loopback port of a part: a free one, chosen once.
port() {
  local file=$dir/port.$1
  if [[ ! -s $file ]]; then free_port >"$file"; fi
  cat "$file"
}

# keep_port NAME gives the part another port when a stranger took its own.
keep_port() {
  if listens "$(port "$1")"; then free_port >"$dir/port.$1"; fi
}

free_port() {
  local candidate
  for _ in $(seq 200); do
    candidate=$((20000 + (RANDOM * 32768 + RANDOM) % 12000))
    if ! listens "$candidate" && ! grep -qsx "$candidate" "$dir"/port.*; then
      echo "$candidate"
      return
    fi
  done
  fail "no free port found"
}

listens() { (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null; }

# born PID prints when a process started, in the kernel's own ticks: with the
# pid it names a process for good, for a pid alone is given again.
born() {
  local stat
  stat=$(cat "/proc/$1/stat" 2>/dev/null) || return 1
  stat=${stat##*) }
  [[ ${stat%% *} != Z ]] || return 1
  cut -d' ' -f20 <<<"$stat"
}

pid_of() { cut -d' ' -f1 "$dir/pid/$1" 2>/dev/null; }

# alive PART says whether the very process that up started is still there.
alive() {
  local pid since
  [[ -s $dir/pid/$1 ]] || return 1
  read -r pid since <"$dir/pid/$1"
  [[ $(born "$pid") == "$since" ]]
}

# launch PART COMMAND... starts a daemon in a session of its own.
launch() {
  local part=$1 pid
  shift
  : >"$dir/log/$part.log"
  (cd / && exec setsid "$@" >>"$dir/log/$part.log" 2>&1 </dev/null 9>&-) &
  pid=$!
  disown "$pid"
  echo "$pid $(born "$pid")" >"$dir/pid/$part"
}

# await PART COMMAND... waits until COMMAND says that the part answers. A part that
# ends is noticed at once; the deadline is for one that hangs, and far beyond what a
# JVM takes to start on a machine that is busy with several.
await() {
  local part=$1 patience=300
  local deadline=$((SECONDS + patience))
  shift
  until "$@" >/dev/null 2>&1; do
    if ! alive "$part"; then
      tail -n 15 "$dir/log/$part.log" >&2
      fail "$part ended, its log is $dir/log/$part.log"
    fi
    if ((SECONDS > deadline)); then
      tail -n 15 "$dir/log/$part.log" >&2
      fail "$part does not answer after $patience s, its log is $dir/log/$part.log"
    fi
    sleep 0.1
  done
  say "$part answers"
}

# stop_part PART SIGNAL asks the part to end and kills it after 20 s.
stop_part() {
  local part=$1 signal=$2 pid deadline=$((SECONDS + 20))
  if alive "$part"; then
    pid=$(pid_of "$part")
    kill -"$signal" "$pid" 2>/dev/null || true
    while alive "$part"; do
      if ((SECONDS > deadline)); then
        say "$part does not end, killing it"
        kill -KILL "$pid" 2>/dev/null || true
        sleep 0.5
        break
      fi
      sleep 0.1
    done
    say "$part stopped"
  fi
  rm -f "$dir/pid/$part"
}
