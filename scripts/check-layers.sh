#!/usr/bin/env bash
# Dependencies point down only: fail on an #include that points up or sideways. docs/DESIGN.md, "The house".
set -euo pipefail
cd "$(dirname "$0")/.."

# room:what it may include besides itself and the public header
rules="
base:
fp4:base
checkpoint:base
text:base
kernels:base fp4
comm:base kernels
model:base fp4 checkpoint kernels comm
engine:base text kernels comm model
server:base text
cli:base fp4 checkpoint text kernels comm model engine server
"
# The engine's adapter to the checkpoint folder resolves names as the command line does.
exceptions="engine:checkpoint"

bad=0
while IFS=: read -r room allowed; do
    [ -n "$room" ] && [ -d "src/$room" ] || continue
    while IFS=: read -r file line text; do
        target=$(sed -n 's/.*#include "\([a-z0-9_]*\)\/.*/\1/p' <<<"$text")
        [ -n "$target" ] && [ "$target" != "$room" ] || continue
        case " $allowed " in *" $target "*) continue ;; esac
        case " $exceptions " in *" $room:$target "*) continue ;; esac
        echo "$file:$line: $room may not include $target"
        bad=1
    done < <(grep -rn --include='*.[ch]' --include='*.cu' '#include "' "src/$room" || true)
done <<<"$rules"

# Every exported name starts with its file's prefix or is declared in a header of its room; public ones are nyb_.
[ $bad -eq 0 ] && echo "layers: ok"
exit $bad
