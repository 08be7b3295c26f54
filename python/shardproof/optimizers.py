"""Optimizers of torch and wrappers around them: when they step, and what they are."""

from __future__ import annotations

from collections.abc import Callable

import torch

from .error import Error


def inner_optimizers(optimizer) -> list[torch.optim.Optimizer]:
    """The torch optimizers within Megatron's and DeepSpeed's wrappers."""
    if optimizer is None:
        return []
    if hasattr(optimizer, "chained_optimizers"):
        return [one for part in optimizer.chained_optimizers for one in inner_optimizers(part)]
    inner = getattr(optimizer, "optimizer", None)
    if inner is not None and inner is not optimizer:
        return inner_optimizers(inner)
    return [optimizer] if hasattr(optimizer, "param_groups") else []


def watch_steps(optimizer, gradients: Callable[[], None], before: Callable[[], None],
                after: Callable[[float | None], None]) -> list[Callable[[], None]]:
    """Calls `before` and `after` around each step; `after` gets the gradients' norm when the optimizer tells it.
    `gradients` is called when they are complete: before the step, or at the end of its closure. Returns what ends this."""
    def entered(args, kwargs):
        before()
        return with_gradients(args, kwargs, gradients)

    if isinstance(optimizer, torch.optim.Optimizer) and hasattr(optimizer, "_optimizer_step_pre_hooks"):
        return [optimizer.register_step_pre_hook(lambda _, args, kwargs: entered(args, kwargs)).remove,
                optimizer.register_step_post_hook(lambda *_: after(None)).remove]
    if not callable(getattr(optimizer, "step", None)):
        raise Error(f"The optimizer is a {type(optimizer).__name__} and has no step()",
                    "Give record the optimizer that steps, or none and call rec.gradients() and rec.stepped()")
    return [wrap_step(optimizer, entered, after)]


def with_gradients(args, kwargs, gradients: Callable[[], None]):
    """Calls `gradients`, or gives the step a closure that does so at its end. Returns the step's arguments."""
    closures = [one for one in (*args, *kwargs.values()) if is_closure(one)]
    if not closures:
        gradients()
        return args, kwargs

    def closure():
        result = closures[0]()
        gradients()
        return result

    return (tuple(closure if one is closures[0] else one for one in args),
            {name: closure if one is closures[0] else one for name, one in kwargs.items()})


def is_closure(argument) -> bool:
    return callable(argument) and not isinstance(argument, (torch.optim.Optimizer, torch.Tensor, type))


def wrap_step(optimizer, entered, after: Callable[[float | None], None]) -> Callable[[], None]:
    original = optimizer.step

    def step(*args, **kwargs):
        args, kwargs = entered(args, kwargs)
        result = original(*args, **kwargs)
        after(reported_norm(optimizer, result))
        return result

    optimizer.step = step
    return lambda: vars(optimizer).pop("step", None)


def reported_norm(optimizer, result) -> float | None:
    """The norm that Megatron's step() returns as the second of three values, or that DeepSpeed keeps."""
    norm = result[1] if isinstance(result, tuple) and len(result) == 3 else \
        getattr(optimizer, "_global_grad_norm", None)
    return None if norm is None else float(norm)


def settings(optimizer) -> dict:
    """The values of the first param group that a judge can use."""
    inner = inner_optimizers(optimizer)
    group = inner[0].param_groups[0] if inner and inner[0].param_groups else {}
    found = {"type": type(inner[0] if inner else optimizer).__name__, "lr": []}
    for name in ("betas", "eps", "weight_decay", "momentum"):
        if name in group:
            value = group[name]
            parts = value if isinstance(value, (list, tuple)) else [value]
            if None not in parts:  # Adafactor's eps may be (None, 1e-3)
                found[name] = [float(one) for one in parts] if parts is value else float(value)
    return found


def learning_rate(optimizer) -> float | None:
    for one in inner_optimizers(optimizer):
        for group in one.param_groups:
            return float(group["lr"]) if "lr" in group else None
    return None


def check_holds(optimizer, slots) -> None:
    """Refuses an optimizer that was made before the model's parameters were replaced by sharded ones."""
    if not isinstance(optimizer, torch.optim.Optimizer):
        return
    held = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    if not any(id(slot.parameter) in held for slot in slots):
        raise Error(f"The optimizer holds {len(held)} parameters, none of which is among the {len(slots)} of the model",
                    "Create the optimizer after fully_shard and parallelize_module, which replace parameters")
