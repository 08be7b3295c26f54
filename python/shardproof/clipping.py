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
        wrappers = {id(original): self._wrap(name, original) for name, original in originals().items()}
        for names, name in bindings(wrappers.keys()):
            self._bound.append((names, name, names[name]))
            names[name] = wrappers[id(names[name])]
        fsdp1 = sys.modules.get("torch.distributed.fsdp.fully_sharded_data_parallel")
        if fsdp1 is not None:
            self._wrap_method(fsdp1.FullyShardedDataParallel, "clip_grad_norm_")

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


# Of each installed module: how many names it had, and those for clipping functions. They are most of a process.
_installed: dict[str, tuple[int, list[str]]] = {}
PREFIXES = (sys.prefix, sys.base_prefix, torch.__path__[0])


def originals() -> dict:
    """The clipping functions of this torch, by their public names, which not all have where they are defined."""
    functions = vars(torch.nn.utils)
    return {name: functions[name] for name in FUNCTIONS if name in functions}


def look_through_installed() -> None:
    """Finds the names that installed modules have, so that a process which is forked later need not."""
    bindings(set(map(id, originals().values())))


def bindings(wanted) -> list[tuple[dict, str]]:
    """(names of a module, name) wherever a module has one of the functions whose ids are wanted."""
    found = []
    for module_name, module in list(sys.modules.items()):
        names = getattr(module, "__dict__", None) or {}
        count, held = _installed.get(module_name, (-1, []))
        if count != len(names):
            # Most modules have none, which is seen without a step of Python for each name.
            has_none = wanted.isdisjoint(map(id, list(names.values())))
            held = [] if has_none else [name for name, value in list(names.items()) if id(value) in wanted]
            if str(names.get("__file__")).startswith(PREFIXES):
                _installed[module_name] = (len(names), held)
        elif not held:
            continue
        if not any(names is seen for seen, _ in found):  # a script's module is also "__mp_main__"
            found += [(names, name) for name in held if id(names.get(name)) in wanted]
    return found
