"""The mesh and who holds what: ranks in their places, parameters cut as their layouts say."""

from matplotlib.colors import to_rgb
from matplotlib.patches import Rectangle

import layouts
from pictures import (GAP, LINE, PAGE_WIDTH, PAPER, PIECE_COLORS, SOFT, TEXT_SIZE, Picture, canvas, ink_on, inline, shorten,
                      width_of, write)

MOST_RANKS, MOST_LAYOUTS, MOST_PIECES = 64, 6, 64
LONGEST_DIM = 1 << 20
NARROWEST, WIDEST, HEIGHT = 150, 240, 110  # pixels of a parameter
SHADES = ["#4c78a818", "#4c78a830", "#c9a87c30", "#c9a87c54"]  # over the ground, which may be dark


def representatives(parameters, most=MOST_LAYOUTS):
    """One parameter per distinct layout and number of dims: the first; (name, layout, shape, how many)."""
    groups = {}
    for name, (layout, shape) in parameters.items():
        if 0 < len(shape) <= 2 and 0 < max(shape) <= LONGEST_DIM and layouts.parse(layout) is not None:
            groups.setdefault((layout, len(shape)), []).append((name, shape))
    chosen = [(members[0][0], layout, members[0][1], len(members))
              for (layout, _), members in groups.items()]
    return chosen[:most]


def _draw_ranks(mesh):
    used = [(name, size) for name, size in mesh.axes if size > 1]
    columns, outer = used[-1][1], used[:-1]
    place = lambda rank: " ".join(f"{name}{mesh.place(name, rank)[1]}" for name, _ in used)
    world_size = mesh.size()
    widest = place(world_size - 1)
    width, height = max(44, width_of(widest) + 8), 36
    figure, axes = canvas(width * columns, height * world_size // columns)
    for rank in range(world_size):
        row, column = divmod(rank, columns)
        shade = SHADES[mesh.place(outer[0][0], rank)[1] % 2 * 2 + row % 2] if outer else SHADES[0]
        axes.add_patch(Rectangle((column * width + 1, row * height + 1), width - 2, height - 2, facecolor=shade,
                                 edgecolor=LINE, linewidth=1))
        write(axes, (column + 0.5) * width, row * height + 12, str(rank), ha="center", fontweight="bold")
        write(axes, (column + 0.5) * width, row * height + 26, place(rank), ha="center", color=SOFT)
    down = f", down: {', '.join(name for name, _ in outer)}" if outer else ""
    return Picture(inline(figure), f"Ranks; across: {used[-1][0]}{down}.")


def _piece_label(ranks, width):
    """The ranks, or as many of them as fit."""
    for text in (", ".join(map(str, ranks)), f"{ranks[0]}, {ranks[min(1, len(ranks) - 1)]} .. {ranks[-1]}"):
        if width_of(text) <= width:
            return text
    return ""


def _draw_parameter(name, layout, shape, count, mesh, width_of_all):
    pieces = layouts.holders(layouts.parse(layout), shape, mesh)
    figure, axes = canvas(width_of_all, HEIGHT)
    row_height, column_width = HEIGHT / shape[0], width_of_all / (shape[1] if len(shape) == 2 else 1)
    for number, (ranks, piece) in enumerate(pieces):
        color = PIECE_COLORS[number % len(PIECE_COLORS)]
        for first_row, row_count in piece[0]:
            for first_column, column_count in piece[1] if len(shape) == 2 else ((0, 1),):
                left, width = first_column * column_width, column_count * column_width
                top, height = first_row * row_height, row_count * row_height
                axes.add_patch(Rectangle((left, top), width, height, facecolor=color, edgecolor=PAPER, linewidth=1))
                if len(pieces) <= MOST_PIECES and height > TEXT_SIZE + 3:
                    write(axes, left + width / 2, top + height / 2, _piece_label(ranks, width - 4), ha="center",
                          color=ink_on(to_rgb(color)), fontweight="bold")
    more = f", and {count - 1} more like it" if count > 1 else ""
    return Picture(inline(figure), f"{shorten(name)} {shape}: {layout or 'R'}{more}")


def draw(case, parameters):
    """[Picture]; empty for one rank, and when the mesh is too large to draw."""
    mesh = layouts.mesh_of(case)
    if not 1 < mesh.size() <= MOST_RANKS:
        return []
    shown = [one for one in representatives(parameters) if mesh.knows(layouts.parse(one[1]))]
    width = min(max(PAGE_WIDTH // (len(shown) + 1) - GAP, NARROWEST), WIDEST)
    return [_draw_ranks(mesh)] + [_draw_parameter(*one, mesh, width) for one in shown]
