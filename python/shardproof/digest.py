"""Digests of tensors: 64 bits that depend on every bit and on its position. They are computed where the tensor is."""

from __future__ import annotations

import torch

_GOLDEN_RATIO, _MIX = -7046029254386353131, -4658895280553007687  # odd; 0x9e37.. and 0xbf58.. as int64
_weights: dict[torch.device, torch.Tensor] = {}


def digest(tensor: torch.Tensor) -> torch.Tensor:
    """The digest of a plain tensor's bytes in row-major order, as an int64 tensor without dims.

    It is the sum over the words w[i] of (w[i] ^ (w[i] >> 29)) * c[i] modulo 2^64, with odd c[i] that look random. The
    shift lets a word's high bits reach the low ones; without it, two changed signs would cancel. What remains: two tensors
    that differ in the bits b and b + 29 of just two words have equal digests with a chance of 2^(b - 35).
    """
    with torch.no_grad():
        words = words_of(tensor.detach())
        mixed = words >> 29
        mixed ^= words
        factors = weights(words.numel(), words.device)
        # torch has no dot of integers on GPUs.
        return torch.dot(mixed, factors) if words.device.type == "cpu" else mixed.mul_(factors).sum()


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
