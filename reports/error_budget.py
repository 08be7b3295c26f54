"""Share of the allowance that each case used: one row per case, stronger where more tensors are."""

import math

import numpy as np
from matplotlib.colors import to_rgba
from matplotlib.patches import Circle

from pictures import (GAP, INK, PAGE_WIDTH, SOFT, VERDICT_COLORS, WIDTH_OF_LETTER, Picture, canvas, draw_cells, draw_lines,
                      inline, shorten, write)
from run_data import number

MOST_CASES, CASES_OF_A_PICTURE = 36, 12
SMALLEST, LARGEST = 1e-7, 1e6  # what lies outside is drawn at the edge
BIN = 3                        # pixels
NAME, STRIP = 14, 10           # pixels


def budget(case):
    """The shares of all tensors of a case, of one whose tensors the run did not keep the largest; what is not a number
    counts as infinite."""
    kept = case.get("tensors") or ([case] if case.get("digests") else [])
    ratios = [number(tensor.get("worst_ratio")) for tensor in kept]
    return [math.inf if math.isnan(ratio) else ratio for ratio in ratios]


def chosen_cases(cases, most=MOST_CASES):
    """Judged cases, the ones nearest to (or over) their allowance, in the run's order."""
    judged = [(max(budget(case)), i) for i, case in enumerate(cases) if budget(case)]
    return [cases[i] for i in sorted(i for _, i in sorted(judged, reverse=True)[:most])]


def _place(ratios, end):
    """0 .. 1 of each share on the logarithmic axis."""
    return np.log(np.clip(ratios, SMALLEST, end) / SMALLEST) / math.log(end / SMALLEST)


def _strip(case, end, bins):
    """[bins, 4] colors: a bin without a tensor is transparent, the others are the darker the more they have."""
    at = np.minimum((_place(budget(case), end) * bins).astype(int), bins - 1)
    count = np.bincount(at, minlength=bins)
    colors = np.tile(to_rgba(VERDICT_COLORS.get(case["verdict"], INK)), (bins, 1))
    colors[:, 3] = np.where(count > 0, 0.35 + 0.65 * count / count.max(), 0)
    return colors


def _draw_rows(cases, end, width):
    pitch = NAME + STRIP + 4
    height = pitch * len(cases)
    figure, axes = canvas(width, height)
    for row, case in enumerate(cases):
        top = pitch * row
        write(axes, 0, top + NAME / 2, shorten(case["name"], int(width / WIDTH_OF_LETTER)))
        draw_lines(axes, [((0, top + NAME + STRIP / 2), (width, top + NAME + STRIP / 2))])
        draw_cells(axes, [_strip(case, end, width // BIN)], 0, top + NAME, width, STRIP)
        worst = float(_place(max(budget(case)), end)) * width
        axes.add_patch(Circle((worst, top + NAME + STRIP / 2), 4, clip_on=False, linewidth=0, zorder=3,
                              facecolor=VERDICT_COLORS.get(case["verdict"], INK)))
    one = float(_place(1, end)) * width
    draw_lines(axes, [((one, top + NAME - 1), (one, top + NAME + STRIP + 1)) for top in range(0, height, pitch)],
               INK, 1.5)
    for tick, text in ((1e-6, "1e-6"), (1e-4, "0.01%"), (1e-2, "1%"), (1, "100%"), (1e2, "100x"), (1e4, "1e4x")):
        if tick <= end:
            write(axes, float(_place(tick, end)) * width, height + 6, text, ha="center", color=SOFT)
    return Picture(inline(figure))


def draw(cases):
    """[Picture], side by side where there is room; empty when no case compared a tensor."""
    shown = chosen_cases(cases)
    if not shown:
        return []
    end = LARGEST if max(max(budget(case)) for case in shown) > 1 else 20
    columns = -(-len(shown) // CASES_OF_A_PICTURE)
    width = (PAGE_WIDTH - 20 - (columns - 1) * GAP) // columns  # the dot of the worst may be at the edge
    each = -(-len(shown) // columns)
    return [_draw_rows(shown[first:first + each], end, width) for first in range(0, len(shown), each)]
