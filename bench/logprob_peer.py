#!/usr/bin/env python3
"""The Python peer of the logprob benchmark: the algorithm of NeMo-RL model_utils.py, which
keeps the softmax of all logits for its backward, on two forked Gloo ranks with one thread each."""

import json
import os
import socket
import sys
import time

import torch
import torch.distributed as dist

TOKENS, VOCAB, RANKS, ROUNDS = 4096, 32768, 2, 5


class SoftmaxKept(torch.autograd.Function):
    @staticmethod
    def forward(ctx, logits, target, first):
        width = logits.shape[-1]
        foreign = (target < first) | (target >= first + width)
        own = (target - first).masked_fill(foreign, 0)
        largest = logits.amax(-1, keepdim=True)
        dist.all_reduce(largest, dist.ReduceOp.MAX)
        shifted = logits - largest
        total = shifted.exp().sum(-1, keepdim=True).float()
        dist.all_reduce(total)
        everything = shifted - total.log().to(logits.dtype)
        softmax = everything.clone().exp_()
        found = everything.gather(-1, own.unsqueeze(-1)).squeeze(-1).masked_fill(foreign, 0)
        dist.all_reduce(found)
        ctx.save_for_backward(softmax, foreign, own)
        return found

    @staticmethod
    def backward(ctx, grad):
        softmax, foreign, own = ctx.saved_tensors
        gradient = softmax.neg().mul_(grad.unsqueeze(-1))
        rows = torch.arange(own.numel())[~foreign.reshape(-1)]
        places = rows * softmax.shape[-1] + own.reshape(-1)[~foreign.reshape(-1)]
        gradient.view(-1).scatter_add_(0, places, grad.reshape(-1)[~foreign.reshape(-1)])
        return gradient, None, None


def measure(rank, dtype):
    torch.manual_seed(5)
    full = torch.randn(1, TOKENS, VOCAB).to(dtype)
    shard = full.chunk(RANKS, -1)[rank].contiguous().requires_grad_()
    target = (torch.arange(TOKENS) * 7919 % VOCAB).view(1, TOKENS)
    grad = torch.randn(1, TOKENS).to(dtype)
    first, best, best_cpu = rank * (VOCAB // RANKS), float("inf"), float("inf")
    for _ in range(ROUNDS):
        dist.barrier()
        start, cpu = time.perf_counter(), time.thread_time()
        found = SoftmaxKept.apply(shard, target, first)
        found.backward(grad)
        best, best_cpu = min(best, time.perf_counter() - start), min(best_cpu, time.thread_time() - cpu)
        shard.grad = None
    error = 0.0
    for begin in range(0, TOKENS, 256):
        rows = slice(begin, begin + 256)
        golden = full[:, rows].double().log_softmax(-1).gather(-1, target[:, rows].unsqueeze(-1)).squeeze(-1)
        error = max(error, (golden - found.detach()[:, rows]).abs().max().item())
    both = torch.tensor([best, best_cpu], dtype=torch.float64)
    dist.all_reduce(both, dist.ReduceOp.MAX)
    return {"dtype": str(dtype).removeprefix("torch."), "wall_ms": 1e3 * both[0].item(),
            "cpu_ms": 1e3 * both[1].item(), "error": error}


def run_rank(rank, port):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    for dtype in (torch.float32, torch.bfloat16):
        line = measure(rank, dtype)
        if rank == 0:
            print(json.dumps(line), flush=True)
    dist.destroy_process_group()


def main():
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    children = []
    for rank in range(RANKS):
        child = os.fork()
        if child == 0:
            run_rank(rank, port)
            sys.stdout.flush()
            os._exit(0)
        children.append(child)
    return max(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0 for child in children)


if __name__ == "__main__":
    sys.exit(main())
