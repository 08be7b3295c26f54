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
    config = ParallelismConfig(tensor_parallel_degree=options.tp, spmd_backend="partial_dtensor")
    set_spmd_backend(config.spmd_backend)
    dims = ParallelDims.from_config(config, dist.get_world_size())
    dims.build_mesh()
    return config, dims


def build(options):
    """torchtitan's own model, built on no device, cut by its own parallelize function, and filled."""
    from torchtitan.config import CompileConfig, TrainingConfig
    from torchtitan.models.llama3 import model_registry
    parallelism, dims = parallel_dims(options)
    spec = model_registry("debugmodel")
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
    parser.add_argument("--steps", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with shardproof.float64():                                                                 # shardproof
        train(options)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
