"""Digests of tensors: 64 bits that depend on every bit and on its position. They are computed where the tensor is."""

from __future__ import annotations

import threading

import torch

_GOLDEN_RATIO, _MIX = -7046029254386353131, -4658895280553007687  # odd; 0x9e37.. and 0xbf58.. as int64
_SHIFT = 29
_BLOCK = 1 << 15  # words: a block and what is computed from it stay in a core's cache
_weights: dict[torch.device, torch.Tensor] = {}
_own = threading.local()


def digest(tensor: torch.Tensor) -> torch.Tensor:
    """The digest of a plain tensor's bytes in row-major order, as an int64 tensor without dims.

    It is the sum over the words w[i] of (w[i] ^ (w[i] >> 29)) * c[i] modulo 2^64, with odd c[i] that look random. The
    shift lets a word's high bits reach the low ones; without it, two changed signs would cancel. What remains: two tensors
    that differ in the bits b and b + 29 of just two words have equal digests with a chance of 2^(b - 35).
    """
    with torch.no_grad():
        words = words_of(tensor.detach())
        factors = weights(words.numel(), words.device)
        if words.device.type == "cpu":
            return digest_in_blocks(words, factors)
        mixed = words >> _SHIFT
        mixed ^= words
        return mixed.mul_(factors).sum()  # torch has no dot of integers on GPUs


def digest_in_blocks(words: torch.Tensor, factors: torch.Tensor) -> torch.Tensor:
    """The same without new memory for what is mixed, of which the system would have to clear each page."""
    mixed = room()
    if words.numel() < _BLOCK:
        mixed = mixed[:words.numel()]
    elif words.numel() > _BLOCK:
        return sum(digest_in_blocks(*pair) for pair in zip(words.split(_BLOCK), factors.split(_BLOCK)))
    torch.bitwise_right_shift(words, _SHIFT, out=mixed)
    torch.bitwise_xor(mixed, words, out=mixed)
    return torch.dot(mixed, factors)


def room() -> torch.Tensor:
    if not hasattr(_own, "room"):
        _own.room = torch.empty(_BLOCK, dtype=torch.int64)
    return _own.room


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
        words = torch.arange(1, 2 * count + 1, device=device) * _GOLDEN_RATIO
        words ^= words >> 31
        words *= _MIX
        words ^= words >> 29
        known = _weights[device] = words | 1
    return known[:count]
