"""Trains a small mixture of experts of transformers with its own expert parallelism and FSDP2 on the CPU, and records it.

    torchrun --nproc-per-node 1 train.py --out golden
    torchrun --nproc-per-node 4 train.py --out run --golden golden --ep 2
    shardproof judge run --golden golden

Experts are DTensors of a mesh of their own, (efsdp, ep), from which shardproof takes their places. The five lines that
shardproof needs are marked; optional ones record more.
"""

import argparse

import shardproof                                                                              # shardproof
import torch
import torch.distributed as dist
from torch.distributed.fsdp import FSDPModule
from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM
from transformers.distributed import DistributedConfig
from transformers.distributed.utils import initialize_distributed_mesh

VOCABULARY, LENGTH, ROWS, EXPERTS = 96, 16, 8, 4


def build(options):
    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(
        vocab_size=VOCABULARY, hidden_size=32, intermediate_size=48, moe_intermediate_size=24, num_experts=EXPERTS,
        num_experts_per_tok=2, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
        max_position_embeddings=LENGTH, norm_topk_prob=True, attn_implementation="eager", experts_implementation="eager"))
    ranks = dist.get_world_size()
    if ranks == 1:
        return model
    layout = DistributedConfig(fsdp_size=ranks // options.tp, tp_size=options.tp, ep_size=options.ep)
    _, meshes = initialize_distributed_mesh(layout)
    model = type(model).maybe_distribute_model(model, layout, meshes)
    for module in model.modules():  # FSDP asks for ReduceOp.PREMUL_SUM, which Gloo lacks; transformers has set it for experts
        if isinstance(module, FSDPModule) and not hasattr(module, "num_experts"):
            module.set_force_sum_reduction_for_comms(True)
    return model


def global_batch(step):
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(VOCABULARY, (ROWS, LENGTH + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def train(options):
    model = build(options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)  # experts have another mesh
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
            rec.scalar("loss", loss, mean_over=("fsdp",))                                      # optional
            rec.logprobs(logprobs)                                                             # optional


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="the folder of the recorded run")
    parser.add_argument("--golden", help="the folder of the one-rank run, from whose start this run starts")
    parser.add_argument("--ep", type=int, default=1, help="ranks over which experts are spread")
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
