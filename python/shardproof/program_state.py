"""What a program keeps beside parameters and optimizer states: buffers, and the states of random generators."""

from collections.abc import Iterator, Mapping, Sequence

import torch

from . import names
from .mesh import Mesh
from .piece import Piece, whole
from .safetensors_file import CODES
from .sources import megatron
from .sources.dtensor import DTensorBoxes
from .sources.find import slot_of


class Buffers:
    """The persistent buffers of a model, as a checkpoint holds them. Others are tables, or counts of one rank. Megatron
    numbers the layers of each stage from 0, so that the names of its buffers do not tell which layer's they are."""

    def __init__(self, models: Sequence[torch.nn.Module], mesh: Mesh, layouts: Mapping | None, boxes: DTensorBoxes):
        self._mesh, self._layouts, self._boxes = mesh, layouts, boxes
        self._owners: dict[str, tuple[dict, str]] = {}  # the buffers of a module and one's name there, by full name
        for model in models:
            if layouts is None and megatron.has_layouts(model):
                continue
            for prefix, module in names.named_modules(model):
                for name in module._buffers.keys() - module._non_persistent_buffers_set:
                    self._owners.setdefault(names.join(prefix, name), (module._buffers, name))

    def names(self) -> list[str]:
        return sorted(self._owners)

    def pieces(self) -> Iterator[tuple[str, Piece]]:
        """The name and the pieces of each buffer that the format can hold, as it is now."""
        for name, (buffers, key) in sorted(self._owners.items()):
            tensor = buffers.get(key)
            if tensor is None or tensor.dtype not in CODES or tensor.layout != torch.strided or tensor.is_meta:
                continue
            for piece in slot_of(name, tensor, self._mesh, self._layouts, self._boxes).pieces(tensor.detach()):
                yield name, piece


def random_states() -> Iterator[tuple[str, Piece]]:
    """The state of torch's generator on the CPU, and of that on this rank's GPU where one is used."""
    yield "cpu", whole(torch.get_rng_state(), "plain")
    if torch.cuda.is_available() and torch.cuda.is_initialized() and not torch.cuda.is_current_stream_capturing():
        yield "cuda", whole(torch.cuda.get_rng_state(), "plain")
