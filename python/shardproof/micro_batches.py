"""The outputs of modules in micro-batches: which rows of the global batch they hold."""

from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

import torch

from .global_batch import Rows
from .piece import BY_ROWS
from .run_folder import Line

DIMS_OF_ROWS = (0, 1)  # batch first, or sequence first as in Megatron


class Pass(NamedTuple):
    """A forward pass of a model. `begin` and `size` are of its input among this rank's rows, where they are known."""

    rows: Rows | None
    is_whole: bool         # whether an output of unknown place lacks nothing but rows
    has_gradients: bool
    begin: int | None = None
    size: int | None = None


def tensors_in(value) -> Iterator[torch.Tensor]:
    """The tensors of what a module takes or gives, in lists and dicts of any depth."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple, Mapping)):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from tensors_in(one)


def rows_of(inputs, rows: Rows, expected: int) -> tuple[int, int] | tuple[None, None]:
    """Which of this rank's rows an input of a model has: (first, number). Of equal rows the expected ones count."""
    for one in tensors_in(inputs):
        for whole in rows.tensors if one.ndim else ():
            size = one.shape[0]
            if one.shape[1:] != whole.shape[1:] or one.dtype != whole.dtype or not 0 < size <= rows.count:
                continue
            if torch.equal(whole[expected:expected + size].to(one.device), one):
                return expected, size
            found = [at for at in range(rows.count - size + 1) if torch.equal(whole[at:at + size].to(one.device), one)]
            if len(found) == 1:
                return found[0], size
    return None, None


def place(lines: Sequence[tuple[Line, int]], passes: Sequence[Pass], has_stages: bool) -> list[Line]:
    """Places what a module gave in one step in the global batch, if the passes of its model, one call of the module in
    each, together have the rows of this rank. Models on later stages of a pipeline get no rows, so that theirs follow each
    other. Each line comes with the number of its pass. Returns the outputs that are no part of the batch: those of a pass
    without gradients, in which a pipeline finds out its shapes."""
    trained = [(line, number) for line, number in lines if passes[number].has_gradients]
    others = [line for line, number in lines if not passes[number].has_gradients]
    if trained and others and not has_stages:
        return []
    due = [number for number, one in enumerate(passes) if one.has_gradients or not trained]
    chosen = trained or lines
    is_placed = place_rows(chosen, due, passes, has_stages)
    return others if trained and (is_placed or len(due) == 1) else []


def place_rows(lines: Sequence[tuple[Line, int]], due: Sequence[int], passes: Sequence[Pass], has_stages: bool) -> bool:
    by_pass: dict[int, list[Line]] = {number: [] for number in due}
    for line, number in lines:
        by_pass[number].append(line)
    rows, *more = {passes[number].rows for number in due}
    if len(due) < 2 or rows is None or more or not all(by_pass.values()):
        return False
    known = [passes[number].begin is not None for number in due]
    if not (all(known) or has_stages and not any(known)):
        return False
    sizes = {dim: sizes_of(by_pass, passes, dim, rows) for dim in DIMS_OF_ROWS}
    dims = [dim for dim in DIMS_OF_ROWS if sizes[dim] is not None]
    if len(dims) != 1:
        return False
    dim, next_row, begins = dims[0], 0, {}
    for number, size in zip(due, sizes[dim]):
        begins[number] = next_row if passes[number].begin is None else passes[number].begin
        next_row += size
    if sorted(at for number, size in zip(due, sizes[dim]) for at in range(begins[number], begins[number] + size)) != \
            list(range(rows.count)):
        return False
    for number, some in by_pass.items():
        for line in some:
            line.offset, line.global_shape = list(line.offset or [0] * len(line.shape)), list(line.global_shape)
            line.offset[dim], line.global_shape[dim] = rows.start + begins[number], rows.total
            line.microbatch, line.source = 0, BY_ROWS
    return True


def sizes_of(by_pass: dict[int, list[Line]], passes: Sequence[Pass], dim: int, rows: Rows) -> list[int] | None:
    """How many rows each pass has along a dim; None if these are no rows, or if a pass called the module twice."""
    sizes, others = [], set()
    for number, lines in by_pass.items():
        one = passes[number]
        for line in lines:
            is_known = line.offset is not None or (line.flat is None and one.is_whole)
            if not is_known or len(line.shape) <= dim or line.shape[dim] != lines[0].shape[dim]:
                return None
            size, of_all = line.shape[dim], line.global_shape[dim]
            if one.size not in (None, size) or of_all * rows.count not in (size * rows.count, size * rows.total):
                return None
            others.add((*line.global_shape[:dim], *line.global_shape[dim + 1:]))
        if len({line.offset and tuple(line.offset) for line in lines}) < len(lines):
            return None
        sizes.append(lines[0].shape[dim])
    return sizes if len(others) == 1 and sum(sizes) == rows.count else None
