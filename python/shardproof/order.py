"""The order in which a rank computes: of modules in the forward pass, and of gradients in the backward pass."""

import functools
import weakref
from collections.abc import Callable, Sequence

import torch

from . import names
from .sources.slot import Slot


class CompiledCall:
    """Announces each call of a module that its compile() has compiled together with its hooks."""

    def __init__(self, module: torch.nn.Module, announce: Callable[[torch.nn.Module], None]):
        self._module = module
        self._original = original = module._compiled_call_impl

        def call(*args, **kwargs):
            if not torch.compiler.is_compiling():
                announce(module)
            return original(*args, **kwargs)

        self._call = module._compiled_call_impl = call

    def remove(self) -> None:
        if self._module._compiled_call_impl is self._call:  # else it was compiled again
            self._module._compiled_call_impl = self._original


class Compiling:
    """What torch compiles while anybody listens: modules by their compile(), and the calls of what torch.compile gave."""

    def __init__(self):
        self._listeners: weakref.WeakSet[ComputationOrder] = weakref.WeakSet()
        self._originals: tuple | None = None

    def add(self, listener: "ComputationOrder") -> None:
        self._listeners.add(listener)
        if self._originals is not None:
            return
        from torch._dynamo.eval_frame import OptimizedModule  # which the first step of an optimizer imports, too
        self._originals = compile_module, call_optimized = torch.nn.Module.compile, OptimizedModule.__call__

        @functools.wraps(compile_module)
        def compile_and_tell(module, *args, **kwargs):
            result = compile_module(module, *args, **kwargs)
            for one in list(self._listeners):
                one.compiled(module)
            return result

        @functools.wraps(call_optimized)
        def tell_and_call(module, *args, **kwargs):
            if not torch.compiler.is_compiling():
                for one in list(self._listeners):
                    one.called(module)
            return call_optimized(module, *args, **kwargs)

        torch.nn.Module.compile, OptimizedModule.__call__ = compile_and_tell, tell_and_call

    def discard(self, listener: "ComputationOrder") -> None:
        self._listeners.discard(listener)
        if self._listeners or self._originals is None:
            return
        from torch._dynamo.eval_frame import OptimizedModule
        torch.nn.Module.compile, OptimizedModule.__call__ = self._originals
        self._originals = None


_compiling = Compiling()


class ComputationOrder:
    """Watches the modules and gradients of a step. `on_start` is called at the first forward pass of each step, and
    `on_gradient` with the id of a parameter to whose gradient a backward pass has added."""

    def __init__(self, models: Sequence[torch.nn.Module], slots: Sequence[Slot], on_start: Callable[[], None],
                 on_gradient: Callable[[int], None]):
        self._on_start = on_start
        self._gradient_came = on_gradient
        self._forward: dict[int, int] = {}
        self._ready: dict[int, int] = {}
        self._count = 0
        self._owners: dict[int, list[int]] = {}
        self._slots = slots
        self._roots = list(models)
        self._is_announced = False  # whether a compiled module was called in this step: its graph need not tell
        # FSDP reduces the gradients of a group at once, so that its hooks say little of the order within it.
        self._by_forward = any("FSDPModule" in names_of_types(module) or "FullyShardedDataParallel" in
                               names_of_types(module) for one in models for module in one.modules())
        self._watched = {id(module) for one in models for module in one.modules()}
        self._handles = [handle for one in models for handle in self._watch_modules(one)]
        self._handles += self._watch_gradients()
        _compiling.add(self)

    def _watch_modules(self, model: torch.nn.Module):
        for module in model.modules():
            for parameter in module._parameters.values():
                if parameter is not None:
                    self._owners.setdefault(id(parameter), []).append(id(module))
            hook = self._on_root if module is model else self._on_forward
            yield module.register_forward_pre_hook(hook)
            if getattr(module, "_compiled_call_impl", None) is not None:
                yield CompiledCall(module, self._announce)

    def compiled(self, module: torch.nn.Module) -> None:
        """A module was compiled in place."""
        if id(module) in self._watched and getattr(module, "_compiled_call_impl", None) is not None:
            self._handles.append(CompiledCall(module, self._announce))

    def called(self, optimized: torch.nn.Module) -> None:
        """What torch.compile made of a module is called."""
        inside = optimized._modules.get("_orig_mod")
        if inside is not None and any(id(one) in self._watched for one in inside.modules()):
            self._announce(inside)

    def _watch_gradients(self):
        for slot in self._slots:
            parameter = slot.parameter
            if parameter.requires_grad and parameter.is_leaf:
                yield parameter.register_post_accumulate_grad_hook(self._on_gradient)

    def _on_forward(self, module, _):
        # A compiled graph must not depend on what has run before, else each of its calls is compiled anew.
        if not torch.compiler.is_compiling():
            self._began([module])

    def _on_root(self, module, _):
        if not torch.compiler.is_compiling():
            self._began([module])
        elif not self._is_announced:  # a compiled function calls it
            break_graph(self, module)

    def _announce(self, module: torch.nn.Module) -> None:
        """A graph calls no hooks. The modules within a block of a model have its place, those of a whole model none."""
        self._is_announced = True
        is_whole = any(one is module for root in self._roots for one in [root, *wrapped_by(root)]) or \
            any(root is one for root in self._roots for one in module.modules())
        self._began([module] if is_whole else list(module.modules()))

    def _began(self, modules: list[torch.nn.Module]) -> None:
        if not self._forward:
            self._on_start()
        position = len(self._forward)
        for one in modules:
            self._forward.setdefault(id(one), position)

    def _on_gradient(self, parameter):
        self._ready[id(parameter)] = self._count
        self._count += 1
        self._gradient_came(id(parameter))

    def clear(self) -> None:
        self._is_announced = False
        self._forward.clear()
        self._ready.clear()
        self._count = 0

    def saw_gradients(self) -> bool:
        """Whether a backward pass has run in this step, as far as hooks tell: where they say little, a forward pass."""
        return bool(self._ready) or self._by_forward and bool(self._forward)

    def saw_all(self, slots: Sequence[Slot]) -> bool:
        """Whether the gradients of all these slots have come in this step."""
        return all(id(slot.parameter) in self._ready for slot in slots)

    def of_gradients(self) -> dict[int, int]:
        """The position in this step's backward pass, by id of the slot. Slots of unknown position are absent."""
        times = {id(slot): self._time(slot) for slot in self._slots}
        known = sorted((time, index) for index, time in enumerate(times.values()) if time is not None)
        ids = list(times)
        return {ids[index]: position for position, (_, index) in enumerate(known)}

    def _time(self, slot: Slot) -> int | None:
        if not self._by_forward:
            return self._ready.get(id(slot.parameter))
        uses = [self._forward[owner] for owner in self._owners.get(id(slot.parameter), ()) if owner in self._forward]
        return -min(uses) if uses else None

    def remove(self) -> None:
        _compiling.discard(self)
        for handle in reversed(self._handles):
            handle.remove()
        self._handles = []


def wrapped_by(module: torch.nn.Module) -> list[torch.nn.Module]:
    """What a wrapper such as DDP, or several around each other, hold."""
    found = []
    while (name := names.wrapped(module)) is not None:
        module = module._modules[name]
        found.append(module)
    return found


@torch.compiler.disable
def break_graph(order: "ComputationOrder", module: torch.nn.Module) -> None:
    order._began([module])


def names_of_types(module: torch.nn.Module) -> set[str]:
    return {kind.__name__ for kind in type(module).__mro__}
