"""EmbeddingGemma 2: a layer with one key head raises under tensor parallelism.

transformers 5.23.0, torch 2.14.1, tp 2. Layers of full attention have one head of keys and values, of size 512, and
k_proj is colwise: half a head lies on each rank. Found by `shardproof model embedding_gemma2 --layouts tp2`. Exit
status 1 while the defect lives.
"""

import os
import sys
import tempfile

import torch
from transformers.distributed.configuration_utils import DistributedConfig
from transformers.models.embedding_gemma2.configuration_embedding_gemma2 import EmbeddingGemma2TextConfig
from transformers.models.embedding_gemma2.modeling_embedding_gemma2 import EmbeddingGemma2TextModel

CONFIG = EmbeddingGemma2TextConfig(
    vocab_size=96, hidden_size=64, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
    head_dim=16, max_position_embeddings=64, layer_types=["sliding_attention", "full_attention"],
    hidden_size_per_layer_input=16, embedding_dim=96)


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
        found = observe(EmbeddingGemma2TextModel.from_pretrained(folder, distributed_config=DistributedConfig(tp_size=2)))
    except Exception as error:
        found = f"{type(error).__name__}: {error}"[:300]
    torch.save(found, f"{folder}/{index}.pt")


def main():
    torch.manual_seed(0)
    with tempfile.TemporaryDirectory() as folder:
        EmbeddingGemma2TextModel(CONFIG).save_pretrained(folder)
        reference = observe(EmbeddingGemma2TextModel.from_pretrained(folder))
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
