"""The tensor at which a case first went wrong: golden, actual, their difference, and whose part it is."""

import math
from dataclasses import dataclass, field

import numpy as np
from matplotlib.colors import LinearSegmentedColormap, Normalize, SymLogNorm, to_hex
from matplotlib.patches import Polygon, Rectangle

import layouts
import tensor_file
from pictures import (FAINT, GAP, ON_LIGHT, PAGE_WIDTH, SOFT, TEXT_SIZE, Picture, canvas, draw_cells, draw_lines, inline,
                      width_of, write)
from run_data import entry_of_finding, number

MOST_CELLS = 64             # along each side of a picture; larger tensors are drawn in blocks
MOST_ELEMENTS = 1 << 24
FOLD = 32                   # a tensor of one dim is drawn in rows of at most so many elements
VALUES = LinearSegmentedColormap.from_list("values", ["#2b5c8a", "#8fb4d3", "#f4f3ef", "#e3b287", "#a2592a"])
ERRORS = LinearSegmentedColormap.from_list("errors", ["#5a2a82", "#a98bc4", "#f6f4f1", "#eb9a83", "#b3261e"])
WIDTH = (PAGE_WIDTH - 2 * GAP) // 3 - 16  # pixels of a picture and the names beside it; marks may be at its edges
BESIDE = 72
LARGEST = np.finfo(float).max


@dataclass
class Whole:
    """The tensor put together from what the ranks sent; flat arrays, NaN where nobody sent anything."""
    shape: list
    golden: np.ndarray
    actual: np.ndarray
    sent: np.ndarray                      # bool
    allowance: float                      # of the worst element; another may have its own
    worst: int = -1                       # flat index of the element that the judge calls the worst; -1 none
    holders: dict = field(default_factory=dict)   # rank: bool array of what it sent
    summed: bool = False                  # actual is the sum of the ranks' addends

    def difference(self):
        """actual - golden; 0 also where both are no number, or the same infinity."""
        with np.errstate(invalid="ignore", over="ignore"):
            same = (self.actual == self.golden) | (np.isnan(self.actual) & np.isnan(self.golden))
            return np.where(same, 0.0, self.actual - self.golden)


def flat_index(at, shape):
    """Of the element at these indices; -1 where none is given, or none of this shape."""
    fits = at and len(at) == len(shape) and all(0 <= index < extent for index, extent in zip(at, shape))
    return int(np.ravel_multi_index(at, shape)) if fits else -1


def put_together(case, arrays):
    """The guilty tensor as a Whole, or None when the run's folder does not hold it."""
    found, entry = case.get("divergence") or {}, entry_of_finding(case)
    worst = found.get("worst") or {}
    shape = worst.get("global_shape") or (entry or {}).get("global_shape") or []
    size = math.prod(shape)
    pieces = tensor_file.pieces_of(arrays, found.get("tensor"), found.get("step") or 0)
    if not pieces or not 0 < size <= MOST_ELEMENTS or any((piece.index >= size).any() for piece in pieces):
        return None
    allowance = number(worst.get("allowance"))
    whole = Whole(shape, np.full(size, np.nan), np.full(size, np.nan), np.zeros(size, bool),
                  0.0 if math.isnan(allowance) else allowance, flat_index(worst.get("worst_global_index"), shape),
                  summed=bool(worst.get("partial")))
    # Copies: those of the worst rank and its peers are shown, else those of the lowest rank.
    mesh, groups = layouts.mesh_of(case), {}
    for piece in pieces:
        peers = mesh.peers(worst.get("partial_axes", []), piece.rank) if whole.summed else {piece.rank}
        groups.setdefault((worst.get("rank") not in peers, min(peers)), []).append(piece)
    for _, group in sorted(groups.items(), reverse=True):
        summed = np.zeros(size, bool)  # elements with an addend of this group
        for piece in group:
            real = piece.index >= 0
            at = piece.index[real]
            before = np.where(summed[at], whole.actual[at], 0) if whole.summed else 0
            whole.golden[at], whole.actual[at] = piece.golden[real], before + piece.actual[real]
            summed[at] = whole.sent[at] = True
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
    """[cell rows, cell columns] flat indices: of each block the worst element, else the one with the largest error, so
    that no extreme is lost however small the picture; -1 where a block is empty."""
    size = whole.golden.size
    error = np.where(whole.sent, np.nan_to_num(np.abs(whole.difference()), nan=LARGEST), -1.0)
    if whole.worst >= 0:
        error[whole.worst] = np.inf
    error = as_grid(error, whole.shape, -2.0)
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
    mesh = layouts.mesh_of(case)
    unsent = ~whole.sent
    if cuts and unsent.any() and mesh.size() <= 64:
        for ranks, parts in layouts.holders(cuts, whole.shape, mesh):
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


def counted(case, whole):
    """What the worst row of the judge says: how many elements are wrong, and which one is the worst."""
    row = case["divergence"].get("worst") or {}
    if not row.get("bad_count") or row.get("count") is None:
        return "No element is counted as wrong."
    microbatch = f", microbatch {row['microbatch']}" if row.get("microbatch") else ""
    of = "the sum" if row.get("partial") else f"rank {row.get('rank', 0)}{microbatch}"
    text = f"{row['bad_count']} of {row['count']} elements of {of} are wrong."
    if whole.worst >= 0:
        text += (f" Worst (diamond): {row['worst_global_index']} golden {number(row.get('golden_value')):.6g}, actual "
                 f"{number(row.get('actual_value')):.6g}.")
    return text


def caption(case, whole):
    """What the judge counts, and what a cell of the picture stands for. The run records no allowance of other elements
    than the worst: which of them are wrong is not known here."""
    text = f"{counted(case, whole)} Colors show errors, not which elements are over their allowances."
    if len(whole.shape) > 1:
        text += f" Down: {' x '.join(map(str, whole.shape[:-1]))}, across: {whole.shape[-1]}."
    if whole.summed:
        text += " Actual is the sum of the ranks' addends."
    rows, columns = grid_shape(whole.shape)
    if rows > MOST_CELLS or columns > MOST_CELLS:
        text += (f" Drawn in {min(rows, MOST_CELLS)} x {min(columns, MOST_CELLS)} blocks: each shows its element "
                 "with the largest error, or the worst element.")
    if not whole.sent.all():
        text += " Grey: padding, or right on the ranks that hold it."
    return text


def _outline(axes, label_grid, cell):
    """Lines between cells that other ranks hold, and around all."""
    rows, columns = label_grid.shape
    width, height = cell
    across = np.argwhere(label_grid[:, 1:] != label_grid[:, :-1])
    down = np.argwhere(label_grid[1:, :] != label_grid[:-1, :])
    lines = [((c + 1, r), (c + 1, r + 1)) for r, c in across] + [((c, r + 1), (c + 1, r + 1)) for r, c in down]
    draw_lines(axes, [((x * width, y * height), (u * width, v * height)) for (x, y), (u, v) in lines], ON_LIGHT, 1.2)
    axes.add_patch(Rectangle((0, 0), columns * width, rows * height, fill=False, edgecolor=SOFT, linewidth=1.2))


def _runs(labels):
    """[(label, first, last + 1)] of equal neighbors."""
    edges = [0, *(np.flatnonzero(np.diff(labels)) + 1), len(labels)]
    return [(labels[first], first, last) for first, last in zip(edges, edges[1:])]


def _fitting(ranks, room):
    """The ranks in words, else in numbers, else nothing."""
    for text in (describe_ranks(ranks), ",".join(map(str, ranks))):
        if width_of(text) <= room:
            return text
    return ""


def _is_cut_in_rows(label_grid):
    return bool((label_grid == label_grid[:, :1]).all())


def _owner_labels(axes, label_grid, groups, cell):
    """Who holds what: beside the rows or above the columns, and within a piece that has others on all sides."""
    if len(groups) < 2:
        return
    width, height = cell
    if _is_cut_in_rows(label_grid):
        for group, first, last in _runs(label_grid[:, 0]):
            if (last - first) * height >= TEXT_SIZE + 4:
                write(axes, -5, (first + last) / 2 * height, _fitting(groups[group], BESIDE - 6), ha="right", color=SOFT)
    elif (label_grid == label_grid[:1]).all():
        for group, first, last in _runs(label_grid[0]):
            write(axes, (first + last) / 2 * width, -8, _fitting(groups[group], (last - first) * width - 4),
                  ha="center", color=SOFT)
    else:
        for group, ranks in enumerate(groups):
            where = np.argwhere(label_grid == group)
            if not len(where):
                continue
            (top, left), (bottom, right) = where.min(0), where.max(0) + 1
            solid = len(where) == (bottom - top) * (right - left)
            if solid and (bottom - top) * height >= TEXT_SIZE + 6:
                text = _fitting(ranks, (right - left) * width - 8)
                write(axes, (left + right) / 2 * width, (top + bottom) / 2 * height, text, ha="center",
                      color=ON_LIGHT, **({"bbox": {"facecolor": "white", "alpha": 0.8, "linewidth": 0, "pad": 1}} if text
                                         else {}))


def _mark(axes, whole, row_edges, column_edges, cell):
    """A diamond around the worst element."""
    if whole.worst < 0:
        return
    row, column = divmod(whole.worst, grid_shape(whole.shape)[1])
    x = (np.searchsorted(column_edges, column, side="right") - 0.5) * cell[0]
    y = (np.searchsorted(row_edges, row, side="right") - 0.5) * cell[1]
    for color, width in (("white", 3), (ON_LIGHT, 1.2)):
        axes.add_patch(Polygon([(x - 6, y), (x, y - 6), (x + 6, y), (x, y + 6)], facecolor="none", edgecolor=color,
                               linewidth=width, clip_on=False))


def _norms(golden, actual, difference, allowance):
    finite = np.concatenate([np.abs(v[np.isfinite(v)]).ravel() for v in (golden, actual)] + [[1e-300]])
    largest = min(finite.max(), 4 * np.clip(np.quantile(finite, 0.98), 1e-300, LARGEST / 16))
    errors = np.abs(difference[np.isfinite(difference)])
    top = max(errors.max(initial=0), 10 * allowance, 1e-300)
    floor = max(allowance, top * 1e-2, 1e-300)
    # A color map multiplies what it gets, which may overflow beyond the ends.
    return Normalize(-largest, largest, clip=True), SymLogNorm(floor, linscale=0.5, vmin=-top, vmax=top, clip=True)


def draw(case, whole):
    """[Picture]: golden, actual and their difference."""
    chosen, row_edges, column_edges = chosen_elements(whole)
    pick = lambda values: np.where(chosen >= 0, values[np.maximum(chosen, 0)], np.nan)
    golden, actual, difference = pick(whole.golden), pick(whole.actual), pick(whole.difference())
    # An error that is not a finite number counts as the largest one.
    value_norm, error_norm = _norms(golden, actual, difference, whole.allowance)
    known = (chosen >= 0) & whole.sent[np.maximum(chosen, 0)]
    top = error_norm.vmax
    difference = np.where(known, np.nan_to_num(difference, nan=top, posinf=top, neginf=-top), np.nan)
    label, groups = owners(case, whole)
    label_grid = np.where(chosen >= 0, label[np.maximum(chosen, 0)], -1)
    rows, columns = chosen.shape
    width = WIDTH - (BESIDE if len(groups) > 1 and _is_cut_in_rows(label_grid) else 0)
    cell = (width / columns, width * min(max(rows / columns, 0.09), 1.1) / rows)
    drawn = []
    for values, norm, map_of, title in ((golden, value_norm, VALUES, "golden"), (actual, value_norm, VALUES, "actual"),
                                        (difference, error_norm, ERRORS, "actual - golden")):
        figure, axes = canvas(width, rows * cell[1])
        draw_cells(axes, map_of.with_extremes(bad=FAINT)(norm(np.ma.masked_invalid(values))), 0, 0, width,
                   rows * cell[1])
        _outline(axes, label_grid, cell)
        _mark(axes, whole, row_edges, column_edges, cell)
        _owner_labels(axes, label_grid, groups, cell)
        key = [(to_hex(map_of(at)), f"{value:.2g}") for at, value in ((0, -norm.vmax), (0.5, 0), (1.0, norm.vmax))]
        drawn.append(Picture(inline(figure), title, key))
    return drawn


def holders_table(case):
    """[{rank, at, layout, wrong, count, worst, factor}] of each rank that has a wrong row, at most eight."""
    entry = entry_of_finding(case) or {}
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


def scalar(case):
    """[(what, number)] of a tensor of one element, which needs no picture; empty of another tensor."""
    worst = (case.get("divergence") or {}).get("worst") or {}
    golden, actual = number(worst.get("golden_value")), number(worst.get("actual_value"))
    # A row without a wrong element has no shape.
    if worst.get("count") != 1 or math.prod(worst.get("global_shape", [0])) != 1:
        return []
    return [("golden", f"{golden:.12g}"), ("actual", f"{actual:.12g}"), ("actual - golden", f"{actual - golden:.6g}"),
            ("allowance", f"{number(worst.get('allowance')):.3g}")]


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
    numbers = scalar(case)
    whole = None if numbers else put_together(case, arrays)
    return {"tensor": found["tensor"], "numbers": numbers, "pictures": draw(case, whole) if whole is not None else [],
            "caption": f"{caption(case, whole)} {holding(case, whole)}" if whole is not None else "",
            "rows": holders_table(case), "last_good": found.get("last_good", ""),
            "collectives": found.get("collectives") or []}
