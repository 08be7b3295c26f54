"""Share of the allowance that each tensor used on each rank: where an error starts and who has it."""

import math

import numpy as np
from matplotlib import pyplot as plt

from pictures import INK, LINE, RATIO_BOUNDS, RATIO_COLORS, RATIO_NORM, SOFT, image, shorten
from run_data import number

MOST_ROWS = 48


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
    return shorten(tensor["name"]) + step


def _draw_scale(figure, axes, mesh, height):
    bar = figure.colorbar(mesh, ax=axes, fraction=0.03, pad=0.02, extend="max", spacing="uniform",
                          ticks=RATIO_BOUNDS, anchor=(0, 1), shrink=min(1, 2.6 / height), aspect=14)
    bar.ax.set_yticklabels(["0", "0.01%", "0.1%", "1%", "10%", "50%", "100%", "10x", "1e3x", "1e6x"])
    bar.outline.set_edgecolor(LINE)
    bar.ax.tick_params(size=0, labelsize=8)
    bar.ax.axhline(1, color=INK, linewidth=1.5)


def draw(case):
    """An image source, or None when there is nothing to draw."""
    tensors = chosen_tensors(case.get("tensors", []))
    world_size = case.get("world_size", 0)
    if not tensors or not world_size:
        return None
    grid = ratio_grid(tensors, world_size)
    height = 0.19 * len(tensors) + 0.9
    figure, axes = plt.subplots(figsize=(4.3 + min(0.36 * world_size, 6), height))
    shown = np.ma.masked_invalid(np.where(np.isinf(grid), 1e9, grid))
    mesh = axes.pcolormesh(shown, cmap=RATIO_COLORS, norm=RATIO_NORM, edgecolors="white",
                           linewidth=0.8 if world_size <= 64 else 0, rasterized=grid.size > 6000)
    axes.invert_yaxis()
    several_steps = len({tensor.get("step") for tensor in tensors}) > 1
    axes.set_yticks(np.arange(len(tensors)) + 0.5, [_label(t, several_steps) for t in tensors], fontsize=7.5)
    for text, tensor in zip(axes.get_yticklabels(), tensors):
        if not tensor.get("ok", True):
            text.set_color("#b3261e")
            text.set_fontweight("bold")
    step = max(1, world_size // 16)
    axes.set_xticks(np.arange(0, world_size, step) + 0.5, range(0, world_size, step), fontsize=8)
    axes.set_xlabel("rank", color=SOFT)
    axes.xaxis.set_label_position("top")
    axes.xaxis.tick_top()
    axes.tick_params(length=0)
    for spine in axes.spines.values():
        spine.set_visible(False)
    _draw_scale(figure, axes, mesh, height)
    return image(figure)
