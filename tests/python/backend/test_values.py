"""Each call gives the values that its definition asks for, computed by hand."""

import os
import unittest

import torch
import torch.distributed as dist

from ranks import RanksTest


ON_GPU = bool(os.environ.get("SHARDPROOF_TEST_DEVICE"))


def own(rank):
    """[1, 10] on rank 0, [2, 20] on rank 1, [3, 30] on rank 2."""
    return torch.tensor([1.0, 10.0]) * (rank + 1)


def lists(tensors):
    return [tensor.tolist() for tensor in tensors]


def zeros(*sizes):
    return [torch.zeros(size) for size in sizes]


def all_reduces(rank, size):
    out = []
    for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT,
               dist.ReduceOp.AVG, dist._make_nccl_premul_sum(0.5),
               dist._make_nccl_premul_sum(torch.tensor([0.5]))):
        for is_async in (False, True):
            tensor = own(rank)
            work = dist.all_reduce(tensor, op, async_op=is_async)
            if is_async:
                work.wait()
            out.append(tensor.tolist())
    bits = torch.tensor([1 << rank, 7])
    if not ON_GPU:  # NCCL has no operation on bits
        dist.all_reduce(bits, dist.ReduceOp.BOR)
    return out, bits.tolist()


def rooted(rank, size):
    sent, reduced, scaled, result = own(rank), own(rank), own(rank), torch.zeros(2)
    dist.broadcast(sent, 1)
    dist.reduce(reduced, 2)
    dist.reduce(scaled, 0, dist._make_nccl_premul_sum(2.0))
    gathered = zeros(2, 2, 2) if rank == 1 else None
    dist.gather(own(rank), gathered, 1)
    parts = [own(i) * 100 for i in range(size)] if rank == 2 else None
    dist.scatter(result, parts, 2)
    return {"broadcast": sent.tolist(), "reduce": reduced.tolist(), "scaled": scaled.tolist(),
            "gather": gathered and lists(gathered), "scatter": result.tolist()}


def gathers(rank, size):
    parts, whole = zeros(2, 2, 2), torch.zeros(6)
    dist.all_gather(parts, own(rank))
    dist.all_gather_into_tensor(whole, own(rank))
    first, second = torch.zeros(6), torch.zeros(3)
    with dist._coalescing_manager():
        dist.all_gather_into_tensor(first, own(rank))
        dist.all_gather_into_tensor(second, own(rank)[:1])
    a, b = own(rank), own(rank)[:1].clone()
    with dist._coalescing_manager():
        dist.all_reduce(a)
        dist.all_reduce(b)
    objects = [None] * size
    dist.all_gather_object(objects, {"rank": rank})
    return lists(parts), whole.tolist(), first.tolist(), second.tolist(), a.tolist(), b.tolist(), objects


def scatters(rank, size):
    out = {}
    whole = torch.arange(6.0) * (rank + 1)  # the sum over ranks is 6 * arange
    for name, op in (("sum", dist.ReduceOp.SUM), ("avg", dist.ReduceOp.AVG),
                     ("premul_sum", dist._make_nccl_premul_sum(0.5))):
        first, second = torch.zeros(2), torch.zeros(2)
        dist.reduce_scatter_tensor(first, whole, op)
        dist.reduce_scatter(second, list(whole.chunk(3)), op)
        out[name] = first.tolist(), second.tolist()
    a, b = torch.zeros(2), torch.zeros(1)
    with dist._coalescing_manager():
        dist.reduce_scatter_tensor(a, whole)
        dist.reduce_scatter_tensor(b, whole[:3].contiguous())
    return out, a.tolist(), b.tolist(), whole.tolist()


def to_all(rank, size):
    # Rank r sends to rank j the number 10 * r + j, j + 1 times.
    parts = [torch.full((j + 1,), 10.0 * rank + j) for j in range(size)]
    received = zeros(*[rank + 1] * size)
    dist.all_to_all(received, parts)
    none = [torch.full((rank * j,), 1.0 + rank) for j in range(size)]  # some parts are empty
    some = zeros(*[rank * i for i in range(size)])
    dist.all_to_all(some, none, async_op=True).wait()
    whole = torch.zeros(size * (rank + 1))
    dist.all_to_all_single(whole, torch.cat(parts), [rank + 1] * size, [1, 2, 3])
    even = torch.zeros(size, 2)
    dist.all_to_all_single(even, torch.arange(6.0).view(3, 2) + 10 * rank)
    return lists(received), lists(some), whole.tolist(), even.tolist()


def batched_messages(rank, size):
    right, left = (rank + 1) % size, (rank - 1) % size
    batched = torch.zeros(2)
    for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, own(rank), left),
                                        dist.P2POp(dist.irecv, batched, right)]):
        work.wait()
    return batched.tolist()


def numbers(rank, size):
    """A message of a number is received into one element, as torch.distributed.pipelining does."""
    received = torch.zeros(1)
    for work in [dist.isend(torch.tensor(rank + 1.0), (rank + 1) % size), dist.irecv(received, (rank - 1) % size)]:
        work.wait()
    return received.tolist()


def messages(rank, size):
    right, left = (rank + 1) % size, (rank - 1) % size
    received = torch.zeros(2)
    pending = [dist.isend(own(rank), right), dist.irecv(received, left)]
    for work in pending:
        work.wait()
    sources = []
    if rank == 0:
        for _ in range(2):
            anyones = torch.zeros(2)
            source = dist.recv(anyones, None, tag=7)
            sources.append((source, anyones.tolist()))
    else:
        dist.send(own(rank), 0, tag=7)
    # What is sent is received though the sender only waits once the receiver has waited.
    if rank == 0:
        work = dist.isend(own(rank), 1)
        dist.barrier()
        work.wait()
    else:
        late = torch.zeros(2)
        if rank == 1:
            dist.recv(late, 0)
        dist.barrier()
    return received.tolist(), sorted(sources)


def crossed(rank, size):
    """Asynchronous calls of two groups, begun in another order on each rank: legal with Gloo."""
    first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
    a, b = own(rank), own(rank) * 100
    groups = ((a, first), (b, second)) if rank == 0 else ((b, second), (a, first))
    works = [dist.all_reduce(tensor, group=group, async_op=True) for tensor, group in groups]
    for work in works:
        work.wait()
    futures = dist.all_reduce(own(rank), async_op=True).get_future()
    return a.tolist(), b.tolist(), futures.wait()[0].tolist()


def alone(rank, size):
    group = [dist.new_group([i]) for i in range(size)][rank]
    tensor = own(rank)
    dist.all_reduce(tensor, group=group)
    dist.barrier(group)
    return tensor.tolist()


class Values(RanksTest):
    def test_all_reduce(self):
        rows = [[6, 60], [3, 30], [1, 10], [6, 6000], [2, 20], [3, 30], [3, 30]]
        golden = [row for row in rows for _ in range(2)]
        for rank, (reduced, bits) in enumerate(self.values(3, all_reduces)):
            if ON_GPU:  # NCCL multiplies by 1/3 in float32 where it averages
                reduced = [[round(number, 5) for number in row] for row in reduced]
            self.assertEqual(reduced, golden)
            self.assertEqual(bits, [1 << rank, 7] if ON_GPU else [7, 7])

    def test_calls_with_a_root(self):
        values = self.values(3, rooted)
        for rank, value in enumerate(values):
            self.assertEqual(value["broadcast"], [2, 20])
            self.assertEqual(value["scatter"], [100 * (rank + 1), 1000 * (rank + 1)])
        self.assertEqual(values[2]["reduce"], [6, 60])
        self.assertEqual(values[0]["scaled"], [12, 120])
        self.assertEqual(values[1]["scaled"], [2, 20])  # what another rank gave stays as it was
        self.assertEqual(values[1]["gather"], [[1, 10], [2, 20], [3, 30]])

    def test_gathers(self):
        whole = [1, 10, 2, 20, 3, 30]
        objects = [{"rank": rank} for rank in range(3)]
        for value in self.values(3, gathers):
            self.assertEqual(value, ([[1, 10], [2, 20], [3, 30]], whole, whole, [1, 2, 3],
                                     [6, 60], [6], objects))

    def test_reduce_scatters(self):
        for rank, (out, a, b, whole) in enumerate(self.values(3, scatters)):
            total = [12 * rank, 12 * rank + 6]
            self.assertEqual(out["sum"], (total, total))
            self.assertEqual(out["avg"], ([total[0] / 3, total[1] / 3],) * 2)
            self.assertEqual(out["premul_sum"], ([total[0] / 2, total[1] / 2],) * 2)
            self.assertEqual((a, b), (total, [6 * rank]))
            self.assertEqual(whole, [i * (rank + 1) for i in range(6)])  # the input is kept

    def test_all_to_all(self):
        for rank, (parts, some, whole, even) in enumerate(self.values(3, to_all)):
            golden = [[10.0 * i + rank] * (rank + 1) for i in range(3)]
            self.assertEqual(parts, golden)
            self.assertEqual(some, [[1.0 + i] * (rank * i) for i in range(3)])
            self.assertEqual(whole, sum(golden, []))
            self.assertEqual(even, [[10 * i + 2 * rank, 10 * i + 2 * rank + 1] for i in range(3)])

    def test_batched_messages(self):
        for rank, batched in enumerate(self.values(3, batched_messages)):
            self.assertEqual(batched, [(rank + 1) % 3 + 1, 10 * ((rank + 1) % 3 + 1)])

    @unittest.skipIf(ON_GPU, "with NCCL a ring in which each rank sends first waits for ever")
    def test_numbers(self):
        self.assertEqual(self.values(2, numbers), [[2], [1]])

    @unittest.skipIf(ON_GPU, "with NCCL a ring in which each rank sends first waits for ever")
    def test_messages(self):
        values = self.values(3, messages)
        for rank, (received, _) in enumerate(values):
            self.assertEqual(received, [(rank - 1) % 3 + 1, 10 * ((rank - 1) % 3 + 1)])
        self.assertEqual(values[0][1], [(1, [2, 20]), (2, [3, 30])])

    @unittest.skipIf(ON_GPU, "with NCCL the first call of a group waits for the group's other ranks")
    def test_order_of_asynchronous_calls_in_two_groups(self):
        for value in self.values(2, crossed):
            self.assertEqual(value, ([3, 30], [300, 3000], [3, 30]))

    def test_group_of_one(self):
        self.assertEqual(self.values(2, alone), [[1, 10], [2, 20]])


if __name__ == "__main__":
    unittest.main()
