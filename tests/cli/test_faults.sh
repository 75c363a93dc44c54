#!/usr/bin/env bash
# Eighteen checkpoints with one fault each: the ones that are fine give the golden answers, the others one clear
# error that names the place, exit status 1, nothing on standard output.
. "$(dirname "$0")/lib.sh"
need_shared tools
python3 "$SHARED/tools/make_faults.py" "$SHARED/golden/qwen3_moe-modelopt" "$WORK/faults" >/dev/null
count=0
for fault in "$WORK"/faults/*/; do
    outcome=$(python3 -c 'import json,sys; print(json.load(open(sys.argv[1]))["outcome"])' "$fault/expect.json")
    if [ "$outcome" = same ]; then
        expect_status 0 "$NYBBLE" verify "$fault" --compute strict
    else
        expect_status 1 "$NYBBLE" verify "$fault" --compute strict
        [ "$(wc -l <"$WORK/err")" -le 3 ] || fail "$fault: more than one clear error"
        [ ! -s "$WORK/out" ] || fail "$fault: something was printed"
        while IFS= read -r word; do
            expect_in err "$word"
        done < <(python3 -c 'import json,sys; print("\n".join(json.load(open(sys.argv[1]))["mentions"]))' "$fault/expect.json")
        expect_status 1 "$NYBBLE" run -p x "$fault"
    fi
    count=$((count + 1))
done
[ $count -eq 18 ] || fail "$count faults, expected 18"
echo ok
