"""Trains a small Llama of transformers with tensor parallelism and FSDP2 on the CPU, and records it.

    torchrun --nproc-per-node 1 train.py --out golden
    torchrun --nproc-per-node 4 train.py --out run --golden golden --tp 2

The model's code computes its rotary table, norms and softmax in float32; shardproof.float64() lifts these. The five lines
that shardproof needs are marked; optional ones record more.
"""

import argparse

import shardproof                                                                              # shardproof
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from transformers import LlamaConfig, LlamaForCausalLM

VOCABULARY, LENGTH, ROWS = 96, 16, 8
TENSOR_PARALLEL = {
    "self_attn.q_proj": ColwiseParallel(), "self_attn.k_proj": ColwiseParallel(), "self_attn.v_proj": ColwiseParallel(),
    "self_attn.o_proj": RowwiseParallel(),
    "mlp.gate_proj": ColwiseParallel(), "mlp.up_proj": ColwiseParallel(), "mlp.down_proj": RowwiseParallel(),
}


def build(tp):
    torch.manual_seed(0)
    model = LlamaForCausalLM(LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, max_position_embeddings=LENGTH, attn_implementation="eager"))
    mesh = init_device_mesh("cpu", (dist.get_world_size() // tp, tp), mesh_dim_names=("dp", "tp"))
    for layer in model.model.layers:
        if tp > 1:
            parallelize_module(layer, mesh["tp"], TENSOR_PARALLEL)
        fully_shard(layer, mesh=mesh["dp"])
    return fully_shard(model, mesh=mesh["dp"])


def global_batch(step):
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(VOCABULARY, (ROWS, LENGTH + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def train(options):
    model = build(options.tp)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if options.golden: shardproof.load(model, options.golden)                                  # shardproof
    with shardproof.record(model, optimizer, out=options.out) as rec:                          # shardproof
        for step in range(options.steps):
            tokens, targets = shardproof.batch(*global_batch(step))                            # shardproof
            logits = model(input_ids=tokens, use_cache=False).logits
            logprobs = torch.log_softmax(logits, -1).gather(-1, targets[..., None])[..., 0]
            loss = -logprobs.mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            rec.scalar("loss", loss, mean_over=("dp",))                                        # optional
            rec.logprobs(logprobs)                                                             # optional


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="the folder of the recorded run")
    parser.add_argument("--golden", help="the folder of the one-rank run, from whose start this run starts")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--steps", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with shardproof.float64():                                                                 # shardproof
        train(options)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
