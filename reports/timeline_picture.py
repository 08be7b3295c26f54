"""What each rank did when: a lane per rank, a color per kind of event.

Of virtual time a lane shows computing, waiting for others and exposed communication; the thin bar below it
holds the transfers themselves, hidden ones included, and a purple line the stretches on the critical path.
"""

import numpy as np
from matplotlib.colors import to_rgba
from matplotlib.ticker import MaxNLocator

from pictures import LINE, PIECE_COLORS, SOFT, Picture, canvas, draw_cells, draw_lines, inline, width_of, write
from run_data import CRITICAL_PATH, number

MOST_LANES, MOST_EVENTS = 32, 20000
COLUMNS = 960   # one for each pixel of a lane
LANE = 22       # pixels
VIRTUAL_COLORS = {"compute": "#4c78a8", "waiting": "#8c9aa85a", "exposed": "#d8756f", "communication": "#f2a65a",
                  CRITICAL_PATH: "#b83a9a"}
VIRTUAL_NAMES = {"exposed": "exposed communication", "communication": "transfer"}
# (first, last) pixel of a lane and what it shows there.
VIRTUAL_BANDS = [((1, 3), [CRITICAL_PATH]), ((4, 14), ["compute", "waiting", "exposed"]),
                 ((15, 20), ["communication"])]
WALL_BAND = (2, 20)


def is_virtual(lanes):
    return any(kind in ("compute", "waiting", "exposed") for events in lanes.values() for _, _, kind, _ in events)


def kinds(lanes):
    """The kinds of all events, the ones that took longest first."""
    took = {}
    for events in lanes.values():
        for _, duration, kind, name in events:
            took[kind or name] = took.get(kind or name, 0) + duration
    return sorted(took, key=lambda kind: -took[kind])


def fill(events, chosen, end):
    """[COLUMNS] the number in `chosen` of the kind that fills most of each column, -1 none. An event shorter
    than a column is seen too, unless another fills more of it."""
    cover = np.zeros((len(chosen), COLUMNS))
    for start, duration, kind, name in events[:MOST_EVENTS]:
        if (kind or name) in chosen:
            first, last = (min(at / end * COLUMNS, COLUMNS) for at in (start, start + duration))
            columns = np.arange(min(int(first), COLUMNS - 1), min(int(last), COLUMNS - 1) + 1)
            share = np.minimum(columns + 1, last) - np.maximum(columns, first)
            cover[chosen.index(kind or name), columns] += np.maximum(share, 1e-9)
    return np.where(cover.any(0), cover.argmax(0), -1)


def lane_pixels(events, bands, colors, end):
    """[LANE, COLUMNS, 4]"""
    pixels = np.zeros((LANE, COLUMNS, 4))
    for (first, last), chosen in bands:
        table = np.array([to_rgba(colors[kind]) for kind in chosen] + [(0, 0, 0, 0)])
        pixels[first:last] = table[fill(events, chosen, end)]
    return pixels


def draw(lanes):
    """(pictures, key); `lanes` as run_data.read_timelines returns them. Empty when nothing was recorded."""
    ranks = [rank for rank in sorted(lanes) if lanes[rank]][:MOST_LANES]
    end = max((start + duration for rank in ranks for start, duration, _, _ in lanes[rank]), default=0)
    if end <= 0:
        return [], []
    virtual = is_virtual(lanes)
    ordered = [kind for kind in VIRTUAL_COLORS if kind in kinds(lanes)] if virtual else kinds(lanes)
    colors = VIRTUAL_COLORS if virtual else {kind: PIECE_COLORS[i % len(PIECE_COLORS)]
                                             for i, kind in enumerate(ordered)}
    bands = VIRTUAL_BANDS if virtual else [(WALL_BAND, ordered)]
    height = LANE * len(ranks)
    figure, axes = canvas(COLUMNS, height)
    ticks = [tick for tick in MaxNLocator(5).tick_values(0, end) if 0 <= tick <= end]
    draw_lines(axes, [((tick / end * COLUMNS, 0), (tick / end * COLUMNS, height)) for tick in ticks], LINE)
    draw_cells(axes, np.concatenate([lane_pixels(lanes[rank], bands, colors, end) for rank in ranks]), 0, 0,
               COLUMNS, height)
    for tick in ticks:
        text = f"{tick:.6g} ms"
        if tick / end * COLUMNS + width_of(text) / 2 <= COLUMNS + 20:
            write(axes, tick / end * COLUMNS, height + 8, text, ha="center", color=SOFT)
    for row, rank in enumerate(ranks):
        write(axes, -6, LANE * (row + 0.5), f"rank {rank}", ha="right")
    left_out = f"{len(lanes) - len(ranks)} more ranks are not drawn." if len(lanes) > len(ranks) else ""
    key = [(colors[kind], VIRTUAL_NAMES.get(kind, kind) if virtual else kind) for kind in ordered[:12]]
    return [Picture(inline(figure), left_out)], key


def explain(case):
    """What the picture shows, and where the time went when it is virtual."""
    time = case.get("virtual_time")
    if not isinstance(time, dict) or not time.get("ranks"):
        return "What each rank did when, in wall time."
    total = number(time.get("total_us"))
    def mean(field):
        return sum(number(rank.get(field)) for rank in time["ranks"]) / len(time["ranks"]) / 1000
    text = (f"Virtual time {total / 1000:.3f} ms. Mean over ranks: computing {mean('compute_us'):.3f} ms, waiting for "
            f"others {mean('waiting_us'):.3f} ms, exposed communication {mean('exposed_us'):.3f} ms of "
            f"{mean('communication_us'):.3f} ms. ")
    shares = time.get("critical_path_shares", [])[:4]
    if shares and total > 0:
        text += "Critical path: " + ", ".join(
            f"{share['what']} {100 * number(share['duration_us']) / total:.0f}%" for share in shares) + "."
    return text
