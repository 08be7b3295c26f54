"""The rows of the global batch that each data-parallel rank computes."""

import weakref
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from . import given
from . import mesh as meshes
from .error import Error
from .mesh import Mesh
from .piece import Piece
from .sources import megatron


class Rows:
    """This rank's rows [start, start + count) of a global batch of `total` rows, which `axes` cut, if a program named them,
    and the `tensors` that hold them."""

    def __init__(self, start: int, count: int, total: int, axes: tuple[str, ...] = (),
                 tensors: tuple[torch.Tensor, ...] = ()):
        self.start, self.count, self.total, self.axes, self.tensors = start, count, total, axes, tensors

    def place(self, name: str, tensor: torch.Tensor, source: str, placed: dict) -> Piece:
        """Places a tensor of these rows in the global batch; smaller ones are micro-batches that follow each other.
        `placed` has the rows that came before, in a step of one recorder: a program may cut its batch once, and train on it
        often."""
        size, key = tensor.shape[0], (self, name)
        used = placed.get(key, 0) if size < self.count else 0
        if used + size > self.count:
            raise Error(f'"{name}" has {size} rows after {used} others, but shardproof.batch gave this rank '
                        f"{self.count} rows", "Record the micro-batches of one batch in their order, each once")
        placed[key] = used + size
        rest = tuple(tensor.shape[1:])
        return Piece(tensor, (self.total, *rest), (self.start + used, *(0,) * len(rest)), source=source)


class Current:
    """What the script's last calls established: the mesh of the run, the rows of the last batch, the folder loaded from,
    and what load was given."""

    axes: list[tuple[str, int]] | None = None  # of all ranks, if what started them knows; outer to inner
    mesh: Mesh | None = None
    rows: Rows | None = None
    golden: Path | None = None

    def __init__(self):
        self._given = weakref.WeakKeyDictionary()  # (mesh, layouts) that load was given, by module

    def remember(self, models: Sequence[torch.nn.Module], mesh, layouts: Mapping | None) -> None:
        """What load was given for these models."""
        for one in models:
            self._given[one] = (mesh, layouts)

    def given_to_load(self, models: Sequence[torch.nn.Module]) -> tuple:
        """The mesh and layouts that load was given for these models, which may have been wrapped since; else None."""
        known = (self._given[module] for one in models for module in one.modules() if module in self._given)
        return next(known, (None, None))


current = Current()


def batch(*tensors: torch.Tensor, mesh=None, axes=None):
    """This rank's rows of global tensors: dim 0 is cut evenly over the data-parallel axes.

    The mesh is that of the run that is recorded or loaded, or Megatron's, or `mesh` (a DeviceMesh, or sizes by axis,
    outer to inner). `axes` names the data-parallel axes when their names are unusual; () says that there is none.
    """
    axes = None if axes is None else tuple(given.texts("axes", axes, given.AXES))
    if not tensors or not all(len(getattr(one, "shape", ())) for one in tensors):
        raise Error(f"shardproof.batch was given {', '.join(type(one).__name__ for one in tensors) or 'nothing'}, and cuts tensors "
                    "of one dim or more", "Give each tensor of the batch as an argument of its own: shardproof.batch(tokens, targets)")
    index, count = place_of(mesh, axes)
    sizes = {tensor.shape[0] for tensor in tensors}
    if len(sizes) != 1:
        raise Error(f"The tensors of the batch have {sorted(sizes)} rows", "Give tensors with the same dim 0")
    total = sizes.pop()
    if not total:
        raise Error("The batch has no rows", f"Give a multiple of {count} rows, one or more for each data-parallel rank")
    if total % count:
        raise Error(f"A batch of {total} rows does not split over {count} data-parallel rank{'' if count == 1 else 's'}",
                    f"Use a multiple of {count} rows")
    rows = total // count
    cut = tuple(tensor[index * rows:(index + 1) * rows] for tensor in tensors)
    current.rows = Rows(index * rows, rows, total, axes or (), cut)
    return cut[0] if len(cut) == 1 else cut


def place_of(mesh, axes) -> tuple[int, int]:
    """This rank's place among the data-parallel ranks, and their number."""
    rank, world_size = meshes.world()
    if mesh is not None:
        found = meshes.from_user(mesh, rank, world_size)
    else:
        found = current.mesh if current.mesh and current.mesh.world_size == world_size else None
        found = found or megatron.mesh(rank, world_size)
        found = found or (Mesh(current.axes, rank) if current.axes else None)
    if found is None and world_size > 1:
        raise Error(f"shardproof.batch does not know the mesh of the {world_size} ranks",
                    "Call it after shardproof.record or shardproof.load, or give it mesh=")
    if found is None:
        return 0, 1
    if axes is None:
        return found.place_along(found.axes_of_batch())
    return found.place_along(found.known(axes))
