#!/usr/bin/env bash
# What is written about the command line is true: the manual page and the completion know every command, and every
# call of the program in the papers and scripts uses options that its --help names. What papers point to is there.
. "$(dirname "$0")/lib.sh"
python3 - "$NYBBLE" "$SOURCE" <<'PY'
import glob, os, re, subprocess, sys

program, source = sys.argv[1:]
OPTION = r"(?<![\w-])--[a-z0-9][a-z0-9-]*"


def help_of(*words):
    result = subprocess.run([program, *words, "--help"], capture_output=True, text=True, check=False)
    assert result.returncode == 0 and "usage: nybble" in result.stdout and not result.stderr, (words, result)
    return result.stdout


def listed(text, pattern):
    found = re.findall(pattern, text, re.M)
    assert found, pattern
    return found


commands = listed(help_of(), r"^  (\w+)  +\S")
kinds = [f"bench {kind}" for kind in listed(help_of("bench"), r"nybble bench (\w+) +\[")]
actions = listed(help_of("text"), r"^  (\w+) +[{]")
known = {name: set(re.findall(OPTION, help_of(*name.split()))) for name in [*commands, *kinds]}

page = open(f"{source}/docs/man/nybble.1.scd", encoding="utf-8").read()
for name in [*(c for c in commands if c != "bench"), *kinds]:
    assert f"\n*{name}*\n" in page, f"the manual page lacks {name}"
every = set().union(*known.values())
for option in re.findall(r"\*(--[a-z0-9-]+)\*", page):
    assert option in every, f"the manual page has {option}, no command does"

# Calls in running text, in code, and in scripts; a line that ends with a backslash goes on.
calls = 0
names = "|".join(sorted(known, key=len, reverse=True))
for path in [f"{source}/README.md", *glob.glob(f"{source}/docs/*.md"), f"{source}/docs/man/nybble.1.scd",
             f"{source}/packaging/nybble.service", *glob.glob(f"{source}/bench/*.sh"), f"{source}/include/nybble.h"]:
    text = open(path, encoding="utf-8").read().replace("\\\n", " ")
    for name, rest in re.findall(rf"(?:nybble|[$]NYBBLE\"?|[$]nybble\"?) ({names})\b([^`|;&)\n]*)", text):
        for option in re.findall(OPTION, rest):
            calls += 1
            fine = option in known[name] or "--" + option.removeprefix("--no-") in known[name]
            assert fine, f"{path}: nybble {name} has no {option}:{rest}"
assert calls > 100, calls

# What the completion offers is what the program has.
offered = subprocess.run(
    ["bash", "-c", """
        nybble() { "$program" "$@"; }
        . "$1/packaging/nybble.bash"
        offer() { COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _nybble; echo "${COMPREPLY[*]}"; }
        offer nybble ''; offer nybble bench ''; offer nybble text ''; offer nybble serve --; offer nybble bench serve --
        offer nybble verify --chec; cd "$1" && offer nybble run LIC; offer nybble run --chat-template LIC""", "bash", source],
    capture_output=True, text=True, check=True, env={"program": program, "PATH": "/usr/bin:/bin"}).stdout.split("\n")
want = [{*commands, "--help", "--version"}, {*(k.split()[1] for k in kinds), "--help"}, {*actions, "--help"},
        known["serve"], known["bench serve"], set(), set(), {"LICENSE"}]
assert len(offered) == len(want) + 1, offered # and what follows the last line's end
for got, wanted in zip(offered, want):
    assert set(got.split()) == wanted, (set(got.split()) ^ wanted, got)
print(calls, "options in the papers")


# Files and headings that papers point to are there.
def anchors(path):
    text = re.sub(r"```.*?```", "", open(path, encoding="utf-8").read(), flags=re.S)
    titles = [re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title) for title in re.findall(r"^#+ +(.*)", text, re.M)]
    return {re.sub(r"[^\w\- ]", "", title.strip().lower()).replace(" ", "-") for title in titles}


for path in [f"{source}/README.md", *glob.glob(f"{source}/docs/*.md")]:
    text = re.sub(r"```.*?```", "", open(path, encoding="utf-8").read(), flags=re.S)
    for link in re.findall(r"\]\(([^)\s:]+)\)", text):
        file, _, anchor = link.partition("#")
        to = os.path.join(os.path.dirname(path), file) if file else path
        assert os.path.exists(to), f"{path} links to {link}, which is not there"
        assert not anchor or anchor in anchors(to), f"{path} links to {link}, a heading that is not there"
    for name in re.findall(r"(?<![\w/.-])(?:docs|src|tests|bench|scripts|packaging|include)/[\w./-]*\w", text):
        assert "NAME" in name or glob.glob(f"{source}/{name}*"), f"{path} speaks of {name}, which is not there"
PY
echo ok
