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
import sys
import tempfile
import time
import traceback

STARTED = time.perf_counter()

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor.parallel import loss_parallel

from peer_model import Sizes, batch_of, free_port, seeded_model, shard_over_tp, summed_loss

SIZES = Sizes("small")
SPREAD = 0.1  # of the weights

F32, F64 = torch.float32, torch.float64
# (dp, tp, sequence parallel, precision)
CASES = [(1, 2, False, F32), (1, 2, True, F32), (2, 1, False, F32), (2, 2, False, F32),
         (2, 2, True, F32), (4, 1, False, F32), (1, 4, False, F32), (1, 4, True, F32),
         (2, 2, False, F64), (2, 2, True, F64), (1, 4, True, F64), (2, 1, False, F64)]


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
    model = seeded_model(SIZES, dtype, SPREAD)
    ids, targets = batch_of(SIZES, mesh.get_local_rank("dp"), dp)
    if tp > 1:
        shard_over_tp(model, mesh["tp"], sequence_parallel)
        with loss_parallel():
            summed_loss(model, SIZES, ids, targets).backward()
    else:
        summed_loss(model, SIZES, ids, targets).backward()
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
    model = seeded_model(SIZES, dtype, SPREAD)
    summed_loss(model, SIZES, *batch_of(SIZES, 0, 1)).backward()
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
