"""DeepSpeed ZeRO keeps flat parts of the parameters, gradients and states. They are read without collectives."""

from collections.abc import Iterable

import torch

from .. import names
from ..mesh import Mesh
from ..piece import Piece
from .slot import Slot


def has_layouts(model: torch.nn.Module) -> bool:
    return any(hasattr(one, "ds_id") or hasattr(one, "_hp_mapping") for one in model.parameters())


def slots(model: torch.nn.Module, mesh: Mesh) -> list[Slot]:
    optimizer = getattr(model, "optimizer", None)
    return [slot for name, parameter in names.named_parameters(model)
            if (slot := slot_of(name, parameter, mesh.world_size, optimizer)) is not None]


def slot_of(name: str, parameter: torch.Tensor, world_size: int, optimizer) -> Slot | None:
    """The slot of a parameter, or None if this rank holds no part of it."""
    if hasattr(parameter, "ds_id"):
        slot = Zero3Slot(name, parameter, world_size)
        return slot if slot.count > 0 else None
    if not hasattr(parameter, "_hp_mapping"):
        return Slot(name, parameter, world_size)
    return None if parameter._hp_mapping is None else Zero12Slot(name, parameter, world_size, optimizer)


class Zero12Slot(Slot):
    """ZeRO 1 and 2: the parameter is whole on each rank; its float32 copy, gradient and states are a part of it."""

    source = "deepspeed"

    def __init__(self, name: str, parameter: torch.Tensor, world_size: int, optimizer):
        super().__init__(name, parameter, world_size)
        self._map = parameter._hp_mapping
        self._optimizer = optimizer
        address = self._map.lp_fragment_address
        self._range = (address.start, address.start + address.numel)

    def value(self) -> torch.Tensor:
        return self._map.hp_fragment.detach()

    def gradient(self) -> torch.Tensor | None:
        if not self._map.use_offload and self._map.gradient_dict.get(self._map.param_group_index) is None:
            return None
        found = self._map.get_lp_grad_fragment(self.parameter._index_in_param_group).flatten()
        if found.numel() == self.parameter.numel():
            found = found[slice(*self._range)]
        return unscaled(found, self._optimizer)

    def states(self, optimizers: Iterable[torch.optim.Optimizer]) -> dict[str, torch.Tensor]:
        return dict(self._map.optim_fragment or {})

    def pieces(self, tensor: torch.Tensor) -> list[Piece]:
        return [Piece(tensor, tuple(self.parameter.shape), flat=self._range, source=self.source)]

    def write(self, full: torch.Tensor) -> None:
        super().write(full)
        self.parameter.data.copy_(full)


class Zero3Slot(Slot):
    """ZeRO 3: each rank holds an equal part of the parameter, the last ones with padding."""

    source = "deepspeed"

    def __init__(self, name: str, parameter: torch.Tensor, world_size: int):
        super().__init__(name, parameter, world_size)
        size = parameter.ds_tensor.numel()
        start = size * torch.distributed.get_rank(parameter.ds_process_group)
        self.count = min(size, parameter.ds_numel - start)
        self._range = (start, start + self.count)

    def value(self) -> torch.Tensor:
        found = self._optimizer().get_local_fp32_param(self.parameter) if self._optimizer() else None
        return (self.parameter.ds_tensor if found is None else found).detach()[:self.count]

    def gradient(self) -> torch.Tensor | None:
        found = self._optimizer().get_local_fp32_grad_for_param(self.parameter) if self._optimizer() else None
        return None if found is None else unscaled(found.flatten()[:self.count], self._optimizer())

    def states(self, optimizers: Iterable[torch.optim.Optimizer]) -> dict[str, torch.Tensor]:
        if not self.parameter.requires_grad:
            return {}
        group = self._optimizer().grad_position[self._optimizer().get_param_id(self.parameter)][0]
        flat = self._optimizer().fp32_partitioned_groups_flat[group]
        state = self._optimizer().optimizer.state.get(flat, {})
        return {name: self._optimizer().get_local_fp32_param(self.parameter, name)[:self.count]
                for name, one in state.items() if isinstance(one, torch.Tensor) and one.shape == flat.shape}

    def pieces(self, tensor: torch.Tensor) -> list[Piece]:
        return [Piece(tensor, tuple(self.parameter.ds_shape), flat=self._range, source=self.source)]

    def write(self, full: torch.Tensor) -> None:
        super().write(full)
        self.parameter.ds_tensor[:self.count].copy_(full.reshape(-1)[slice(*self._range)])
        if self.parameter.data.numel() == self.parameter.ds_numel:
            self.parameter.data.copy_(full.reshape(self.parameter.data.shape))

    def _optimizer(self):
        return getattr(self.parameter, "_z3_optimizer", None)


def unscaled(gradient: torch.Tensor, optimizer) -> torch.Tensor:
    """The gradient without the factor of loss scaling, which DeepSpeed removes within the step."""
    scale = float(getattr(optimizer, "loss_scale", 1) or 1)
    return gradient if scale == 1 else gradient / scale
