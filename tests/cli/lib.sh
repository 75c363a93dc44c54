# Sourced by every test here: $NYBBLE is the program, $SHARED the shared test data (may be absent).
set -euo pipefail
: "${NYBBLE:?the program under test}" "${SOURCE:?the project}"
SHARED=$SOURCE/../shared
WORK=$(mktemp -d)
trap 'rm -rf "$WORK"' EXIT
SKIPPED=77 # CTest's SKIP_RETURN_CODE

fail() {
    echo "FAIL: $*" >&2
    exit 1
}

need_shared() {
    [ -d "$SHARED/$1" ] || { echo "skipped: no shared/$1"; exit $SKIPPED; }
}

# expect_status N COMMAND...: output in $WORK/out and $WORK/err
expect_status() {
    local want=$1 got=0
    shift
    "$@" >"$WORK/out" 2>"$WORK/err" </dev/null || got=$?
    [ "$got" -eq "$want" ] || { cat "$WORK/err" >&2; fail "exit status $got, expected $want: $*"; }
}

expect_in() { # FILE TEXT
    grep -qF -- "$2" "$WORK/$1" || { cat "$WORK/$1" >&2; fail "std$1 lacks \"$2\""; }
}
