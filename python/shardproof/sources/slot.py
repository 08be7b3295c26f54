"""A slot: one parameter of the model as this rank holds it, with its gradient and optimizer state."""

from collections.abc import Iterable, Mapping

import torch

from ..error import Error
from ..piece import Piece, whole


STEPS = "step"  # under which torch's optimizers keep their count of steps


def local_number(tensor: torch.Tensor) -> float:
    """The number in a tensor or DTensor of one element."""
    return float(getattr(tensor, "_local_tensor", tensor))


def held_gradient(parameter: torch.Tensor) -> torch.Tensor | None:
    """`.grad`, or Megatron's `.main_grad` where there is none."""
    return getattr(parameter, "main_grad", None) if parameter.grad is None else parameter.grad


class Slot:
    """The plain slot: a tensor of which nothing is known but that this rank holds it."""

    source = "plain"
    axes: tuple[str, ...] = ()  # that a declared layout names for its shards

    def __init__(self, name: str, parameter: torch.Tensor, world_size: int):
        self.name = name
        self.parameter = parameter
        self.world_size = world_size

    def value(self) -> torch.Tensor | None:
        return self.parameter.detach()

    def gradient(self) -> torch.Tensor | None:
        found = held_gradient(self.parameter)
        if found is not None and found.layout != torch.strided:
            raise Error(f'The gradient of "{self.name}" has the layout {found.layout}',
                        "Build the embedding with sparse=False")
        return found

    def states(self, optimizers: Iterable[torch.optim.Optimizer]) -> dict[str, torch.Tensor]:
        """The optimizer's tensors of the parameter's shape: exp_avg, exp_avg_sq, momentum_buffer, .."""
        key, state = self._state(optimizers)
        return {name: one for name, one in state.items()
                if isinstance(one, torch.Tensor) and one.shape == key.shape and name != STEPS}

    def steps(self, optimizers: Iterable[torch.optim.Optimizer]) -> int | None:
        """How many steps the optimizer has counted for this parameter, if it does that."""
        count = self._state(optimizers)[1].get(STEPS)
        count = local_number(count) if isinstance(count, torch.Tensor) else count
        return int(count) if isinstance(count, (int, float)) and count == int(count) else None

    def keys(self) -> list[torch.Tensor]:
        """What an optimizer may hold for this parameter: itself, or the copy that Megatron steps."""
        return [one for one in (self.parameter, getattr(self.parameter, "main_param", None)) if one is not None]

    def _state(self, optimizers: Iterable[torch.optim.Optimizer]) -> tuple[torch.Tensor, Mapping]:
        """The optimizer's state for this parameter, and the tensor under which it is kept."""
        for optimizer in optimizers:
            states = getattr(optimizer, "state", None)  # a script's own class may have none
            for key in self.keys():
                if isinstance(states, Mapping) and key in states:
                    return key, states[key]
        return self.parameter, {}

    def pieces(self, tensor: torch.Tensor) -> list[Piece]:
        """Where the elements lie of a tensor that is laid out like this parameter: its value, gradient or state."""
        if self.world_size == 1:
            return [whole(tensor, self.source)]
        return [Piece(tensor, tuple(tensor.shape), source=self.source)]

    def gradient_pieces(self, gradient: torch.Tensor) -> list[Piece]:
        return self.pieces(gradient)

    def write(self, full: torch.Tensor) -> None:
        """Overwrites the parameter with its elements of a full tensor."""
        main = getattr(self.parameter, "main_param", None)
        for target in (self.value(), main):
            if target is not None and (target is not main or main.shape == self.parameter.shape):
                for piece in self.pieces(target.detach()):
                    piece.tensor.copy_(piece.of(full))
