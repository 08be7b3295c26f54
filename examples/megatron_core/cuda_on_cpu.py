"""Lets Megatron-core, which asks torch.cuda for devices and random states, run on the CPU over Gloo."""

import contextlib

import torch
from torch.overrides import TorchFunctionMode


class OnCpu(TorchFunctionMode):
    """Makes tensors on the CPU that the code asks for with device="cuda"."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        kwargs = dict(kwargs or {})
        if kwargs.get("device") == "cuda":
            kwargs["device"] = "cpu"
        return function(*args, **kwargs)


class NoStream:
    """A stream that needs no waiting, because the CPU computes in order."""

    def wait_stream(self, _):
        pass

    def synchronize(self):
        pass

    def record_event(self):
        return self


def rng_state(*_, **__):
    return torch.get_rng_state()


def set_rng_state(state, *_, **__):
    torch.set_rng_state(state)


def split_sizes(tensor, as_numpy=False, **_):
    """Sizes of what an all-to-all sends, which Megatron reads back from the GPU."""
    return tensor.numpy() if as_numpy and torch.is_tensor(tensor) else tensor


def install():
    from megatron.core.tensor_parallel import random
    from megatron.core.transformer.moe import moe_utils, token_dispatcher

    torch.cuda.current_device = lambda: "cpu"
    torch.cuda.get_rng_state = rng_state
    torch.cuda.set_rng_state = set_rng_state
    torch.cuda.manual_seed = torch.manual_seed
    torch.cuda.default_stream = torch.cuda.current_stream = lambda *_, **__: NoStream()
    torch.cuda.Stream = lambda *_, **__: NoStream()
    torch.cuda.stream = lambda _: contextlib.nullcontext()
    torch.cuda.synchronize = lambda *_: None
    torch.cuda.empty_cache = lambda: None
    torch.Tensor.cuda = lambda self, *_, **__: self
    if not hasattr(moe_utils, "te_general_gemm"):  # megatron-core 0.16.1 without Transformer Engine
        moe_utils.te_general_gemm = None
    token_dispatcher.maybe_move_tensor_to_cpu = split_sizes
    random._get_cuda_rng_state = rng_state
    random._set_cuda_rng_state = set_rng_state
