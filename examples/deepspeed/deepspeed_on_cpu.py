"""Lets DeepSpeed run on the CPU over Gloo, in float64. Each change is a function, switched on by name and printed."""

import importlib
import os


def cpu_device(rank, world_size):
    """DeepSpeed takes its accelerator and the ranks from the environment."""
    os.environ.update(DS_ACCELERATOR="cpu", RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(world_size))
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29511")


def no_shared_memory():
    """Its all_reduce over shared memory is compiled when it is first used, and knows no float64."""
    backend = importlib.import_module("deepspeed.comm.torch")
    backend.build_shm_op = lambda: None


def float64_gradients():
    """ZeRO 1 accumulates gradients in float32."""
    import torch
    from deepspeed.runtime.engine import DeepSpeedEngine
    DeepSpeedEngine.get_data_types = lambda self: (torch.float64, torch.float64)


def float64_communication():
    """Without reduce_scatter it rounds gradients to float32 before it reduces them."""
    import torch
    from deepspeed.runtime.engine import DeepSpeedEngine
    DeepSpeedEngine.communication_data_type = torch.float64


def float64_parts():
    """ZeRO 3 cuts parameters of 16 and 32 bits alone."""
    import torch
    from deepspeed.runtime.zero.partition_parameters import InsertPostInitMethodToModuleSubClasses as Cutting
    original = Cutting.__init__

    def init(self, enabled=True, mem_efficient_linear=True, ds_config=None, dtype=None):
        original(self, enabled, mem_efficient_linear, ds_config, torch.float32 if dtype == torch.float64 else dtype)
        self.dtype = dtype or self.dtype
    Cutting.__init__ = init


def switch_on(change, *arguments):
    print(f"deepspeed_on_cpu: {change.__name__}: {' '.join(change.__doc__.split())}", flush=True)
    change(*arguments)
