"""A golden run in float64: turns explicit float32 requests of a model's code into float64, and those of optimizers for
bfloat16."""

import collections
import functools
import sys
import threading

import torch
from torch.overrides import TorchFunctionMode

# Functions in which a dtype says how bytes are read, or how wide a number is, not in which one to compute.
BYTES = {torch.Tensor.view, torch.frombuffer, torch.Tensor.set_, torch.can_cast, torch.promote_types}
# Requests that are lifted within the step of an optimizer alone, such as Muon's.
BFLOAT16 = (torch.bfloat16, "torch.BFloat16Tensor")
# Code that restores tensors from their bytes must get the dtype that it asks for, and a GradScaler's kernels take float32.
RESTORING = ("torch._utils", "torch.storage", "torch.serialization", "torch._weights_only_unpickler", "safetensors",
             "shardproof.safetensors_file", "torch.amp.grad_scaler")
# What a program lifted, with counts, in all float64() contexts of this process.
lifted: collections.Counter[str] = collections.Counter()


def float64() -> "Float64":
    """A context in which tensors are made and computed in float64, although the code asks for float32.

        with shardproof.float64():
            model = Model()
            train(model)

    It must be on while the model is built, because tables such as RoPE's are rounded there, and during backward passes, in
    which activation checkpoints compute their functions again.
    """
    return Float64()


class Float64(TorchFunctionMode):
    """The context of float64()."""

    def __call__(self, function):
        """As a decorator: the function runs in a context of its own."""
        @functools.wraps(function)
        def in_float64(*args, **kwargs):
            with Float64():
                return function(*args, **kwargs)
        return in_float64

    def __enter__(self):
        self._default = torch.get_default_dtype()
        torch.set_default_dtype(torch.float64)
        # Backward functions run in threads of their own for GPUs, where a mode would not be on.
        self._threads = torch.autograd.set_multithreading_enabled(False)
        self._threads.__enter__()
        return super().__enter__()

    def __exit__(self, *exception):
        super().__exit__(*exception)
        self._threads.__exit__(*exception)
        torch.set_default_dtype(self._default)

    @property
    def lifted(self) -> list[str]:
        """The functions whose requests became float64, and which optimizers' those for bfloat16 were."""
        return sorted(lifted)

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        asks = function is torch.Tensor.bfloat16 or any(one in BFLOAT16 for one in (*args, *kwargs.values())
                                                        if isinstance(one, (torch.dtype, str)))
        optimizer = type_of_stepping() if asks and function not in BYTES and not restores() else None
        if optimizer is not None:
            function, args, kwargs = lift_bfloat16(function, args, kwargs, optimizer)
        if function in (torch.Tensor.float, torch.Tensor.type) and not restores():
            function, args, kwargs = lift_method(function, args, kwargs)
        elif function not in BYTES and asks_for_float32(args, kwargs) and not restores():
            args = tuple(map(as_float64, args))
            kwargs = {name: as_float64(value) for name, value in kwargs.items()}
            lifted[name_of(function)] += 1
        if function in (torch.Tensor.backward, torch.autograd.backward, torch.autograd.grad) and not any(map(is_own, types)):
            return self._in_backward(of_tensor if function is torch.Tensor.backward else function, args, kwargs)
        return function(*args, **kwargs)

    def _in_backward(self, function, args, kwargs):
        """A mode is off while it handles a function, but a backward pass calls code of the model: a checkpoint's function
        again, hooks, backward functions of its own. With the mode on, torch would hand the function to it again."""
        torch.autograd.has_torch_function = finds_mode
        outer, passes.under_way = getattr(passes, "under_way", False), True
        super().__enter__()
        try:
            return function(*args, **kwargs)
        finally:
            super().__exit__(None, None, None)
            passes.under_way = outer


passes = threading.local()  # under_way: the thread is in a backward pass that the mode handles
torch_finds_mode = torch.autograd.has_torch_function


def finds_mode(tensors):
    """What torch.autograd asks at the start of a backward pass. It stays in its place, where other threads may need it."""
    return not getattr(passes, "under_way", False) and torch_finds_mode(tensors)


def is_own(kind: type) -> bool:
    """Whether it is a class of tensors that handles torch's functions itself."""
    handles = kind.__torch_function__
    usual = (torch.Tensor.__torch_function__.__func__, torch._C._disabled_torch_function_impl)
    return getattr(handles, "__func__", handles) not in usual


def of_tensor(tensor, gradient=None, retain_graph=None, create_graph=False, inputs=None) -> None:
    """Tensor.backward, of which only what it calls can be kept from the mode."""
    torch.autograd.backward(tensor, gradient, retain_graph, create_graph, inputs=inputs)


def type_of_stepping() -> str | None:
    """The class of the optimizer whose step() is running: what has param_groups and is called so."""
    frame = sys._getframe(2)
    while frame:
        this = frame.f_locals.get("self") if frame.f_code.co_name == "step" else None
        if isinstance(this, torch.optim.Optimizer) or hasattr(this, "param_groups"):
            return type(this).__name__
        frame = frame.f_back
    return None


def lift_bfloat16(function, args, kwargs, optimizer: str):
    """A request for bfloat16 within an optimizer's step as one for float64."""
    lifted[f"{name_of(function)} to bfloat16 in {optimizer}.step"] += 1
    if function in (torch.Tensor.bfloat16, torch.Tensor.type):
        return torch.Tensor.to, (args[0], torch.float64), {}
    return function, tuple(map(as_wide, args)), {name: as_wide(value) for name, value in kwargs.items()}


def as_wide(value):
    return torch.float64 if value is torch.bfloat16 else value


def asks_for_float32(args, kwargs) -> bool:
    return any(one is torch.float32 for one in args) or any(one is torch.float32 for one in kwargs.values())


def as_float64(value):
    return torch.float64 if value is torch.float32 else value


def lift_method(function, args, kwargs):
    """Tensor.float() and Tensor.type(float32) as Tensor.double()."""
    dtypes = [*args[1:], *kwargs.values()]
    if function is torch.Tensor.float or any(one in (torch.float32, "torch.FloatTensor") for one in dtypes):
        lifted[name_of(function)] += 1
        return torch.Tensor.to, (args[0], torch.float64), {}
    return function, args, kwargs


def name_of(function) -> str:
    name = getattr(function, "__name__", str(function))
    is_method = getattr(torch.Tensor, name, None) is function
    return f"Tensor.{name}" if is_method else f"torch.{name}"


def restores() -> bool:
    """Whether the code that called a torch function restores tensors from bytes."""
    frame = sys._getframe(2)
    while frame and frame.f_globals.get("__name__", "").startswith(("torch.overrides", "torch._tensor", __name__)):
        frame = frame.f_back
    return bool(frame) and frame.f_globals.get("__name__", "").startswith(RESTORING)
