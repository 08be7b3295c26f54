"""Tensors whose elements do not lie one after the other in memory: Gloo makes wrong values of them in some calls."""

import unittest

import torch
import torch.distributed as dist

from ranks import RanksTest

SHAPE = (4, 4)


def values(rank):
    return torch.arange(16.0).reshape(SHAPE) + 100 * rank


def plain():
    return torch.zeros(SHAPE)


def gaps():
    return torch.zeros(4, 8)[:, ::2]


def permuted_gaps():
    return torch.zeros(8, 4).t()[:, ::2]


def permuted():
    return torch.zeros(SHAPE).t()


def filled(make, rank):
    return make().copy_(values(rank))


def all_reduce(rank, size, own):
    result = filled(own, rank)
    dist.all_reduce(result)
    return result, sum(map(values, range(size)))


def all_reduce_later(rank, size, own):
    result = filled(own, rank)
    dist.all_reduce(result, async_op=True).wait()
    return result, sum(map(values, range(size)))


def broadcast(rank, size, own):
    result = filled(own, rank)
    dist.broadcast(result, 1)
    return result, values(1)


def reduce(rank, size, own):
    result = filled(own, rank)
    dist.reduce(result, 0)
    return (result, sum(map(values, range(size)))) if rank == 0 else (plain(), plain())


def all_gather(rank, size, own):
    result = [own() for _ in range(size)]
    dist.all_gather(result, filled(own, rank))
    return torch.stack(result), torch.stack([values(one) for one in range(size)])


def all_gather_into_tensor(rank, size, own):
    result = torch.zeros(4 * size, 4)
    dist.all_gather_into_tensor(result, filled(own, rank))
    return result, torch.cat([values(one) for one in range(size)])


def gather(rank, size, own):
    result = [own() for _ in range(size)] if rank == 0 else None
    dist.gather(filled(own, rank), result, 0)
    return (torch.stack(result), torch.stack([values(one) for one in range(size)])) if rank == 0 else (plain(), plain())


def scatter(rank, size, own):
    result = own()
    dist.scatter(result, [filled(own, one) for one in range(size)] if rank == 0 else None, 0)
    return result, values(rank)


def scatter_to_plain(rank, size, own):
    result = plain()
    dist.scatter(result, [filled(own, one) for one in range(size)] if rank == 0 else None, 0)
    return result, values(rank)


def reduce_scatter(rank, size, own):
    result = own()
    dist.reduce_scatter(result, [filled(own, rank) + 10 * one for one in range(size)])
    return result, sum(map(values, range(size))) + 10 * size * rank


def reduce_scatter_to_plain(rank, size, own):
    result = plain()
    dist.reduce_scatter(result, [filled(own, rank).add_(10 * one) for one in range(size)])
    return result, sum(map(values, range(size))) + 10 * size * rank


def reduce_scatter_tensor(rank, size, own):
    result = own()
    dist.reduce_scatter_tensor(result, torch.cat([values(rank)] * size))
    return result, sum(map(values, range(size)))


def all_to_all_single(rank, size, own):
    result = own()
    dist.all_to_all_single(result, values(rank))
    rows = 4 // size
    return result, torch.cat([values(one)[rank * rows:rank * rows + rows] for one in range(size)])


def all_to_all(rank, size, own):
    result = [own() for _ in range(size)]
    dist.all_to_all(result, [filled(own, rank).add_(one) for one in range(size)])
    return torch.stack(result), torch.stack([values(one) + rank for one in range(size)])


def is_right(rank, size, call, own):
    result, expected = call(rank, size, own)
    return torch.equal(result, expected)


def on_one_rank(rank, size, call):
    return is_right(rank, size, call, permuted if rank else plain)


def in_group_of_one(rank, size):
    groups = [dist.new_group([one]) for one in range(size)]
    result = filled(gaps, rank)
    dist.all_reduce(result, group=groups[rank])
    return torch.equal(result, values(rank))


def with_gaps_on_one_rank(rank, size):
    dist.all_reduce(filled(gaps if rank else plain, rank))


CALLS = (all_reduce, all_reduce_later, broadcast, reduce, scatter, scatter_to_plain, reduce_scatter, reduce_scatter_to_plain,
         all_to_all_single, all_gather, all_gather_into_tensor, gather, reduce_scatter_tensor, all_to_all)
# What Gloo makes a wrong value of.
OF_GAPS = {all_reduce, all_reduce_later, broadcast, reduce, scatter, scatter_to_plain, reduce_scatter, all_to_all_single}
WRONG = {gaps: OF_GAPS, permuted_gaps: {*OF_GAPS, reduce_scatter_to_plain},
         permuted: {scatter_to_plain, reduce_scatter_to_plain, all_to_all_single}}


class Strides(RanksTest):
    def test_calls_are_refused_of_which_gloo_makes_wrong_values(self):
        for own, wrong in WRONG.items():
            for call in CALLS:
                with self.subTest(own=own.__name__, call=call.__name__):
                    outcomes = self.outcomes(2, is_right, call, own, environment={"SHARDPROOF_TIMEOUT": "20"})
                    if call not in wrong:
                        self.assertEqual([(one.value, one.error) for one in outcomes], [(True, None)] * 2)
                        continue
                    for one in outcomes:
                        self.assertIn("[4, 4] float32 with strides [", one.error)
                        self.assertIn("make the call on tensor.contiguous()", one.error)

    def test_plain_gloo_is_wrong_where_this_refuses(self):
        for own, wrong in WRONG.items():
            for call in CALLS:
                if call is not all_to_all:  # Gloo has none
                    with self.subTest(own=own.__name__, call=call.__name__):
                        values = [one.value for one in self.outcomes(2, is_right, call, own, backend="gloo")]
                        self.assertEqual(all(values), call not in wrong)

    def test_strides_that_differ_between_ranks(self):
        for call in (all_reduce, broadcast, reduce):
            with self.subTest(call=call.__name__):
                for one in self.outcomes(2, on_one_rank, call, environment={"SHARDPROOF_TIMEOUT": "20"}):
                    self.assertRegex(one.error, r"rank 1 calls \S+( \S+ rank \d)? \[4, 4\] float32 with strides \[1, 4\] at ")

    def test_all_members_are_told(self):
        for one in self.outcomes(2, with_gaps_on_one_rank, environment={"SHARDPROOF_TIMEOUT": "20"}):
            self.assertIn("rank 1 calls all_reduce(sum) [4, 4] float32 at ", one.error)
            self.assertIn("on [4, 4] float32 with strides [8, 2], of which Gloo takes", one.error)

    def test_group_of_one(self):
        self.assertEqual([one.value for one in self.outcomes(2, in_group_of_one)], [True, True])


if __name__ == "__main__":
    unittest.main()
