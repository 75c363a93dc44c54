"""What overlap.sh and gpus.sh call.

overlap.py FOLDER DELAY_US RATE_MBIT TOKENS fits | print SVG
    fits: whether the arithmetic alone takes no longer than the network alone. print: the table, and the picture.
overlap.py TRACE SVG FIRST LAST
    The picture of layers FIRST to LAST of the longest step in a trace of `bench overlap --device cuda --trace`, and
    the share of the sums' time that lies beside arithmetic."""
import json
import sys

LEFT, WIDTH, LANE, GAP = 150, 1100, 22, 30
COLORS = {"communicate": "#d98b3f", "compute": "#4a7fb5"}


def overlap_of(path):
    """{mode: {best_ms, median_ms, median_ratio, total_ratio}}"""
    with open(path) as f:
        return json.load(f)["overlap"]


def network_ms(config, delay_us, rate_mbit, tokens):
    """Two exchanges a layer, each of all rows in fp32, at the rate of the line and one delay each."""
    exchanges = 2 * config["num_hidden_layers"]
    size = tokens * config["hidden_size"] * 4
    return exchanges * (size * 8 / (rate_mbit * 1e3) + delay_us / 1e3)


def lane_of(name):
    return ", ".join(name.split(", ")[-2:]) if "half" in name else "all rows"


def communicates(name):
    return name == "send" or name.endswith((" sum", " norm")) and name != "add, norm"


def in_order(spans, lanes):
    """[(lane, name, begin, duration)] in milliseconds; lanes are "half 0, compute" and so on, and "all rows"."""
    begin = min(e["ts"] for e in spans)
    return [(lane_of(lanes[e["tid"]]), e["name"], (e["ts"] - begin) / 1e3, e["dur"] / 1e3) for e in spans]


def load(path):
    """Spans, and names by lane."""
    with open(path) as f:
        all_events = json.load(f)["traceEvents"]
    lanes = {e["tid"]: e["args"]["name"] for e in all_events if e["ph"] == "M" and "tid" in e}
    return [e for e in all_events if e["ph"] == "X" and e["name"] != "step"], lanes


def steps_of(folder):
    return {mode: in_order(*load(f"{folder}/{mode}.trace")) for mode in ("off", "always")}


def layers_of(path, first, last):
    """The same of one trace with both, of some layers of its longest step."""
    spans, lanes = load(path)
    total = {}
    for e in spans:
        case = lanes[e["tid"]].rsplit(", overlap ", 1)[0]
        total[case] = total.get(case, 0) + e["dur"]
    case = max(total, key=total.get)
    return {mode: in_order([e for e in spans if first <= e["args"]["layer"] <= last and
                            lanes[e["tid"]].startswith(f"{case}, overlap {mode}")], lanes) for mode in ("off", "always")}


def hidden(spans):
    """The share of the sums' time that lies beside arithmetic of the other half."""
    sums = [(lane, t, t + d) for lane, name, t, d in spans if communicates(name)]
    work = [(lane, t, t + d) for lane, name, t, d in spans if not communicates(name)]
    beside = sum(max(0, min(e, f) - max(t, u)) for lane, t, e in sums for other, u, f in work
                 if lane.split(",")[0] != other.split(",")[0])
    return beside / sum(e - t for _, t, e in sums)


def picture(steps, path):
    end = max(t + d for spans in steps.values() for _, _, t, d in spans)
    scale, y, out = WIDTH / end, 40, []
    for mode, spans in steps.items():
        last = max(t + d for _, _, t, d in spans)
        out.append(f'<text x="4" y="{y - 8}">overlap {mode}: {last:.{0 if last > 10 else 2}f} ms on rank 0</text>')
        for lane in sorted({s[0] for s in spans}):
            out.append(f'<text x="4" y="{y + 14}">{lane}</text>')
            for its_lane, name, t, d in spans:
                if its_lane == lane:
                    kind = "communicate" if communicates(name) else "compute"
                    out.append(f'<rect x="{LEFT + t * scale:.1f}" y="{y}" width="{max(d * scale, 0.2):.1f}" '
                               f'height="{LANE - 4}" fill="{COLORS[kind]}"><title>{name}, {d:.2f} ms</title></rect>')
            y += LANE
        y += GAP
    with open(path, "w") as f:
        f.write(f'<svg xmlns="http://www.w3.org/2000/svg" width="{LEFT + WIDTH + 10}" height="{y}" '
                'font-family="sans-serif" font-size="12"><rect width="100%" height="100%" fill="white"/>\n')
        f.write("\n".join(out) + "\n</svg>\n")


def line(mode, r):
    print(f"  {mode:7} best {r['best_ms']:6.1f} ms, median {r['median_ms']:6.1f} ms; beside off, median of rounds "
          f"{r['median_ratio']:.3f}, all of them {r['total_ratio']:.3f}")


def trace_picture(trace, path, first, last):
    steps = layers_of(trace, int(first), int(last))
    picture(steps, path)
    print(f"layers {first} to {last}: of the sums' time {hidden(steps['always']):.0%} lies beside the other half's arithmetic; "
          f"picture: {path}")


def main():
    if len(sys.argv) == 5:
        trace_picture(*sys.argv[1:])
        return
    folder, delay, rate, tokens, what = sys.argv[1:6]
    with open(f"{folder}/shape/config.json") as f:
        config = json.load(f)
    network = network_ms(config, float(delay), float(rate), int(tokens))
    local = overlap_of(f"{folder}/local")
    compute = local["off"]["best_ms"]
    if what == "fits":
        sys.exit(compute > network)
    hosts = overlap_of(f"{folder}/hosts")
    limit = max(compute, network)
    print(f"two hosts, {delay} us one way, {rate} Mbit/s, {tokens} tokens, {config['num_experts_per_tok']} experts a token")
    print(f"  arithmetic {compute:.1f} ms, network {network:.1f} ms: limit {limit:.1f} ms with overlap, "
          f"{compute + network:.1f} without")
    for mode in ("off", "always", "auto"):
        line(mode, hosts[mode])
    off, always = hosts["off"], hosts["always"]
    print(f"  overlap takes {1 - always['best_ms'] / off['best_ms']:.0%} off ({1 - always['median_ratio']:.0%} in the "
          f"median), and reaches {limit / always['best_ms']:.0%} of the limit ({limit / always['median_ms']:.0%})")
    print("the same ranks over shared memory")
    for mode in ("off", "always", "auto"):
        line(mode, local[mode])
    picture(steps_of(folder), sys.argv[6])
    print(f"picture: {sys.argv[6]}")


main()
