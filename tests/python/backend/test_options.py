"""Faults that are planted, digests of results and the log of calls."""

import inspect
import os
import tempfile
import time
import unittest
import unittest.mock
from pathlib import Path

import torch
import torch.distributed as dist

from ranks import RanksTest
from test_disagreements import other_reduce_op

import shardproof.backend


SUMS = [[30, 60], [300, 600], [3000, 6000]]  # what three_sums gives on two ranks


def three_sums(rank, size):
    """The results of three all_reduces of [1, 2] * (rank + 1) * (10, 100, 1000)."""
    out = []
    for scale in (10.0, 100.0, 1000.0):
        tensor = torch.tensor([1.0, 2.0]) * (rank + 1) * scale
        dist.all_reduce(tensor)
        out.append(tensor.tolist())
    return out


def gathered(rank, size):
    own, whole = torch.tensor([rank + 1.0]), torch.zeros(size)
    dist.all_gather_into_tensor(whole, own)
    return own.tolist(), whole.tolist()


def in_two_groups(rank, size):
    dist.all_reduce(torch.ones(1))
    group = dist.new_group([0, 1], group_desc="mesh_tp")
    tensor = torch.tensor([rank + 1.0])
    dist.all_reduce(tensor, group=group)
    return tensor.tolist()


def in_crossed_groups(rank, size):
    """Of four ranks: a sum over the rank's pair of tp, and one over its pair of dp."""
    mesh = dist.init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    out = []
    for name in ("tp", "dp"):
        tensor = torch.tensor([10.0 ** rank])
        dist.all_reduce(tensor, group=mesh.get_group(name))
        out.append(tensor.item())
    return out


def zeros_and_ones(rank, size):
    dist.all_reduce(torch.zeros(2))
    dist.all_reduce(torch.ones(2))


def message(rank, size):
    tensor = torch.tensor([5.0])
    if rank == 0:
        dist.send(tensor, 1)
    else:
        dist.recv(tensor, 0)
    return tensor.tolist()


def skipped(rank, size):
    tensors = [torch.ones(2), torch.ones(3)]
    for tensor in tensors:
        dist.all_reduce(tensor)


def heard(action):
    """What `action` makes the rank say on its standard error."""
    with tempfile.TemporaryFile() as file:
        kept = os.dup(2)
        os.dup2(file.fileno(), 2)
        try:
            action()
        finally:
            os.dup2(kept, 2)
        file.seek(0)
        return file.read().decode()


def slow(rank, size):
    dist.barrier()
    if rank == 1:
        time.sleep(2)
    return heard(dist.barrier)


def without_calls(rank, size):
    def end():
        dist.barrier()
        dist.destroy_process_group()
    said = heard(end)
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    return said


class Quiet(RanksTest):
    def setUp(self):
        self.kept = os.dup(2)  # what a fault says as it acts is not for the test's reader
        with open(os.devnull, "w") as nothing:
            os.dup2(nothing.fileno(), 2)

    def tearDown(self):
        os.dup2(self.kept, 2)
        os.close(self.kept)


class Faults(Quiet):
    def faulty(self, size, function, fault):
        return self.values(size, function, environment={"SHARDPROOF_FAULT": fault})

    def sums(self, fault):
        return self.faulty(2, three_sums, fault)

    def test_none(self):
        self.assertEqual(self.values(2, three_sums), [SUMS] * 2)

    def test_kinds_that_change_what_is_sent(self):
        for kind, second in (("drop", [100, 200]), ("double", [500, 1000]), ("stale", [120, 240]),
                             # bit 23 of 400.0f doubles or halves it: 400 is 2^8 * 1.5625, exponent
                             # 135 is odd, so that it becomes 134 and the element 200.
                             ("corrupt", [300, 400])):
            values = self.sums(f"op=all_reduce,call=1,rank=1,kind={kind}")
            self.assertEqual(values, [[[30, 60], second, [3000, 6000]]] * 2, kind)

    def test_ranks_and_calls(self):
        average = [[15, 30], [150, 300], [1500, 3000]]
        for fault, of_ranks in (
                # of one rank only
                ("op=all_reduce,group=world,call=2,rank=1,kind=average", {0: SUMS, 1: [*SUMS[:2], [1500, 3000]]}),
                ("rank=0,kind=drop", {1: [[20, 40], *SUMS[1:]]}),  # without a call: the first that matches
                ("rank=0,call=0,kind=drop;rank=1,call=1,kind=drop", {0: [[20, 40], [100, 200], SUMS[2]]}),
                ("rank=all,call=all,kind=average", {0: average, 1: average}),
                ("rank=1,call=all,kind=stale", {0: [SUMS[0], [120, 240], [1200, 2400]]}),
                # all ranks skip, which is not found
                ("rank=all,call=all,kind=skip", {0: [[10, 20], [100, 200], [1000, 2000]],
                                                 1: [[20, 40], [200, 400], [2000, 4000]]})):
            with self.subTest(fault):
                values = self.sums(fault)
                for rank, golden in of_ranks.items():
                    self.assertEqual(values[rank], golden)

    def test_what_the_user_keeps_is_not_touched(self):
        values = self.faulty(2, gathered, "op=all_gather_into_tensor,call=0,rank=1,kind=double")
        self.assertEqual(values, [([1], [1, 4]), ([2], [1, 4])])

    def test_group(self):
        self.assertEqual(self.faulty(2, in_two_groups, "group=tp,rank=0,kind=drop"), [[2], [2]])

    def test_message(self):
        self.assertEqual(self.faulty(2, message, "op=send,rank=0,kind=double"), [[5], [10]])

    def test_skip_is_found(self):
        fault = {"SHARDPROOF_FAULT": "call=0,rank=1,kind=skip"}
        for error in self.errors(2, skipped, environment=fault):
            self.assertIn("call 0 of group world [0, 1] differs: rank 1 calls all_reduce(sum) [3] "
                          "float32 at ", error)

    def test_site(self):
        lines, first = inspect.getsourcelines(three_sums)
        line = first + next(i for i, text in enumerate(lines) if "all_reduce(" in text)
        here = os.path.relpath(__file__)
        self.assertEqual(self.sums(f"rank=0,kind=drop,site={here}:{line}")[1][0], [20, 40])
        self.assertEqual(self.sums(f"rank=0,kind=drop,site={here}:{line + 1}")[1][0], [30, 60])

    def test_wrong_group(self):
        values = self.faulty(4, in_crossed_groups, "group=tp,rank=all,kind=wrong_group,to=dp")
        self.assertEqual(values, [[101, 101], [1010, 1010], [101, 101], [1010, 1010]])
        values = self.values(4, in_crossed_groups)
        self.assertEqual(values, [[11, 101], [11, 1010], [1100, 101], [1100, 1010]])

    def test_group_that_is_not_there(self):
        fault = {"SHARDPROOF_FAULT": "rank=all,kind=wrong_group,to=pp"}
        for error in self.errors(2, three_sums, environment=fault):
            self.assertIn("is in no other group pp of 2 members", error)

    def test_without_checks_a_disagreement_is_silent(self):
        values = self.values(2, other_reduce_op, environment={"SHARDPROOF_CHECKS": "0"})
        self.assertEqual(len(values), 2)

    def test_what_acted_is_written(self):
        with tempfile.TemporaryDirectory() as folder:
            fault = "rank=1,call=all,kind=drop"
            self.values(2, zeros_and_ones, environment={"SHARDPROOF_CALLS": folder, "SHARDPROOF_FAULT": fault})
            self.assertEqual(Path(folder, "rank1.faults").read_text(), fault + "\n")  # zeros stay zeros
            self.assertFalse(Path(folder, "rank0.faults").exists())

    def test_fault_that_never_acts_is_told(self):
        first, second = self.faulty(2, without_calls, "op=broadcast,rank=0,kind=drop")
        self.assertIn('the fault "op=broadcast,rank=0,kind=drop" never acted on rank 0', first)
        self.assertEqual(second, "")

    def test_fault_of_a_rank_that_there_is_not(self):
        for outcome in self.outcomes(2, without_calls,
                                     environment={"SHARDPROOF_FAULT": "rank=7,kind=drop"}):
            self.assertIn("names rank 7 in 'rank=7,kind=drop', but the ranks are 0 to 1", outcome.error)

    def test_refused(self):
        for text, part in (("rank=1", "kind None"), ("kind=drop", "names no rank"),
                           ("rank=1,kind=explode", "'explode'"), ("rank=1,knid=drop", "'knid=drop'"),
                           ("rank=1,kind=drop,to=tp", "to=tp"), ("rank=1,kind=wrong_group", "to=None"),
                           ("rank=1,kind=corrupt,side=up", "'up'"), ("rank=one,kind=drop", "'one'")):
            with self.assertRaisesRegex(ValueError, part):
                shardproof.backend.parse_fault(text)


class Digests(Quiet):
    def test_equal_results_pass(self):
        environment = {"SHARDPROOF_DIGESTS": "1"}
        self.assertEqual(self.values(3, gathered, environment=environment),
                         [([rank + 1], [1, 2, 3]) for rank in range(3)])

    def test_odd_rank_is_named(self):
        environment = {"SHARDPROOF_DIGESTS": "1",
                       "SHARDPROOF_FAULT": "call=1,rank=2,kind=corrupt,side=output"}
        for error in self.errors(3, three_sums, environment=environment):
            self.assertRegex(error, r"^the result of call 1 of group world \[0, 1, 2\] differs: rank 2 "
                             r"holds digest [0-9a-f]{16}, ranks 0, 1 hold digest [0-9a-f]{16}; "
                             r"all_reduce\(sum\) \[2\] float32 at \S*test_options.py:\d+ must give "
                             "every member the same bits$")


class Calls(Quiet):
    def test_log(self):
        with tempfile.TemporaryDirectory() as folder:
            environment = {"SHARDPROOF_CALLS": folder, "SHARDPROOF_DIGESTS": "1"}
            self.values(2, in_two_groups, environment=environment)
            calls = [Path(folder, f"rank{rank}.calls").read_text() for rank in range(2)]
            digests = [Path(folder, f"rank{rank}.digests").read_text() for rank in range(2)]
        site = f"{os.path.relpath(__file__)}:"
        for text in calls:
            rows = [line.split("\t") for line in text.splitlines()]
            self.assertEqual([row[:5] for row in rows],
                             [["0", "world [0, 1]", "all_reduce(sum)", "float32", "[1]"],
                              ["0", "tp [0, 1]", "all_reduce(sum)", "float32", "[1]"]])
            self.assertTrue(all(row[5].startswith(site) for row in rows), text)
        rows = [[line.split("\t") for line in text.splitlines()] for text in digests]
        self.assertEqual([row[:3] for row in rows[0]], [["0", "world [0, 1]", "all_reduce(sum)"],
                                                        ["0", "tp [0, 1]", "all_reduce(sum)"]])
        self.assertEqual(rows[0][0], rows[1][0])  # ones from each: sent and received are the same
        self.assertNotEqual(rows[0][1][3], rows[1][1][3])  # sent: 1 and 2
        self.assertEqual(rows[0][1][4], rows[1][1][4])  # received: 3


class Notice(RanksTest):
    def test_long_wait_is_told_and_goes_on(self):
        first, second = self.values(2, slow, environment={"SHARDPROOF_NOTICE": "0.5"})
        self.assertRegex(first, r"^shardproof: rank 0 waits in call 1 of group world \[0, 1\]: barrier "
                         r"at \S+; rank 1 did not come within 0.5 s; rank 1's last call was call 0 of "
                         r"group world \[0, 1\]: barrier at \S+; the wait ends with an error after "
                         r"300 s\n$")
        self.assertEqual(second, "")

    def test_none_when_off(self):
        self.assertEqual(self.values(2, slow, environment={"SHARDPROOF_NOTICE": "0"}), ["", ""])


class Settings(unittest.TestCase):
    def inner(self, text):
        with unittest.mock.patch.dict(os.environ, {"SHARDPROOF_INNER": text}):
            return shardproof.backend.inner_names()

    def test_inner(self):
        self.assertEqual(self.inner("gloo")["cpu"], "gloo")
        self.assertEqual(self.inner("cpu:mine,cuda:nccl"), {"cpu": "mine", "cuda": "nccl"})
        for name in ("mine", "shardproof"):
            with self.assertRaisesRegex(ValueError, f"SHARDPROOF_INNER names the backend '{name}'"):
                shardproof.backend.make_inner(name, None, 0, 1, None, "0", [0])

    def test_inner_of_nothing_is_refused(self):
        for text in ("cpu:", "nccl", ":gloo", "cpu:gloo,nccl", "cpu:gloo,"):
            with self.assertRaisesRegex(ValueError, f"SHARDPROOF_INNER is '{text}'"):
                self.inner(text)

    def test_fault_of_no_number_is_refused(self):
        for item in ("call=soon", "call=-1", "rank=one", "rank=1.5"):
            key, value = item.split("=")
            with self.assertRaisesRegex(ValueError, f"SHARDPROOF_FAULT has {key} '{value}' in .*; give a number from 0, or all"):
                shardproof.backend.parse_fault(f"rank=1,kind=drop,{item}")

    def test_folder_of_calls_that_is_a_file_is_refused(self):
        for folder in (__file__, f"{__file__}/calls"):
            with unittest.mock.patch.dict(os.environ, {"SHARDPROOF_CALLS": folder}), \
                    self.assertRaisesRegex(ValueError, f"SHARDPROOF_CALLS is '{folder}', which cannot be a folder: "):
                shardproof.backend.calls_folder()

    def test_checks_are_on_or_off(self):
        for text, on in (("", True), ("1", True), ("0", False)):
            with unittest.mock.patch.dict(os.environ, {"SHARDPROOF_CHECKS": text}):
                self.assertEqual(shardproof.backend.checker.compares_calls(), on)
        for text in ("2", "off", "00"):
            with unittest.mock.patch.dict(os.environ, {"SHARDPROOF_CHECKS": text}), \
                    self.assertRaisesRegex(ValueError, f"SHARDPROOF_CHECKS is '{text}'; give 0, to compare nothing, or 1"):
                shardproof.backend.checker.compares_calls()

    def test_timeout_is_refused(self):
        for text in ("soon", "-3", "nan", "0"):
            os.environ["SHARDPROOF_TIMEOUT"] = text
            try:
                with self.assertRaisesRegex(ValueError, f"SHARDPROOF_TIMEOUT is '?{text}'?; give"):
                    shardproof.backend.timeout_s()
            finally:
                del os.environ["SHARDPROOF_TIMEOUT"]


if __name__ == "__main__":
    unittest.main()
