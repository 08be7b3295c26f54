"""What each rank did when: a lane per rank, a color per kind of event.

Of virtual time a lane shows computing, waiting for others and exposed communication; the thin bar below it
holds the transfers themselves, hidden ones included, and a purple line the stretches on the critical path.
Computing of a stage of a pipeline has a color for forwards, backwards and weight gradients, lighter in later chunks of
the rank, each with the number of its microbatch.
"""

import re

import numpy as np
from matplotlib.colors import to_hex, to_rgb, to_rgba
from matplotlib.ticker import MaxNLocator

from pictures import LINE, PAPER, PIECE_COLORS, SOFT, Picture, canvas, draw_cells, draw_lines, ink_on, inline, width_of, write
from run_data import CRITICAL_PATH, number

MOST_LANES, MOST_EVENTS = 32, 20000
COLUMNS = 960   # one for each pixel of a lane
LANE = 22       # pixels
ACTION = "action"   # of a stage: "F3", "B3.1" in chunk 1
ACTION_COLORS = {"forward": "#2f9e77", "backward": "#27509a", "weight gradients": "#8d6cc0"}
ACTION_NAME = re.compile(r"([FBW])(\d+)(?:\.(\d+))?")
SHADES = 4   # of later chunks; those behind them share the last one
# "forward", and "forward 1" of the second chunk of a rank.
SHADED_COLORS = {kind + (f" {chunk}" if chunk else ""): to_hex(1 - (1 - np.array(to_rgb(color))) * 0.62 ** chunk)
                 for kind, color in ACTION_COLORS.items() for chunk in range(SHADES)}
VIRTUAL_COLORS = SHADED_COLORS | {
                  "compute": "#4c78a8", "waiting": "#8c9aa85a", "exposed": "#d8756f", "communication": "#f2a65a",
                  CRITICAL_PATH: "#b83a9a"}
VIRTUAL_NAMES = {"exposed": "exposed communication", "communication": "transfer"}
# (first, last) pixel of a lane and what it shows there.
VIRTUAL_BANDS = [((1, 3), [CRITICAL_PATH]), ((4, 14), [*SHADED_COLORS, "compute", "waiting", "exposed"]),
                 ((15, 20), ["communication"])]
WALL_BAND, WALL_BAND_BESIDE, WALL_ACTIONS = (2, 20), (15, 20), (4, 14)


def is_virtual(lanes):
    return any(kind in ("compute", "waiting", "exposed") for events in lanes.values() for _, _, kind, _ in events)


def action_of(name):
    """("forward 1", 3) of "F3.1", whose chunk is 1; None of what is not an action."""
    match = ACTION_NAME.fullmatch(name)
    if not match:
        return None
    chunk = min(int(match[3] or 0), SHADES - 1)
    return list(ACTION_COLORS)["FBW".index(match[1])] + (f" {chunk}" if chunk else ""), int(match[2])


def by_action(events):
    """The events of a lane with its actions where it computes, and [(start, duration, microbatch, kind)] of the stretch
    that shows the number of each action. In wall time, in which nothing says where a rank computes, actions are drawn whole."""
    actions = [(start, duration, *action_of(name)) for start, duration, kind, name in events
               if kind == ACTION and action_of(name)]
    if not actions:
        return [event for event in events if event[2] != ACTION], []
    computing = [event for event in events if event[2] == "compute"]
    others = [event for event in events if event[2] not in ("compute", ACTION)]
    if not computing:
        others += [(start, duration, kind, "") for start, duration, kind, _ in actions]
        return others, [(start, duration, microbatch, kind) for start, duration, kind, microbatch in actions]
    numbers = []
    for start, duration, kind, microbatch in actions:
        parts = [(max(first, start), min(first + took, start + duration)) for first, took, _, _ in computing]
        parts = [(begin, end - begin) for begin, end in parts if end > begin]
        others += [(begin, took, kind, "") for begin, took in parts]
        if parts:
            first, last = parts[0][0], sum(parts[-1])
            mostly = sum(took for _, took in parts) > 0.75 * (last - first)   # short calls cut it into pieces
            shown = (first, last - first) if mostly else max(parts, key=lambda part: part[1])
            numbers.append((*shown, microbatch, kind))
    return others + computing, numbers   # computing shows where no action covers it


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


def draw(lanes, caption=""):
    """(pictures, key); `lanes` as run_data.read_timelines returns them. Empty when nothing was recorded."""
    ranks = [rank for rank in sorted(lanes) if lanes[rank]][:MOST_LANES]
    end = max((start + duration for rank in ranks for start, duration, _, _ in lanes[rank]), default=0)
    if end <= 0:
        return [], []
    virtual = is_virtual(lanes)
    numbers = {}
    lanes = dict(lanes)
    for rank in ranks:
        lanes[rank], numbers[rank] = by_action(lanes[rank])
    ordered = [kind for kind in VIRTUAL_COLORS if kind in kinds(lanes)] if virtual else kinds(lanes)
    calls = [kind for kind in ordered if kind not in SHADED_COLORS]
    colors = VIRTUAL_COLORS if virtual else SHADED_COLORS | {
        kind: PIECE_COLORS[i % len(PIECE_COLORS)] for i, kind in enumerate(calls)}
    bands = VIRTUAL_BANDS if virtual else [(WALL_BAND_BESIDE, calls), (WALL_ACTIONS, list(SHADED_COLORS))] if any(
        numbers.values()) else [(WALL_BAND, calls)]
    height = LANE * len(ranks)
    figure, axes = canvas(COLUMNS, height)
    ticks = [tick for tick in MaxNLocator(5).tick_values(0, end) if 0 <= tick <= end]
    draw_lines(axes, [((tick / end * COLUMNS, 0), (tick / end * COLUMNS, height)) for tick in ticks], LINE, behind=True)
    draw_cells(axes, np.concatenate([lane_pixels(lanes[rank], bands, colors, end) for rank in ranks]), 0, 0,
               COLUMNS, height)
    for tick in ticks:
        text = f"{tick:.6g} ms"
        if tick / end * COLUMNS + width_of(text) / 2 <= COLUMNS + 20:
            write(axes, tick / end * COLUMNS, height + 8, text, ha="center", color=SOFT)
    for row, rank in enumerate(ranks):
        write(axes, -6, LANE * (row + 0.5), f"rank {rank}", ha="right")
        starts = [start / end * COLUMNS for start, *_ in numbers[rank]]
        draw_lines(axes, [((x, LANE * row + 4), (x, LANE * row + 14)) for x in starts], PAPER)
        for start, duration, microbatch, kind in numbers[rank]:
            if duration / end * COLUMNS > width_of(str(microbatch)) + 2:
                write(axes, (start + duration / 2) / end * COLUMNS, LANE * row + 9, str(microbatch), ha="center",
                      color=ink_on(to_rgb(SHADED_COLORS[kind])))
    if any(numbers.values()):
        chunks = any(kind not in ACTION_COLORS for stretches in numbers.values() for *_, kind in stretches)
        caption += " Numbers are those of microbatches" + ("; a lighter color is a later chunk of the rank." if chunks else ".")
    left_out = f"{len(lanes) - len(ranks)} more ranks are not drawn." if len(lanes) > len(ranks) else ""
    shown = list(dict.fromkeys(kind.rstrip(" 123") if kind in SHADED_COLORS else kind for kind in ordered))
    key = [(colors[kind], VIRTUAL_NAMES.get(kind, kind) if virtual else kind) for kind in shown[:12]]
    return [Picture(inline(figure), " ".join(filter(None, [caption.strip(), left_out])))], key


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


def bubble(case):
    """The share of a step in which stages compute nothing, beside the formula of the papers; "" without stages."""
    time = case.get("virtual_time")
    if not isinstance(time, dict) or "bubble" not in time:
        return ""
    text = f"Bubble: {100 * number(time['bubble']):.1f}% measured"
    if "bubble_formula" in time:
        text += (f", {100 * number(time['bubble_formula']):.1f}% by the schedule's formula, which leaves out embedding, "
                 "head and messages")
    return text + (". It is the share of the time between the first and the last action of a step in which stages compute "
                   "no action.")
