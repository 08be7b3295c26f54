"""Inkling 2: the ranks load gate and up of the experts in another order.

transformers 5.23.0, torch 2.14.1, tp 2. The checkpoint interleaves the rows of gate and up. Under tensor parallelism
each rank takes the interleaved rows apart by its own share, so that the quarters stand in the order 0 2 1 3. Found by
`shardproof model inkling2 --layouts tp2`. Exit status 1 while the defect is there.
"""

import os
import sys
import tempfile

import torch
from transformers.distributed.configuration_utils import DistributedConfig
from transformers.models.inkling2.configuration_inkling2 import Inkling2TextConfig
from transformers.models.inkling2.modeling_inkling2 import Inkling2ForCausalLM

CONFIG = Inkling2TextConfig(
    vocab_size=96, unpadded_vocab_size=96, hidden_size=64, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    head_dim=32, swa_num_attention_heads=4, swa_num_key_value_heads=2, swa_head_dim=32, sliding_window_size=8, rel_extent=8,
    layer_types=["hybrid_sliding", "hybrid"], max_position_embeddings=64, moe_intermediate_size=24, n_routed_experts=4,
    num_experts_per_tok=2)


def observe(model):
    return whole(dict(model.named_parameters())["model.layers.0.mlp.experts.gate_up_proj"])


def whole(tensor):
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach()


def rank(index, folder):
    os.environ.update(RANK=str(index), LOCAL_RANK=str(index), WORLD_SIZE="2")
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=index, world_size=2)
    try:
        found = observe(Inkling2ForCausalLM.from_pretrained(folder, distributed_config=DistributedConfig(tp_size=2)))
    except Exception as error:
        found = f"{type(error).__name__}: {error}"[:300]
    torch.save(found, f"{folder}/{index}.pt")


def main():
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        Inkling2ForCausalLM(CONFIG).save_pretrained(folder)
        reference = observe(Inkling2ForCausalLM.from_pretrained(folder))
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
