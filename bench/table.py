#!/usr/bin/env python3
"""The README's table from the JSON of `nybble bench model`: bench/table.py [--readme README.md] FILE...

Markdown on standard output; with --readme, what stands between the two comments in that file is replaced, so that the
README says what was measured and nothing else.
"""
import argparse
import json
import os
from pathlib import Path

BEGIN, END = "<!-- bench/table.py: begin -->", "<!-- bench/table.py: end -->"
COLUMNS = ("pp512", "pp2048", "tg64", "tg64@4096")


def share(r):
    """Of the arithmetic's peak for a prefill, of the read bandwidth for a decode."""
    return "%.0f %%" % (100 * r["of_peak" if r["kind"] == "prefill" else "of_read"])


def rows(runs):
    """(model, compute, threads) -> {name: result}; a later file adds to an earlier one."""
    table = {}
    for run in runs:
        model = os.path.basename(os.path.normpath(run["model"]))
        for r in run["results"]:
            if r["name"] in COLUMNS:
                table.setdefault((model, run["compute"], r["threads"]), {})[r["name"]] = r
    return table


def roof(results):
    """The limits that the row's own lines were measured beside; the best of them."""
    of = lambda key: max(r["roofline"][key] for r in results)
    return of("read_gbs"), max(of("bf16_gflops"), of("tile_gflops"))


def cell(r):
    return "%.4g (%s)" % (r["tokens_per_second"], share(r)) if r else "-"


def markdown(runs):
    lines = ["%s, tokens/s, best of %d. In brackets the share of what the same threads were measured to do in the same run: of the"
             % (runs[0]["cpu"], runs[0]["repeat"]),
             "arithmetic's peak for prefill (pp), of the read bandwidth for decode (tg; `@4096` with so many tokens cached).", "",
             "| model | compute | threads | %s | reads | bf16 peak |" % " | ".join(COLUMNS),
             "|---" * (5 + len(COLUMNS)) + "|"]
    table = rows(runs)
    models = list(dict.fromkeys(key[0] for key in table))
    for (model, compute, threads), results in sorted(table.items(), key=lambda i: (models.index(i[0][0]), *i[0][1:])):
        read, peak = roof(results.values())
        lines.append("| %s | %s | %d | %s | %.1f GB/s | %.0f GFLOP/s |" % (
            model, compute, threads, " | ".join(cell(results.get(name)) for name in COLUMNS), read, peak))
    return "\n".join(lines) + "\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--readme", type=Path)
    parser.add_argument("file", nargs="+")
    args = parser.parse_args()
    text = markdown([json.loads(Path(f).read_text()) for f in args.file])
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
