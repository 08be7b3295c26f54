"""Qwen3-Omni-MoE: the gradients of the norms of queries and keys are those of one rank's heads.

transformers 5.23.0, torch 2.14.1, tp 2. q_norm and k_norm follow colwise projections, and the plan does not name
them; that of Qwen3 has replicated_with_grad_allreduce for both. Found by `shardproof model qwen3_omni_moe --layouts
tp2`. Exit status 1 while the defect is there.
"""

import os
import sys
import tempfile

import torch
from transformers.distributed.configuration_utils import DistributedConfig
from transformers.models.qwen3_omni_moe.configuration_qwen3_omni_moe import Qwen3OmniMoeTextConfig
from transformers.models.qwen3_omni_moe.modeling_qwen3_omni_moe import Qwen3OmniMoeThinkerTextModel

CONFIG = Qwen3OmniMoeTextConfig(
    vocab_size=96, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    max_position_embeddings=64, intermediate_size=40, moe_intermediate_size=24, num_experts_per_tok=2, num_experts=4,
    rope_parameters={"rope_theta": 10000.0, "rope_type": "default", "mrope_section": [2, 3, 3]})


def observe(model):
    tokens = torch.arange(48).view(4, 12) * 7 % 28 + 2
    output = model(input_ids=tokens, use_cache=False).last_hidden_state
    (output * torch.linspace(-1, 1, output.numel()).sin().view_as(output)).sum().backward()
    return whole(dict(model.named_parameters())["layers.0.self_attn.k_norm.weight"].grad)


def whole(tensor):
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach()


def rank(index, folder):
    os.environ.update(RANK=str(index), LOCAL_RANK=str(index), WORLD_SIZE="2")
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=index, world_size=2)
    try:
        found = observe(Qwen3OmniMoeThinkerTextModel.from_pretrained(folder, distributed_config=DistributedConfig(tp_size=2)))
    except Exception as error:
        found = f"{type(error).__name__}: {error}"[:300]
    torch.save(found, f"{folder}/{index}.pt")


def main():
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        Qwen3OmniMoeThinkerTextModel(CONFIG).save_pretrained(folder)
        reference = observe(Qwen3OmniMoeThinkerTextModel.from_pretrained(folder))
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
