"""Share of the allowance that each case used: one dot per tensor, one row per case."""

import math

import numpy as np
from matplotlib import pyplot as plt

from pictures import INK, LINE, SOFT, VERDICT_COLORS, image
from run_data import number

MOST_CASES = 40
SMALLEST, LARGEST = 1e-7, 1e6  # what lies outside is drawn at the edge


def budget(case):
    """The shares of all tensors of a case; what is not a number counts as infinite."""
    ratios = [number(tensor.get("worst_ratio")) for tensor in case.get("tensors", [])]
    return [math.inf if math.isnan(ratio) else ratio for ratio in ratios]


def chosen_cases(cases, most=MOST_CASES):
    """Judged cases, the ones nearest to (or beyond) their allowance, in the run's order."""
    judged = [(max(budget(case)), i) for i, case in enumerate(cases) if budget(case)]
    return [cases[i] for i in sorted(i for _, i in sorted(judged, reverse=True)[:most])]


def draw(cases):
    """An image source, or None when no case compared a tensor."""
    shown = chosen_cases(cases)
    if not shown:
        return None
    figure, axes = plt.subplots(figsize=(8.6, 0.22 * len(shown) + 0.8))
    for row, case in enumerate(shown):
        ratios = np.clip(budget(case), SMALLEST, LARGEST)
        color = VERDICT_COLORS.get(case["verdict"], INK)
        axes.plot([SMALLEST, ratios.max()], [row, row], color=LINE, linewidth=1, zorder=1)
        axes.scatter(ratios, np.full(len(ratios), row), s=9, color=color, alpha=0.35, linewidth=0,
                     zorder=2, rasterized=len(ratios) > 400)
        axes.scatter(ratios.max(), row, s=26, color=color, zorder=3, linewidth=0, clip_on=False)
    axes.axvline(1, color=INK, linewidth=1.2)
    axes.text(1, -0.9, " allowance", fontsize=8, va="bottom", ha="left")
    axes.set_xscale("log")
    axes.set_xlim(SMALLEST * 0.8, LARGEST if max(max(budget(c)) for c in shown) > 1 else 20)
    axes.set_ylim(len(shown) - 0.4, -0.9)
    axes.set_yticks(range(len(shown)), [case["name"][-70:] for case in shown], fontsize=7.5)
    axes.set_xlabel("error / allowance, largest element of each tensor", color=SOFT)
    axes.grid(axis="x", color=LINE, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(length=0)
    axes.spines["left"].set_visible(False)
    return image(figure)
