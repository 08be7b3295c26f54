"""HRM-Text: under FSDP2 the ranks load the rows of other projections.

transformers 5.23.0, torch 2.14.1, fsdp 2. The checkpoint fuses gate, q, k and v into gqkv_proj. Each rank splits what
it read of the fused rows, and not the whole: q_proj holds rows of k_proj. Found by
`shardproof model hrm_text --layouts fsdp2`. Exit status 1 while the defect is there.
"""

import os
import sys
import tempfile

import torch
from transformers.distributed.configuration_utils import DistributedConfig
from transformers.models.hrm_text.configuration_hrm_text import HrmTextConfig
from transformers.models.hrm_text.modeling_hrm_text import HrmTextForCausalLM

CONFIG = HrmTextConfig(
    vocab_size=96, hidden_size=64, num_hidden_layers=2, num_layers_per_stack=2, num_attention_heads=4, head_dim=16,
    max_position_embeddings=64, intermediate_size=48)


def observe(model):
    return whole(dict(model.named_parameters())["model.L_module.layers.0.self_attn.q_proj.weight"])


def whole(tensor):
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach()


def rank(index, folder):
    os.environ.update(RANK=str(index), LOCAL_RANK=str(index), WORLD_SIZE="2")
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=index, world_size=2)
    try:
        found = observe(HrmTextForCausalLM.from_pretrained(folder, distributed_config=DistributedConfig(fsdp_size=2)))
    except Exception as error:
        found = f"{type(error).__name__}: {error}"[:300]
    torch.save(found, f"{folder}/{index}.pt")


def main():
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        HrmTextForCausalLM(CONFIG).save_pretrained(folder)
        reference = observe(HrmTextForCausalLM.from_pretrained(folder))
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
