"""Trains torchtitan's small llama3 with tensor parallelism and FSDP2 on the CPU, and records it.

    torchrun --nproc-per-node 1 train.py --out golden
    torchrun --nproc-per-node 4 train.py --out run --golden golden --tp 2
    shardproof judge run --golden golden

The five lines that shardproof needs are marked; optional ones record more.
"""

import argparse
import types

import shardproof                                                                              # shardproof
import titan_on_cpu
import torch
import torch.distributed as dist

ROWS, LENGTH, VOCABULARY, LAYERS = 8, 16, 2048, 2


def parallel_dims(options):
    from torchtitan.config import ParallelismConfig
    from torchtitan.distributed import ParallelDims
    from torchtitan.distributed.utils import set_spmd_backend
    titan_on_cpu.switch_on(titan_on_cpu.cpu_device)
    titan_on_cpu.switch_on(titan_on_cpu.float64_precision)
    config = ParallelismConfig(tensor_parallel_degree=options.tp, expert_parallel_degree=options.ep,
                               spmd_backend="partial_dtensor")
    set_spmd_backend(config.spmd_backend)
    dims = ParallelDims.from_config(config, dist.get_world_size())
    dims.build_mesh()
    return config, dims


def specification(options):
    from torchtitan.models import llama3, qwen3
    if not options.experts:
        return llama3.model_registry("debugmodel")
    spec = qwen3.model_registry("debugmodel_moe")  # whose layers have 64 experts, 38 million numbers each
    spec.model.layers = qwen3._build_qwen3_moe_layers(
        n_layers=LAYERS, dim=256, n_heads=4, n_kv_heads=2, head_dim=64, moe_hidden_dim=64, num_experts=8, top_k=2,
        attn_backend="flex", moe_comm_backend="standard", rope=qwen3.CosSinRoPE.Config(dim=64, max_seq_len=64, theta=1e6))
    titan_on_cpu.switch_on(titan_on_cpu.products_of_experts)
    return spec


def build(options):
    """torchtitan's own model, built on no device, cut by its own parallelize function, and filled."""
    from torchtitan.config import CompileConfig, TrainingConfig
    parallelism, dims = parallel_dims(options)
    spec = specification(options)
    config = spec.model
    config.layers = config.layers[:LAYERS]
    titan_on_cpu.switch_on(titan_on_cpu.sdpa_attention, config)
    config.update_from_config(config=types.SimpleNamespace(parallelism=parallelism))
    with torch.device("meta"):
        model = config.build()
    training = TrainingConfig(mixed_precision_param="float32", mixed_precision_reduce="float32")
    spec.parallelize_fn(model, parallel_dims=dims, training=training, parallelism=parallelism,
                        compile_config=CompileConfig(enable=False), ac_config=None, dump_folder="")
    titan_on_cpu.switch_on(titan_on_cpu.sum_reduction, model)
    model.to_empty(device="cpu")
    with torch.no_grad():
        model.init_weights(buffer_device=None)
    return model


def global_batch(step):
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(VOCABULARY, (ROWS, LENGTH + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def train(options):
    from torchtitan.components.loss import cross_entropy_loss
    torch.manual_seed(0)
    model = build(options)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    if options.golden: shardproof.load(model, options.golden)                                  # shardproof
    with shardproof.record(model, optimizer, out=options.out) as rec:                          # shardproof
        for step in range(options.steps):
            tokens, targets = shardproof.batch(*global_batch(step))                            # shardproof
            loss = cross_entropy_loss(model(tokens), targets) / (ROWS * LENGTH)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            rec.scalar("loss", loss, sum_over=("fsdp",))                                       # optional


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--golden", help="the folder of the one-rank run")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--experts", action="store_true", help="qwen3's mixture of experts in place of llama3")
    parser.add_argument("--ep", type=int, default=1, help="ranks over which experts are spread")
    parser.add_argument("--steps", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with shardproof.float64():                                                                 # shardproof
        train(options)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
