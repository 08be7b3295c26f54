"""Lets torchtitan 0.3.0 run on the CPU over Gloo. Each change is a function of its own, switched on by name and printed."""


def cpu_device():
    """torchtitan takes "cuda" where torch names no accelerator."""
    from torchtitan.distributed import parallel_dims
    from torchtitan.tools import utils
    parallel_dims.device_type = utils.device_type = "cpu"


def sdpa_attention(config):
    """Its language models accept flex and varlen attention alone, which need a GPU; its own SDPA is causal, too."""
    from torchtitan.models.common.attention import ScaledDotProductAttention
    for layer in config.layers:
        layer.attention.inner_attention = ScaledDotProductAttention.Config()


def float64_precision():
    """Its mixed precision knows no float64, in which a run is compared."""
    import torch
    from torchtitan.config import TORCH_DTYPE_MAP
    TORCH_DTYPE_MAP["float32"] = torch.float64


def sum_reduction(model):
    """FSDP asks for ReduceOp.PREMUL_SUM, which Gloo lacks."""
    from torch.distributed.fsdp import FSDPModule
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)


def products_of_experts():
    """Its experts are multiplied in bfloat16 by grouped products that need a GPU."""
    import torch
    from torchtitan.models.common.moe import GroupedExperts

    def forward(self, rows, counts):
        w1, w2, w3 = (one.to_local() if hasattr(one, "to_local") else one for one in (self.w1_EFD, self.w2_EDF, self.w3_EFD))
        parts = rows[:int(counts.sum())].split(counts.tolist())
        outputs = [(torch.nn.functional.silu(part @ a.T) * (part @ c.T)) @ b.T for part, a, b, c in zip(parts, w1, w2, w3)]
        return torch.cat([*outputs, torch.zeros_like(rows[int(counts.sum()):])])
    GroupedExperts.forward = forward


def switch_on(change, *arguments):
    print(f"titan_on_cpu: {change.__name__}: {' '.join(change.__doc__.split())}", flush=True)
    change(*arguments)
