"""What overlap.sh calls: overlap.py FOLDER DELAY_US RATE_MBIT TOKENS fits | print SVG

fits: whether the arithmetic alone takes no longer than the network alone. print: the table, and the picture."""
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


def events(path):
    """[(lane, name, begin, duration)] in milliseconds; lanes are "half 0, compute" and so on, and "all rows"."""
    with open(path) as f:
        all_events = json.load(f)["traceEvents"]
    lane = {e["tid"]: ", ".join(e["args"]["name"].split(", ")[-2:]) if "half" in e["args"]["name"] else "all rows"
            for e in all_events if e["ph"] == "M" and "tid" in e}
    spans = [e for e in all_events if e["ph"] == "X" and e["name"] != "step"]
    begin = min(e["ts"] for e in spans)
    return [(lane[e["tid"]], e["name"], (e["ts"] - begin) / 1e3, e["dur"] / 1e3) for e in spans]


def picture(folder, path):
    steps = {mode: events(f"{folder}/{mode}.trace") for mode in ("off", "always")}
    end = max(t + d for spans in steps.values() for _, _, t, d in spans)
    scale, y, out = WIDTH / end, 40, []
    for mode, spans in steps.items():
        last = max(t + d for _, _, t, d in spans)
        out.append(f'<text x="4" y="{y - 8}">overlap {mode}: {last:.0f} ms on rank 0</text>')
        for lane in sorted({s[0] for s in spans}):
            out.append(f'<text x="4" y="{y + 14}">{lane}</text>')
            for its_lane, name, t, d in spans:
                if its_lane == lane:
                    kind = "communicate" if name.endswith((" sum", " norm")) else "compute"
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


def main():
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
    picture(folder, sys.argv[6])
    print(f"picture: {sys.argv[6]}")


main()
