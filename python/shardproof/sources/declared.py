"""Slots whose layout the user declared: layouts={"*.up_proj.weight": Shard(0, "tp")}."""

import dataclasses
import fnmatch
import itertools
from collections.abc import Mapping

import torch

from ..error import Error
from ..layout import Partial, Replicate, Shard
from ..mesh import Mesh
from ..piece import Box, Piece
from ..piece import Partial as PartialPiece
from .slot import Slot


def layout_of(name: str, layouts: Mapping | None):
    """The placements of the first pattern that fits a name, or None."""
    for pattern, placements in (layouts or {}).items():
        if fnmatch.fnmatchcase(name, pattern):
            return tuple(placements) if isinstance(placements, (list, tuple)) else (placements,)
    return None


def is_of_output(pattern: str) -> bool:
    return pattern.endswith(".output")


def layout_of_output(name: str, layouts: Mapping | None):
    """The placements that are declared for what a module gives, "blocks.*.output", or None. Other patterns are of parameters."""
    return layout_of(f"{name}.output", {pattern: one for pattern, one in (layouts or {}).items() if is_of_output(pattern)})


class DeclaredSlot(Slot):
    source = "declared"

    def __init__(self, name: str, parameter: torch.Tensor, mesh: Mesh, placements: tuple):
        super().__init__(name, parameter, mesh.world_size)
        for placement in placements:
            if not isinstance(placement, (Shard, Replicate, Partial)):
                raise Error(f'The layout of "{name}" has a placement {placement!r}',
                            "Use shardproof.Shard, shardproof.Replicate or shardproof.Partial")
        self._shards = [one for one in placements if isinstance(one, Shard)]
        self.axes = tuple(axis for one in self._shards for axis in mesh.axes_in(one.axis))
        partials = [one for one in placements if isinstance(one, Partial)]
        axes = mesh.known([axis for one in partials for axis in mesh.axes_in(one.axis)])
        ops = {one.op for one in partials}
        if not ops <= {"sum", "mean"} or len(ops) > 1:
            raise Error(f'The layout of "{name}" has partial values by {" and ".join(sorted(map(repr, ops)))}',
                        'Declare them all as one of "sum" and "mean"')
        self._partial = PartialPiece(axes, ops.pop()) if axes else None
        self._mesh = mesh
        self._boxes, self._global_shape = self._cut(tuple(parameter.shape))

    def _cut(self, shape: tuple[int, ...]) -> tuple[list[Box], tuple[int, ...]]:
        """The boxes of a local tensor of this shape, and the shape of the global tensor."""
        cutting = [one.dim for one in self._shards if self._mesh.known(self._mesh.axes_in(one.axis))]
        beyond = next((dim for dim in cutting if shape and not -len(shape) <= dim < len(shape)), None)
        if beyond is not None:
            raise Error(f'The layout of "{self.name}" cuts dim {beyond}, but the tensor has shape {list(shape)}',
                        f"Write a dim from 0 to {len(shape) - 1}, or a pattern that leaves this tensor out")
        blocks_of_dims, global_shape = [], []
        for dim, size in enumerate(shape):
            shards = [one for one in self._shards if one.dim % len(shape) == dim]
            index, count = self._place(shards)
            sizes = next((one.blocks for one in shards if one.blocks), (size,))
            if sum(sizes) != size:
                raise Error(f'The blocks {tuple(sizes)} of "{self.name}" add up to {sum(sizes)}, '
                            f"but dim {dim} of the local tensor has size {size}",
                            "Give the local size of each block")
            starts = [0, *itertools.accumulate(sizes)]
            blocks_of_dims.append([(slice(start, start + block), start * count + index * block)
                                   for start, block in zip(starts, sizes)])
            global_shape.append(size * count)
        boxes = [Box(tuple(cut for cut, _ in blocks), tuple(offset for _, offset in blocks))
                 for blocks in itertools.product(*blocks_of_dims)]
        return boxes, tuple(global_shape)

    def _place(self, shards: list[Shard]) -> tuple[int, int]:
        """This rank's place among the pieces of a dim that is cut over these axes, the first axis first."""
        index, count = 0, 1
        for axis in [name for one in shards for name in self._mesh.known(self._mesh.axes_in(one.axis))]:
            index = index * self._mesh.sizes[axis] + self._mesh.coordinates()[axis]
            count *= self._mesh.sizes[axis]
        return index, count

    def pieces(self, tensor: torch.Tensor) -> list[Piece]:
        return [Piece(tensor[box.slices], self._global_shape, box.offset, source=self.source) for box in self._boxes]

    def gradient_pieces(self, gradient: torch.Tensor) -> list[Piece]:
        return [dataclasses.replace(piece, partial=self._partial) for piece in self.pieces(gradient)]
