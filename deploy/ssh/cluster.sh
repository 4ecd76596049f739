#!/usr/bin/env bash
# A cluster on machines that are reached by ssh, or on this one alone (HOSTS=localhost).
#   cluster.sh start    the scheduler on the first host, workers on all; prints the address
#   cluster.sh status   what runs, and the end of each log
#   cluster.sh stop     stops what `start` has started
# From the environment: HOSTS, PORT, WORKERS (processes per host), MEMORY (of each), PYTHON, RUN (a directory that all
# hosts see: logs, process ids, certificates), INTERFACE, SSH. TLS=yes: certificates are made, and nobody else gets in.
set -euo pipefail
HOSTS=${HOSTS:-localhost}                              # EDIT, or set: HOSTS="node1 node2 node3"
PORT=${PORT:-8786} DASHBOARD=${DASHBOARD:-127.0.0.1:8787}
WORKERS=${WORKERS:-4} MEMORY=${MEMORY:-auto}           # EDIT
PYTHON=${PYTHON:-$(command -v python)} RUN=${RUN:-$PWD/dagad-run}
INTERFACE=${INTERFACE:-} TLS=${TLS:-} SSH=${SSH:-ssh -o BatchMode=yes}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
read -ra hosts <<< "$HOSTS"
[ "${hosts[*]}" = localhost ] && INTERFACE=${INTERFACE:-lo}  # nobody else can reach it

on() { # on HOST COMMAND...
    local host=$1; shift
    if [ "$host" = localhost ]; then bash -c "$*"; else $SSH "$host" "$*"; fi
}

begin() { # begin HOST NAME COMMAND...: in the background, with its process id in a file
    local host=$1 name=$2; shift 2
    on "$host" "cd '$RUN' && { setsid nohup $* </dev/null >'$name.log' 2>&1 & echo \$! >'$name.pid'; }"
}

start() {
    local address='' host options=() settings=() dask
    if compgen -G "$RUN/*.pid" >/dev/null; then echo "it runs already, or $RUN is of another one: stop it first" >&2; exit 1; fi
    mkdir -p "$RUN"; chmod 700 "$RUN"
    if [ -n "$TLS" ]; then
        [ -e "$RUN/tls/ca.pem" ] || "$here/../tls/make_certificates.sh" "$RUN/tls" >&2
        settings=(env "DASK_CONFIG=$RUN/tls/dask.yaml")
    fi
    [ -z "$INTERFACE" ] || options+=(--interface "$INTERFACE")
    dask="${settings[*]} $PYTHON -m distributed.cli.dask"
    begin "${hosts[0]}" scheduler "${dask}_scheduler" "${options[@]}" --port "$PORT" --dashboard-address "$DASHBOARD" \
        --preload dagad_scheduler.preload --scheduler-file "$RUN/scheduler.json"
    for _ in $(seq 300); do [ -s "$RUN/scheduler.json" ] || ! running "${hosts[0]}" scheduler && break; sleep 0.1; done
    if [ ! -s "$RUN/scheduler.json" ]; then
        tail -n 5 "$RUN/scheduler.log" >&2
        ! grep -qi "address.* in use" "$RUN/scheduler.log" ||
            echo "port $PORT of ${hosts[0]} is taken: choose another one, PORT=8790 cluster.sh start" >&2
        stop; exit 1
    fi
    address=$("$PYTHON" -c 'import json, sys; print(json.load(open(sys.argv[1]))["address"])' "$RUN/scheduler.json")
    for host in "${hosts[@]}"; do
        begin "$host" "worker-$host" "${dask}_worker" "$address" "${options[@]}" --nworkers "$WORKERS" --nthreads 1 \
            --memory-limit "$MEMORY" --dashboard-address 127.0.0.1:0 --preload dagad_scheduler.preload --death-timeout 60
    done
    echo "$address"
}

host_of() { case $1 in scheduler) echo "${hosts[0]}" ;; *) echo "${1#worker-}" ;; esac; }

each() { # each COMMAND...: with NAME and HOST of all that was started
    local file name
    for file in "$RUN"/*.pid; do
        [ -e "$file" ] || continue
        name=$(basename "$file" .pid)
        "$@" "$name" "$(host_of "$name")" "$(cat "$file")"
    done
}
running() { on "$1" "kill -0 $(cat "$RUN/$2.pid") 2>/dev/null"; } # running HOST NAME
show() { echo "== $1 on $2: $(running "$2" "$1" && echo runs || echo "has ended")"; tail -n 3 "$RUN/$1.log"; }
end() { on "$2" "kill -TERM -- -$3 2>/dev/null" || true; rm -f "$RUN/$1.pid"; } # a process group, since it was set up by setsid
stop() { each end; rm -f "$RUN/scheduler.json"; }

case ${1:-} in
    start) start ;;
    status) each show ;;
    stop) stop ;;
    *) sed -n '2,7p' "${BASH_SOURCE[0]}"; exit 2 ;;
esac
