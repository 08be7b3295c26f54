"""Share of the allowance that each tensor used on each rank: where an error starts and who has it."""

import math

import numpy as np
from matplotlib.colors import to_hex

from pictures import (FAINT, GAP, PAGE_WIDTH, PAPER, RATIO_BOUNDS, RATIO_COLORS, RATIO_NAMES, RATIO_NORM, SOFT, WRONG,
                      Picture, canvas, draw_cells, draw_lines, inline, shorten, width_of, write)
from run_data import entry_of_finding, in_order, number

MOST_ROWS = 48
NEIGHBORS = 8        # of the finding, before and after it
ROW = 15             # pixels
ROWS = 12            # of a picture at least, where several are side by side
NARROWEST, WIDEST = 14, 40  # of a rank
LARGEST_WIDTH = 640  # of all ranks together


def chosen_tensors(case, most=MOST_ROWS):
    """In the order of computation: tensors, and where one is wrong between them the numbers of left out ones as (all,
    wrong). The finding and its neighbors are always there, then the ones that used most; what is wrong comes before what
    is not."""
    tensors, finding = in_order(case), entry_of_finding(case)
    at = next((i for i, tensor in enumerate(tensors) if tensor is finding), None)
    def badness(i):
        ratio = number(tensors[i].get("worst_ratio"))
        is_near = at is not None and abs(i - at) <= NEIGHBORS
        return (not is_near, tensors[i].get("ok", True), -math.inf if math.isnan(ratio) else -ratio)
    chosen = sorted(sorted(range(len(tensors)), key=badness)[:most])
    if at is None and all(tensor.get("ok", True) for tensor in tensors):
        return [tensors[i] for i in chosen]
    rows = []
    for last, i in zip([-1, *chosen], [*chosen, len(tensors)]):
        if gap := tensors[last + 1:i]:
            rows.append((len(gap), sum(not tensor.get("ok", True) for tensor in gap)))
        rows += tensors[i:i + 1]
    return rows


def left_out(case):
    """(all, wrong): the numbers of tensors that are not drawn."""
    rows = chosen_tensors(case)
    shown = sum(isinstance(row, dict) for row in rows)
    return len(case.get("tensors", [])) - shown, sum(row[1] for row in rows if isinstance(row, tuple))


def ratio_grid(tensors, world_size):
    """[tensors, ranks]; NaN where a rank holds nothing, infinity where the share is not a number."""
    grid = np.full((len(tensors), world_size), np.nan)
    for row, tensor in enumerate(tensors):
        for rank, value in enumerate(tensor.get("ratio", [])[:world_size]):
            if value is not None:
                ratio = number(value)
                grid[row, rank] = math.inf if math.isnan(ratio) else ratio
    return grid


def _label(row, several_steps, finding):
    """(text, style)"""
    if isinstance(row, tuple):
        wrong = f", {row[1]} wrong" if row[1] else ""
        return f".. {row[0]} left out{wrong}", {"color": WRONG if row[1] else SOFT}
    step = f"  step {row['step']}" if several_steps and row.get("step") else ""
    phase = "  recompute" if row.get("phase") == "recompute" else ""
    text = shorten(row["name"], 44) + phase + step
    if row is finding:
        return f"{text}  << the finding", {"color": WRONG, "fontweight": "bold"}
    return text, {} if row.get("ok", True) else {"color": WRONG}


def _draw_rows(rows, labels, cell, world_size):
    """Ranks across, one row for each tensor, its name to the right."""
    width, height = cell * world_size, ROW * len(rows)
    figure, axes = canvas(width, height)
    grid = ratio_grid([{} if isinstance(row, tuple) else row for row in rows], world_size)
    colors = RATIO_COLORS(RATIO_NORM(np.ma.masked_invalid(np.where(np.isinf(grid), 1e9, grid))))
    colors[[isinstance(row, tuple) for row in rows]] = 0
    draw_cells(axes, colors, 0, 0, width, height)
    draw_lines(axes, [((0, ROW * row), (width, ROW * row)) for row in range(1, len(rows))], PAPER, 1)
    if cell > 6:
        draw_lines(axes, [((cell * rank, 0), (cell * rank, height)) for rank in range(1, world_size)], PAPER, 1)
    for row, (text, style) in enumerate(labels):
        write(axes, width + 6, ROW * (row + 0.5), text, **style)
    every = math.ceil((width_of(str(world_size - 1)) + 4) / cell)
    for rank in range(0, world_size, every):
        write(axes, cell * (rank + 0.5), -8, str(rank), ha="center", color=SOFT)
    write(axes, width + 6, -8, "rank", color=SOFT)
    return inline(figure)


def draw(case):
    """[Picture], in the order of the rows, as many side by side as fit; empty when nothing was compared."""
    rows, world_size = chosen_tensors(case), case.get("world_size", 0)
    if not rows or not world_size:
        return []
    several_steps = len({tensor.get("step") for tensor in case["tensors"]}) > 1
    labels = [_label(row, several_steps, entry_of_finding(case)) for row in rows]
    names = 6 + max(width_of(text) for text, _ in labels)
    narrowest = min(NARROWEST, LARGEST_WIDTH / world_size)
    columns = min(max(int((PAGE_WIDTH + GAP) / (narrowest * world_size + names + GAP)), 1), -(-len(rows) // ROWS))
    room = (PAGE_WIDTH - (columns - 1) * GAP) / columns - names
    cell = min(max(room / world_size, narrowest), WIDEST)
    each = -(-len(rows) // columns)
    return [Picture(_draw_rows(rows[first:first + each], labels[first:first + each], cell, world_size))
            for first in range(0, len(rows), each)]


def key():
    """[(color, text)] of the shares; each color ends at the share that stands beside it."""
    colors = [to_hex(color) for color in RATIO_COLORS.colors] + [to_hex(RATIO_COLORS.get_over())]
    assert len(colors) == len(RATIO_NAMES) == len(RATIO_BOUNDS)
    return list(zip(colors, RATIO_NAMES)) + [(FAINT, "holds no part")]
