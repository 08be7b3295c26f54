"""Each kind of disagreement is an error on every rank, which names the ranks and their calls."""

import inspect
import os
import time
import unittest

import torch
import torch.distributed as dist

from ranks import RanksTest

SOON = {"SHARDPROOF_TIMEOUT": "1.5"}  # of calls that a member never makes


def agreed(rank, size, function):
    """The function, after a call that is the same on all ranks."""
    dist.all_reduce(torch.ones(4))
    return function(rank, size)


def other_op(rank, size):
    if rank == 1:
        dist.broadcast(torch.ones(4), 0)
    else:
        dist.all_reduce(torch.ones(4))


def other_reduce_op(rank, size):
    dist.all_reduce(torch.ones(4), dist.ReduceOp.MAX if rank == 1 else dist.ReduceOp.SUM)


def other_bit_op(rank, size):
    dist.all_reduce(torch.ones(4, dtype=torch.int64), dist.ReduceOp.BXOR if rank == 1 else dist.ReduceOp.BAND)


def other_dtype(rank, size):
    dist.all_reduce(torch.ones(4, dtype=torch.float64 if rank == 1 else torch.float32))


def other_shape(rank, size):
    dist.all_reduce(torch.ones(5 if rank == 1 else 4))


def other_root(rank, size):
    dist.broadcast(torch.ones(4), 1 if rank == 1 else 0)


def other_order(rank, size):
    calls = [lambda: dist.all_reduce(torch.ones(4)),
             lambda: dist.all_gather_into_tensor(torch.ones(4 * size), torch.ones(4))]
    for call in calls[::-1] if rank == 1 else calls:
        call()


def other_asynchronous(rank, size):
    works = [dist.all_reduce(torch.ones(4), async_op=True) for _ in range(2)]
    works.append(dist.all_reduce(torch.ones(5 if rank == 1 else 4), async_op=True))
    for work in works:
        work.wait()


def other_split(rank, size):
    sent = [2, 1, 1] if rank == 1 else [1, 1, 1]
    dist.all_to_all_single(torch.ones(3, 2), torch.ones(sum(sent), 2), [1, 1, 1], sent)


def other_part(rank, size):
    sent = [torch.ones(2 if (rank, to) == (1, 0) else 1) for to in range(size)]
    dist.all_to_all([torch.ones(1) for _ in range(size)], sent)


def other_result(rank, size):
    whole = torch.ones(5 if rank == 1 else 4)  # 5 is not 2 for each of 2 ranks
    dist.all_gather_into_tensor(whole, torch.ones(2))


def other_scattered(rank, size):
    part = torch.ones(2, dtype=torch.float64 if rank == 1 else torch.float32)
    dist.reduce_scatter_tensor(part, torch.ones(4))


def other_message(rank, size):
    if rank == 0:
        dist.send(torch.ones(4), 1)
    else:
        dist.recv(torch.ones(5), 0)


def missing_call(rank, size):
    if rank != 1:
        dist.all_reduce(torch.ones(4))
    else:
        dist.barrier(group=dist.new_group([1]))
        time.sleep(2.5)  # busy with something else
        dist.all_reduce(torch.ones(4))


def ended(rank, size):
    if rank == 1:
        os._exit(0)
    dist.all_reduce(torch.ones(4))


def missing_message(rank, size):
    if rank == 0:
        dist.recv(torch.ones(4), 1)
    else:
        time.sleep(2.5)
        dist.all_reduce(torch.ones(4))


def other_group(rank, size):
    groups = [dist.new_group([0, 1], group_desc=name) for name in ("tp", "dp")]
    dist.all_reduce(torch.ones(4), group=groups[rank])


def unmade_group(rank, size):
    if rank == 0:
        dist.new_group([0, 1])
    else:
        dist.all_reduce(torch.ones(4))


def in_subgroup(rank, size):
    groups = [dist.new_group([0, 2], group_desc="mesh_dp"), dist.new_group([1, 3], group_desc="mesh_dp")]
    for _ in range(3):
        dist.all_reduce(torch.ones(2), group=groups[rank % 2])
    if rank % 2 == 1:
        dist.all_reduce(torch.ones(2, 3 if rank == 3 else 2), group=groups[1])
    return rank


def twice(rank, size):
    """The second call fails as the first did: the group stays out of step."""
    try:
        other_shape(rank, size)
    except dist.DistBackendError as error:
        first = str(error)
    try:
        dist.all_reduce(torch.ones(4))
    except dist.DistBackendError as error:
        return str(error) == first


# Ranks, the function, what rank 1 calls, what the others call, and what stands in the line of both calls.
ON_ONE_LINE = (
    (2, other_reduce_op, "all_reduce(max) [4] float32", "all_reduce(sum) [4] float32", "MAX"),
    (2, other_bit_op, "all_reduce(bit_xor) [4] int64", "all_reduce(bit_and) [4] int64", "BXOR"),
    (3, other_dtype, "all_reduce(sum) [4] float64", "all_reduce(sum) [4] float32", "float64"),
    (3, other_shape, "all_reduce(sum) [5] float32", "all_reduce(sum) [4] float32", "ones(5"),
    (2, other_root, "broadcast from rank 1 [4] float32", "broadcast from rank 0 [4] float32", "broadcast"),
    # results that do not fit
    (2, other_result, "all_gather_into_tensor [2] float32 into [5] float32", "all_gather_into_tensor [2] float32",
     "all_gather_into_tensor"),
    (2, other_scattered, "reduce_scatter_tensor(sum) [4] float32 into [2] float64",
     "reduce_scatter_tensor(sum) [4] float32", "reduce_scatter_tensor"))


class Disagreements(RanksTest):
    def errors(self, size, function, **options):
        return super().errors(size, agreed, function, **options)

    def line_of(self, function, text):
        """Where `text` stands in the function: file:line as the messages have it."""
        lines, first = inspect.getsourcelines(function)
        at = [i for i, line in enumerate(lines) if text in line]
        self.assertEqual(len(at), 1, text)
        return f"{os.path.relpath(__file__)}:{first + at[0]}"

    def differs(self, size, function, own, others, *places, call=1):
        """Every rank says the same: what rank 1 calls, and what the others call, at the lines with these texts."""
        rest = "rank 0 calls" if size == 2 else "ranks 0, 2 call"
        first, last = self.line_of(function, places[0]), self.line_of(function, places[-1])
        golden = (f"call {call} of group world {list(range(size))} differs: rank 1 calls {own} at {first}, "
                  f"{rest} {others} at {last}; make every member enter the same calls in the same order")
        for error in self.errors(size, function):
            self.assertEqual(error, golden)

    def test_calls_on_one_line(self):
        for row in ON_ONE_LINE:
            with self.subTest(row[1].__name__):
                self.differs(*row)

    def test_op(self):
        for size in (2, 3):
            self.differs(size, other_op, "broadcast from rank 0 [4] float32", "all_reduce(sum) [4] float32",
                         "broadcast", "dist.all_reduce")

    def test_order(self):
        self.differs(2, other_order, "all_gather_into_tensor [4] float32", "all_reduce(sum) [4] float32",
                     "all_gather_into_tensor", "dist.all_reduce")

    def test_asynchronous(self):
        site, same = "ones(5", "ones(4), async"
        self.assertNotEqual(self.line_of(other_asynchronous, site), self.line_of(other_asynchronous, same))
        self.differs(3, other_asynchronous, "all_reduce(sum) [5] float32", "all_reduce(sum) [4] float32", site, call=3)

    def test_split_of_all_to_all(self):
        site = self.line_of(other_split, "all_to_all_single")
        for error in self.errors(3, other_split):
            self.assertEqual(error, "call 1 of group world [0, 1, 2] differs: rank 1 sends 2 rows "
                             "to rank 0, which expects 1; rank 1 calls all_to_all_single [4, 2] "
                             f"float32 at {site}, rank 0 calls all_to_all_single [3, 2] float32 at "
                             f"{site}; make the input splits of each rank the output splits of the "
                             "others")

    def test_part_of_all_to_all(self):
        for error in self.errors(2, other_part):
            self.assertIn("rank 1 sends 2 elements to rank 0, which expects 1", error)

    def test_message(self):
        sends, receives = (self.line_of(other_message, text) for text in ("send", "recv"))
        for error in self.errors(2, other_message):
            self.assertEqual(error, "message 0 from rank 0 to rank 1 of group world [0, 1] differs: "
                             f"rank 1 calls recv from rank 0 [5] float32 at {receives}, rank 0 "
                             f"calls send to rank 1 [4] float32 at {sends}; make the receiver "
                             "expect what is sent")

    def test_missing_call(self):
        for rank, error in enumerate(self.errors(3, missing_call, environment=SOON)):
            self.assertIn(f"rank {rank} waits in call 1 of group world [0, 1, 2]: all_reduce(sum) [4] "
                          "float32 at ", error)
            self.assertIn("rank 1 did not come within 1.5 s; rank 1's last call was call 0 of group",
                          error)
            self.assertIn("set SHARDPROOF_TIMEOUT above 1.5 s if the rank is only slow", error)

    def test_rank_that_ended(self):
        first, gone, last = self.outcomes(3, agreed, ended, environment={"SHARDPROOF_TIMEOUT": "90"})
        self.assertIsNone(gone)
        for rank, outcome in ((0, first), (2, last)):
            self.assertLess(outcome.seconds, 60)  # not only after the 90 s
            self.assertIn(f"rank {rank} waits in call 1 of group world [0, 1, 2]", outcome.error)
            self.assertRegex(outcome.error, "rank 1 did not come and a connection was closed; rank 1's "
                             "last call was (not told yet|call 0)")

    def test_missing_message(self):
        first, second = self.errors(2, missing_message, environment=SOON)
        self.assertIn("rank 0 waits in call 0 of group world [0, 1]: recv from rank 1 [4] float32 at ",
                      first)
        for error in (first, second):
            self.assertIn("rank 1 did not come within 1.5 s; rank 1's last call was call 0 of group world"
                          " [0, 1]: all_reduce(sum) [4] float32 at ", error)

    def test_wrong_group(self):
        first, second = self.errors(2, other_group, environment=SOON)
        self.assertIn("rank 0 waits in call 0 of group tp [0, 1]: all_reduce(sum)", first)
        self.assertIn("rank 1 waits in call 0 of group dp [0, 1]: all_reduce(sum)", second)
        either = "rank 1's last call was call 0 of group dp|rank 0's last call was call 0 of group tp"
        for error in (first, second):
            self.assertRegex(error, either)

    def test_group_that_one_rank_does_not_make(self):
        first, second = self.errors(2, unmade_group, environment=SOON)
        self.assertRegex(first, r"group \S+ \[0, 1\] was not made within 1.5 s: rank 0 makes it, rank 1 "
                         "did not; call init_process_group or new_group on every rank")
        self.assertIn("rank 1 waits in call 1 of group world [0, 1]", second)
        self.assertRegex(second, "rank 0 did not come")

    def test_only_the_group_concerned(self):
        outcomes = self.outcomes(4, agreed, in_subgroup)
        self.assertEqual([outcomes[0].value, outcomes[2].value], [0, 2])
        site = self.line_of(in_subgroup, "groups[1])")
        for rank in (1, 3):
            self.assertEqual(outcomes[rank].error, "call 3 of group dp [1, 3] differs: rank 3 calls "
                             f"all_reduce(sum) [2, 3] float32 at {site}, rank 1 calls all_reduce(sum) "
                             f"[2, 2] float32 at {site}; make every member enter the same calls in the "
                             "same order")

    def test_later_calls_fail_too(self):
        self.assertEqual(self.values(2, agreed, twice), [True, True])


if __name__ == "__main__":
    unittest.main()
