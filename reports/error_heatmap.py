"""Share of the allowance that each tensor used on each rank: where an error starts and who has it."""

import math

import numpy as np
from matplotlib.colors import to_hex

from pictures import (RATIO_BOUNDS, RATIO_COLORS, RATIO_NAMES, RATIO_NORM, SOFT, WRONG, Picture, canvas, draw_cells,
                      draw_lines, inline, shorten, width_of, write)
from run_data import number

MOST_ROWS, ROWS_OF_A_PICTURE = 48, 24
ROW = 15             # pixels
LARGEST_WIDTH = 640  # of all ranks together


def chosen_tensors(tensors, most=MOST_ROWS):
    """The ones that used most, in the golden's order; what is wrong comes before what is not."""
    def badness(tensor):
        ratio = number(tensor.get("worst_ratio"))
        return (tensor.get("ok", True), -math.inf if math.isnan(ratio) else -ratio)
    worst = sorted(range(len(tensors)), key=lambda i: badness(tensors[i]))[:most]
    return [tensors[i] for i in sorted(worst)]


def ratio_grid(tensors, world_size):
    """[tensors, ranks]; NaN where a rank holds nothing, infinity where the share is not a number."""
    grid = np.full((len(tensors), world_size), np.nan)
    for row, tensor in enumerate(tensors):
        for rank, value in enumerate(tensor.get("ratio", [])[:world_size]):
            if value is not None:
                ratio = number(value)
                grid[row, rank] = math.inf if math.isnan(ratio) else ratio
    return grid


def _label(tensor, several_steps):
    step = f"  step {tensor['step']}" if several_steps and tensor.get("step") else ""
    return shorten(tensor["name"], 44) + step


def _draw_rows(tensors, world_size, several_steps):
    """Ranks across, one row for each tensor, its name to the right."""
    cell = min(14, LARGEST_WIDTH / world_size)
    width, height = cell * world_size, ROW * len(tensors)
    figure, axes = canvas(width, height)
    grid = ratio_grid(tensors, world_size)
    colors = RATIO_COLORS(RATIO_NORM(np.ma.masked_invalid(np.where(np.isinf(grid), 1e9, grid))))
    draw_cells(axes, colors, 0, 0, width, height)
    draw_lines(axes, [((0, ROW * row), (width, ROW * row)) for row in range(1, len(tensors))], "white", 1)
    if cell > 6:
        draw_lines(axes, [((cell * rank, 0), (cell * rank, height)) for rank in range(1, world_size)], "white", 1)
    for row, tensor in enumerate(tensors):
        write(axes, width + 6, ROW * (row + 0.5), _label(tensor, several_steps),
              **({} if tensor.get("ok", True) else {"color": WRONG}))
    every = math.ceil((width_of(str(world_size - 1)) + 4) / cell)
    for rank in range(0, world_size, every):
        write(axes, cell * (rank + 0.5), -8, str(rank), ha="center", color=SOFT)
    write(axes, width + 6, -8, "rank", color=SOFT)
    return inline(figure)


def draw(case):
    """[Picture], in the order of the rows; empty when nothing was compared."""
    tensors = chosen_tensors(case.get("tensors", []))
    world_size = case.get("world_size", 0)
    if not tensors or not world_size:
        return []
    several_steps = len({tensor.get("step") for tensor in tensors}) > 1
    return [Picture(_draw_rows(tensors[first:first + ROWS_OF_A_PICTURE], world_size, several_steps))
            for first in range(0, len(tensors), ROWS_OF_A_PICTURE)]


def key():
    """[(color, text)] of the shares; each color ends at the share that stands beside it."""
    colors = [to_hex(color) for color in RATIO_COLORS.colors] + [to_hex(RATIO_COLORS.get_over())]
    assert len(colors) == len(RATIO_NAMES) == len(RATIO_BOUNDS)
    return list(zip(colors, RATIO_NAMES)) + [(to_hex(RATIO_COLORS.get_bad()), "holds no part")]
