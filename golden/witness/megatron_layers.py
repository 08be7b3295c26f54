#!/usr/bin/env python3
"""Values and gradients of the tensor-parallel layers from megatron-core, on CPU over Gloo.

    python3 -m pip install --no-deps --target build/megatron megatron-core==0.16.1
    PYTHONPATH=build/megatron python3 golden/witness/megatron_layers.py      # writes megatron.safetensors anew

A second answer from outside: the layers that ours are modelled on, in float32, with tensor-parallel
sizes 1, 2 and 4, sequence parallel on and off. Inputs are those of layers.safetensors (make.py) in
float32; ranks' parts are put together, so that every tensor is a full one. megatron-core asks CUDA for
its device in many places: here `torch.cuda.current_device` answers with the CPU.
tests/unit/parallel/tp/witness_test.cpp compares our layers with this file to float32 rounding.

    tp2_sp.column.y, .grad_x, .grad_weight, .grad_bias      and row.*, embedding.*, gate_up.*

gate_up is the column-parallel layer with stride 2, its output put into the order of the full layer.
"""
import os
import pathlib
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp

from make import E, VOCAB, W, read, write

HERE = pathlib.Path(__file__).resolve().parent
CONFIGURATIONS = [(1, False), (2, False), (2, True), (4, False), (4, True)]


def gathered(local, dim, size):
    pieces = [torch.empty_like(local) for _ in range(size)]
    dist.all_gather(pieces, local.contiguous())
    return torch.cat(pieces, dim)


def in_full_order(by_rank, dim, size):
    """[g0 u0 g1 u1 ..] -> [g0 g1 .. u0 u1 ..]"""
    chunks = by_rank.chunk(2 * size, dim)
    return torch.cat(chunks[0::2] + chunks[1::2], dim)


def run_rank(rank, size, sequence_parallel, inputs, store, results):
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    torch.cuda.current_device = lambda: torch.device("cpu")
    from megatron.core import parallel_state
    from megatron.core.model_parallel_config import ModelParallelConfig
    from megatron.core.tensor_parallel import ColumnParallelLinear, RowParallelLinear, VocabParallelEmbedding
    parallel_state.initialize_model_parallel(tensor_model_parallel_size=size)
    config = ModelParallelConfig(tensor_model_parallel_size=size, sequence_parallel=sequence_parallel,
                                 use_cpu_initialization=True, params_dtype=torch.float32)
    answers = {}

    def own(full, dim):
        return full.chunk(size, dim)[rank]

    def tokens(full):  # what a rank holds of [S, ..] under sequence parallel
        return own(full, 0) if sequence_parallel else full

    def whole(local):
        return gathered(local, 0, size) if sequence_parallel else local

    def leaf(values):
        return values.clone().requires_grad_()

    def filled(full):
        return lambda weight: weight.copy_(full)

    def column(name, weight, bias, grad, stride):
        layer = ColumnParallelLinear(E, weight.size(0), config=config, init_method=filled(weight), bias=True,
                                     stride=stride)
        order = in_full_order if stride == 2 else lambda tensor, dim, size: tensor
        with torch.no_grad():
            layer.bias.copy_(torch.cat([own(part, 0) for part in bias.chunk(stride)]))
        x = leaf(tokens(inputs["column.x"]))
        y, _ = layer(x)
        y.backward(torch.cat([own(part, -1) for part in grad.chunk(stride, -1)], -1))
        answers[f"{name}.y"] = order(gathered(y.detach(), -1, size), -1, size)
        answers[f"{name}.grad_x"] = whole(x.grad)
        answers[f"{name}.grad_weight"] = order(gathered(layer.weight.grad, 0, size), 0, size)
        answers[f"{name}.grad_bias"] = order(gathered(layer.bias.grad, 0, size), 0, size)

    column("column", inputs["column.weight"], inputs["column.bias"], inputs["column.grad"], 1)
    column("gate_up", inputs["column.weight"], inputs["column.bias"], inputs["column.grad"], 2)

    row = RowParallelLinear(W, E, config=config, init_method=filled(inputs["row.weight"]), bias=True,
                            input_is_parallel=True, skip_bias_add=False)
    with torch.no_grad():
        row.bias.copy_(inputs["row.bias"])
    x = leaf(own(inputs["row.x"], -1).contiguous())
    y, _ = row(x)
    y.backward(tokens(inputs["row.grad"]))
    bias = row.bias.grad.clone()
    if sequence_parallel:
        dist.all_reduce(bias)
    answers |= {"row.y": whole(y.detach()), "row.grad_x": gathered(x.grad, -1, size),
                "row.grad_weight": gathered(row.weight.grad, 1, size), "row.grad_bias": bias}

    embedding = VocabParallelEmbedding(VOCAB, E, config=config, init_method=filled(inputs["embedding.weight"]),
                                       reduce_scatter_embeddings=sequence_parallel)
    y = embedding(inputs["embedding.ids"].long())
    grad = inputs["embedding.grad"]
    y.backward(tokens(grad.transpose(0, 1)).contiguous() if sequence_parallel else grad)
    full = whole(y.detach())
    answers |= {"embedding.y": full.transpose(0, 1) if sequence_parallel else full,
                "embedding.grad_weight": gathered(embedding.weight.grad, 0, size)}
    if rank == 0:
        torch.save(answers, results)
    dist.barrier()
    dist.destroy_process_group()


def main():
    inputs = {name: value.float() if value.is_floating_point() else value
              for name, value in read(HERE / "layers.safetensors").items()}
    stored = {}
    for size, sequence_parallel in CONFIGURATIONS:
        with tempfile.TemporaryDirectory() as folder:
            results = os.path.join(folder, "answers")
            mp.spawn(run_rank, (size, sequence_parallel, inputs, os.path.join(folder, "store"), results), nprocs=size)
            prefix = f"tp{size}{'_sp' if sequence_parallel else ''}"
            stored |= {f"{prefix}.{name}": value for name, value in torch.load(results).items()}
    write(HERE / "megatron.safetensors", stored)
    return 0


if __name__ == "__main__":
    sys.exit(main())
