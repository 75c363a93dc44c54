#!/usr/bin/env python3
"""Tokens/s against the number of sequences, from the JSON of `nybble bench model --scan`: CSV, and SVG by gnuplot.

    bench/scan.py FOLDER FILE...     writes FOLDER/scan.csv and, where gnuplot is installed, FOLDER/scan.svg
"""
import csv
import json
import shutil
import subprocess
import sys
from pathlib import Path

FIELDS = ("model", "compute", "threads", "depth", "batch", "tokens_per_second", "of_roofline", "of_limits_beside",
          "experts_a_layer")


def read(files):
    for run in map(json.loads, (Path(f).read_text() for f in files)):
        for r in run["results"]:
            if r["kind"] == "decode":
                yield (Path(run["model"]).name, run["compute"], r["threads"], r["depth"], r["batch"],
                       round(r["tokens_per_second"], 2), round(r["of_roofline"], 4),
                       round(r["median_of_limits_beside"], 4), round(r["a_step"]["experts_a_layer"], 2))


def script(rows, out):
    curves = {}
    for model, compute, threads, depth, batch, rate, *_ in rows:
        title = "%s, %s, %d thread%s%s" % (model, compute, threads, "s" * (threads > 1), ", depth %d" % depth if depth else "")
        curves.setdefault(title, []).append((batch, rate))
    lines = ["set terminal svg size 760,460 font 'sans-serif,13' background rgb 'white'", "set output '%s'" % out,
             "set title 'Decode, all sequences together'", "set xlabel 'sequences in a step'", "set ylabel 'tokens/s'",
             "set logscale x 2", "set xrange [1:72]", "set xtics (1,2,4,8,16,32,64)", "set yrange [0:*]", "set grid lc rgb '#dddddd'",
             "set key top left noenhanced", "set border 3", "set tics nomirror"]
    for i, points in enumerate(curves.values()):
        lines += ["$d%d << EOD" % i, *("%d %g" % p for p in points), "EOD"]
    plots = ("$d%d with linespoints lw 2 pt 7 ps 0.5 title '%s'" % (i, title.replace("'", ""))
             for i, title in enumerate(curves))
    return "\n".join(lines) + "\nplot " + ", ".join(plots) + "\n"


def main():
    folder, rows = Path(sys.argv[1]), list(read(sys.argv[2:]))
    with (folder / "scan.csv").open("w") as f:
        out = csv.writer(f, lineterminator="\n")
        out.writerow(FIELDS)
        out.writerows(rows)
    if shutil.which("gnuplot"):
        subprocess.run(["gnuplot"], input=script(rows, folder / "scan.svg"), text=True, check=True)


if __name__ == "__main__":
    main()
