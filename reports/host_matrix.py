"""Of `shardproof validate`: the latency between every two hosts, and the findings of each host and link."""

import math
from collections import Counter

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, LogNorm, to_hex

from pictures import (FAINT, GAP, PAGE_WIDTH, PAPER, SOFT, TEXT_SIZE, WRONG, Picture, canvas, draw_cells, draw_lines, ink_on,
                      inline, shorten, width_of, write)
from run_data import number

MOST_HOSTS = 48
NARROWEST, WIDEST = 14, 76   # pixels of a host
LONGEST_NAME = 20
LATENCIES = LinearSegmentedColormap.from_list("latencies", ["#e7f0f5", "#f3d79a", "#dd7d43", "#8f2318"])
SPAN = 20    # the darkest color is for at least so many times the shortest latency
ERRORS = LinearSegmentedColormap.from_list("errors", ["#f0a396", "#8c1018"])


def accused(validation):
    """{host: findings that accuse it, alone or together with others}; those that accuse a link do not."""
    return Counter(name for finding in validation["findings"] if not finding.get("link")
                   for name in finding.get("hosts", []))


def at_accused_links(validation):
    """The names of the hosts at both ends of an accused link."""
    return {name for finding in validation["findings"] if finding.get("link") for name in finding.get("hosts", [])}


def time_text(microseconds):
    """"116 us", "20.4 ms", in three digits."""
    unit, scale = ("us", 1) if microseconds < 999.5 else ("ms", 1e3) if microseconds < 999.5e3 else ("s", 1e6)
    return f"{microseconds / scale:.3g} {unit}"


def nodes(validation):
    """(names, {rank: number of its name}, names of the guilty): the hosts, or the ranks of the only host."""
    hosts, guilty = validation["hosts"], accused(validation)
    if len(hosts) > 1:
        return ([host["name"] for host in hosts], {rank: i for i, host in enumerate(hosts) for rank in host["ranks"]},
                guilty)
    ranks = [rank for host in hosts for rank in host["ranks"]]
    wrong = {rank for finding in validation["findings"] if not finding.get("link") for rank in finding.get("ranks", [])}
    return ([f"rank {rank}" for rank in ranks], {rank: i for i, rank in enumerate(ranks)},
            {f"rank {rank}" for rank in wrong})


def latencies(validation):
    """[nodes, nodes] the largest latency of their listed pairs in microseconds, NaN where none is listed."""
    names, node_of, _ = nodes(validation)
    found = np.full((len(names), len(names)), np.nan)
    for pair in validation.get("times", {}).get("pairs", []):
        a, b, latency = node_of.get(pair.get("a")), node_of.get(pair.get("b")), number(pair.get("latency_us"))
        if a is not None and b is not None and 0 < latency < math.inf:
            found[a, b] = found[b, a] = np.nanmax([found[a, b], latency])
    return found


def errors(validation):
    """[nodes, nodes] how many findings there are of a link, and on the diagonal of a host (or of a rank)."""
    names, node_of, _ = nodes(validation)
    by_name = {name: i for i, name in enumerate(names)}
    found = np.zeros((len(names), len(names)))
    for finding in validation["findings"]:
        if len(validation["hosts"]) > 1:
            at = [by_name[name] for name in finding.get("hosts", []) if name in by_name]
        else:
            at = [node_of[rank] for rank in finding.get("ranks", []) if rank in node_of]
        if finding.get("link") and len(at) == 2:
            found[at[0], at[1]] += 1
            found[at[1], at[0]] += 1
        else:
            found[at, at] += 1
    return found


def _shown(names, guilty, latency):
    """Numbers of the drawn nodes: the guilty, then those of the slowest pairs."""
    slowest = np.where(np.isnan(latency), 0, latency).max(axis=1)
    order = sorted(range(len(names)), key=lambda i: (names[i] not in guilty, -slowest[i]))
    return sorted(order[:MOST_HOSTS])


def _draw(values, colors, texts, names, guilty, caption, key):
    labels = [shorten(name, LONGEST_NAME) for name in names]
    names_left = 8 + max(width_of(label) for label in labels)
    names_right = (names_left + TEXT_SIZE) / 2  # the last of those above, which are turned where they are wide
    half, whole = (((room - names_left - names_right) / len(names)) for room in ((PAGE_WIDTH - GAP) / 2, PAGE_WIDTH))
    cell = min(half if half >= NARROWEST else whole, WIDEST)
    size = cell * len(names)
    figure, axes = canvas(size, size)
    draw_cells(axes, colors, 0, 0, size, size)
    lines = [cell * i for i in range(1, len(names))]
    draw_lines(axes, [((x, 0), (x, size)) for x in lines] + [((0, y), (size, y)) for y in lines], PAPER, 1)
    for row, label in enumerate(labels):
        style = {"color": WRONG, "fontweight": "bold"} if names[row] in guilty else {"color": SOFT}
        write(axes, -6, cell * (row + 0.5), label, ha="right", **style)
        if all(width_of(one) < cell for one in labels):
            write(axes, cell * (row + 0.5), -8, label, ha="center", **style)
        else:
            write(axes, cell * (row + 0.5), -6, label, ha="left", va="bottom", rotation=60, rotation_mode="anchor", **style)
        for column, text in enumerate(texts[row]):
            if text and width_of(text) <= cell - 2:
                write(axes, cell * (column + 0.5), cell * (row + 0.5), text, ha="center",
                      color=ink_on(colors[row, column]))
    return Picture(inline(figure), caption, key)


def draw(validation):
    """([Picture] of latencies and of findings, a sentence of what is left out); no picture of what was not found."""
    names, _, guilty = nodes(validation)
    latency, found, drawn = latencies(validation), errors(validation), []
    shown = _shown(names, guilty, latency)
    cut, names = len(names) - len(shown), [names[i] for i in shown]
    grid = np.ix_(shown, shown)
    latency, found = latency[grid], found[grid]
    if len(names) > 1 and not np.isnan(latency).all():
        low, high = np.nanmin(latency), np.nanmax(latency)
        norm = LogNorm(low, max(high, SPAN * low))
        colors = LATENCIES.with_extremes(bad=FAINT)(norm(np.ma.masked_invalid(latency)))
        texts = [["" if math.isnan(value) else time_text(value) for value in row] for row in latency]
        middle = math.sqrt(norm.vmin * norm.vmax)
        key = [(to_hex(LATENCIES(norm(value))), time_text(value)) for value in (norm.vmin, middle, norm.vmax)]
        drawn.append(_draw(latency, colors, texts, names, guilty, "latency of the slowest listed pair of their ranks",
                           [*key, (FAINT, "no listed pair")]))
    if len(names) > 1 and found.any():
        norm = found / max(found.max(), 2)
        colors = np.where(found[..., None] > 0, ERRORS(norm), np.array([0.55, 0.6, 0.66, 0.2]))
        texts = [[f"{int(value)}" if value else "" for value in row] for row in found]
        drawn.append(_draw(found, colors, texts, names, guilty, "findings: of a host on the diagonal, of a link beside it",
                           [(FAINT, "none"), (to_hex(ERRORS(1 / max(found.max(), 2))), "1"),
                            *([(to_hex(ERRORS(1.0)), f"{int(found.max())}")] if found.max() > 1 else [])]))
    return drawn, f"{cut} more hosts are not drawn." if drawn and cut else ""
