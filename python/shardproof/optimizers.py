"""Optimizers of torch and wrappers around them: when they step, and what they are."""

import inspect
import sys
import warnings
from collections.abc import Callable, Mapping, Sequence
from numbers import Real

import torch

from .error import Error
from .sources.dtensor import is_dtensor, local_of

RULES = {torch.optim.AdamW: "adamw", torch.optim.Adam: "adam", torch.optim.SGD: "sgd"}
# Classes of other packages that compute Adam in one kernel, with decoupled weight decay where adam_w_mode is on.
FUSED_ADAMS = ("FusedAdam", "DeepSpeedCPUAdam")
NUMBERS = ("betas", "eps", "weight_decay", "momentum", "dampening")
SWITCHES = ("amsgrad", "nesterov", "maximize")
LISTED = 6  # names in a warning
COPIES = ("If they are copies that the program steps, such as float32 main weights, set parameter.main_param to the copy of each "
          "before load and record, or record without an optimizer: rec.gradients() before each step, and rec.stepped() once "
          "the copies are back in the model. Otherwise give record the optimizer of this model")


def as_list(optimizer) -> list:
    """The optimizers that record was given: none, one, or several."""
    if optimizer is None:
        return []
    return list(optimizer) if isinstance(optimizer, (list, tuple)) else [optimizer]


def inner_optimizers(optimizer) -> list:
    """The torch optimizers within the wrappers of Megatron, DeepSpeed and scripts, or what looks like one."""
    parts = getattr(optimizer, "chained_optimizers", None)
    if parts is None:
        inner = getattr(optimizer, "optimizer", None)
        parts = as_list(None if inner is optimizer else inner) or nested(optimizer)
    found = [one for part in parts for one in inner_optimizers(part)]
    own = parameters_of([optimizer] if hasattr(optimizer, "param_groups") else [])
    return found if found and own <= parameters_of(found) else [*found, *([optimizer] if own else [])]


def nested(optimizer) -> list[torch.optim.Optimizer]:
    """The torch optimizers that an object holds in its attributes, or in lists and dictionaries there."""
    found = []
    for value in getattr(optimizer, "__dict__", {}).values():
        values = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else [value]
        found += [one for one in values if isinstance(one, torch.optim.Optimizer) and one is not optimizer]
    return found


def parameters_of(optimizers: Sequence) -> set[int]:
    """The ids of the parameters in the groups of optimizers."""
    return {id(parameter) for one in optimizers for group in one.param_groups for parameter in group["params"]}


def watch_steps(optimizer, gradients: Callable[[], None], before: Callable[[], None],
                after: Callable[[float | None], None], is_none: Callable[[], bool]) -> list[Callable[[], None]]:
    """Calls `before` and `after` around each step; `after` gets the gradients' norm when the optimizer tells it.
    `gradients` is called when they are complete: before the step, or at the end of its closure. Where `is_none` says of
    a call without a closure that it is not a step, nothing is called. A step that is made within another one of the same
    optimizer, as super().step() is, belongs to that. Returns what ends this."""
    skips = []
    running = []  # the frames of calls: one that an exception ended is no longer on the stack

    def entered(args, kwargs, frame):
        while running and not is_on_stack(running[-1]):
            running.pop()
        running.append(frame)
        if len(running) > 1:
            return args, kwargs
        if not closures_of(args, kwargs) and is_none():
            skips.append(True)
            return args, kwargs
        before()
        return with_gradients(args, kwargs, gradients)

    def left(norm: float | None) -> None:
        while len(running) > 1 and not is_on_stack(running[-1]):
            running.pop()
        if not running:  # it began before it was watched
            return
        running.pop()
        if running:
            return
        if skips:
            skips.clear()
        else:
            after(norm)

    if has_hooks(optimizer):
        return [optimizer.register_step_pre_hook(lambda _, args, kwargs: entered(args, kwargs, sys._getframe(1))).remove,
                optimizer.register_step_post_hook(lambda *_: left(None)).remove]
    inner = [one for one in inner_optimizers(optimizer) if has_hooks(one)] if isinstance(optimizer, torch.optim.Optimizer) else []
    if inner:
        return wrap_around(optimizer, inner, entered, left)
    if not callable(getattr(optimizer, "step", None)):
        raise Error(f"The optimizer is a {type(optimizer).__name__} and has no step()",
                    "Give record the optimizer that steps, or none and call rec.gradients() and rec.stepped()")
    return [wrap_step(optimizer, entered, left)]


def has_hooks(optimizer) -> bool:
    return isinstance(optimizer, torch.optim.Optimizer) and hasattr(optimizer, "_optimizer_step_pre_hooks")


def wrap_around(optimizer, inner: Sequence, entered, left) -> list[Callable[[], None]]:
    """Of an optimizer that is one in name alone, as Accelerate's: its step() does nothing while gradients accumulate, and
    may go on after the inner ones have stepped. A step begins with the first of these and ends with step() itself."""
    original = optimizer.step
    frames, began = [], []

    def first(_, args, kwargs):
        if not frames or began:
            return None
        began.append(True)
        return entered(args, kwargs, frames[-1])

    def step(*args, **kwargs):
        frames.append(sys._getframe())
        began.clear()
        try:
            result = original(*args, **kwargs)
            if began:
                left(reported_norm(optimizer, result))
        finally:
            frames.pop()
        return result

    optimizer.step = step
    return [lambda: vars(optimizer).pop("step", None), *(one.register_step_pre_hook(first).remove for one in inner)]


def is_on_stack(frame) -> bool:
    here = sys._getframe(1)
    while here is not None and here is not frame:
        here = here.f_back
    return here is frame


def with_gradients(args, kwargs, gradients: Callable[[], None]):
    """Calls `gradients`, or gives the step a closure that does so at its end. Returns the step's arguments."""
    closures = closures_of(args, kwargs)
    if not closures:
        gradients()
        return args, kwargs

    def closure():
        result = closures[0]()
        gradients()
        return result

    return (tuple(closure if one is closures[0] else one for one in args),
            {name: closure if one is closures[0] else one for name, one in kwargs.items()})


def closures_of(args, kwargs) -> list[Callable]:
    return [one for one in (*args, *kwargs.values())
            if callable(one) and not isinstance(one, (torch.optim.Optimizer, torch.Tensor, type))]


def wrap_step(optimizer, entered, after: Callable[[float | None], None]) -> Callable[[], None]:
    original = optimizer.step

    def step(*args, **kwargs):
        args, kwargs = entered(args, kwargs, sys._getframe())
        result = original(*args, **kwargs)
        after(reported_norm(optimizer, result))
        return result

    optimizer.step = step
    return lambda: vars(optimizer).pop("step", None)


def reported_norm(optimizer, result) -> float | None:
    """The norm that Megatron's step() returns as the second of three values, or that DeepSpeed keeps."""
    norm = result[1] if isinstance(result, tuple) and len(result) == 3 else \
        getattr(optimizer, "_global_grad_norm", None)
    if isinstance(norm, torch.Tensor):
        return float(norm) if norm.numel() == 1 else None
    return float(norm) if isinstance(norm, Real) else None  # another optimizer's step may return anything


def rule_of(optimizer, group: Mapping) -> str:
    """What the class computes, whatever its name: "adam", "adamw", "sgd" or "other". A class that has its own step()
    may compute anything."""
    for kind in type(optimizer).__mro__:
        is_fused = kind.__name__ in FUSED_ADAMS and "betas" in group and "eps" in group
        if not (is_fused or kind in RULES):
            continue
        if inspect.unwrap(type(optimizer).step) is not inspect.unwrap(kind.step):
            return "other"
        if is_fused:
            return "adamw" if getattr(optimizer, "adam_w_mode", True) else "adam"
        return "adamw" if group.get("decoupled_weight_decay") else RULES[kind]
    return "other"


def numbers_of(group: Mapping) -> dict:
    """The values of a group that a judge can use."""
    found = {}
    for name in NUMBERS:
        if name in group:
            value = group[name]
            parts = value if isinstance(value, (list, tuple)) else [value]
            if None not in parts:  # Adafactor's eps may be (None, 1e-3)
                found[name] = [float(one) for one in parts] if parts is value else float(value)
    return found | {name: True for name in SWITCHES if group.get(name)}


class Settings:
    """What run.json says of the optimizers: their rules, their numbers, and the rates of each step, by group."""

    def __init__(self, optimizers: Sequence, slots):
        self._types = [type((inner_optimizers(one) or [one])[0]).__name__ for one in optimizers]
        self._groups = [[] for _ in optimizers]  # of each optimizer
        self.max_norm: float | None = None
        for index, optimizer in enumerate(optimizers):
            for one in inner_optimizers(optimizer):
                for group in one.param_groups:
                    ids = {id(parameter) for parameter in group["params"]}
                    self._groups[index].append(
                        {"type": type(one).__name__, "rule": rule_of(one, group), "lr": [], **numbers_of(group),
                         "parameters": [slot.name for slot in slots if not ids.isdisjoint(map(id, slot.keys()))]})

    def add_rates(self, index: int, optimizer=None) -> None:
        """Adds the rates of a step of an optimizer, or 0 when it makes none."""
        groups = [group for one in inner_optimizers(optimizer) for group in one.param_groups] if optimizer else \
            [{"lr": 0.0}] * len(self._groups[index])
        for known, group in zip(self._groups[index], groups):
            if "lr" in group:
                known["lr"].append(float(group["lr"]))

    def fields(self) -> dict:
        groups = [group for of_one in self._groups for group in of_one]
        found = {"type": " and ".join(dict.fromkeys(self._types)), "rule": "other", "lr": []}
        if groups:
            found = {name: value for name, value in groups[0].items() if name != "parameters"} | {"type": found["type"]}
            if len({group["rule"] for group in groups}) > 1:
                found["rule"] = "other"
            if any(group | {"parameters": 0} != groups[0] | {"parameters": 0} for group in groups):
                found["groups"] = groups
        return found | ({} if self.max_norm is None else {"max_norm": self.max_norm})


def loss_scale_of(optimizer) -> float:
    """By how much the gradients are too large: a GradScaler leaves the division to a fused optimizer."""
    scales = [scale for one in inner_optimizers(optimizer) if (scale := getattr(one, "grad_scale", None)) is not None]
    return float(scales[0]) if scales else 1.0


def overflows(optimizer) -> bool:
    """Whether a GradScaler has found gradients for which a fused optimizer moves nothing."""
    return any(float(getattr(one, "found_inf", 0) or 0) for one in inner_optimizers(optimizer))


def has_no_rate(optimizer) -> bool:
    """Whether no step of it can move anything, by the rates of all its groups."""
    groups = [group for one in inner_optimizers(optimizer) for group in one.param_groups]
    return bool(groups) and not any(float(group.get("lr", 0)) for group in groups)


def owners_of(optimizers: Sequence, slots) -> dict[int, int]:
    """The position of the optimizer that holds each slot's parameter, by id of the slot. Refuses an optimizer that was
    made before the model's parameters were replaced by sharded ones, and warns of parameters that none holds."""
    owners: dict[int, int] = {}
    for index, optimizer in enumerate(optimizers):
        own = [optimizer] if hasattr(optimizer, "param_groups") else []
        held = parameters_of([*inner_optimizers(optimizer), *own])
        of_this = [slot for slot in slots if not held.isdisjoint(map(id, slot.keys()))]
        if not of_this and isinstance(optimizer, torch.optim.Optimizer):
            raise Error(f"The optimizer holds {len(held)} parameters, none of which is among the {len(slots)} of the "
                        "model", COPIES if are_copies(optimizer, slots) else
                        "Create the optimizer after fully_shard and parallelize_module, which replace parameters")
        for slot in of_this:
            if id(slot) in owners:
                raise Error(f'"{slot.name}" is in the optimizers {owners[id(slot)]} and {index} of the list',
                            "Give record optimizers of which each parameter is in one")
            owners[id(slot)] = index
    return owners


def are_copies(optimizer, slots) -> bool:
    """Whether the parameters of an optimizer, none of which is the model's, may be copies that the program keeps: those that
    an optimizer held before they were replaced by DTensors are plain, or have other local shapes."""
    held = list(held_tensors([optimizer]).values())
    if not any(is_dtensor(slot.parameter) for slot in slots):
        return True
    return any(map(is_dtensor, held)) and shapes_of(held) == shapes_of([slot.parameter for slot in slots])


def shapes_of(tensors) -> list[tuple]:
    """The sorted local shapes."""
    return sorted(tuple(local_of(one.detach()).shape) for one in tensors)


def held_tensors(optimizers: Sequence) -> dict[int, torch.Tensor]:
    """The parameters of optimizers and those within, by id."""
    return {id(one): one for optimizer in optimizers for inner in inner_optimizers(optimizer)
            for group in inner.param_groups for one in group["params"]}


def warn_of_what_is_missing(optimizers: Sequence, slots, owners: Mapping) -> None:
    """Warns of parameters that no optimizer moves, and of an optimizer whose states are not found. Megatron's and
    DeepSpeed's optimizers hold other tensors than the model's parameters."""
    lost = [slot for slot in slots if slot.parameter.requires_grad and id(slot) not in owners]
    if owners and lost and not any(slot.source in ("megatron", "deepspeed") for slot in slots):
        listed = ", ".join(slot.name for slot in lost[:LISTED])
        more = f" and {len(lost) - LISTED} more" if len(lost) > LISTED else ""
        warnings.warn(f"{len(lost)} of {len(slots)} parameters need gradients and are in no optimizer that record was "
                      f"given: {listed}{more}. If another optimizer steps them, give record a list "
                      "of all optimizers: shardproof.record(model, [first, second], ..).", stacklevel=4)
    others = held_tensors(optimizers)
    for slot in slots:
        for one in slot.keys():
            others.pop(id(one), None)
    others = [one for one in others.values() if one.requires_grad]
    are_known = all(slot.source in ("plain", "dtensor", "declared") for slot in slots)  # whose every parameter is a slot
    if owners and others and are_known and shapes_of(others) != shapes_of(slot.parameter for slot in lost):
        warnings.warn(f"The optimizer also steps {len(others)} parameters that are not in the model, so that nothing of them "
                      "is compared. If they are another model's, give record a ModuleDict of both.", stacklevel=4)
    for optimizer in optimizers:
        for one in inner_optimizers(optimizer):
            if not isinstance(getattr(one, "state", None), Mapping):
                warnings.warn(f"The optimizer is a {type(one).__name__}, which has param_groups and no state, so its "
                              "states are not recorded. Give record the torch optimizers that it steps, as a list.",
                              stacklevel=4)
