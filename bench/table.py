#!/usr/bin/env python3
"""The README's table from the JSON of `nybble bench model`: bench/table.py [--readme README.md] [--others FILE] FILE...

Markdown on standard output; with --readme, what stands between the two comments in that file is replaced, so that the
README says what was measured and nothing else. --others has rows of other programs on the same machine:

    {"rows": [{"program": "...", "threads": 2, "pp512": "72", "tg64": "25 to 28"}], "sentence": "When, and with what."}
"""
import argparse
import datetime
import json
import os
from pathlib import Path

BEGIN, END = "<!-- bench/table.py: begin -->", "<!-- bench/table.py: end -->"
COLUMNS = ("pp512", "pp2048", "tg64", "tg64@4096")
HEADS = ("prompt of 512", "of 2048", "decode", "after 4096 tokens")
INTRO = """\
%s, %s, tokens/s, best of %d. In brackets two shares in percent, each the larger one of reading and of arithmetic: of what the same
threads did on average beside these runs (the median of all), and of what they do in their best moment (of the best run). docs/BENCH.md
tells what each means. The last columns are these limits, beside the runs and in the best moment.
"""
NO_OTHERS = "Other programs were not measured along with these; docs/SPEED.md has llama.cpp in turns with nybble."


def rows(runs):
    """(model, compute, threads) -> {name: result}; a later file adds to an earlier one."""
    table = {}
    for run in runs:
        model = os.path.basename(os.path.normpath(run["model"]))
        for r in run["results"]:
            if r["name"] in COLUMNS:
                table.setdefault((model, run["compute"], r["threads"]), {})[r["name"]] = r
    return table


def median(values):
    values = sorted(values)
    return (values[(len(values) - 1) // 2] + values[len(values) // 2]) / 2


def limits(results):
    """Of the row's own lines, each where it binds: reading of those that decode, arithmetic of prompts."""
    def of(kind, beside, best):
        lines = [r for r in results if r["kind"] == kind]
        if not lines:
            return "-"
        runs = [b[beside] for r in lines for b in r["runs_and_limits_beside"]]
        return "%.3g, %.3g" % (median(runs), max(best(r) for r in lines))
    peak = lambda r: r["of_peak"] and r["gflops"] / r["of_peak"]
    return (of("decode", "read_gbs", lambda r: r["roofline"]["read_gbs"]), of("prefill", "peak_gflops", peak))


def rate(v):
    return "%.0f" % v if v >= 100 else "%.1f" % v


def cell(r):
    return "-" if not r else "%s (%.0f, %.0f)" % (
        rate(r["tokens_per_second"]), 100 * r["median_of_limits_beside"], 100 * r["of_roofline"])


def markdown(runs, others):
    lines = [INTRO % (runs[0]["cpu"], datetime.date.today(), runs[0]["repeat"]),
             "| model | compute | threads | %s | reads, GB/s | computes, GFLOP/s |" % " | ".join(HEADS),
             "|---" * (5 + len(COLUMNS)) + "|"]
    table = rows(runs)
    models = list(dict.fromkeys(key[0] for key in table))
    for (model, compute, threads), results in sorted(table.items(), key=lambda i: (models.index(i[0][0]), *i[0][1:])):
        lines.append("| %s | %s | %d | %s | %s | %s |" % (
            model, compute, threads, " | ".join(cell(results.get(name)) for name in COLUMNS), *limits(results.values())))
    for r in others.get("rows", []):
        lines.append("| %s | | %s | %s | | |" % (r["program"], r["threads"], " | ".join(r.get(name, "-") for name in COLUMNS)))
    return "\n".join(lines) + "\n\n" + others.get("sentence", NO_OTHERS) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--readme", type=Path)
    parser.add_argument("--others", type=Path)
    parser.add_argument("file", nargs="+")
    args = parser.parse_args()
    others = json.loads(args.others.read_text()) if args.others else {}
    text = markdown([json.loads(Path(f).read_text()) for f in args.file], others)
    if not args.readme:
        print(text, end="")
        return
    old = args.readme.read_text()
    before, begin, rest = old.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise SystemExit("%s has no lines \"%s\" and \"%s\"" % (args.readme, BEGIN, END))
    args.readme.write_text(before + BEGIN + "\n" + text + END + after)


if __name__ == "__main__":
    main()
