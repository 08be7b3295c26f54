"""How busy experts are: the rows that each gets from each rank, how near the choices were, and what was dropped."""

import math

import numpy as np
from matplotlib.colors import to_rgb, to_rgba

from pictures import (FAINT, LINE, PAPER, SOFT, Picture, canvas, draw_cells, draw_lines, ink_on, inline, shorten, width_of,
                      write)

MOST_LAYERS, MOST_RANKS, MOST_EXPERTS = 4, 32, 64
QUARTILES = 5                  # with the least and the greatest margin
ROW = 15                       # pixels
NARROWEST, WIDEST = 22, 40     # of an expert
BESIDE, BARS = 16, 180         # pixels between the rows and the margins, and of the margins
BUSY = to_rgb("#4c78a8")


def told(case):
    """{rank: routes} of the ranks that say what their tokens chose."""
    found = {}
    for rank in case.get("ranks", []):
        routes = (rank.get("metrics") or {}).get("routes")
        if routes and routes.get("layers"):
            found[rank["rank"]] = routes
    return found


def layers(case):
    """{layer: {rank: (rows of each expert, margins)}}, layers in order."""
    found = {}
    for rank, routes in told(case).items():
        for layer, of_layer in routes["layers"].items():
            margins = [float(margin) for margin in of_layer.get("margins", [])]
            is_drawn = len(margins) == QUARTILES and all(0 <= margin < math.inf for margin in margins)
            found.setdefault(layer, {})[rank] = (of_layer.get("rows", []), margins if is_drawn else [])
    def number(layer):
        return [int(part) if part.isdecimal() else -1 for part in layer.split(".")]
    return {layer: found[layer] for layer in sorted(found, key=number)}


def dropped(case):
    """The routes that were dropped in each step; every rank has the sum over all."""
    return next((routes["dropped"] for routes in told(case).values() if routes.get("dropped")), [])


def least_margin(case):
    """The least margin of all tokens; NaN when none is known."""
    found = [margins[0] for ranks in layers(case).values() for _, margins in ranks.values() if margins]
    return min(found, default=math.nan)


def _cell_color(rows, most):
    if rows == 0:
        return to_rgba(FAINT)
    light = 0.75 * (1 - rows / most)
    return (*(channel + (1 - channel) * light for channel in BUSY), 1)


def _draw_margins(axes, left, row, margins, lowest, highest):
    """From the least to the greatest margin, thick between the quartiles, with the median as a tick."""
    def at(margin):
        return left + BARS * (math.log(max(margin, lowest)) - math.log(lowest)) / max(
            math.log(highest) - math.log(lowest), 1e-9)
    middle = ROW * (row + 0.5)
    if margins:
        places = [at(margin) for margin in margins]
        draw_lines(axes, [((places[0], middle), (places[-1], middle))], SOFT, 1)
        draw_lines(axes, [((places[1], middle), (places[3], middle))], SOFT, 4)
        draw_lines(axes, [((places[2], middle - 5), (places[2], middle + 5))], LINE, 2)
        write(axes, left + BARS + 6, middle, f"{margins[0]:.2g}", color=SOFT)


def _draw_layer(layer, ranks):
    shown = dict(sorted(ranks.items())[:MOST_RANKS])
    experts = max(len(rows) for rows, _ in shown.values())
    grid = np.zeros((len(shown) + 1, experts), dtype=np.int64)
    for row, (rows, _) in enumerate(shown.values()):
        grid[row, :len(rows)] = rows
    grid[-1] = sum(np.pad(rows, (0, experts - len(rows))) for rows, _ in ranks.values())
    cell = min(max(WIDEST if experts < 12 else NARROWEST, width_of(str(grid.max())) + 4), WIDEST)
    width, height = cell * experts, ROW * len(grid)
    margins = [margin for _, of_rank in shown.values() for margin in of_rank]
    lowest, highest = max(min(margins, default=1), 1e-12), max(margins, default=1)
    figure, axes = canvas(width + (BESIDE + BARS if margins else 0), height)
    most = max(int(grid[:-1].max()), 1), max(int(grid[-1].max()), 1)
    colors = [[_cell_color(int(rows), most[row == len(grid) - 1]) for rows in grid[row]] for row in range(len(grid))]
    draw_cells(axes, colors, 0, 0, width, height)
    draw_lines(axes, [((0, ROW * row), (width, ROW * row)) for row in range(1, len(grid))], PAPER, 1)
    for row in range(len(grid)):
        write(axes, -6, ROW * (row + 0.5), "all" if row == len(shown) else f"rank {list(shown)[row]}", ha="right")
        for expert in range(experts):
            write(axes, cell * (expert + 0.5), ROW * (row + 0.5), str(grid[row, expert]), ha="center",
                  color=ink_on(colors[row][expert][:3]) if grid[row, expert] else SOFT)
        if margins and row < len(shown):
            _draw_margins(axes, width + BESIDE, row, list(shown.values())[row][1], lowest, highest)
    for expert in range(experts):
        write(axes, cell * (expert + 0.5), -8, str(expert), ha="center", color=SOFT)
    write(axes, -6, -8, "expert", ha="right", color=SOFT)
    if margins:
        write(axes, width + BESIDE, -8, f"margin {lowest:.2g} to {highest:.2g}", color=SOFT)
    more = f"; {len(ranks) - len(shown)} ranks more are in the sum alone" if len(ranks) > len(shown) else ""
    return Picture(inline(figure), f"{shorten(layer)}: rows of each expert{more}")


def draw(case):
    """[Picture] of the first layers; empty without routers and for very many experts."""
    found = layers(case)
    drawable = [(layer, ranks) for layer, ranks in found.items()
                if 0 < max((len(rows) for rows, _ in ranks.values()), default=0) <= MOST_EXPERTS]
    return [_draw_layer(layer, ranks) for layer, ranks in drawable[:MOST_LAYERS]]


def explain(case):
    text = ("The rows that the tokens of each rank send to each expert in the last step, and their sum; grey experts get "
            "none.")
    least = least_margin(case)
    if not math.isnan(least):
        text += (" Beside them the margins, by which the least chosen score is above the greatest that was left out: the "
                 "line goes from the least, whose number follows it, to the greatest, thick between the quartiles. The "
                 f"least of all is {least:.2g}.")
    if steps := dropped(case):
        text += f" Routes that were dropped for lack of capacity, step by step: {', '.join(map(str, steps[:8]))}" + (
            " .." if len(steps) > 8 else "") + "."
    left = len(layers(case)) - MOST_LAYERS
    return text + (f" {left} layers more are not drawn." if left > 0 else "")
