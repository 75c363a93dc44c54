#!/usr/bin/env bash
# An installation is complete and works from where it lies, a program of somebody else's is built from its header, library
# and pkg-config file alone, and uninstalling leaves nothing.
. "$(dirname "$0")/lib.sh"
BUILD=$(dirname "$NYBBLE")
command -v pkg-config >/dev/null && [ -e "$BUILD/libnybble.so" ] || { echo "skipped: no pkg-config, or a build without the library"; exit $SKIPPED; }
mkdir "$WORK/moved" "$WORK/program"
manifest=$BUILD/install_manifest.txt
[ ! -e "$manifest" ] || cp "$manifest" "$WORK/manifest" # of an installation that is somebody's
restore() {
    rm -f "$manifest"
    [ ! -e "$WORK/manifest" ] || cp "$WORK/manifest" "$manifest"
    rm -rf "$WORK"
}
trap restore EXIT
expect_status 0 cmake --install "$BUILD" --prefix "$WORK/prefix"
# Files that the installation names by itself are right for this prefix, not for the one of the configuration.
unit=$WORK/prefix/lib/systemd/system/nybble.service
grep -qx "ExecStart=$WORK/prefix/bin/nybble serve --config /etc/nybble/serve.yaml" "$unit" || fail "the unit names another program"
# What --help and the manual page name can be read: every file, and what files name in turn.
doc=$WORK/prefix/share/doc/nybble
[ -s "$doc/LICENSE" ] && [ -s "$doc/CHANGELOG.md" ] && [ -s "$doc/packaging/grafana.json" ] || fail "documents are missing"
for name in $({ "$NYBBLE" --help; "$NYBBLE" serve --help; "$NYBBLE" run --help; cat "$doc/README.md"; } | grep -o 'docs/[A-Z]*\.md'); do
    [ -s "$doc/$name" ] || fail "$name is not installed"
done
[ ! -e "$doc/docs/man" ] || fail "the source of the manual page is installed"
[ -x "$WORK/prefix/bin/nybble" ] && [ -e "$WORK/prefix/share/bash-completion/completions/nybble" ] || fail "something is missing"

# What the header declares is what the library has, and nothing else.
pc=$(find "$WORK/prefix" -name nybble.pc)
export PKG_CONFIG_PATH=${pc%/*}
library=$(pkg-config --variable=libdir nybble)
grep -o 'NYB_API [^(;]*(' "$WORK/prefix/include/nybble.h" | grep -o 'nyb_[a-z0-9_]*(' | tr -d '(' | sort >"$WORK/declared"
nm -D --defined-only "$library/libnybble.so" | awk '{print $3}' | sort >"$WORK/exported"
[ "$(wc -l <"$WORK/declared")" -gt 40 ] || fail "the header declares little"
diff "$WORK/declared" "$WORK/exported" || fail "the library and its header differ"

# The example, and errors as a program sees them.
build() { # SOURCE PROGRAM
    # shellcheck disable=SC2046 # flags
    expect_status 0 "${CC:-cc}" -std=c11 -Wall -Wextra -Wpedantic -Werror "$1" $(pkg-config --cflags --libs nybble) "-Wl,-rpath,$library" -o "$2"
}
build "$SOURCE/examples/story.c" "$WORK/program/story"
model=$WORK/prefix/share/nybble/models/tales-24m-moe-nvfp4
expect_status 0 "$WORK/program/story" "$model" "Once upon a time" 12
cp "$WORK/out" "$WORK/story"
[ "$(cat "$WORK/err")" = $'\n12 tokens, length' ] || fail "the library says more than it was asked for: $(cat "$WORK/err")"
expect_status 1 "$WORK/program/story" "$WORK/nowhere" x 3
expect_in err "no such folder"
expect_status 1 "$WORK/program/story" "$model" "" 3
expect_in err "at least one token"
expect_status 1 "$WORK/program/story" "$model" x 0
expect_in err "max_tokens"
cat >"$WORK/log.c" <<'C'
#include <nybble.h>
#include <stdio.h>
static void take(void *n, enum nyb_log_level level, const char *text)
{
    ++*(int *)n;
    printf("%d %s\n", (int)level, text);
}
int main(int argc, char **argv)
{
    int n = 0;
    struct nyb_engine *e;
    struct nyb_options o;
    nyb_options_init(&o);
    o.model = argv[argc - 1];
    nyb_set_log(NYB_LOG_INFO, take, &n);
    if (nyb_open(&e, &o, NULL) != NYB_OK)
        return 1;
    nyb_close(e);
    nyb_set_log(NYB_LOG_ERROR, NULL, NULL);
    return n ? 0 : 2;
}
C
build "$WORK/log.c" "$WORK/program/log"
expect_status 0 "$WORK/program/log" "$model"
expect_in out "2 KV cache:"
[ ! -s "$WORK/err" ] || fail "the log goes to standard error, too"

# In a program whose locale writes 0,5, numbers of templates and tools stay JSON's.
cat >"$WORK/locale.c" <<'C'
#include <nybble.h>
#include <locale.h>
#include <stdio.h>
int main(int argc, char **argv)
{
    int32_t *ids;
    size_t n;
    char *text;
    struct nyb_engine *e;
    struct nyb_options o;
    const struct nyb_chat chat = {.messages = "[{\"role\":\"user\",\"content\":\"x\"}]", .kwargs = "{\"half\":0.5}"};
    if (!setlocale(LC_ALL, "de_DE.UTF-8"))
        return 77;
    nyb_set_log(NYB_LOG_ERROR, NULL, NULL);
    nyb_options_init(&o);
    o.model = argv[argc - 2];
    o.chat_template = argv[argc - 1];
    if (nyb_open(&e, &o, NULL) != NYB_OK || nyb_render_chat(e, &chat, &ids, &n, &text, NULL) != NYB_OK)
        return 1;
    printf("%s %.1f\n", text, 0.5);
    nyb_free(ids);
    nyb_free(text);
    nyb_close(e);
    return 0;
}
C
build "$WORK/locale.c" "$WORK/program/locale"
echo '{{ half }} {{ [half] | tojson }} {{ 0.75 }} {{ "1.5" | float + 1 }}' >"$WORK/template"
mkdir "$WORK/locales"
if localedef -i de_DE -f UTF-8 "$WORK/locales/de_DE.UTF-8" 2>/dev/null; then
    expect_status 0 env LOCPATH="$WORK/locales" "$WORK/program/locale" "$model" "$WORK/template"
    [ "$(cat "$WORK/out")" = "0.5 [0.5] 0.75 2.5 0,5" ] || fail "the program's locale gets into prompts: $(cat "$WORK/out")"
fi
if command -v c++ >/dev/null; then
    # shellcheck disable=SC2046
    expect_status 0 c++ -std=c++17 -Wall -Wextra -Werror -fsyntax-only $(pkg-config --cflags nybble) -x c++ "$WORK/prefix/include/nybble.h"
fi

# Moved as a whole, the program and the library still find what is theirs.
(cd "$WORK/prefix" && cp -a . "$WORK/moved")
expect_status 0 env -u NYBBLE_MODELS "$WORK/moved/bin/nybble" run -p "Once upon a time" --temperature 0 --max-tokens 12
diff <(head -c 20 "$WORK/out") <(head -c 20 "$WORK/story") || fail "the program and the library answer differently"
# The model is the moved one: neither the first place nor the source tree stands in for it.
rm -r "$WORK/moved/share/nybble/models/"*/*
expect_status 1 env -u NYBBLE_MODELS "$WORK/moved/bin/nybble" run -p "Once upon a time" --temperature 0 --max-tokens 12
expect_in err "$WORK/moved/share/nybble/models"
PKG_CONFIG_PATH=${PKG_CONFIG_PATH/prefix/moved} pkg-config --cflags nybble | grep -q "$WORK/moved" || fail "the pkg-config file cannot be moved"

# Everything that was put there is gone, and only that.
echo mine >"$WORK/prefix/share/mine"
expect_status 0 cmake -D "BUILD=$BUILD" -P "$SOURCE/packaging/uninstall.cmake"
left=$(find "$WORK/prefix" ! -type d)
[ "$left" = "$WORK/prefix/share/mine" ] || fail "uninstalling left $left"
[ ! -d "$WORK/prefix/share/nybble" ] && [ ! -d "$WORK/prefix/lib/nybble" ] || fail "uninstalling left folders of nybble's own"
expect_status 1 cmake -D "BUILD=$BUILD" -P "$SOURCE/packaging/uninstall.cmake"
expect_in err "nothing has been installed"

# Names with what CMake has a meaning for; what is somebody else's stays, and its folder.
odd="$WORK/a[b]c;d/nybble"
mkdir -p "$odd/of-both" "$odd/own" "$WORK/build"
touch "$odd/of-both/one" "$odd/of-both/mine" "$odd/own/two;three"
printf '%s\n' "$odd/of-both/one" "$odd/own/two;three" >"$WORK/build/install_manifest.txt"
expect_status 0 cmake -D "BUILD=$WORK/build" -P "$SOURCE/packaging/uninstall.cmake"
left=$(find "$odd" | sort | tr '\n' ' ')
[ "$left" = "$odd $odd/of-both $odd/of-both/mine " ] || fail "uninstalling left $left"
echo ok
