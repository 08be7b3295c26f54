"""Sees the gradients before they are clipped, and the norm, while a run is recorded."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable

import torch

FUNCTIONS = ("clip_grad_norm_", "clip_grads_with_norm_", "clip_grad_value_")


class Clipping:
    """Wraps torch's functions that clip gradients, wherever a module has bound their names.

    `before()` is called at entry, `after(norm, max_norm)` when a norm was clipped.
    """

    def __init__(self, before: Callable[[], None], after: Callable[[torch.Tensor, float], None]):
        self._before = before
        self._after = after
        self._bound: list[tuple[dict, str, object]] = []
        self._inside = False
        for name in FUNCTIONS:
            original = getattr(torch.nn.utils.clip_grad, name, None)
            if original is not None:
                self._replace(original, self._wrap(name, original))
        fsdp1 = sys.modules.get("torch.distributed.fsdp.fully_sharded_data_parallel")
        if fsdp1 is not None:
            self._wrap_method(fsdp1.FullyShardedDataParallel, "clip_grad_norm_")

    def _replace(self, original, wrapper) -> None:
        for module in list(sys.modules.values()):
            names = getattr(module, "__dict__", None)
            for name in [one for one, value in list((names or {}).items()) if value is original]:
                self._bound.append((names, name, original))
                names[name] = wrapper

    def _wrap_method(self, owner: type, name: str) -> None:
        original = vars(owner)[name]
        setattr(owner, name, self._wrap("method", original))
        self._bound.append((owner, name, original))

    def _wrap(self, name: str, original):
        @functools.wraps(original)
        def clip(*args, **kwargs):
            if self._inside:
                return original(*args, **kwargs)
            self._inside = True
            try:
                self._before()
                result = original(*args, **kwargs)
                self._report(name, result, args, kwargs)
            finally:
                self._inside = False
            return result
        return clip

    def _report(self, name: str, result, args, kwargs) -> None:
        max_norm = kwargs.get("max_norm", args[1] if len(args) > 1 else None)
        if name == "clip_grads_with_norm_":
            result = kwargs.get("total_norm", args[2] if len(args) > 2 else None)
        if name != "clip_grad_value_" and result is not None and max_norm is not None:
            self._after(result, float(max_norm))

    def remove(self) -> None:
        for owner, name, original in self._bound:
            if isinstance(owner, dict):
                owner[name] = original
            else:
                setattr(owner, name, original)
        self._bound = []
