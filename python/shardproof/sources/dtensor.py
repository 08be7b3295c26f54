"""DTensors say by their placements what a rank holds."""

import dataclasses

import torch

from ..error import Error
from ..mesh import Mesh
from ..piece import Box, Piece, boxes_of_indices
from ..piece import Partial as PartialPiece
from .slot import Slot

OPS = {"sum": "sum", "avg": "mean"}
PLAIN = (torch.Tensor, torch.nn.Parameter)  # they wrap no other tensor


def is_dtensor(tensor) -> bool:
    return hasattr(tensor, "placements") and hasattr(tensor, "device_mesh")


def local_of(tensor) -> torch.Tensor:
    """The local tensor of a DTensor, or the tensor itself, and no longer one whose collective is pending: its class runs
    each operation in Python."""
    if type(tensor) not in PLAIN and is_dtensor(tensor):
        tensor = tensor._local_tensor
    if type(tensor) in PLAIN:
        return tensor
    # trigger_wait keeps that it has waited, and wait does not.
    wait = getattr(tensor, "trigger_wait", None) or getattr(tensor, "wait", None)
    return tensor if wait is None else wait()


@dataclasses.dataclass(frozen=True)
class Layout:
    """Where the elements lie that this rank holds of DTensors with these placements."""

    mesh: object
    placements: tuple
    shape: torch.Size
    global_shape: tuple[int, ...]
    boxes: list[Box]
    partial: PartialPiece | None

    def fits(self, tensor) -> bool:
        return tensor.device_mesh is self.mesh and tensor.placements == self.placements and tensor.shape == self.shape


class DTensorBoxes:
    """The boxes of DTensors on this rank. They are kept by (mesh, placements, shape), and the last by name, because
    placements are slow to hash."""

    def __init__(self, mesh: Mesh):
        self._mesh = mesh
        self._kept: dict[tuple, Layout] = {}
        self._last: dict[str, Layout] = {}

    def pieces(self, name: str, tensor) -> list[Piece]:
        layout = self._last.get(name)
        if layout is None or not layout.fits(tensor):
            layout = self._last[name] = self._layout(name, tensor)
        local = local_of(tensor)
        if len(layout.boxes) == 1:  # it is the whole local tensor
            return [Piece(local, layout.global_shape, layout.boxes[0].offset, partial=layout.partial, source="dtensor")]
        return [Piece(local[box.slices], layout.global_shape, box.offset, partial=layout.partial, source="dtensor")
                for box in layout.boxes]

    def _layout(self, name: str, tensor) -> Layout:
        key = (tensor.device_mesh, tensor.placements, tensor.shape)
        if key not in self._kept:
            self._kept[key] = Layout(*key, tuple(tensor.shape), self._boxes(name, tensor), self._partial(name, tensor))
        return self._kept[key]

    def _boxes(self, name: str, tensor) -> list[Box]:
        coordinate = tensor.device_mesh.get_coordinate()
        if coordinate is None:
            return []
        indices = [torch.arange(size) for size in tensor.shape]
        for axis, placement in enumerate(tensor.placements):
            if placement.is_shard() or hasattr(placement, "split_factor"):
                dim = placement.dim % tensor.ndim
                indices[dim] = cut(placement, indices[dim], tensor.device_mesh.size(axis), coordinate[axis])
        shape, local = tuple(len(one) for one in indices), tuple(local_of(tensor).shape)
        if shape != local:
            raise Error(f'"{name}" has a local tensor of shape {list(local)}, but its placements '
                        f"{tensor.placements} give {list(shape)} of {list(tensor.shape)}",
                        "Use sizes that the axes of the mesh divide, or leave the tensor out with only=")
        return boxes_of_indices([one.tolist() for one in indices])

    def _partial(self, name: str, tensor) -> PartialPiece | None:
        axes, ops = [], set()
        for axis, placement in enumerate(tensor.placements):
            if placement.is_partial():
                ops.add(OPS.get(placement.reduce_op))
                axes += self._mesh.axes_of(ranks_along(tensor.device_mesh, axis))
        if not axes:
            return None
        if len(ops) != 1 or None in ops:
            raise Error(f'"{name}" has the placements {tensor.placements}, but only sums and means can be recorded',
                        "Call redistribute on it before it is recorded")
        return PartialPiece(self._mesh.known(axes), ops.pop())


def cut(placement, indices: torch.Tensor, count: int, index: int) -> torch.Tensor:
    """The indices of a dim that a rank keeps, cut by the placement's own function."""
    flat = type(placement)(0, split_factor=placement.split_factor) if hasattr(placement, "split_factor") \
        else type(placement)(0)
    shards, _ = flat._split_tensor(indices, count, with_padding=False, contiguous=True)
    return shards[index]


def ranks_along(device_mesh, axis: int) -> list[int]:
    """The ranks that this rank's place on a device mesh reaches along one of its axes."""
    place = list(device_mesh.get_coordinate())
    place[axis] = slice(None)
    return device_mesh.mesh[tuple(place)].tolist()


class DTensorSlot(Slot):
    source = "dtensor"

    def __init__(self, name: str, parameter: torch.Tensor, mesh: Mesh, boxes: DTensorBoxes):
        super().__init__(name, parameter, mesh.world_size)
        self._boxes = boxes

    def value(self) -> torch.Tensor:
        return self.parameter  # DTensor's detach() costs more than the copy, which needs the local tensor alone

    def pieces(self, tensor: torch.Tensor) -> list[Piece]:
        if not is_dtensor(tensor):
            raise Error(f'"{self.name}" is a DTensor, but its gradient or state is a plain tensor of shape '
                        f"{list(tensor.shape)}", "Assign a DTensor with placements instead")
        return self._boxes.pieces(self.name, tensor)
