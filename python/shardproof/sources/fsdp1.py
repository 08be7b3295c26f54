"""FSDP1 keeps each rank's part of every parameter in one flat tensor; its handle says which elements these are."""

from collections.abc import Iterable, Iterator

import torch

from .. import names
from ..mesh import Mesh
from ..piece import Piece
from .slot import Slot


def handles(model: torch.nn.Module) -> Iterator:
    """The flat parameter's handle of every FSDP1 wrapper in a model."""
    for module in model.modules():
        handle = getattr(module, "_handle", None)
        if handle is not None and hasattr(getattr(handle, "flat_param", None), "_shard_param_infos"):
            yield handle


def slots(model: torch.nn.Module, mesh: Mesh) -> list[Slot]:
    prefixes = {id(module): name for name, module in names.named_modules(model)}
    found: list[Slot] = []
    for handle in handles(model):
        flat = handle.flat_param
        originals = flat._params if flat._params is not None else [None] * flat._num_params
        for info, shape, place, original in zip(flat._param_infos, flat._shapes, flat._shard_param_infos, originals):
            if place.in_shard:
                name = names.join(prefixes[id(info.module)], info.param_name)
                found.append(FlatSlot(name, flat, original, tuple(shape), place, mesh.world_size))
    return found


class FlatSlot(Slot):
    """The elements of one original parameter in the flat parameter of this rank."""

    source = "fsdp1"

    def __init__(self, name, flat, original, shape, place, world_size):
        super().__init__(name, flat if original is None else original, world_size)
        self._is_flat = original is None
        self._shape = shape
        self._range = (place.intra_param_start_idx, place.intra_param_end_idx + 1)
        self._slice = slice(place.offset_in_shard, place.offset_in_shard + place.numel_in_shard)

    def value(self) -> torch.Tensor:
        return self._own(self.parameter.detach())

    def gradient(self) -> torch.Tensor | None:
        found = super().gradient()
        return None if found is None else self._own(found)

    def states(self, optimizers: Iterable[torch.optim.Optimizer]) -> dict[str, torch.Tensor]:
        return {name: self._own(state) for name, state in super().states(optimizers).items()}

    def _own(self, tensor: torch.Tensor) -> torch.Tensor:
        """This parameter's elements of a tensor that is laid out like `parameter`."""
        return tensor.reshape(-1)[self._slice] if self._is_flat else tensor.reshape(-1)

    def pieces(self, tensor: torch.Tensor) -> list[Piece]:
        return [Piece(tensor, self._shape, flat=self._range, source=self.source)]
