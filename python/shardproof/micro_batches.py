"""The outputs of modules in micro-batches, whose rows follow each other in the global batch."""

from collections.abc import Sequence

from .global_batch import Rows
from .run_folder import Line

DIMS_OF_ROWS = (0, 1)  # batch first, or sequence first as in Megatron


def place(lines: Sequence[Line], rows: Rows, is_whole: bool) -> None:
    """Places the outputs of a module in one step in the global batch, if they are of several passes, which together have
    the rows of this rank along one dim, in their order. Where the place of one is not known, `is_whole` says whether it
    lacks nothing but rows."""
    dims = [dim for dim in DIMS_OF_ROWS if are_rows(lines, dim, rows, is_whole)]
    if len(dims) != 1:
        return
    dim, used, passed = dims[0], 0, 0
    for line in lines:
        if line.microbatch > passed:
            passed, used = line.microbatch, used + size
        size = line.shape[dim]
        offset, shape = list(line.offset or [0] * len(line.shape)), list(line.global_shape)
        offset[dim], shape[dim] = rows.start + used, rows.total
        line.offset, line.global_shape, line.microbatch = offset, shape, 0


def are_rows(lines: Sequence[Line], dim: int, rows: Rows, is_whole: bool) -> bool:
    sizes: dict[int, int] = {}  # by pass
    for line in lines:
        if line.flat is not None or (line.offset is None and not is_whole) or len(line.shape) <= dim:
            return False
        size, of_all = line.shape[dim], line.global_shape[dim]
        if sizes.setdefault(line.microbatch, size) != size or of_all * rows.count not in (size * rows.count, size * rows.total):
            return False
    others = {(*line.global_shape[:dim], *line.global_shape[dim + 1:]) for line in lines}
    return len(sizes) > 1 and len(others) == 1 and sum(sizes.values()) == rows.count
