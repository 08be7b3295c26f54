"""A piece: the elements of one global tensor that a rank holds, and where they lie in it."""

import dataclasses
import itertools
import math
from collections.abc import Sequence

import torch


BY_ROWS = "rows"  # the source of a place that follows from the number of rows alone, which the judge takes for no more


@dataclasses.dataclass(frozen=True)
class Partial:
    """The piece is an addend ("sum") or a term of a mean ("mean") over these axes of the mesh."""

    axes: tuple[str, ...]
    op: str


@dataclasses.dataclass(frozen=True)
class Box:
    """Where a box of a local tensor lies in the global tensor: [offset, offset + shape of the slices)."""

    slices: tuple[slice, ...]
    offset: tuple[int, ...]


@dataclasses.dataclass
class Piece:
    """`tensor` is a view of the local elements. Its place is a box (`offset`), or the elements [start, end) of the
    row-major global tensor (`flat`), or not known (neither)."""

    tensor: torch.Tensor
    global_shape: tuple[int, ...]
    offset: tuple[int, ...] | None = None
    flat: tuple[int, int] | None = None
    partial: Partial | None = None
    source: str = "plain"
    leading: int = 0  # dims of the global tensor before the parameter's own, such as Megatron's axis of layers

    def of(self, full: torch.Tensor) -> torch.Tensor:
        """The same elements of a full tensor."""
        if self.flat is not None:
            return full.reshape(-1)[self.flat[0]:self.flat[1]]
        if self.offset is None:
            return full
        return full[tuple(slice(start, start + size) for start, size in zip(self.offset, self.tensor.shape))]


def of_first_rows(piece: Piece, rows: int) -> Piece | None:
    """The part of a piece that lies in the first rows of its parameter, in a global tensor that has no others. None if
    it has no element there. The piece's place must be known; a scalar is its own only row."""
    if not piece.global_shape:
        return piece
    dim = piece.leading
    count = min(rows, piece.global_shape[dim])
    shape = (*piece.global_shape[:dim], count, *piece.global_shape[dim + 1:])
    if piece.flat is not None:
        start, end = piece.flat
        end = min(end, math.prod(shape))
        return dataclasses.replace(piece, tensor=piece.tensor.reshape(-1)[:end - start], global_shape=shape,
                                   flat=(start, end)) if start < end else None
    kept = min(count - piece.offset[dim], piece.tensor.shape[dim])
    return dataclasses.replace(piece, tensor=piece.tensor.narrow(dim, 0, kept), global_shape=shape) if kept > 0 else None


def runs(indices: Sequence[int]) -> list[tuple[int, int, int]]:
    """Consecutive indices of a list: (first index, its position in the list, length) of each stretch."""
    found: list[tuple[int, int, int]] = []
    for position, index in enumerate(indices):
        if found and index == found[-1][0] + found[-1][2]:
            first, start, length = found[-1]
            found[-1] = (first, start, length + 1)
        else:
            found.append((index, position, 1))
    return found


def boxes_of_indices(indices_of_dims: Sequence[Sequence[int]]) -> list[Box]:
    """The boxes that a local tensor fills, when each of its dims holds the given global indices."""
    return [Box(tuple(slice(start, start + length) for _, start, length in of_dims),
                tuple(first for first, _, _ in of_dims))
            for of_dims in itertools.product(*(runs(indices) for indices in indices_of_dims))]


def boxes_of_range(shape: Sequence[int], start: int, end: int) -> list[Box]:
    """The boxes that the elements [start, end) of a row-major tensor fill."""
    if start >= end:
        return []
    if len(shape) <= 1:
        return [Box((slice(start, end),) * len(shape), (start,) * len(shape))]
    inner = math.prod(shape[1:])
    (first, head), (last, tail) = divmod(start, inner), divmod(end, inner)
    if first == last:
        return in_row(first, boxes_of_range(shape[1:], head, tail))
    found = in_row(first, boxes_of_range(shape[1:], head, inner)) if head else []
    rows = slice(first + (head > 0), last)
    if rows.start < rows.stop:
        found.append(Box((rows, *(slice(0, size) for size in shape[1:])), (rows.start, *(0,) * (len(shape) - 1))))
    return found + in_row(last, boxes_of_range(shape[1:], 0, tail))


def in_row(row: int, boxes: list[Box]) -> list[Box]:
    return [Box((slice(row, row + 1), *box.slices), (row, *box.offset)) for box in boxes]


def whole(tensor: torch.Tensor, source: str) -> Piece:
    """The piece of a rank that holds all of a tensor."""
    return Piece(tensor, tuple(tensor.shape), offset=(0,) * tensor.ndim, source=source)
