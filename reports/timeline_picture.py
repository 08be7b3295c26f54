"""What each rank did when: a lane per rank, a colour per kind of event.

Of virtual time a lane shows computing, waiting for others and exposed communication; the thin bar below it
holds the transfers themselves, hidden ones included, and a black line the stretches on the critical path.
"""

from matplotlib import pyplot as plt
from matplotlib.patches import Patch

from pictures import INK, LINE, PIECE_COLORS, SOFT, image
from run_data import CRITICAL_PATH, number

MOST_LANES, MOST_EVENTS = 32, 20000
VIRTUAL_COLORS = {"compute": "#4c78a8", "waiting": "#d9e0e6", "exposed": "#d8756f", "communication": "#f2a65a",
                  CRITICAL_PATH: INK}
VIRTUAL_NAMES = {"exposed": "exposed communication", "communication": "transfer"}


def is_virtual(lanes):
    return any(kind in ("compute", "waiting", "exposed") for events in lanes.values() for _, _, kind, _ in events)


def kinds(lanes):
    """The kinds of all events, the ones that took longest first."""
    took = {}
    for events in lanes.values():
        for _, duration, kind, name in events:
            took[kind or name] = took.get(kind or name, 0) + duration
    return sorted(took, key=lambda kind: -took[kind])


def place(kind, row, virtual):
    """Where a bar of this kind stands in its row: (bottom, height)."""
    if not virtual:
        return (row - 0.36, 0.72)
    return {"communication": (row + 0.12, 0.18), CRITICAL_PATH: (row - 0.42, 0.07)}.get(kind, (row - 0.33, 0.42))


def draw(lanes):
    """An image source, or None when nothing was recorded. `lanes` as run_data.read_timelines gives them."""
    ranks = sorted(lanes)[:MOST_LANES]
    if not ranks or not any(lanes[rank] for rank in ranks):
        return None
    virtual = is_virtual(lanes)
    ordered = [kind for kind in VIRTUAL_COLORS if kind in kinds(lanes)] if virtual else kinds(lanes)
    colors = VIRTUAL_COLORS if virtual else {kind: PIECE_COLORS[i % len(PIECE_COLORS)]
                                             for i, kind in enumerate(ordered)}
    many = sum(len(lanes[rank]) for rank in ranks) > 3000
    figure, axes = plt.subplots(figsize=(9.6, (0.34 if virtual else 0.26) * len(ranks) + 0.75))
    for row, rank in enumerate(ranks):
        by_kind = {}
        for start, duration, kind, name in lanes[rank][:MOST_EVENTS]:
            by_kind.setdefault(kind or name, []).append((start, duration))
        for kind, stretches in by_kind.items():
            if kind in colors:
                axes.broken_barh(stretches, place(kind, row, virtual), facecolor=colors[kind], linewidth=0,
                                 rasterized=many)
    axes.set_yticks(range(len(ranks)), [f"rank {rank}" for rank in ranks], fontsize=8)
    axes.set_ylim(len(ranks) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel("ms, virtual time" if virtual else "ms, wall time", color=SOFT)
    axes.grid(axis="x", color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    axes.legend(handles=[Patch(color=colors[kind], label=VIRTUAL_NAMES.get(kind, kind) if virtual else kind)
                         for kind in ordered[:8]], ncols=8,
                loc="lower left", bbox_to_anchor=(0, 1), frameon=False, fontsize=8, handlelength=1,
                handleheight=1, columnspacing=1.2, borderaxespad=0.2)
    return image(figure)


def explain(case):
    """What the picture shows, and where the time went when it is virtual."""
    time = case.get("virtual_time")
    if not isinstance(time, dict) or not time.get("ranks"):
        return "What each rank did when."
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
