#!/usr/bin/env bash
# Ranks on hosts of their own: right numbers over two, three and slow lines; a line that is cut for a while; one that
# is cut for good; ranks that are lost; experts that move from host to host.
set -euo pipefail
. "$(dirname "$0")/hosts.sh"
hosts_check
golden="$SOURCE/../shared/golden"
work=$(mktemp -d)
port=8741
# Seconds that a line is cut for a while, and after which a rank is lost; make long: more, and all models on three hosts.
cut=2 late=5 HOSTS_PROBES=2
[ "${NYBBLE_LONG:-0}" = 0 ] || cut=5 late=10 HOSTS_PROBES=4
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

# serve_start HOSTS OPTIONS...: each rank's messages go to a file of its own, since a cut line would keep them back.
serve_start() {
    local hosts=$1
    shift
    rm -f "$work"/rank*
    cat >"$work/start" <<END
#!/bin/sh
exec "$NYBBLE" serve --port $port --threads 1 --rank-timeout $late $* 2>"$work/rank\$OMPI_COMM_WORLD_RANK"
END
    chmod +x "$work/start"
    hosts_mpirun "$hosts" "$work/start" >"$work/mpirun" 2>&1 &
    mpirun=$!
    for ((i = 0; i < 300; i++)); do
        grep -q 'listening on' "$work/rank0" 2>/dev/null && break
        sleep 0.1
    done
    [ "$i" -lt 300 ] || fail "the server did not start"
    grep -q "$hosts ranks on $hosts hosts: nyb0 (1), nyb1 (1)" "$work/rank0" || fail "$hosts ranks are not on $hosts hosts"
}

# request PATH [BODY]
request() {
    ip netns exec nyb0 curl -sN --max-time 60 "http://127.0.0.1:$port$1" ${2:+-H "Content-Type: application/json" -d "$2"} || true
}

# ask TOKENS [PROMPT]: the events of a greedy stream
ask() {
    request /v1/completions '{"prompt": "'"${2:-Once upon a time}"'", "max_tokens": '"$1"', "temperature": 0,
        "ignore_eos": true, "stream": true}'
}

# number NAME: of the JSON that comes in, the first of that name
number() { { grep -o "\"$1\": *[0-9]*" || true; } | grep -o '[0-9]*$' -m 1 || true; }

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
    ask 100 >"$work/before"
    [ "$(grep -c DONE "$work/before")" -eq 1 ] || fail "no whole answer before the cut"
    ask 100 >"$work/during" &
    local asking=$!
    sleep 0.2
    hosts_cut
    sleep $cut
    grep -q DONE "$work/during" && fail "the answer was over before the cut"
    hosts_join
    wait "$asking"
    [ "$(text_of "$work/during")" = "$(text_of "$work/before")" ] || fail "other tokens after a cut of $cut s"
    echo "a cut of $cut s: the same tokens"
}

cut_for_good() {
    ask 1500 >"$work/during" &
    local asking=$! rank status=0
    sleep 0.5
    hosts_cut
    until_gone $((late + 3)) ranks || fail "ranks $(ranks) still run $((late + 3)) s after the cut"
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
    serve_start 2
    ask 1500 >"$work/during" &
    local asking=$!
    until grep -q 'data: ' "$work/during" 2>/dev/null; do sleep 0.05; done
    sleep "0.$((RANDOM % 3))$((RANDOM % 10))"
    kill "-$2" "$(pid_of "$1")"
    all_end "$1" "$2" "$asking"
}

# all_end RANK SIGNAL ASKING: after the signal, under a stream that is being asked for
all_end() {
    local status=0 other text
    if [ "$2" = STOP ]; then # nobody can end it but its starter
        other=$(pid_of $((1 - $1)))
        rank_lives() { kill -0 "$other" 2>/dev/null && echo yes || true; }
        until_gone $((late + 3)) rank_lives || fail "rank $((1 - $1)) still runs $((late + 3)) s after rank $1 was stopped"
        kill -KILL "$(pid_of "$1")" 2>/dev/null || true
    fi
    until_gone 13 ranks || fail "ranks $(ranks) still run 13 s after SIG$2 of rank $1"
    wait "$3" || true
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

# ---- experts ---------------------------------------------------------------------------------------

moves() { request /expert_load | number moves; }
checksum() { request /weights_checker '{"action": "checksum"}' | grep -o '"checksum": *"[^"]*"'; }

# The load of one sequence is uneven. Moved by it, experts give the same tokens and have the same bits.
move_experts() {
    local sum moved
    serve_start 2 --enable-expert-parallel --num-redundant-experts 4
    ask 60 >"$work/before"
    [ "$(grep -c DONE "$work/before")" -eq 1 ] || fail "no whole answer before experts move"
    sum=$(checksum)
    [ -n "$sum" ] || fail "no checksum"
    request /rebalance_experts '{}' >"$work/moving"
    moved=$(number moves <"$work/moving")
    [ "${moved:-0}" -gt 0 ] || fail "no experts have moved: $(cat "$work/moving")"
    ask 60 >"$work/after"
    [ "$(text_of "$work/after")" = "$(text_of "$work/before")" ] || fail "other tokens after experts moved"
    [ "$(checksum)" = "$sum" ] || fail "another checksum after experts moved"
    echo "$moved experts moved between two hosts: the same tokens and checksum"
}

# kill_while_experts_move RANK: between the first move and the last, under a stream
kill_while_experts_move() {
    local asking posting before prompt
    ask 1500 >"$work/during" &
    asking=$!
    for prompt in "The dog was" "1 2 3 4 5 6 7 8 9" "One day a girl"; do # another load, so that others move
        ask 40 "$prompt" >"$work/other"
        before=$(moves)
        request /rebalance_experts '{}' >"$work/moving" &
        posting=$!
        while kill -0 "$posting" 2>/dev/null && [ "$(moves)" = "$before" ]; do sleep 0.02; done
        kill -0 "$posting" 2>/dev/null && break
    done
    kill -KILL "$(pid_of "$1")"
    all_end "$1" KILL "$asking"
    wait "$posting" || true
    ! grep -q '"success": *true' "$work/moving" || fail "experts had moved before rank $1 was killed"
}

hosts_up "$NETLINE" 2 500 1000
serve_start 2
cut_for_a_while
cut_for_good
hosts_join
lose_a_rank 0 KILL
lose_a_rank 1 KILL
lose_a_rank 1 STOP
hosts_down
hosts_up "$NETLINE" 2 500 20 # so that moving takes a while
move_experts
kill_while_experts_move 1
if [ -d "$golden" ]; then
    hosts_down
    hosts_up "$NETLINE" 2 500 1000
    verify_on 2 "$golden"/*/
    hosts_down
    hosts_up "$NETLINE" 3 500 1000
    if [ "${NYBBLE_LONG:-0}" = 0 ]; then # one of each kind of experts
        verify_on 3 "$golden"/{qwen3_moe,ernie4_5_moe,glm4_moe,mixtral}-modelopt
    else
        verify_on 3 "$golden"/*/
    fi
    hosts_down
    hosts_up "$NETLINE" 2 5000 5
    verify_on 2 "$golden/qwen3_moe-modelopt" # a slow line
else
    echo "no golden checkpoints: not compared"
fi
