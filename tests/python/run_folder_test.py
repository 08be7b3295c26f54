"""A folder that holds an earlier run: nothing of that may stand for a rank that does not record."""

import time

import judging
import models
import ranks
import torch
import torch.distributed as dist

import shardproof


def train(rank, out, golden=None, recording=(0, 1), late=None, times=1):
    """A step of data parallelism without a collective: each rank computes the whole batch. `late`: the rank that records
    after the others have ended."""
    model = models.build()
    if golden:
        shardproof.load(model, golden)
    store = dist.distributed_c10d._get_default_store()
    for number in range(times):
        if rank == late:
            store.wait([f"closed/{number}/{other}" for other in range(dist.get_world_size()) if other != late])
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
        recorder = shardproof.record(model, optimizer, out=out) if rank in recording else None
        models.backward(model, number)
        optimizer.step()
        model.zero_grad()
        if recorder:
            recorder.close()
        store.set(f"closed/{number}/{rank}", "")
        store.wait([f"closed/{number}/{other}" for other in range(dist.get_world_size())])


class EarlierRunTest(judging.RunsTest):
    def files(self):
        return sorted(path.name for path in self.out.iterdir())

    def test_a_rank_that_does_not_record_has_no_files(self):
        whole = ["rank0.jsonl", "rank0.safetensors", "rank1.jsonl", "rank1.safetensors", "run.json"]
        for recording, files in (((0, 1), whole), ((0,), [*whole[:2], "run.json"]), ((0, 1), whole), ((1,), whole[2:4])):
            ranks.run(2, train, self.out, None, recording)
            self.assertEqual(self.files(), files)

    def test_files_of_a_rank_that_ended_before_another_one_began_stay(self):
        for late in (0, 1, None):
            ranks.run(2, train, self.out, None, (0, 1), late)
            self.assertEqual(len(self.files()), 5)
            self.assertTrue(all(path.stat().st_mtime > time.time() - 60 for path in self.out.iterdir()))

    def test_one_process_group_records_into_a_folder_again(self):
        ranks.run(3, train, self.out, None, (0, 1, 2), 0, 2)
        self.assertEqual(len(self.files()), 7)
        ranks.run(2, train, self.out, None, (0, 1), 1, 2)  # with fewer ranks
        self.assertEqual(len(self.files()), 5)

    @judging.needs_program
    def test_the_judge_says_which_rank_did_not_record(self):
        ranks.run(1, train, self.golden, None, (0,))
        ranks.run(2, train, self.out, self.golden)
        self.assertEqual(self.judge()[0], 0)
        ranks.run(2, train, self.out, self.golden, (0,))
        status, text = self.judge()
        self.assertEqual(status, 2)
        self.assertIn("rank1", text)


if __name__ == "__main__":
    import unittest
    unittest.main()
