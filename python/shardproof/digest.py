"""Digests of tensors: 64 bits that depend on every bit and on its position. They are computed where the tensor is."""

import threading

import torch

_GOLDEN_RATIO, _MIX = -7046029254386353131, -4658895280553007687  # odd; 0x9e37.. and 0xbf58.. as int64
_BLOCK = 1 << 15     # words that are mixed at a time, so that they stay in a core's cache
_MOST_LENGTHS = 256  # that a thread keeps
_weights: dict[torch.device, torch.Tensor] = {}


def digest(tensor: torch.Tensor) -> int | torch.Tensor:
    """The digest of a plain tensor's bytes in row-major order: an integer, of which 64 bits count, or on another device
    than the CPU an int64 tensor without dims, so that nothing waits for that device.

    It is the sum over the words w[i] of (w[i] ^ (w[i] >> 29)) * c[i] modulo 2^64, with odd c[i] that look random. The
    shift lets a word's high bits reach the low ones; without it, two changed signs would cancel. What remains: two tensors
    that differ in the bits b and b + 29 of just two words have equal digests with a chance of 2^(b - 35).
    """
    words = words_of(tensor.detach())
    if words.is_cpu:
        return _own.digest(words)
    mixed = words >> 29
    mixed ^= words
    return mixed.mul_(weights(words.numel(), words.device)).sum()  # torch has no dot of integers on GPUs


class OnCpu(threading.local):
    """What each thread keeps for the next digest: memory, of which the system would have to clear each page, and views
    of it and of the weights by the number of words. A step computes many small digests, and each view takes its time."""

    def __init__(self):
        with torch.inference_mode(False):
            self._mixed = torch.empty(_BLOCK, dtype=torch.int64)
            self._shift = torch.tensor(29)
        self._views: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}

    def digest(self, words: torch.Tensor) -> int:
        count = words.numel()
        views = self._views.get(count) or self._add_views(count)
        blocks = (words,) if count <= _BLOCK else words.split(_BLOCK)
        total = 0
        for block, (mixed, factors) in zip(blocks, views):
            torch.bitwise_right_shift(block, self._shift, out=mixed)
            total += torch.dot(mixed.bitwise_xor_(block), factors).item()
        return total

    def _add_views(self, count: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        if len(self._views) >= _MOST_LENGTHS:
            self._views.clear()
        factors = weights(count, self._mixed.device).split(_BLOCK)
        self._views[count] = [(self._mixed[:len(one)], one) for one in factors]
        return self._views[count]


_own = OnCpu()


def words_of(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes as int64; the last word is filled up with zeros."""
    data = tensor.contiguous().view(-1)
    if data.numel() * data.element_size() % 8:
        data = data.view(torch.uint8)
        data = torch.cat([data, data.new_zeros(-data.numel() % 8)])
    elif data.storage_offset() * data.element_size() % 8:
        data = data.clone()
    return data.view(torch.int64)


def weights(count: int, device: torch.device) -> torch.Tensor:
    known = _weights.get(device)
    if known is None or known.numel() < count:
        with torch.inference_mode(False), torch.no_grad():
            words = torch.arange(1, 2 * count + 1, device=device) * _GOLDEN_RATIO
            words ^= words >> 31
            words *= _MIX
            words ^= words >> 29
            known = _weights[device] = words | 1
    return known[:count]
