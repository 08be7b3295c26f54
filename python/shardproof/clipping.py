"""Sees the gradients before they are clipped, and the norm, while a run is recorded."""

import functools
import sys
import weakref
from collections.abc import Callable

import torch

FUNCTIONS = ("clip_grad_norm_", "clip_grads_with_norm_", "clip_grad_value_")


class Clipping:
    """A listener to torch's functions that clip gradients, wherever a module has bound their names.

    `before(parameters)` is called at entry, with None where a method clips all that its model has. Where it returns
    true `after(norm, max_norm)` is called when a norm was clipped.
    """

    def __init__(self, before: Callable[[list | None], bool], after: Callable[[torch.Tensor, float], None]):
        self.before = before
        self.after = after
        _wrappers.add(self)

    def remove(self) -> None:
        _wrappers.discard(id(self))


class Wrappers:
    """Wraps the functions while anybody listens: recorders may overlap, and one that is not closed may be forgotten."""

    def __init__(self):
        self._listeners: dict[int, weakref.ref[Clipping]] = {}
        self._bound: list[tuple[dict | type, str, object]] = []
        self._by_original: dict[int, Callable] = {}
        self._inside = False

    def add(self, listener: Clipping) -> None:
        number = id(listener)
        self._listeners[number] = weakref.ref(listener, lambda _: self.discard(number))
        if not self._by_original:
            self._by_original = {id(original): self._wrap(name, original) for name, original in originals().items()}
        for names, name in bindings(self._by_original.keys()):  # those that were bound since, too
            self._bound.append((names, name, names[name]))
            names[name] = self._by_original[id(names[name])]
        fsdp1 = sys.modules.get("torch.distributed.fsdp.fully_sharded_data_parallel")
        if fsdp1 is not None and not any(owner is fsdp1.FullyShardedDataParallel for owner, _, _ in self._bound):
            self._wrap_method(fsdp1.FullyShardedDataParallel, "clip_grad_norm_")

    def discard(self, number: int) -> None:
        self._listeners.pop(number, None)
        if self._listeners:
            return
        for owner, name, original in self._bound:
            if isinstance(owner, dict):
                owner[name] = original
            else:
                setattr(owner, name, original)
        self._bound, self._by_original = [], {}

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
                parameters, args, kwargs = (None, args, kwargs) if name == "method" else listed(args, kwargs)
                listeners = [one() for one in list(self._listeners.values())]
                told = [one for one in listeners if one is not None and one.before(parameters)]
                result = original(*args, **kwargs)
                report(told, name, result, args, kwargs)
            finally:
                self._inside = False
            return result
        return clip


_wrappers = Wrappers()


def report(listeners: list[Clipping], name: str, result, args, kwargs) -> None:
    max_norm = kwargs.get("max_norm", args[1] if len(args) > 1 else None)
    if name == "clip_grads_with_norm_":
        result = kwargs.get("total_norm", args[2] if len(args) > 2 else None)
    if name != "clip_grad_value_" and result is not None and max_norm is not None:
        for one in listeners:
            one.after(result, float(max_norm))


def listed(args: tuple, kwargs: dict) -> tuple[list, tuple, dict]:
    """The parameters that a clip is given, and its arguments with a list of them, since a generator gives them once."""
    given = args[0] if args else kwargs.get("parameters", ())
    if isinstance(given, torch.Tensor):
        return [given], args, kwargs
    parameters = list(given)
    return parameters, (parameters, *args[1:]) if args else args, kwargs if args else {**kwargs, "parameters": parameters}


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
