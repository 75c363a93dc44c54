#!/usr/bin/env bash
# run: the embedded model's greedy words, sampling, input, options, failures and their exit statuses.
. "$(dirname "$0")/lib.sh"
prompt="Once upon a time there was a little girl who"

expect_status 0 "$NYBBLE" run -p "$prompt" --temperature 0 --max-tokens 12
first=$(cat "$WORK/out")
[ -n "$first" ] || fail "no text"
for threads in 1 2 3; do
    expect_status 0 "$NYBBLE" run -p "$prompt" --temperature 0 --max-tokens 12 --threads $threads
    [ "$(cat "$WORK/out")" = "$first" ] || fail "other words with $threads threads"
done

# The greedy text is the one that the checkpoint's golden file has.
python3 - "$SOURCE/models/tales-24m-moe-nvfp4/golden.json" "$NYBBLE" <<'PY'
import json, subprocess, sys
golden = json.load(open(sys.argv[1]))["greedy"]
for case in golden:
    got = subprocess.run([sys.argv[2], "run", "-p", case["prompt"], "--temperature", "0", "--ignore-eos", "--compute", "strict",
                          "--max-tokens", str(len(case["greedy_ids"]))], capture_output=True, text=True, check=True).stdout
    want = case["text"]
    if want.startswith(case["prompt"]):
        want = want[len(case["prompt"]):]
    assert got.rstrip("\n") == want.rstrip("\n"), (case["prompt"], got, want)
PY

# A model may be named with a flag, as of serve; one is enough.
model=$SOURCE/models/tales-24m-moe-nvfp4
expect_status 0 "$NYBBLE" run -p "$prompt" --temperature 0 --max-tokens 12 --model "$model"
[ "$(cat "$WORK/out")" = "$first" ] || fail "other words with --model"
expect_status 0 "$NYBBLE" inspect --json --model "$model"
for words in "run -p x" inspect "eval --text x" "bench model"; do
    expect_status 2 "$NYBBLE" $words --model "$model" other
    expect_in err "one model at a time: \"other\" comes after \"$model\""
done

# Members of config.json that are others, of run and of all that open a model.
yarn='{"rope_scaling": {"rope_type": "yarn", "factor": 2.0}}'
expect_status 0 "$NYBBLE" run -p "$prompt" --temperature 0 --max-tokens 12 --hf-overrides '{"rope_theta": 10000.0}'
[ "$(cat "$WORK/out")" = "$first" ] || fail "other words with the same rope_theta"
expect_status 0 "$NYBBLE" run -p "$prompt" --temperature 0 --max-tokens 12 --hf-overrides '{"rope_theta": 50.0}'
[ "$(cat "$WORK/out")" != "$first" ] || fail "the same words with another rope_theta"
expect_status 0 "$NYBBLE" run -p "$prompt" --max-tokens 2 --hf-overrides "$yarn" --max-model-len 2048
for words in "run -p x" verify "eval --text $SOURCE/README.md" "bench model" "bench load" "bench overlap"; do
    expect_status 1 "$NYBBLE" $words --hf-overrides '{"rope_scaling": {"rope_type": "spiral"}}' "$model"
    expect_in err "rope_type in rope_scaling is 'spiral'"
    expect_status 1 "$NYBBLE" $words --hf-overrides yarn "$model"
    expect_in err "hf_overrides: must be a JSON object"
done
expect_status 0 "$NYBBLE" bench model --load-format dummy --hf-overrides '{"num_hidden_layers": 2}' --prompt 2 --gen 1 --json "$model"
python3 -c 'import json, sys; step = json.load(open(sys.argv[1]))["results"][-1]["a_step"]; assert step["kv_bytes"] < 2 * 2 * 64 * 2 * 2 * 3, step' "$WORK/out"

# A seed repeats itself, another one does not.
expect_status 0 "$NYBBLE" run -p "$prompt" --seed 7 --max-tokens 40
seven=$(cat "$WORK/out")
expect_status 0 "$NYBBLE" run -p "$prompt" --seed 7 --max-tokens 40
[ "$(cat "$WORK/out")" = "$seven" ] || fail "seed 7 gives two answers"
expect_status 0 "$NYBBLE" run -p "$prompt" --seed 8 --max-tokens 40
[ "$(cat "$WORK/out")" != "$seven" ] || fail "seeds 7 and 8 give the same answer"

# Prompts from standard input, echoed; a stop string ends the answer before it.
printf '%s' "$prompt" | "$NYBBLE" run -p - --echo --temperature 0 --max-tokens 5 >"$WORK/out"
expect_in out "$prompt"
word=$(echo "$first" | awk '{print $3}')
expect_status 0 "$NYBBLE" run -p "$prompt" --temperature 0 --max-tokens 12 --stop " $word"
! grep -qF " $word" "$WORK/out" || fail "the stop string is in the answer"

# A chat over a pipe: one answer a line.
printf 'The king\n\nThe queen\n/bye\nnever\n' | "$NYBBLE" run --max-tokens 4 --temperature 0 >"$WORK/out" 2>"$WORK/err"
[ "$(grep -c . "$WORK/out")" -ge 2 ] || fail "two lines should have given two answers"

status=0
"$NYBBLE" run --max-tokens 4 </ >"$WORK/out" 2>"$WORK/err" || status=$?
[ $status -eq 1 ] || fail "a chat whose input cannot be read gives status $status"
expect_in err "standard input"

# A conversation that fills the context goes on after /clear, and says so.
long=$(printf 'the king and the queen %.0s' $(seq 60))
printf '%s\n%s\n%s\n%s\n/clear\nOnce\n' "$long" "$long" "$long" "$long" >"$WORK/in"
status=0
"$NYBBLE" run --max-tokens 4 --temperature 0 <"$WORK/in" >"$WORK/out" 2>"$WORK/err" || status=$?
[ $status -eq 1 ] || fail "a conversation that is too long gives status $status"
expect_in err "/clear forgets it"
[ -n "$(tail -n 1 "$WORK/out")" ] || fail "no answer after /clear"

# At a terminal a slash and a word is a command, never a message.
cat >"$WORK/chat.py" <<'PY'
import os, pty, sys
pid, fd = pty.fork()
if pid == 0:
    os.execv(sys.argv[1], [sys.argv[1], "run", "--max-tokens", "3"])
seen = b""
for line in (b"/help\n", b"/etc/passwd is a file\n", b"/quit\n"):
    while not seen.endswith(b">>> "):
        seen += os.read(fd, 4096)
    os.write(fd, line)
    seen += b" "
try:
    while data := os.read(fd, 4096):
        seen += data
except OSError:  # the end of a terminal
    pass
assert seen.count(b"/clear forgets, /bye leaves.") == 2, seen
assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, seen
PY
expect_status 0 timeout 60 python3 "$WORK/chat.py" "$NYBBLE"

# What is wrong is said, with the right status.
expect_status 1 "$NYBBLE" run "Once upon a time"
expect_in err "a prompt goes after -p"
expect_status 2 "$NYBBLE" sevre
expect_in err 'no command "sevre", but "serve"'
expect_status 2 "$NYBBLE" nonsense
expect_in err 'no command "nonsense"; nybble --help'
expect_status 2 "$NYBBLE" serve -p 8180
expect_in err "there is no option -p"
expect_status 0 "$NYBBLE" help eval
expect_in out "usage: nybble eval"
expect_status 2 "$NYBBLE" run --no-such-option
expect_in err "nybble run: unrecognized option '--no-such-option'"
expect_status 2 "$NYBBLE" bench model --no-such-option
expect_in err "nybble bench model: unrecognized option '--no-such-option'"
expect_status 1 "$NYBBLE" run -p $'caf\xe9'
expect_in err "--prompt: not valid UTF-8 (at byte 3)"
expect_status 1 "$NYBBLE" run -p x --system $'\xff'
expect_in err "--system"
printf 'The king\ncaf\xe9\nThe queen\n' >"$WORK/in"
status=0
"$NYBBLE" run --max-tokens 4 --temperature 0 <"$WORK/in" >"$WORK/out" 2>"$WORK/err" || status=$?
[ $status -eq 1 ] && [ "$(grep -c . "$WORK/out")" -ge 2 ] || fail "a chat goes on after a line that is not text: status $status"
expect_in err "not valid UTF-8"
expect_status 2 "$NYBBLE" checkkern --filter no.such.kernel
expect_in err "no.such.kernel"
expect_status 2 "$NYBBLE" checkkern --level mmx
expect_in err "expected scalar, avx2, avx512 or amx"
expect_status 2 "$NYBBLE" run --threads many
expect_in err "--threads"
expect_status 2 "$NYBBLE" run a b
expect_status 2 "$NYBBLE" nonsense
expect_status 1 "$NYBBLE" run -p x --top-p 1.5
expect_in err "top_p"
expect_in err "1.5"
expect_status 1 "$NYBBLE" run -p x /nonexistent/model
expect_in err "/nonexistent/model"
expect_status 1 "$NYBBLE" run -p x nobody/nothing
expect_in err "nobody/nothing"
expect_status 1 "$NYBBLE" run -p ""
expect_status 1 "$NYBBLE" run -p "$(printf 'word %.0s' $(seq 3000))"
expect_in err "1024"
[ ! -e /dev/full ] || {
    status=0
    "$NYBBLE" run -p "$prompt" --max-tokens 4 >/dev/full 2>"$WORK/err" || status=$?
    [ $status -ne 0 ] || fail "a full disk gives status 0"
    for call in --help "run --help" "bench --help" "checkkern --help"; do
        status=0
        # shellcheck disable=SC2086
        "$NYBBLE" $call >/dev/full 2>"$WORK/err" || status=$?
        [ "$status:$(grep -c "cannot write to standard output" "$WORK/err")" = 1:1 ] || fail "$call on a full disk: $status"
    done
}
# Closed streams: their places are held by something that takes no bytes, so that no log ends up in a file of ours.
status=0
"$NYBBLE" run -p "$prompt" --max-tokens 4 >&- 2>"$WORK/err" || status=$?
[ $status -eq 1 ] || fail "status $status where standard output is closed"
expect_in err "cannot write to standard output: Bad file descriptor"
"$NYBBLE" serve --port 0 --threads 1 <&- >&- 2>&- &
pid=$!
trap 'kill $pid 2>/dev/null || true; rm -rf "$WORK"' EXIT
listens() { [ "$(ls -l /proc/$pid/fd 2>/dev/null | grep -c eventpoll)" -ge 2 ]; } # the loop's, and that of its port
for _ in $(seq 1200); do listens && break; sleep 0.05; done
listens || fail "a server without standard streams does not listen"
for fd in 0 1 2; do
    [ "$(readlink /proc/$pid/fd/$fd)" = /dev/null ] || fail "descriptor $fd is $(readlink /proc/$pid/fd/$fd)"
done
kill $pid
wait $pid || fail "a server without standard streams does not end well"
for command in run verify eval inspect text checkkern; do
    expect_status 0 "$NYBBLE" $command --help
    expect_in out "example"
done
expect_status 0 "$NYBBLE" --version
expect_status 0 "$NYBBLE" --help

# Ctrl-C ends the answer, and the shell hears of it.
"$NYBBLE" run -p "$prompt" --ignore-eos --temperature 1 >"$WORK/out" 2>"$WORK/err" &
pid=$!
for _ in $(seq 100); do [ -s "$WORK/out" ] && break; sleep 0.05; done
kill -INT $pid
status=0
wait $pid || status=$?
[ $status -eq 130 ] || [ $status -eq 0 ] || fail "status $status after an interrupt"
echo ok
