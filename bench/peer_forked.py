#!/usr/bin/env python3
"""The Python peer of the benchmark: the twelve cases with PyTorch's own DTensor.

torch is loaded once; each case forks a fresh world of ranks over Gloo. A rank builds a Llama of the
benchmark's size, applies tensor parallelism (and sequence parallelism) with parallelize_module, sums
gradients over dp in one bucket, compares every gradient with a single device, and takes one AdamW
step. The single-device gradients are computed once per precision, in a child of their own.

Where there was a choice the faster way was taken for the peer: weights are not broadcast, golden slices
are cut without communication, gradients are reduced in one call, nothing is clipped or recorded.
"""

import json
import os
import socket
import sys
import tempfile
import time
import traceback

STARTED = time.perf_counter()

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel,
                                               SequenceParallel, loss_parallel, parallelize_module)

HIDDEN, LAYERS, HEADS, KV_HEADS, VOCAB, FFN = 128, 4, 8, 4, 1024, 384
BATCH, LENGTH, SEED = 4, 128, 7
HEAD_DIM = HIDDEN // HEADS

F32, F64 = torch.float32, torch.float64
# (dp, tp, sequence parallel, precision)
CASES = [(1, 2, False, F32), (1, 2, True, F32), (2, 1, False, F32), (2, 2, False, F32),
         (2, 2, True, F32), (4, 1, False, F32), (1, 4, False, F32), (1, 4, True, F32),
         (2, 2, False, F64), (2, 2, True, F64), (1, 4, True, F64), (2, 1, False, F64)]


class Attention(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        kv = KV_HEADS * HEAD_DIM
        self.q_proj = nn.Linear(HIDDEN, HIDDEN, bias=False, dtype=dtype)
        self.k_proj = nn.Linear(HIDDEN, kv, bias=False, dtype=dtype)
        self.v_proj = nn.Linear(HIDDEN, kv, bias=False, dtype=dtype)
        self.o_proj = nn.Linear(HIDDEN, HIDDEN, bias=False, dtype=dtype)

    def forward(self, x, cos, sin):
        batch, length = x.shape[:2]
        q, k, v = (projection(x).view(batch, length, -1, HEAD_DIM).transpose(1, 2)
                   for projection in (self.q_proj, self.k_proj, self.v_proj))
        group = q.shape[1] // k.shape[1]
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))


class Mlp(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.gate_proj = nn.Linear(HIDDEN, FFN, bias=False, dtype=dtype)
        self.up_proj = nn.Linear(HIDDEN, FFN, bias=False, dtype=dtype)
        self.down_proj = nn.Linear(FFN, HIDDEN, bias=False, dtype=dtype)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(HIDDEN, eps=1e-6, dtype=dtype)
        self.self_attn = Attention(dtype)
        self.post_attention_layernorm = nn.RMSNorm(HIDDEN, eps=1e-6, dtype=dtype)
        self.mlp = Mlp(dtype)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    def __init__(self, dtype):
        super().__init__()
        self.embed_tokens = nn.Embedding(VOCAB, HIDDEN, dtype=dtype)
        self.layers = nn.ModuleList(Layer(dtype) for _ in range(LAYERS))
        self.norm = nn.RMSNorm(HIDDEN, eps=1e-6, dtype=dtype)
        self.lm_head = nn.Linear(HIDDEN, VOCAB, bias=False, dtype=dtype)
        angle = torch.arange(LENGTH, dtype=F64)[:, None] * 10000.0 ** (
            -torch.arange(0, HEAD_DIM, 2, dtype=F64) / HEAD_DIM)
        self.cos, self.sin = angle.cos().to(dtype), angle.sin().to(dtype)

    def forward(self, ids):
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return self.lm_head(self.norm(x))


def rotate(x, cos, sin):
    low, high = x.chunk(2, -1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


def seeded_model(dtype):
    torch.manual_seed(SEED)
    model = Llama(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, dtype=F64) * 0.1
            parameter.copy_(noise + 1 if parameter.dim() == 1 else noise)
    return model


def batch_of(dp_rank, dp):
    """Token ids of this dp rank, and what each position is to predict (-100: nothing)."""
    ids = torch.randint(VOCAB, (BATCH, LENGTH), generator=torch.Generator().manual_seed(SEED))
    targets = F.pad(ids[:, 1:], (0, 1), value=-100)
    return ids.chunk(dp)[dp_rank], targets.chunk(dp)[dp_rank]


def summed_loss(model, ids, targets):
    logits = model(ids).flatten(0, 1)
    return F.cross_entropy(logits, targets.flatten(), reduction="sum") / (BATCH * (LENGTH - 1))


def shard_over_tp(model, mesh, sequence_parallel):
    """Llama's plan; with sequence parallelism what lies between the blocks is cut along the sequence."""
    between = Shard(1) if sequence_parallel else Replicate()
    plan = {"embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
            "lm_head": ColwiseParallel(input_layouts=between, output_layouts=Shard(-1),
                                       use_local_output=False)}
    for name in ("q_proj", "k_proj", "v_proj"):
        plan[f"layers.*.self_attn.{name}"] = ColwiseParallel()
    for name in ("gate_proj", "up_proj"):
        plan[f"layers.*.mlp.{name}"] = ColwiseParallel()
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        plan[f"layers.*.{name}"] = RowwiseParallel(output_layouts=between)
    if sequence_parallel:
        for name in ("norm", "layers.*.input_layernorm", "layers.*.post_attention_layernorm"):
            plan[name] = SequenceParallel()
        plan["layers.*.self_attn"] = PrepareModuleInput(
            input_layouts=(Shard(1), None, None), desired_input_layouts=(Replicate(), None, None))
        plan["layers.*.mlp"] = PrepareModuleInput(
            input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    parallelize_module(model, mesh, plan, src_data_rank=None)


def reduce_over_dp(gradients, group):
    """Sums all gradients over dp in one call."""
    bucket = torch.cat([gradient.reshape(-1) for gradient in gradients])
    dist.all_reduce(bucket, group=group)
    for gradient, piece in zip(gradients, bucket.split([g.numel() for g in gradients])):
        gradient.copy_(piece.view_as(gradient))


def local_gradient(parameter):
    """This rank's part of the gradient, sharing memory with what the optimizer reads."""
    if not isinstance(parameter, DTensor):
        return parameter.grad
    parameter.grad = parameter.grad.redistribute(placements=parameter.placements)  # sums Partial
    return parameter.grad.to_local()


def compare(model, golden, local_gradients, dtype):
    """How many gradients are wrong. The golden's slice is cut without communication."""
    allowance = 1e-10 if dtype == F64 else 1e-4
    wrong = 0
    for (name, parameter), actual in zip(model.named_parameters(), local_gradients):
        whole = golden[name]
        expected = whole
        if isinstance(parameter, DTensor):
            expected = distribute_tensor(whole, parameter.device_mesh, parameter.placements,
                                         src_data_rank=None).to_local()
        error = (actual - expected).abs().max().item()
        if not error <= allowance * whole.abs().max().item():
            print(f"wrong: {name}, error {error}", file=sys.stderr)
            wrong += 1
    return wrong


def run_rank(rank, port, case, golden_file):
    dp, tp, sequence_parallel, dtype = case
    torch.set_num_threads(1)
    store = dist.TCPStore("127.0.0.1", port, dp * tp, is_master=rank == 0)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=dp * tp)
    mesh = init_device_mesh("cpu", (dp, tp), mesh_dim_names=("dp", "tp"))
    model = seeded_model(dtype)
    ids, targets = batch_of(mesh.get_local_rank("dp"), dp)
    if tp > 1:
        shard_over_tp(model, mesh["tp"], sequence_parallel)
        with loss_parallel():
            summed_loss(model, ids, targets).backward()
    else:
        summed_loss(model, ids, targets).backward()
    gradients = [local_gradient(parameter) for parameter in model.parameters()]
    if dp > 1:
        reduce_over_dp(gradients, mesh.get_group("dp"))
    wrong = compare(model, torch.load(golden_file, mmap=True), gradients, dtype)
    if os.environ.get("PEER_PLANT_BUG") and rank == 0:  # the comparison itself can fail
        gradients[-1][0, 0] += 1
        wrong += compare(model, torch.load(golden_file), gradients, dtype)
    torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False).step()
    dist.destroy_process_group()
    return wrong


def write_golden(dtype, file):
    model = seeded_model(dtype)
    summed_loss(model, *batch_of(0, 1)).backward()
    torch.save({name: parameter.grad for name, parameter in model.named_parameters()}, file)
    return 0


def fork(function, *arguments):
    child = os.fork()
    if child:
        return child
    status = 1
    try:
        status = min(function(*arguments), 1)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def wait_for(children):
    """True when every child ended well; after the first that did not, the others are ended."""
    good = True
    left = set(children)
    while left:
        child, status = os.wait()
        left.discard(child)
        if status != 0 and good:
            good = False
            for other in left:
                os.kill(other, 9)
    return good


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def main():
    loaded = time.perf_counter()
    good = True
    with tempfile.TemporaryDirectory(dir="/dev/shm") as folder:
        goldens = {}
        for case in CASES:
            dp, tp, sequence_parallel, dtype = case
            started = time.perf_counter()
            if dtype not in goldens:
                goldens[dtype] = f"{folder}/{dtype}.pt"
                good &= wait_for([fork(write_golden, dtype, goldens[dtype])])
            port = free_port()
            ranks = [fork(run_rank, rank, port, case, goldens[dtype]) for rank in range(dp * tp)]
            matched = wait_for(ranks)
            good &= matched
            print(f"  dp={dp} tp={tp}{' sp' if sequence_parallel else '   '} {str(dtype)[6:]}"
                  f"  {time.perf_counter() - started:6.2f} s  {'match' if matched else 'MISMATCH'}",
                  flush=True)
    ended = time.perf_counter()
    print(json.dumps({"cases": len(CASES), "good": good, "load_seconds": loaded - STARTED,
                      "case_seconds": ended - loaded}))
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
