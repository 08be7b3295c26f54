"""DeepSpeed ZeRO keeps flat parts of parameters. (Read without collectives.)"""

from __future__ import annotations

import torch

from ..mesh import Mesh
from .slot import Slot


def has_layouts(model: torch.nn.Module) -> bool:
    return False


def slots(model: torch.nn.Module, mesh: Mesh) -> list[Slot]:
    return []
