"""What each rank did when, by wall time: a lane per rank, a colour per kind of call."""

from matplotlib import pyplot as plt
from matplotlib.patches import Patch

from pictures import LINE, PIECE_COLORS, SOFT, image

MOST_LANES, MOST_EVENTS = 32, 20000


def kinds(lanes):
    """The kinds of all events, the ones that took longest first."""
    took = {}
    for events in lanes.values():
        for _, duration, kind, name in events:
            took[kind or name] = took.get(kind or name, 0) + duration
    return sorted(took, key=lambda kind: -took[kind])


def draw(lanes):
    """An image source, or None when nothing was recorded. `lanes` as run_data.read_timelines gives them."""
    ranks = sorted(lanes)[:MOST_LANES]
    if not ranks or not any(lanes[rank] for rank in ranks):
        return None
    ordered = kinds(lanes)
    colors = {kind: PIECE_COLORS[i % len(PIECE_COLORS)] for i, kind in enumerate(ordered)}
    many = sum(len(lanes[rank]) for rank in ranks) > 3000
    figure, axes = plt.subplots(figsize=(9.6, 0.26 * len(ranks) + 0.75))
    for row, rank in enumerate(ranks):
        by_kind = {}
        for start, duration, kind, name in lanes[rank][:MOST_EVENTS]:
            by_kind.setdefault(kind or name, []).append((start, duration))
        for kind, stretches in by_kind.items():
            axes.broken_barh(stretches, (row - 0.36, 0.72), facecolor=colors[kind], linewidth=0,
                             rasterized=many)
    axes.set_yticks(range(len(ranks)), [f"rank {rank}" for rank in ranks], fontsize=8)
    axes.set_ylim(len(ranks) - 0.5, -0.5)
    axes.set_xlim(left=0)
    axes.set_xlabel("ms, wall time", color=SOFT)
    axes.grid(axis="x", color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    axes.legend(handles=[Patch(color=colors[kind], label=kind) for kind in ordered[:8]], ncols=8,
                loc="lower left", bbox_to_anchor=(0, 1), frameon=False, fontsize=8, handlelength=1,
                handleheight=1, columnspacing=1.2, borderaxespad=0.2)
    return image(figure)
