"""A slot: one parameter of the model as this rank holds it, with its gradient and optimizer state."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from ..error import Error
from ..piece import Piece, whole


class Slot:
    """The plain slot: a tensor of which nothing is known but that this rank holds it."""

    source = "plain"

    def __init__(self, name: str, parameter: torch.Tensor, world_size: int):
        self.name = name
        self.parameter = parameter
        self.world_size = world_size

    def value(self) -> torch.Tensor | None:
        return self.parameter.detach()

    def gradient(self) -> torch.Tensor | None:
        """`.grad`, or Megatron's `.main_grad` where there is none."""
        found = self.parameter.grad
        if found is None:
            found = getattr(self.parameter, "main_grad", None)
        if found is not None and found.layout != torch.strided:
            raise Error(f'The gradient of "{self.name}" has the layout {found.layout}',
                        "Build the embedding with sparse=False")
        return found

    def states(self, optimizers: Iterable[torch.optim.Optimizer]) -> dict[str, torch.Tensor]:
        """The optimizer's tensors of the parameter's shape: exp_avg, exp_avg_sq, momentum_buffer, .."""
        for optimizer in optimizers:
            for key in (self.parameter, getattr(self.parameter, "main_param", None)):
                if key is not None and key in optimizer.state:
                    return {name: state for name, state in optimizer.state[key].items()
                            if isinstance(state, torch.Tensor) and state.shape == key.shape}
        return {}

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
