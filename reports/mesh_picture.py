"""The mesh and who holds what: ranks in their places, parameters cut as their layouts say."""

from matplotlib import pyplot as plt
from matplotlib.patches import FancyBboxPatch, Rectangle

import layouts
from pictures import INK, LINE, PIECE_COLORS, SOFT, image, shorten

MOST_RANKS, MOST_LAYOUTS, MOST_PIECES = 64, 6, 64
SHADES = ["#eef3f8", "#dfe9f2", "#f5efe3", "#ece2d0"]


def representatives(parameters, most=MOST_LAYOUTS):
    """One parameter per distinct layout and number of dims: the first; (name, layout, shape, how many)."""
    groups = {}
    for name, (layout, shape) in parameters.items():
        if 0 < len(shape) <= 2 and layouts.parse(layout) is not None:
            groups.setdefault((layout, len(shape)), []).append((name, shape))
    chosen = [(members[0][0], layout, members[0][1], len(members))
              for (layout, _), members in groups.items()]
    return chosen[:most]


def _draw_ranks(axes, mesh_axes):
    used = [(name, size) for name, size in mesh_axes if size > 1] or [("rank", 1)]
    columns = used[-1][1]
    outer = used[:-1]
    for rank in range(layouts.world_size(used)):
        row, column = divmod(rank, columns)
        at = layouts.coordinates(used, rank)
        shade = SHADES[at[outer[0][0]] % 2 * 2 + row % 2] if outer else SHADES[0]
        axes.add_patch(FancyBboxPatch((column + 0.06, row + 0.08), 0.88, 0.84, facecolor=shade,
                                      boxstyle="round,pad=0,rounding_size=0.08", edgecolor=LINE))
        axes.text(column + 0.5, row + 0.42, str(rank), ha="center", va="center", fontweight="bold")
        axes.text(column + 0.5, row + 0.72, " ".join(f"{n}{at[n]}" for n, _ in used), ha="center",
                  va="center", fontsize=6, color=SOFT)
    rows = layouts.world_size(outer) if outer else 1
    axes.set_xlim(0, columns)
    axes.set_ylim(rows, 0)
    axes.set_aspect(0.62)
    axes.axis("off")
    across = f"across: {used[-1][0]}"
    down = f"down: {', '.join(name for name, _ in outer)}\n" if outer else ""
    axes.set_title(down + across if used[0][0] != "rank" else "one rank", fontsize=9)


def _piece_label(ranks):
    if len(ranks) > 6:
        return f"{ranks[0]}, {ranks[1]} .. {ranks[-1]}"
    return ", ".join(map(str, ranks))


def _draw_parameter(axes, name, layout, shape, count, mesh_axes):
    cuts = layouts.parse(layout)
    pieces = layouts.holders(cuts, shape, mesh_axes)
    rows, columns = (shape[0], shape[1]) if len(shape) == 2 else (shape[0], max(shape[0] // 6, 1))
    for number, (ranks, piece) in enumerate(pieces):
        color = PIECE_COLORS[number % len(PIECE_COLORS)]
        across = piece[1] if len(shape) == 2 else ((0, columns),)
        for first_row, row_count in piece[0]:
            for first_column, column_count in across:
                axes.add_patch(Rectangle((first_column, first_row), column_count, row_count, facecolor=color,
                                         edgecolor="white", linewidth=0.8, alpha=0.9))
                if len(pieces) <= MOST_PIECES and min(row_count / rows, 1) >= 0.06:
                    axes.text(first_column + column_count / 2, first_row + row_count / 2,
                              _piece_label(ranks), ha="center", va="center", color="white",
                              fontsize=7.5, fontweight="bold")
    axes.set_xlim(0, columns)
    axes.set_ylim(rows, 0)
    axes.set_aspect("auto")
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
    more = f"\nand {count - 1} more like it" if count > 1 else "\n"
    axes.set_title(f"{shorten(name, 27)}\n{layout or 'R'}   {list(shape)}", fontsize=7.5, fontweight="normal")
    axes.set_xlabel(more.strip(), fontsize=7, color=SOFT)


def draw(case, parameters):
    """An image source, or None when the mesh is too large to draw or nothing is known of the layouts."""
    mesh_axes = [(axis["name"], axis["size"]) for axis in case.get("mesh", {}).get("axes", [])]
    if layouts.world_size(mesh_axes) > MOST_RANKS:
        return None
    shown = representatives(parameters)
    figure, all_axes = plt.subplots(1, 1 + len(shown), figsize=(2.6 + 1.9 * len(shown), 2.3), squeeze=False,
                                    gridspec_kw={"width_ratios": [1.5] + [1] * len(shown), "wspace": 0.25})
    _draw_ranks(all_axes[0][0], mesh_axes)
    for axes, (name, layout, shape, count) in zip(all_axes[0][1:], shown):
        _draw_parameter(axes, name, layout, shape, count, mesh_axes)
    return image(figure)
