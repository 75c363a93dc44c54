#!/usr/bin/env bash
# text_cli.sh NYBBLE SOURCE SHARED: the JSON-lines commands against known answers. SHARED may be absent.
set -uo pipefail
nybble=$1
source=$2
shared=${3:-}
tales=$source/models/tales-24m-moe-nvfp4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
checks=0
bad=0

# same NAME EXPECTED-STATUS EXPECTED-OUTPUT INPUT ARGUMENT...
same() {
    local name=$1 status=$2 want=$3 input=$4 got rc
    shift 4
    got=$(printf '%s' "$input" | "$nybble" text "$@" 2>"$work/stderr")
    rc=$?
    checks=$((checks + 1))
    if [ "$got" != "$want" ] || [ $rc -ne "$status" ]; then
        bad=$((bad + 1))
        printf 'text_cli: %s: status %d, expected %d\n  got      %s\n  expected %s\n' "$name" $rc "$status" "$got" "$want"
        sed 's/^/  stderr   /' "$work/stderr"
    fi
}

# complains NAME EXPECTED-STATUS PATTERN ARGUMENT...: nothing on standard output, the pattern on standard error
complains() {
    local name=$1 status=$2 pattern=$3 got rc
    shift 3
    got=$("$nybble" text "$@" </dev/null 2>"$work/stderr")
    rc=$?
    checks=$((checks + 1))
    if [ -n "$got" ] || [ $rc -ne "$status" ] || ! grep -q "$pattern" "$work/stderr"; then
        bad=$((bad + 1))
        printf 'text_cli: %s: status %d, expected %d; said: %s\n' "$name" $rc "$status" "$(cat "$work/stderr")"
    fi
}

ids='{"ids": [49, 1343, 634, 261, 562]}' # as in golden.json
once='{"text": "Once upon a time"}'
same 'encode, default model' 0 "$ids" "$once" encode
same 'encode, folder' 0 "$ids" "$once" encode "$tales"
same 'encode, file as folder' 0 "$ids" "$once" encode "$tales/tokenizer.json"
same 'encode, --tokenizer' 0 "$ids" "$once" encode --tokenizer "$tales/tokenizer.json"
same 'decode' 0 "$once" "$ids" decode "$tales"
same 'two lines, a blank one, no final newline' 0 "$ids"$'\n'"$ids" "$once"$'\n\n'"$once" encode
same 'encode, empty text' 0 '{"ids": []}' '{"text": ""}' encode
same 'encode, empty input' 0 '' '' encode
same 'encode, no text' 1 '{"error": "text: missing"}' '{}' encode
same 'encode, go on after an error' 1 '{"error": "text: not a string"}'$'\n'"$ids" '{"text": 1}'$'\n'"$once" encode
same 'decode, no id' 1 '{"error": "ids: item 1 is not a token id"}' '{"ids": [1, -1]}' decode
same 'not an object' 1 '{"error": "line 2: not a JSON object"}' $'\n[]\n' parse

same 'render' 0 '{"text": "Hi\nYou"}' \
    '{"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "You"}]}' render "$tales"
same 'render, tokenize' 0 "$ids" '{"messages": [{"role": "user", "content": "Once upon a time"}], "tokenize": true}' \
    render "$tales"
cat >"$work/t.jinja" <<'JINJA'
{{ bos_token }}{{ messages[0].content }}|{{ mood }}|{{ strftime_now("%Y-%m-%d") }}{% if add_generation_prompt %}|go{% endif %}
{%- if mood == "bad" %}{{ raise_exception("no " + mood + " moods") }}{% endif %}
JINJA
same 'render, kwargs and clock' 0 '{"text": "<s>Hi|good|2025-08-05|go"}' \
    '{"messages": [{"role": "user", "content": "Hi"}], "add_generation_prompt": true, "kwargs": {"mood": "good", "bos_token": "<s>"}}' \
    render --chat-template "$work/t.jinja" --now 2025-08-05T12:34:56
same 'render, refused by the template' 0 '{"error": "no bad moods"}' \
    '{"messages": [{"role": "user", "content": "Hi"}], "kwargs": {"mood": "bad"}}' \
    render --chat-template "$work/t.jinja" --now 1754397296
same 'render, no messages' 1 '{"error": "messages: missing"}' '{}' render "$tales"

call='"tool_calls": [{"id": "call_e220a8397b1dcdafa1b965f4", "type": "function", "function": {"name": "f", "arguments": "{\"x\": 1}"}}]'
same 'parse' 0 '{"content": "Yes.", "reasoning": "Hm.", '"$call}" \
    '{"text": "<think>\nHm.\n</think>\n\nYes.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"x\": 1}}\n</tool_call>", "format": "qwen3"}' parse
same 'parse, opened by the prompt' 0 '{"content": "Yes.", "reasoning": "Hm.", "tool_calls": []}' \
    '{"text": "Hm.</think>Yes."}' parse --format glm45
same 'parse, typed by tools' 0 '{"content": "", "reasoning": "", '"$call}" \
    '{"text": "<tool_call><function=f><parameter=x>1</parameter></function></tool_call>", "tools": [{"type": "function", "function": {"name": "f", "parameters": {"properties": {"x": {"type": "integer"}}}}}]}' \
    parse --format qwen3_coder
printf '<tool_call> {{ messages }}' >"$work/hermes.jinja"
same 'parse, format from the template' 0 '{"content": "", "reasoning": "", '"$call}" \
    '{"text": "<tool_call>{\"name\": \"f\", \"arguments\": {\"x\": 1}}</tool_call>"}' parse --chat-template "$work/hermes.jinja"
same 'parse, plain model' 0 '{"content": "<think>a</think>", "reasoning": "", "tool_calls": []}' \
    '{"text": "<think>a</think>"}' parse "$tales"
same 'parse, unknown format' 1 '{"error": "format: no such format; nybble text --help lists them"}' \
    '{"text": "", "format": "x"}' parse

complains 'no action' 2 'is missing'
complains 'unknown action' 2 'no action "foo"' foo
complains 'two folders' 2 'one folder at a time' encode a b
complains 'unknown option' 2 'call is wrong' encode --nope
complains 'bad time' 2 'takes seconds' render --now yesterday
complains 'unknown format' 2 'knows no "x"' parse --format x
complains 'no such folder' 1 'no such folder' encode "$work/none"
complains 'no such tokenizer' 1 'none.json' encode --tokenizer "$work/none.json"
complains 'no such template' 1 'none.jinja' render --chat-template "$work/none.jinja"
complains 'folder without a template' 1 'no chat template' render "$work"
"$nybble" text --help | grep -q '^examples:' || { echo 'text_cli: --help has no examples'; bad=$((bad + 1)); }
checks=$((checks + 1))

if [ -n "$shared" ] && [ -d "$shared/golden/qwen3_moe-modelopt" ]; then
    folder=$shared/golden/qwen3_moe-modelopt
    text='{"text": "The quick brown fox: caf\u00e9, 12345 \ud83d\ude80\n\n  end"}'
    plain=${text%\}}', "add_special_tokens": false}'
    back='{"text": "The quick brown fox: café, 12345 🚀\n\n  end"}'
    got=$(printf '%s\n' "$plain" | "$nybble" text encode "$folder" | "$nybble" text decode "$folder")
    checks=$((checks + 1))
    [ "$got" = "$back" ] || { printf 'text_cli: round trip: %s\n' "$got"; bad=$((bad + 1)); }
else
    echo 'text_cli: no golden folder, round trip skipped'
fi

echo "text_cli: $checks checks, $bad bad"
[ $bad -eq 0 ]
