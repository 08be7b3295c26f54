#!/usr/bin/env python3
"""Trains the small Llama on every mesh with stages of at most 16 ranks: each cell (pp, chunks, tp, cp, dp), untied and
tied, matches one device in float64, and equals the same mesh without stages to the bit wherever docs/pipeline.md says so;
and so does every table of a schedule with 2 to 4 ranks, 1 to 3 chunks and 1 to 9 microbatches.

  stage_cells_test.py PROGRAM [--all]    all cells and tables; default: a drawn sample of a few seconds
"""
import random
import unittest
from collections import Counter

import cells

SAMPLE, SEED = 10, 35
MOST_RANKS = 16
OF_CHUNKS = {1: ["gpipe", "1f1b", "zb1p", "bfs"], 2: ["interleaved", "zb1p", "zbv", "dualpipev", "bfs"],
             3: ["interleaved", "zb1p", "bfs"]}
MODEL = {"vocab_size": 29, "hidden_size": 12, "intermediate_size": 14, "head_dim": 4}
LENGTHS = [6, 3, 5, 4, 6, 2, 5]


def fits_groups(ranks, microbatches, group):
    last = microbatches % group
    return ranks <= group <= microbatches and (last == 0 or last >= ranks)


def groups_of(schedule, ranks, chunks, microbatches):
    """The groups with which a schedule takes so many microbatches; 0 where it has none, and [] where it does not."""
    if schedule == "dualpipev":
        return [0] if microbatches >= 2 * ranks else []
    if schedule == "zb1p" and chunks > 1 and microbatches < ranks:
        return [0]
    if schedule == "interleaved" or (schedule == "zb1p" and chunks > 1):
        return [group for group in range(ranks, microbatches + 1) if fits_groups(ranks, microbatches, group)]
    return [0]


def case_of(name, pp, chunks, schedule, microbatches, group=0, tp=1, cp=1, dp=1, tied=False, fsdp=False, sp=False):
    heads = 2 * tp if tp < 4 else tp
    parallel = {"pipeline_parallel_size": pp, "pp": {"schedule": schedule, "chunks": chunks, "group": group},
                "tensor_parallel_size": tp, "context_parallel_size": cp, "data_parallel_size": dp,
                "sequence_parallel": sp and tp > 1, "data_parallel": "fsdp" if fsdp else "replicate"}
    samples = microbatches * dp
    return {"name": name, "parallel": parallel, "run": {"train_micro_batch_size": 1, "max_grad_norm": 0.4},
            "data": {"lengths": [LENGTHS[i % len(LENGTHS)] for i in range(samples)], "sequence_length": 6},
            "model": {**MODEL, "num_hidden_layers": pp * chunks, "num_attention_heads": heads,
                      "num_key_value_heads": tp, "tie_word_embeddings": tied}}


def all_cells():
    meshes = [(pp, tp, cp, dp) for pp in range(2, MOST_RANKS + 1) for tp in range(1, MOST_RANKS + 1)
              for cp in range(1, MOST_RANKS + 1) for dp in range(1, MOST_RANKS + 1) if pp * tp * cp * dp <= MOST_RANKS]
    number = 0
    for pp, tp, cp, dp in meshes:
        for chunks, schedules in OF_CHUNKS.items():
            for tied in (False, True):
                number += 1
                schedule = schedules[number % len(schedules)]
                microbatches = {"interleaved": pp, "dualpipev": 2 * pp}.get(schedule, 1 + number % 4)
                if not groups_of(schedule, pp, chunks, microbatches):
                    microbatches = pp
                group = groups_of(schedule, pp, chunks, microbatches)[0]
                yield case_of(f"pp{pp}_v{chunks}_tp{tp}_cp{cp}_dp{dp}_{'tied' if tied else 'untied'}_{schedule}", pp,
                              chunks, schedule, microbatches, group, tp, cp, dp, tied, number % 3 == 0, number % 2 == 0)


def all_tables():
    for pp in (2, 3, 4):
        for chunks, schedules in OF_CHUNKS.items():
            for schedule in schedules:
                for microbatches in range(1, 10):
                    for group in groups_of(schedule, pp, chunks, microbatches):
                        yield case_of(f"{schedule}_p{pp}_v{chunks}_m{microbatches}_n{group}", pp, chunks, schedule,
                                      microbatches, group)


class StageCells(unittest.TestCase):
    def check(self, cases, *words):
        if not cells.ALL:
            cases = random.Random(SEED).sample(cases, SAMPLE)
        statuses, results, text = cells.run(cases, SEED, *words)
        self.assertEqual(statuses, {0}, text)
        self.assertEqual(Counter(result["verdict"] for result in results), {"match": len(cases)})
        self.assertLessEqual(max(result["world_size"] for result in results), MOST_RANKS)
        print(f"{self.id()}: {len(cases)} match")

    def test_every_cell_matches_one_device(self):
        every = list(all_cells())
        self.assertEqual(len(every), 564)
        self.check(every)

    def test_every_cell_equals_the_same_mesh_without_stages_to_the_bit(self):
        self.check(list(all_cells()), "--relations", "--filter", "relation=stages_joined")

    def test_every_table_equals_no_stages_to_the_bit(self):
        tables = list(all_tables())
        self.assertGreaterEqual(len(tables), 305)
        self.check(tables, "--relations", "--filter", "relation=stages_joined")


if __name__ == "__main__":
    cells.main()
