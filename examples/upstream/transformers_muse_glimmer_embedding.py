"""Muse Glimmer: the embedding raises under tensor parallelism.

transformers 5.23.0, torch 2.14.1, tp 2. embedding_rowwise makes the lookup a masked addend, and the module takes its
norm before the ranks sum it. Found by `shardproof model muse_glimmer --layouts tp2`. Exit status 1 while the defect
is there.
"""

import os
import sys
import tempfile

import torch
from transformers.distributed.configuration_utils import DistributedConfig
from transformers.models.muse_glimmer.configuration_muse_glimmer import MuseGlimmerTextConfig
from transformers.models.muse_glimmer.modeling_muse_glimmer import MuseGlimmerTextModel

CONFIG = MuseGlimmerTextConfig(
    vocab_size=96, hidden_size=64, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    head_dim=16, max_position_embeddings=64, layer_types=["sliding_attention", "full_attention"], layer_rope_theta=[10000.0,
    0], pad_token_id=0)


def observe(model):
    tokens = torch.arange(48).view(4, 12) * 7 % 28 + 2
    with torch.no_grad():
        return whole(model(input_ids=tokens, use_cache=False).last_hidden_state)


def whole(tensor):
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach()


def rank(index, folder):
    os.environ.update(RANK=str(index), LOCAL_RANK=str(index), WORLD_SIZE="2")
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=index, world_size=2)
    try:
        found = observe(MuseGlimmerTextModel.from_pretrained(folder, distributed_config=DistributedConfig(tp_size=2)))
    except Exception as error:
        found = f"{type(error).__name__}: {error}"[:300]
    torch.save(found, f"{folder}/{index}.pt")


def main():
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        MuseGlimmerTextModel(CONFIG).save_pretrained(folder)
        reference = observe(MuseGlimmerTextModel.from_pretrained(folder))
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
