"""The order in which a rank computes: of modules in the forward pass, and of gradients in the backward pass."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

from .sources.slot import Slot


class CompiledCall:
    """Announces each call of a module that its compile() has compiled together with its hooks."""

    def __init__(self, module: torch.nn.Module, announce: Callable[[torch.nn.Module], None]):
        self._module = module
        self._original = original = module._compiled_call_impl

        def call(*args, **kwargs):
            announce(module)
            return original(*args, **kwargs)

        module._compiled_call_impl = call

    def remove(self) -> None:
        self._module._compiled_call_impl = self._original


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
        # FSDP reduces the gradients of a group at once, so that its hooks say little of the order within it.
        self._by_forward = any("FSDPModule" in names_of_types(module) or "FullyShardedDataParallel" in
                               names_of_types(module) for one in models for module in one.modules())
        self._handles = [handle for one in models for handle in self._watch_modules(one)]
        self._handles += self._watch_gradients()
        self._models = models
        for one in models:
            self._watch_compile(one)

    def _watch_modules(self, model: torch.nn.Module):
        for module in model.modules():
            for parameter in module._parameters.values():
                if parameter is not None:
                    self._owners.setdefault(id(parameter), []).append(id(module))
            yield module.register_forward_pre_hook(self._on_forward)
            if getattr(module, "_compiled_call_impl", None) is not None:
                yield CompiledCall(module, self._on_forward)

    def _watch_compile(self, model: torch.nn.Module) -> None:
        """Of a model that is compiled while it is recorded, no hook runs outside of the graph."""
        def compile_model(*args, **kwargs):
            type(model).compile(model, *args, **kwargs)
            self._handles.append(CompiledCall(model, self._on_forward))

        model.compile = compile_model

    def _watch_gradients(self):
        for slot in self._slots:
            parameter = slot.parameter
            if parameter.requires_grad and parameter.is_leaf:
                yield parameter.register_post_accumulate_grad_hook(self._on_gradient)

    def _on_forward(self, module, _=None):
        # A compiled graph must not depend on what has run before, else each of its calls is compiled anew.
        if torch.compiler.is_compiling():
            return
        if not self._forward:
            self._on_start()
        for one in module.modules() if is_compiled(module) else [module]:
            self._forward.setdefault(id(one), len(self._forward))

    def _on_gradient(self, parameter):
        self._ready[id(parameter)] = self._count
        self._count += 1
        self._gradient_came(id(parameter))

    def clear(self) -> None:
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
        for handle in self._handles:
            handle.remove()
        self._handles = []
        for one in self._models:
            vars(one).pop("compile", None)


def is_compiled(module: torch.nn.Module) -> bool:
    """Whether the modules within may run in a graph, which calls no hooks: their order is that of their definition."""
    return getattr(module, "_compiled_call_impl", None) is not None or "OptimizedModule" in names_of_types(module)


def names_of_types(module: torch.nn.Module) -> set[str]:
    return {kind.__name__ for kind in type(module).__mro__}
