#!/usr/bin/env python3
"""Instructions of guarded calls against guard.csv. A slower kernel has more of them, on every machine and however busy.

    guard.py PROGRAM            compare; 1: a call has more or fewer than its row allows; 77: nothing could be compared
    guard.py PROGRAM --update   write the table anew, for this compiler

Callgrind counts the scalar and AVX2 kernels and everything else; it knows no AVX-512, so those kernels are stepped
through with ptrace where the processor has them. Counts depend on the compiler and the C library: the table names
those that it was made with, and others are not compared. Fewer instructions than allowed fail too: the table is then to
be made anew, so that what was won is guarded.
"""
import argparse
import csv
import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TABLE = Path(__file__).with_name("guard.csv")
TOLERANCE = {"kernels": 2, "software": 3}  # percent
# set, CPU level, how it is counted
RUNS = (("software", "avx2", "callgrind"), ("kernels", "scalar", "callgrind"), ("kernels", "avx2", "callgrind"),
        ("kernels", "avx512", "step"))
LEVELS = ("scalar", "avx2", "avx512", "amx")
FIELDS = ("set", "level", "call", "instructions", "percent")


def call(program, *args, level=None, prefix=()):
    env = dict(os.environ, **({"NYBBLE_CPU": level} if level else {}))
    return subprocess.run([*prefix, program, *args], env=env, check=True, capture_output=True, text=True).stdout


def callgrind(program, which, level):
    """One dump at the end of each counted call, numbered from 1."""
    names = call(program, "list", which, level=level).splitlines()
    with tempfile.TemporaryDirectory() as folder:
        call(program, "run", which, level=level,
             prefix=("valgrind", "--tool=callgrind", "--toggle-collect=guard_call", "--dump-after=guard_call",
                     "--callgrind-out-file=%s/out" % folder))
        counts = []
        for i in range(1, len(names) + 1):
            text = Path(folder, "out.%d" % i).read_text()
            counts.append(int(re.search(r"^(?:totals|summary): (\d+)", text, re.M).group(1)))
    return dict(zip(names, counts))


def step(program, which, level):
    pairs = (line.split(" ", 1) for line in call(program, "step", which, level=level).splitlines())
    return {name: int(n) for n, name in pairs}


def measure(program, best, say):
    """{(set, level): {call: instructions}} of what can be counted here."""
    found = {}
    for which, level, how in RUNS:
        if how == "callgrind" and not shutil.which("valgrind"):
            say("%s, %s: not counted, valgrind is not installed" % (which, level))
        elif LEVELS.index(level) > LEVELS.index(best):
            say("%s, %s: not counted, the processor is %s" % (which, level, best))
        else:
            try:
                found[which, level] = (callgrind if how == "callgrind" else step)(program, which, level)
            except subprocess.CalledProcessError as e:
                if how == "callgrind":
                    raise
                say("%s, %s: not counted: %s" % (which, level, e.stderr.strip()))
    return found


def read_table():
    with TABLE.open() as f:
        about = f.readline().lstrip("# ").strip()
        return about, list(csv.DictReader(f, FIELDS))


def write_table(about, found, old):
    """Rows that cannot be counted here stay as they are."""
    rows = {(r["set"], r["level"], r["call"]): r for r in old if (r["set"], r["level"]) not in found}
    for (which, level), calls in found.items():
        for name, n in calls.items():
            rows[which, level, name] = dict(zip(FIELDS, (which, level, name, n, TOLERANCE[which])))
    order = {(which, level): i for i, (which, level, _) in enumerate(RUNS)}
    with TABLE.open("w") as f:
        f.write("# %s\n" % about)
        csv.DictWriter(f, FIELDS, lineterminator="\n").writerows(sorted(rows.values(),
                                                                       key=lambda r: order[r["set"], r["level"]]))


def compare(found, table, say):
    wrong = seen = 0
    expected = {(r["set"], r["level"], r["call"]): r for r in table}
    for (which, level), calls in found.items():
        for name in calls.keys() | {c for w, l, c in expected if (w, l) == (which, level)}:
            row, n = expected.get((which, level, name)), calls.get(name)
            where = "%s, %s, %s" % (which, level, name)
            if row is None or n is None:
                say("%s: %s" % (where, "not in guard.csv" if row is None else "in guard.csv, but not counted any more"))
                wrong += 1
                continue
            seen += 1
            want, percent = int(row["instructions"]), float(row["percent"])
            change = 100 * (n - want) / want
            if abs(change) > percent:
                say("%s: %d instructions, expected %d: %+.1f %%" % (where, n, want, change))
                wrong += 1
    return seen, wrong


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("program")
    parser.add_argument("--update", action="store_true")
    args = parser.parse_args()
    about, best = call(args.program, "about").splitlines()
    if about == "unfit":
        print("skipped: this build has sanitizers or no optimization")
        return 77
    table_about, table = read_table() if TABLE.exists() else ("", [])
    if not args.update and table_about != about:
        print("skipped: guard.csv was made with %s, this is %s" % (table_about or "nothing", about))
        return 77
    found = measure(args.program, best, print)
    if not found:
        return 77
    if args.update:
        write_table(about, found, table if table_about == about else [])
        print("%d rows of %s" % (sum(map(len, found.values())), TABLE))
        return 0
    seen, wrong = compare(found, table, print)
    print("%d calls, %d not as expected" % (seen, wrong))
    if wrong:
        print("If that is meant: cmake --build BUILD --target guard-table")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
