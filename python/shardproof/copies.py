"""Copies of tensors, packed into slabs of memory: Linux clears a slab 2 MiB at a time, and not page by page."""

from __future__ import annotations

import mmap
import sys
from collections.abc import Iterator, Sequence

import torch

SLAB = 32 << 20  # bytes; of a slab that is not full, what was not written takes no memory
ALIGNMENT = 64


class Copies:
    """Keeps copies in the order in which they were added."""

    def __init__(self):
        self._slab = torch.empty(0, dtype=torch.uint8)
        self._used = 0
        self._kept: list[tuple[torch.Tensor, list[torch.Size]]] = []  # tensors of one dtype, and the shapes in it

    def add(self, tensors: Sequence[torch.Tensor]) -> None:
        begin = 0
        for end in range(1, len(tensors) + 1):
            if end == len(tensors) or kind_of(tensors[end]) != kind_of(tensors[begin]):
                self._add_alike(tensors[begin:end])
                begin = end

    def tensors(self) -> Iterator[torch.Tensor]:
        for flat, shapes in self._kept:
            parts = flat.split([shape.numel() for shape in shapes])
            yield from (part.view(shape) for part, shape in zip(parts, shapes))

    def _add_alike(self, tensors: Sequence[torch.Tensor]) -> None:
        """Adds tensors of one dtype on one device."""
        with torch.inference_mode(False), torch.no_grad():
            target = self._take(sum(one.numel() for one in tensors), tensors[0].dtype)
            if tensors[0].is_cpu:
                torch.cat([one.reshape(-1) for one in tensors], out=target)
            else:
                for one, part in zip(tensors, target.split([one.numel() for one in tensors])):
                    part.copy_(one.reshape(-1))
        self._kept.append((target, [one.shape for one in tensors]))

    def _take(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        size = count * dtype.itemsize
        begin = -(-self._used // ALIGNMENT) * ALIGNMENT
        if begin + size > self._slab.numel():
            self._slab, begin = slab(max(SLAB, size)), 0
        self._used = begin + size
        return self._slab[begin:begin + size].view(dtype)


def kind_of(tensor: torch.Tensor) -> tuple:
    return tensor.dtype, tensor.device


def slab(size: int) -> torch.Tensor:
    if sys.platform != "linux":
        return torch.empty(size, dtype=torch.uint8)
    memory = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    try:
        memory.madvise(mmap.MADV_HUGEPAGE)
    except OSError:
        pass  # a kernel without them
    return torch.frombuffer(memory, dtype=torch.uint8)
