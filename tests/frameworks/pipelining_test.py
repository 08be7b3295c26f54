"""The tables of src/parallel/pp are those of torch.distributed.pipelining, action by action.

SHARDPROOF_PROGRAM is the program unit_parallel_pp, which prints its tables; without it, or with a torch whose schedules have
other names for their parts, the test is skipped.
"""

import os
import re
import subprocess
import unittest
from collections import Counter
from unittest import mock

import torch
from torch.distributed.pipelining import schedules

PROGRAM = os.environ.get("SHARDPROOF_PROGRAM")
TABLE = re.compile(r"table (\w+) (\d+) (\d+) (\d+) (\d+) rank (\d+): (.*)")
KINDS = {"FORWARD": "F", "BACKWARD_INPUT": "B", "BACKWARD_WEIGHT": "W"}
TABLES = {"interleaved": "ScheduleInterleaved1F1B", "bfs": "ScheduleLoopedBFS", "zb1p": "ScheduleInterleavedZeroBubble",
          "zbv": "ScheduleZBVZeroBubble", "dualpipev": "ScheduleDualPipeV"}
STEPS = {"gpipe": "ScheduleGPipe", "1f1b": "Schedule1F1B"}
HAVE_PARTS = (all(hasattr(getattr(schedules, name, None), "_calculate_single_rank_operations") for name in TABLES.values())
              and all(hasattr(getattr(schedules, name, None), "_step_microbatches") for name in STEPS.values()))


def schedule(name, ranks, chunks, microbatches, rank):
    """One of torch's, without its constructor, which wants stages with communicators."""
    made = object.__new__(getattr(schedules, name))
    made.pp_group_size, made.n_local_stages, made._n_microbatches, made.rank = ranks, chunks, microbatches, rank
    made.num_stages = made._num_stages = ranks * chunks
    made._stages = [None] * chunks
    made.number_of_rounds = max(1, microbatches // ranks)
    made.microbatches_per_round = microbatches // made.number_of_rounds
    return made


def of_table(name, ranks, chunks, microbatches, rank):
    """The actions of a schedule that computes a table: F3@2 is the forward of microbatch 3 on stage 2."""
    splits = name in ("zb1p", "zbv", "dualpipev")
    found = []

    def add(action):
        for part in (action.sub_actions or [action]) if action else []:
            at = f"{part.microbatch_index}@{part.stage_index}"
            if part.computation_type.name == "FULL_BACKWARD":
                found.extend([f"B{at}", f"W{at}"] if splits else [f"B{at}"])
            else:
                found.append(KINDS[part.computation_type.name] + at)

    for action in schedule(TABLES[name], ranks, chunks, microbatches, rank)._calculate_single_rank_operations(rank):
        add(action)
    return found


def of_step(name, ranks, microbatches, rank):
    """The actions of a schedule that has no table: those that a step runs on a stage which only notes them."""
    found = []
    stage = mock.MagicMock(stage_index=rank, is_last=False)
    for ops in ("get_fwd_recv_ops", "get_fwd_send_ops", "get_bwd_recv_ops", "get_bwd_send_ops"):
        getattr(stage, ops).side_effect = lambda _: []
    stage.forward_one_chunk.side_effect = lambda i, *_, **__: found.append(f"F{i}@{rank}")
    stage.backward_one_chunk.side_effect = lambda i, **__: found.append(f"B{i}@{rank}")
    made = schedule(STEPS[name], ranks, 1, microbatches, rank)
    made._stage, made._loss_fn, made._internal_losses, made.scale_grads = stage, None, [], False
    made._initialize_stage = lambda *_: None
    made._step_microbatches([()] * microbatches, [{}] * microbatches)
    return found


@unittest.skipUnless(PROGRAM and HAVE_PARTS, f"SHARDPROOF_PROGRAM is not set, or torch {torch.__version__} has other schedules")
class PipeliningTest(unittest.TestCase):
    def test_tables(self):
        printed = subprocess.run([PROGRAM, "print every table"], text=True, capture_output=True, timeout=120, check=True)
        compared = Counter()
        for found in TABLE.finditer(printed.stdout):
            name = found[1]
            ranks, chunks, microbatches, group, rank = map(int, found.groups()[1:6])
            if name not in TABLES and name not in STEPS:
                continue   # torch does not have it
            if name in STEPS:
                expected = of_step(name, ranks, microbatches, rank)
            else:
                # Torch has one size of groups, and its bfs, zbv and dualpipev have none.
                groups = schedule(TABLES[name], ranks, chunks, microbatches, rank)
                if name in ("interleaved", "zb1p") and chunks > 1 and (
                        group != groups.microbatches_per_round or microbatches % group != 0):
                    continue
                expected = of_table(name, ranks, chunks, microbatches, rank)
            with self.subTest(table=found[0].split(":")[0]):
                self.assertEqual(found[7].split(), expected)
            compared[name] += 1
        print(dict(compared))
        # Up to 4 ranks and 9 microbatches, each rank counted: 9 * (1 + 2 + 3 + 4) tables for each number of chunks.
        for name, count in {"gpipe": 90, "1f1b": 90, "bfs": 270, "zbv": 90}.items():
            self.assertEqual(compared[name], count, name)
        for name in ("interleaved", "zb1p", "dualpipev"):
            self.assertGreaterEqual(compared[name], 40, name)


if __name__ == "__main__":
    unittest.main()
