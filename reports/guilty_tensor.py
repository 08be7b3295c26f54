"""The tensor at which a case first went wrong: golden, actual, their difference, and whose part it is."""

import math
from dataclasses import dataclass, field

import numpy as np
from matplotlib import pyplot as plt
from matplotlib.colors import LinearSegmentedColormap, Normalize, SymLogNorm
from matplotlib.patches import Rectangle

import layouts
import tensor_file
from pictures import INK, LINE, SOFT, image
from run_data import number

MOST_CELLS = 64             # along each side of a picture; larger tensors are drawn in blocks
MOST_ELEMENTS = 1 << 24
FOLD = 32                   # a tensor of one dim is drawn in rows of at most so many elements
VALUES = LinearSegmentedColormap.from_list("values", ["#2b5c8a", "#8fb4d3", "#f4f3ef", "#e3b287", "#a2592a"])
ERRORS = LinearSegmentedColormap.from_list("errors", ["#5a2a82", "#a98bc4", "#f6f4f1", "#eb9a83", "#b3261e"])
NOBODY = "#e9edf1"


@dataclass
class Whole:
    """The tensor put together from what the ranks sent; flat arrays, NaN where nobody sent anything."""
    shape: list
    golden: np.ndarray
    actual: np.ndarray
    sent: np.ndarray                      # bool
    allowance: float
    holders: dict = field(default_factory=dict)   # rank: bool array of what it sent
    summed: bool = False                  # actual is the sum of the ranks' addends

    def wrong(self):
        """Bool array: an error over the allowance, or one that is no number."""
        with np.errstate(invalid="ignore"):
            fits = np.abs(self.actual - self.golden) <= self.allowance
            same = (self.actual == self.golden) | (np.isnan(self.actual) & np.isnan(self.golden))
        return self.sent & ~fits & ~same


def entry_of(case):
    """The entry of the first divergent tensor in the case's table, or None."""
    found = case.get("divergence") or {}
    for tensor in case.get("tensors", []):
        if (tensor.get("name"), tensor.get("phase"), tensor.get("step")) == (
                found.get("tensor"), found.get("phase"), found.get("step")):
            return tensor
    return None


def put_together(case, arrays):
    """The guilty tensor as a Whole, or None when the run's folder does not hold it."""
    found, entry = case.get("divergence") or {}, entry_of(case)
    worst = found.get("worst") or {}
    shape = worst.get("global_shape") or (entry or {}).get("global_shape") or []
    size = math.prod(shape)
    pieces = tensor_file.pieces_of(arrays, found.get("tensor"), found.get("step") or 0)
    if not pieces or not 0 < size <= MOST_ELEMENTS or any((piece.index >= size).any() for piece in pieces):
        return None
    allowance = number(worst.get("allowance"))
    whole = Whole(shape, np.full(size, np.nan), np.full(size, np.nan), np.zeros(size, bool),
                  0.0 if math.isnan(allowance) else allowance, summed=bool(worst.get("partial")))
    # Copies: the worst rank's own is the one that is shown, else the lowest rank's.
    pieces.sort(key=lambda piece: piece.rank != worst.get("rank"), reverse=True)
    for piece in pieces if not whole.summed else sorted(pieces, key=lambda piece: piece.rank):
        real = piece.index >= 0
        at = piece.index[real]
        whole.golden[at] = piece.golden[real]
        if whole.summed:
            whole.actual[at] = np.where(whole.sent[at], whole.actual[at], 0) + piece.actual[real]
        else:
            whole.actual[at] = piece.actual[real]
        whole.sent[at] = True
        whole.holders.setdefault(piece.rank, np.zeros(size, bool))[at] = True
    return whole


def grid_shape(shape):
    """(rows, columns) in which a tensor is drawn: the last dim across, the others down."""
    if len(shape) > 1:
        return math.prod(shape[:-1]), shape[-1]
    size = math.prod(shape)
    if size <= FOLD:
        return 1, size
    across = next((width for width in range(FOLD, FOLD // 2 - 1, -1) if size % width == 0), FOLD)
    return -(-size // across), across


def as_grid(values, shape, fill):
    rows, columns = grid_shape(shape)
    grid = np.full(rows * columns, fill, dtype=values.dtype)
    grid[:values.size] = values
    return grid.reshape(rows, columns)


def chosen_elements(whole):
    """[cell rows, cell columns] flat indices: of each block the element with the largest error, so that no
    extreme is lost however small the picture; -1 where a block is empty."""
    size = whole.golden.size
    with np.errstate(invalid="ignore"):
        error = np.abs(whole.actual - whole.golden)
    error = np.where(whole.sent, np.where(np.isnan(error), np.inf, error), -1.0)
    error = as_grid(np.where(whole.wrong(), error + 1, error), whole.shape, -2.0)
    flat = as_grid(np.arange(size), whole.shape, -1)
    rows, columns = error.shape
    row_edges = np.linspace(0, rows, min(rows, MOST_CELLS) + 1).astype(int)
    column_edges = np.linspace(0, columns, min(columns, MOST_CELLS) + 1).astype(int)
    chosen = np.full((len(row_edges) - 1, len(column_edges) - 1), -1)
    for r in range(len(row_edges) - 1):
        for c in range(len(column_edges) - 1):
            block = np.s_[row_edges[r]:row_edges[r + 1], column_edges[c]:column_edges[c + 1]]
            chosen[r, c] = flat[block].ravel()[np.argmax(error[block])]
    return chosen, row_edges, column_edges


def owners(case, whole):
    """{flat index: ranks that hold it} as (labels [elements] of small integers, [rank tuples]). From what the
    ranks sent; for the rest from the layout, where it says who holds what."""
    size = whole.golden.size
    held = {rank: sent.copy() for rank, sent in whole.holders.items()}
    layout = ((case.get("divergence") or {}).get("worst") or {}).get("layout", "")
    cuts = layouts.parse(layout or "")
    axes = [(axis["name"], axis["size"]) for axis in case.get("mesh", {}).get("axes", [])]
    unsent = ~whole.sent
    if cuts and unsent.any() and layouts.world_size(axes) <= 64:
        for ranks, parts in layouts.holders(cuts, whole.shape, axes):
            mask = np.ones(whole.shape, bool)
            for dim, ranges in enumerate(parts):
                along = np.zeros(whole.shape[dim], bool)
                for first, count in ranges:
                    along[first:first + count] = True
                mask &= along.reshape([-1 if d == dim else 1 for d in range(len(whole.shape))])
            for rank in ranks:
                held.setdefault(rank, np.zeros(size, bool))
                held[rank] |= mask.ravel() & unsent
    label, groups = np.zeros(size, int), [()]
    if held:
        ranks = sorted(held)
        patterns, label = np.unique(np.stack([held[rank] for rank in ranks], 1), axis=0, return_inverse=True)
        label = label.ravel()
        groups = [tuple(rank for rank, has in zip(ranks, pattern) if has) for pattern in patterns]
    return label, groups


def describe_ranks(ranks):
    if not ranks:
        return ""
    if len(ranks) > 4:
        return f"ranks {ranks[0]}, {ranks[1]} .. {ranks[-1]}"
    return ("rank " if len(ranks) == 1 else "ranks ") + ", ".join(map(str, ranks))


def index_text(flat, shape):
    return "[" + ", ".join(str(int(i)) for i in np.unravel_index(int(flat), shape)) + "]" if shape else "[]"


def marks(whole):
    """(first wrong, worst) flat indices; -1 none."""
    wrong = whole.wrong()
    if not wrong.any():
        return -1, -1
    with np.errstate(invalid="ignore"):
        error = np.abs(whole.actual - whole.golden)
    error = np.where(wrong, np.where(np.isnan(error), np.inf, error), -1)
    return int(np.argmax(wrong)), int(np.argmax(error))


def caption(whole):
    """Where the first wrong element lies, how many there are, and what a cell of the picture stands for."""
    first, worst = marks(whole)
    if first < 0:
        return "No element is over its allowance."
    count, sent = int(whole.wrong().sum()), int(whole.sent.sum())
    say = lambda flat: (f"{index_text(flat, whole.shape)} golden {whole.golden[flat]:.6g}, actual "
                        f"{whole.actual[flat]:.6g}")
    down = " x ".join(map(str, whole.shape[:-1])) if len(whole.shape) > 1 else ""
    text = (f"{count} of {sent} elements shown are wrong. " +
            (f"Down: {down}, across: {whole.shape[-1]}. " if down else "") + f"First (circle): {say(first)}.")
    if worst != first:
        text += f" Worst (diamond): {say(worst)}."
    if whole.summed:
        text += " Actual is the sum of the ranks' addends."
    rows, columns = grid_shape(whole.shape)
    if rows > MOST_CELLS or columns > MOST_CELLS:
        text += (f" Drawn in {min(rows, MOST_CELLS)} x {min(columns, MOST_CELLS)} blocks: each shows the element "
                 "of it with the largest error.")
    if not whole.sent.all():
        text += " Grey: padding, or right on the ranks that hold it."
    return text


def _outline(axes, label_grid):
    """Lines between cells that other ranks hold."""
    rows, columns = label_grid.shape
    across = np.argwhere(label_grid[:, 1:] != label_grid[:, :-1])
    down = np.argwhere(label_grid[1:, :] != label_grid[:-1, :])
    lines = [((c + 1, c + 1), (r, r + 1)) for r, c in across] + [((c, c + 1), (r + 1, r + 1)) for r, c in down]
    for x, y in lines:
        axes.plot(x, y, color=INK, linewidth=1.1, solid_capstyle="butt", zorder=4)
    axes.add_patch(Rectangle((0, 0), columns, rows, fill=False, edgecolor=INK, linewidth=1.1, zorder=4))


def _owner_labels(axes, label_grid, groups):
    """Each group's name beside its rows or above its columns: outside of the picture, so that nothing is hidden."""
    rows, columns = label_grid.shape
    if len(groups) < 2 or len(groups) > 16:
        return
    for number_of_group, ranks in enumerate(groups):
        where = np.argwhere(label_grid == number_of_group)
        if not len(where) or not ranks:
            continue
        (top, left), (bottom, right) = where.min(0), where.max(0) + 1
        if right - left < columns:
            axes.text((left + right) / 2, -0.02 * rows, describe_ranks(ranks), ha="center", va="bottom",
                      fontsize=7.5, color=SOFT)
        else:
            axes.text(-0.02 * columns, (top + bottom) / 2, describe_ranks(ranks), ha="right", va="center",
                      fontsize=7.5, color=SOFT, rotation=90 if bottom - top > rows / 6 else 0)


def _mark(axes, whole, row_edges, column_edges):
    columns = grid_shape(whole.shape)[1]
    for flat, shape, size in zip(marks(whole), ("o", "D"), (78, 34)):
        if flat < 0:
            continue
        row, column = divmod(flat, columns)
        x = np.searchsorted(column_edges, column, side="right") - 0.5
        y = np.searchsorted(row_edges, row, side="right") - 0.5
        axes.scatter(x, y, s=size, marker=shape, facecolor="none", edgecolor="white", linewidth=3, zorder=5,
                     clip_on=False)
        axes.scatter(x, y, s=size, marker=shape, facecolor="none", edgecolor=INK, linewidth=1.2, zorder=6,
                     clip_on=False)


def _picture(axes, values, norm, colors, title, aspect):
    shown = axes.pcolormesh(np.ma.masked_invalid(values), cmap=colors.with_extremes(bad=NOBODY), norm=norm,
                            rasterized=values.size > 400)
    axes.invert_yaxis()
    axes.set_box_aspect(aspect)
    axes.set_title(title, fontsize=9, pad=14)
    axes.set_xticks([])
    axes.set_yticks([])
    for spine in axes.spines.values():
        spine.set_visible(False)
    return shown


def _norms(golden, actual, difference, allowance):
    finite = np.concatenate([np.abs(v[np.isfinite(v)]).ravel() for v in (golden, actual)] + [[1e-300]])
    largest = min(finite.max(), 4 * max(np.quantile(finite, 0.98), 1e-300))
    errors = np.abs(difference[np.isfinite(difference)])
    top = max(errors.max(initial=0), 10 * allowance, 1e-300)
    floor = max(allowance, top * 1e-2, 1e-300)
    return Normalize(-largest, largest), SymLogNorm(floor, linscale=0.5, vmin=-top, vmax=top)


def draw(case, whole):
    """An image source of the three pictures."""
    chosen, row_edges, column_edges = chosen_elements(whole)
    pick = lambda values: np.where(chosen >= 0, values[np.maximum(chosen, 0)], np.nan)
    golden, actual = pick(whole.golden), pick(whole.actual)
    with np.errstate(invalid="ignore"):
        difference = actual - golden
    # What is no number is an error as large as there is one.
    value_norm, error_norm = _norms(golden, actual, difference, whole.allowance)
    known = (chosen >= 0) & whole.sent[np.maximum(chosen, 0)]
    difference = np.where(known & np.isnan(difference), error_norm.vmax, difference)
    label, groups = owners(case, whole)
    label_grid = np.where(chosen >= 0, label[np.maximum(chosen, 0)], -1)
    rows, columns = chosen.shape
    aspect = min(max(rows / columns, 0.08), 1.1)
    figure, all_axes = plt.subplots(1, 3, figsize=(12.6, 3.7 * aspect + 0.8), gridspec_kw={"wspace": 0.18})
    pictures = [(golden, value_norm, VALUES, "golden"), (actual, value_norm, VALUES, "actual"),
                (difference, error_norm, ERRORS, "actual - golden")]
    for axes, (values, norm, colors, title) in zip(all_axes, pictures):
        shown = _picture(axes, values, norm, colors, title, aspect)
        _outline(axes, label_grid)
        _mark(axes, whole, row_edges, column_edges)
        bar = figure.colorbar(shown, ax=axes, orientation="horizontal", fraction=0.05, pad=0.06, aspect=36)
        bar.outline.set_edgecolor(LINE)
        bar.ax.minorticks_off()
        bar.ax.tick_params(size=0, labelsize=7)
        bar.set_ticks([-norm.vmax, 0, norm.vmax], labels=[f"{-norm.vmax:.2g}", "0", f"{norm.vmax:.2g}"])
    _owner_labels(all_axes[0], label_grid, groups)
    return image(figure)


def holders_table(case):
    """[{rank, at, layout, wrong, count, worst, factor}] of each rank that has a wrong row, at most eight."""
    entry = entry_of(case) or {}
    places = {rank["rank"]: rank.get("coordinates", {}) for rank in case.get("ranks", []) if "rank" in rank}
    used = {axis["name"] for axis in case.get("mesh", {}).get("axes", []) if axis["size"] > 1}
    rows = []
    for row in entry.get("wrong", []):
        if "bad_count" not in row:
            continue
        at = " ".join(f"{axis} {at}" for axis, at in places.get(row.get("rank"), {}).items() if axis in used)
        rows.append({"rank": row.get("rank"), "at": at, "local_shape": row.get("local_shape"),
                     "wrong": row["bad_count"], "count": row.get("count"), "microbatch": row.get("microbatch", 0),
                     "ratio": number(row.get("worst_ratio")), "index": row.get("worst_global_index"),
                     "golden": number(row.get("golden_value")), "actual": number(row.get("actual_value")),
                     "problem": row.get("problem", "")})
    return rows


def holding(case, whole):
    """Who holds what, in a sentence."""
    layout = ((case.get("divergence") or {}).get("worst") or {}).get("layout")
    if layout:
        return f"Lines separate what different ranks hold ({layout})."
    if len(whole.holders) > 1 and not whole.summed:
        shown = case["divergence"]["worst"].get("rank", min(whole.holders))
        return f"Every rank holds the whole of it; shown is the copy of rank {shown}."
    return ""


def view(case, arrays):
    """What the page shows of the guilty tensor; None when there is none."""
    found = case.get("divergence")
    if not found or not found.get("tensor"):
        return None
    whole = put_together(case, arrays)
    return {"tensor": found["tensor"], "picture": draw(case, whole) if whole is not None else None,
            "caption": f"{caption(whole)} {holding(case, whole)}" if whole is not None else "",
            "rows": holders_table(case), "last_good": found.get("last_good", ""),
            "collectives": found.get("collectives") or []}
