#!/usr/bin/env bash
# checkkern --device cuda: right where there is a GPU, and one line with status 77 where there is none.
set -euo pipefail
fail() { echo "test_gpu: $1" >&2; exit 1; }

status=0
"$NYBBLE" checkkern --device cuda --rounds 3 >out.gpu.$$ 2>err.gpu.$$ || status=$?
out=$(cat out.gpu.$$) err=$(cat err.gpu.$$)
rm -f out.gpu.$$ err.gpu.$$
if [ $status -eq 77 ]; then
    [ -z "$out" ] || fail "printed '$out' without a GPU"
    [ "$(wc -l <<<"$err")" = 1 ] || fail "more than one line: $err"
    case $err in
        "nybble checkkern: "*"no usable GPU"* | "nybble checkkern: "*"not found beside the program"* | \
            "nybble checkkern: "*"compute capability"*) ;;
        *) fail "no reason that this test knows: $err" ;;
    esac
elif [ $status -ne 0 ]; then
    fail "status $status: $out $err"
fi

for wrong in "--device tpu" "--device cuda --threads 1" "--device cuda --level avx2"; do
    status=0
    # shellcheck disable=SC2086
    "$NYBBLE" checkkern $wrong >/dev/null 2>&1 || status=$?
    [ $status -eq 2 ] || fail "$wrong: status $status, expected 2"
done
echo "test_gpu: ok"
