#!/usr/bin/env python3
"""What bench/gpus.sh has measured, as one table: bench/gpus_table.py FOLDER

FOLDER has golden-MODEL.HOW.json of `nybble verify --json`, eval.HOW.json of `nybble eval --json`, sums-FLOATS.json and
experts.json of `nybble bench gpus --json`, model-SHAPE.HOW.json of `nybble bench model --json` and overlap-SHAPE.json of
`nybble bench overlap --json`; what is missing is left out. The status is 1 if a golden model did not pass or long prompts came out otherwise.
"""
import json
import re
import sys
from itertools import zip_longest
from pathlib import Path

# The last two are of another program, which takes steps in turn: the median, not the best.
NAMES = {"one": "one GPU", "two": "two", "apart": "two, NCCL", "experts": "experts", "off": "in turn: off", "overlap": "overlap"}


def read(path):
    """The object in a file; None where a run has failed, which the script has said."""
    try:
        return json.loads(path.read_text())
    except (OSError, json.JSONDecodeError):
        return None


def golden(folder):
    """Whether all pass; and where they take other tokens than one GPU does, which may be at near ties."""
    models = {}
    for path in sorted(folder.glob("golden-*.json")):
        model, how = path.stem[len("golden-"):].rsplit(".", 1)
        models.setdefault(model, {})[how] = read(path)
    good = True
    for model, runs in models.items():
        one = runs.pop("one", None)
        cells = []
        for how, run in sorted(runs.items()):
            good = good and bool(run) and run["pass"]
            if not run or not run["pass"]:
                cells.append("%s FAILED" % how)
            elif one:
                other = sum(a != b for a, b in zip_longest(run["greedy_ids"], one["greedy_ids"]))
                cells.append("%s %s" % (how, "%d OTHER TOKENS" % other if other else "same tokens"))
        passed = bool(one) and one["pass"]
        good = good and passed
        print("%-40s one GPU %s, %d of %d golden; %s" % (model, "passes" if passed else "FAILS", one["greedy_equal"] if one else 0,
                                                       one["greedy_steps"] if one else 0, ", ".join(cells)))
    return good


def texts(folder):
    """Whether long prompts are as likely as on one GPU, but for the last digits."""
    nats = {how: (read(folder / ("eval.%s.json" % how)) or {}).get("nats_per_token") for how in ("one", "features", "experts")}
    nats = {how: n for how, n in nats.items() if n is not None}
    if "one" not in nats:
        return True
    print("%-40s %s nats a token" % ("prompts of 1000 tokens", ", ".join("%s %s" % (how, n) for how, n in nats.items())))
    return all(abs(n - nats["one"]) < 0.01 for n in nats.values())


def aim(what, found, wanted, least):
    """A line that says whether a figure is what it should be, at least or at most `wanted`; None: it was not measured."""
    if found is not None:
        met = found >= wanted if least else found <= wanted
        print("  %s: %.2f, aim at %s %g: %s" % (what, found, "least" if least else "most", wanted, "met" if met else "MISSED"))


def sums(found):
    if not found:
        return
    print("\nSums over %d GPUs, rows of %d floats, microseconds; link %.0f GB/s each way, a word and its answer %.2f us" % (
        found["ranks"], found["hidden"], found["link_gbs"], found["round_trip_us"]))
    print("%10s %9s %9s %9s %9s %9s %9s" % ("bytes", "one-shot", "two-shot", "NCCL", "and norm", "link", "faster"))
    for s in found["sizes"]:
        ours, nccl = min(s["one_shot_us"], s["two_shot_us"]), s.get("nccl_norm_us")
        print("%10d %9.2f %9.2f %9s %9s %9.2f %9s" % (
            s["bytes"], s["one_shot_us"], s["two_shot_us"], "%.2f" % s["nccl_us"] if nccl else "-", "%.2f" % nccl if nccl else "-",
            s["limit_us"], "%.2f" % (nccl / ours) if nccl else "-"))
    best = {s["bytes"]: min(s["one_shot_us"], s["two_shot_us"]) for s in found["sizes"]}
    faster = {s["bytes"]: s["nccl_norm_us"] / best[s["bytes"]] for s in found["sizes"] if s.get("nccl_norm_us")}
    aim("us of 64 KB", best.get(64 << 10), 7, False)
    aim("times as fast as NCCL and norm, up to 1 MB", min((f for b, f in faster.items() if b <= 1 << 20), default=None), 1.5, True)
    aim("and above", min((f for b, f in faster.items() if b > 1 << 20), default=None), 1, True)


def experts(folder):
    found = read(folder / "experts.json")
    if not found:
        return
    word = found["round_trip_us"]
    print("\nRows of %d to %d experts and products back, microseconds; / link: times what the bytes take; / floor: and a word's way there and back, %.2f us" % (
        found["hidden"], found["experts"], word))
    print("%10s %9s %9s %7s %7s %9s %9s %7s %7s" % ("rows/GPU", "dispatch", "link", "/ link", "/ floor", "combine", "link", "/ link",
                                                    "/ floor"))
    for s in found["rows"]:
        cells = []
        for what in ("dispatch", "combine"):
            us, limit = s[what + "_us"], s[what + "_limit_us"]
            cells.append("%9.2f %9.2f %7s %7.1f" % (us, limit, "%.1f" % (us / limit) if limit else "-", us / (limit + word)))
        print("%10d %s" % (s["rows"], " ".join(cells)))
    for what in ("dispatch", "combine"):
        ratios = [s[what + "_us"] / s[what + "_limit_us"] for s in found["rows"] if s["rows"] >= 256 and s[what + "_limit_us"]]
        aim("%s of 256 rows and more, most times what the bytes take" % what, max(ratios, default=None), 2, False)


def speeds(folder, shape):
    """{how: {what: tokens a second}} of one shape."""
    table = {}
    for path in sorted(folder.glob("model-%s.*.json" % shape)):
        run = read(path) or {"results": []}
        table[path.stem.rsplit(".", 1)[1]] = {
            ("prompt %d" % r["tokens"] if r["kind"] == "prefill" else "batch %d" % r["batch"]): r["tokens_per_second"]
            for r in run["results"]}
    steps = read(folder / ("overlap-%s.json" % shape)) or []
    for step in steps if isinstance(steps, list) else [steps]:
        count = int(re.search(r"\d+", step["step"]).group())
        what = "%s %d" % ("prompt" if "prefill" in step["step"] else "batch", count)
        for mode, how in (("off", "off"), ("always", "overlap")):
            table.setdefault(how, {})[what] = 1e3 * count / step["overlap"][mode]["median_ms"]
    return table


def models(folder):
    shapes = sorted({p.stem.split("-", 1)[1].rsplit(".", 1)[0] for p in folder.glob("model-*.json")} |
                    {p.stem.split("-", 1)[1] for p in folder.glob("overlap-*.json") if ".trace" not in p.name})
    for shape in shapes:
        table = speeds(folder, shape)
        ways = [w for w in ("one", "two", "apart", "experts", "off", "overlap") if w in table]
        points = sorted({p for w in ways for p in table[w]}, key=lambda p: (p.split()[0] != "prompt", int(p.split()[1])))
        print("\n%s, random weights, tokens/s" % shape)
        print("%-14s" % "" + "".join("%13s" % NAMES[w] for w in ways))
        for point in points:
            print("%-14s" % point + "".join("%13s" % ("%.0f" % table[w][point] if point in table[w] else "-") for w in ways))


def main():
    folder = Path(sys.argv[1])
    good = golden(folder)
    good = texts(folder) and good
    for path in sorted(folder.glob("sums-*.json")):
        sums(read(path))
    experts(folder)
    models(folder)
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
