#!/usr/bin/env bash
# Ranks on hosts of their own: right numbers over two, three and slow lines; a line that is cut for a while; one that
# is cut for good.
set -euo pipefail
. "$(dirname "$0")/hosts.sh"
hosts_check
golden="$SOURCE/../shared/golden"
work=$(mktemp -d)
port=8741
set -E
trap 'echo "line $LINENO: $BASH_COMMAND: status $?"' ERR
trap 'hosts_down; rm -rf "$work"' EXIT

fail() {
    echo "FAILED: $1"
    tail -n 5 "$work"/rank* "$work/mpirun" 2>/dev/null || true
    exit 1
}

# ---- the golden checkpoints ----------------------------------------------------------------------

# verify_on HOSTS MODEL...
verify_on() {
    local hosts=$1 model out
    shift
    for model in "$@"; do
        out=$(hosts_mpirun "$hosts" "$NYBBLE" verify --compute strict --threads 1 "$model" 2>"$work/mpirun") ||
            fail "$model on $hosts hosts: $out"
        grep -q '24 of 24 steps equal' <<<"$out" || fail "$model on $hosts hosts: $out"
        echo "$(basename "$model"): equal on $hosts hosts"
    done
}

# ---- a server over hosts -------------------------------------------------------------------------

# serve_start HOSTS: each rank's messages go to a file of its own, since a cut line would keep them back.
serve_start() {
    rm -f "$work"/rank*
    cat >"$work/start" <<END
#!/bin/sh
exec "$NYBBLE" serve --port $port --threads 1 --rank-timeout 10 2>"$work/rank\$OMPI_COMM_WORLD_RANK"
END
    chmod +x "$work/start"
    hosts_mpirun "$1" "$work/start" >"$work/mpirun" 2>&1 &
    mpirun=$!
    for ((i = 0; i < 300; i++)); do
        grep -q 'listening on' "$work/rank0" 2>/dev/null && return
        sleep 0.1
    done
    fail "the server did not start"
}

# ask TOKENS: the events of a greedy stream
ask() {
    ip netns exec nyb0 curl -sN --max-time 60 "http://127.0.0.1:$port/v1/completions" -H "Content-Type: application/json" -d '{"prompt": "Once upon a time",
        "max_tokens": '"$1"', "temperature": 0, "ignore_eos": true, "stream": true}' || true
}

text_of() { { grep -o '"text": *"[^"]*"' "$1" || true; } | tr -d '\n'; }

# Ids of the ranks, on all hosts.
ranks() {
    local i
    for ((i = 0; i < HOSTS_COUNT; i++)); do
        ip netns pids "nyb$i"
    done | xargs -r ps -o pid=,comm= -p | awk '$2 == "nybble" {print $1}'
}

# until_gone SECONDS COMMAND...: until the command prints nothing
until_gone() {
    local until=$((SECONDS + $1))
    shift
    while [ -n "$("$@")" ]; do
        [ "$SECONDS" -lt "$until" ] || return 1
        sleep 0.2
    done
}

mpirun_lives() { kill -0 "$mpirun" 2>/dev/null && echo yes || true; }

cut_for_a_while() {
    ask 150 >"$work/before"
    [ "$(grep -c DONE "$work/before")" -eq 1 ] || fail "no whole answer before the cut"
    ask 150 >"$work/during" &
    local asking=$!
    sleep 0.2
    hosts_cut
    sleep 5
    grep -q DONE "$work/during" && fail "the answer was over before the cut"
    hosts_join
    wait "$asking"
    [ "$(text_of "$work/during")" = "$(text_of "$work/before")" ] || fail "other tokens after a cut of 5 s"
    echo "a cut of 5 s: the same tokens"
}

cut_for_good() {
    ask 1500 >"$work/during" &
    local asking=$! rank status=0
    sleep 0.5
    hosts_cut
    until_gone 13 ranks || fail "ranks $(ranks) still run 13 s after the cut"
    wait "$asking"
    grep -q '"error"' "$work/during" || fail "the stream ended without an error event"
    for rank in "$work"/rank*; do
        [ "$(grep -c ' stops: ' "$rank")" -eq 1 ] || fail "$rank: expected one message"
    done
    until_gone 10 mpirun_lives || fail "mpirun still runs 10 s after its ranks"
    wait "$mpirun" || status=$?
    [ "$status" -ne 0 ] || fail "mpirun ended with 0"
    echo "a cut for good: all ranks have ended, mpirun with $status"
}

# pid_of RANK
pid_of() {
    ip netns pids "nyb$1" | xargs -r ps -o pid=,comm= -p | awk '$2 == "nybble" && !n++ {print $1}'
}

# lose_a_rank RANK SIGNAL: at some step of a running stream
lose_a_rank() {
    local status=0 rank other text
    serve_start 2
    ask 1500 >"$work/during" &
    local asking=$!
    until grep -q 'data: ' "$work/during" 2>/dev/null; do sleep 0.05; done
    sleep "0.$((RANDOM % 3))$((RANDOM % 10))"
    kill "-$2" "$(pid_of "$1")"
    if [ "$2" = STOP ]; then # nobody can end it but its starter
        other=$(pid_of $((1 - $1)))
        rank_lives() { kill -0 "$other" 2>/dev/null && echo yes || true; }
        until_gone 13 rank_lives || fail "rank $((1 - $1)) still runs 13 s after rank $1 was stopped"
        kill -KILL "$(pid_of "$1")" 2>/dev/null || true
    fi
    until_gone 13 ranks || fail "ranks $(ranks) still run 13 s after SIG$2 of rank $1"
    wait "$asking" || true
    until_gone 10 mpirun_lives || fail "mpirun still runs 10 s after its ranks"
    wait "$mpirun" || status=$?
    [ "$status" -ne 0 ] || fail "mpirun ended with 0 after SIG$2 of rank $1"
    text=$(text_of "$work/during")
    case "$(text_of "$work/before")" in # no wrong token before the end
        "$text"*) ;;
        *) [[ "$text" = "$(text_of "$work/before")"* ]] || fail "other tokens before SIG$2 of rank $1" ;;
    esac
    echo "SIG$2 of rank $1: all ranks have ended, mpirun with $status"
}

hosts_up "$NETLINE" 2 500 1000
serve_start 2
cut_for_a_while
cut_for_good
hosts_join
lose_a_rank 0 KILL
lose_a_rank 1 KILL
lose_a_rank 1 STOP
if [ -d "$golden" ]; then
    verify_on 2 "$golden"/*/
    hosts_down
    hosts_up "$NETLINE" 3 500 1000
    verify_on 3 "$golden"/*/
    hosts_down
    hosts_up "$NETLINE" 2 10000 5
    verify_on 2 "$golden/qwen3_moe-modelopt" # a slow line
else
    echo "no golden checkpoints: not compared"
fi
