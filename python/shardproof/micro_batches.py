"""The outputs of modules in micro-batches, whose rows follow each other in the global batch."""

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from .global_batch import Rows
from .run_folder import Line

DIMS_OF_ROWS = (0, 1)  # batch first, or sequence first as in Megatron


class Pass(NamedTuple):
    """A forward pass of a module, in the order of `Line.microbatch`."""

    rows: Rows | None      # of this rank, if they are known
    is_whole: bool         # whether an output of unknown place lacks nothing but rows
    has_gradients: bool


def place(lines: Sequence[Line], passes: Sequence[Pass]) -> list[Line]:
    """Places the outputs of a module in one step in the global batch, if they are of several passes, which together have
    the rows of this rank along one dim, in their order. Passes without gradients count apart. Returns the outputs of those
    that are no part of the batch, as where a pipeline finds out its shapes."""
    trained = [line for line in lines if passes[line.microbatch].has_gradients]
    others = [line for line in lines if not passes[line.microbatch].has_gradients]
    is_trained_placed, are_others_placed = (place_rows(some, passes) for some in (trained, others))
    left_over = others if is_trained_placed and not are_others_placed else []
    if is_trained_placed or are_others_placed:
        earlier: Counter = Counter()
        for line in trained if left_over else lines:
            at = line.offset and tuple(line.offset)
            line.microbatch = earlier[at]
            earlier[at] += 1
    return left_over


def place_rows(lines: Sequence[Line], passes: Sequence[Pass]) -> bool:
    rows, *more = {passes[line.microbatch].rows for line in lines} or {None}
    if rows is None or more:
        return False
    dims = [dim for dim in DIMS_OF_ROWS if are_rows(lines, dim, rows, passes)]
    if len(dims) != 1:
        return False
    dim, begins, used = dims[0], {}, 0
    for line in lines:
        if line.microbatch not in begins:
            begins[line.microbatch] = used
            used += line.shape[dim]
        line.offset, line.global_shape = list(line.offset or [0] * len(line.shape)), list(line.global_shape)
        line.offset[dim], line.global_shape[dim] = rows.start + begins[line.microbatch], rows.total
    return True


def are_rows(lines: Sequence[Line], dim: int, rows: Rows, passes: Sequence[Pass]) -> bool:
    sizes: dict[int, int] = {}  # by pass
    for line in lines:
        is_known = line.offset is not None or (line.flat is None and passes[line.microbatch].is_whole)
        if not is_known or len(line.shape) <= dim:
            return False
        size, of_all = line.shape[dim], line.global_shape[dim]
        if sizes.setdefault(line.microbatch, size) != size or of_all * rows.count not in (size * rows.count, size * rows.total):
            return False
    others = {(*line.global_shape[:dim], *line.global_shape[dim + 1:]) for line in lines}
    return len(sizes) > 1 and len(others) == 1 and sum(sizes.values()) == rows.count
