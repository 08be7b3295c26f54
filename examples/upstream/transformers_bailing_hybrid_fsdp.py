"""Bailing Hybrid: under FSDP2 the ranks load kernels of q, k and v in another order.

transformers 5.23.0, torch 2.14.1, fsdp 2. The checkpoint has the kernels of q, k and v as three tensors, which
the model joins. Under FSDP2 each rank reads its rows of each of the three and joins those, where rank 0 needs the
first half of the whole. Found by `shardproof model bailing_hybrid --layouts fsdp2`. Exit status 1 while the defect is there.
"""

import os
import sys
import tempfile

import torch
from transformers.distributed.configuration_utils import DistributedConfig
from transformers.models.bailing_hybrid.configuration_bailing_hybrid import BailingHybridConfig
from transformers.models.bailing_hybrid.modeling_bailing_hybrid import BailingHybridForCausalLM

CONFIG = BailingHybridConfig(
    vocab_size=96, hidden_size=64, intermediate_size=40, moe_intermediate_size=24, num_hidden_layers=2, num_attention_heads=4,
    num_key_value_heads=4, kv_lora_rank=8, qk_rope_head_dim=16, v_head_dim=32, qk_nope_head_dim=32, num_experts=4,
    num_experts_per_token=2, mlp_layer_types=["dense", "sparse"], layer_types=["linear_attention", "full_attention"],
    num_expert_group=1, topk_group=1, linear_head_dim=32, linear_num_heads=4, pad_token_id=0, eos_token_id=93)


def observe(model):
    return whole(dict(model.named_parameters())["model.layers.0.self_attn.conv1d.weight"])


def whole(tensor):
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach()


def rank(index, folder):
    os.environ.update(RANK=str(index), LOCAL_RANK=str(index), WORLD_SIZE="2")
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=index, world_size=2)
    try:
        found = observe(BailingHybridForCausalLM.from_pretrained(folder, distributed_config=DistributedConfig(fsdp_size=2)))
    except Exception as error:
        found = f"{type(error).__name__}: {error}"[:300]
    torch.save(found, f"{folder}/{index}.pt")


def main():
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        BailingHybridForCausalLM(CONFIG).save_pretrained(folder)
        reference = observe(BailingHybridForCausalLM.from_pretrained(folder))
        torch.multiprocessing.start_processes(rank, (folder,), 2, start_method="spawn")
        observed = [torch.load(f"{folder}/{index}.pt") for index in (0, 1)]
    for index, one in enumerate(observed):
        place = 0 if isinstance(one, str) else (one - reference).abs().argmax()
        print(f"rank {index}: reference {reference.flatten()[place]}, observed",
              one if isinstance(one, str) else one.flatten()[place].item())
    right = [not isinstance(one, str) and torch.allclose(one, reference, rtol=1e-2, atol=1e-6) for one in observed]
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
