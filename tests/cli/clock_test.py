#!/usr/bin/env python3
"""Tests the virtual clock of the real program: equal times in every run, overlap, a straggler, bad input.

  clock_test.py SHARDPROOF-BIN
"""

import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = None


# Links of 10 us whatever the bytes are: a broadcast over three ranks takes two such rounds, an all_reduce of one number four.
REFIT = """
name: t/refit
workload: policy
model: {vocab_size: 37, hidden_size: 24, intermediate_size: 40, num_attention_heads: 4, num_hidden_layers: 1}
data: {lengths: [9, 6, 3, 8], sequence_length: 9}
parallel: {tensor_parallel_size: 2}
run: {refit: {tensor_parallel_size: 2, budget_bytes: 4000}, stages: [{do: score}, {do: refit}]}
world: {backend: emulated, compute: fixed, links: {in_node: {latency_us: 10}}}
"""
FACTORS = """
name: t/factors
workload: train
model: {vocab_size: 37, hidden_size: 24, intermediate_size: 40, num_attention_heads: 4, num_hidden_layers: 1}
data: {lengths: [9, 6], sequence_length: 9}
parallel: {tensor_parallel_size: 2}
world: {backend: emulated, compute: fixed, links: {in_node: {latency_us: 10, gb_per_s: 1}}}
matrix:
  case:
    - {name: even}
    - {name: fast, world.stragglers: [{rank: 0, links: 0.5}, {rank: 1, links: 0.25}]}
    - {name: one_fast, world.stragglers: [{rank: 1, links: 0.25}]}
    - {name: free, world.stragglers: [{rank: 0, links: 0}, {rank: 1, links: 0}]}
    - {name: delayed, faults: [{kind: delay, rank: 0, seconds: 0.05, op: all_reduce}]}
"""


def run(scenario, folder):
    return subprocess.run([PROGRAM, "run", str(scenario), "--backend", "emulated", "--out", str(folder)], cwd=ROOT,
                          capture_output=True, text=True, timeout=360)


class Clock(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.runs = []
        for number in range(2):
            out = cls.folder / str(number)
            done = run("scenarios/clock", out)
            assert done.returncode == 0, done.stdout + done.stderr
            cls.runs.append(json.loads((out / "results.json").read_text()))
        cls.times = {case["name"]: case["virtual_time"] for case in cls.runs[0]["cases"]}

    def test_fixed_costs_give_the_same_times_in_every_run(self):
        for first, second in zip(self.runs[0]["cases"], self.runs[1]["cases"]):
            self.assertEqual(first["virtual_time"], second["virtual_time"], first["name"])
        timelines = [(self.folder / str(number) / "timeline.json").read_text() for number in range(2)]
        self.assertEqual(*timelines)

    def test_the_parts_of_a_ranks_time_are_its_whole_time(self):
        for name, time in self.times.items():
            for rank in time["ranks"]:
                parts = rank["compute_us"] + rank["waiting_us"] + rank["exposed_us"]
                self.assertAlmostEqual(parts, rank["total_us"], delta=1e-9 * rank["total_us"], msg=name)

    def test_ring_attention_hides_communication_and_tensor_parallel_does_not(self):
        for rank in self.times["clock/ring[even]"]["ranks"]:
            self.assertLess(rank["exposed_us"], 0.6 * rank["communication_us"])
        for rank in self.times["clock/links[even]"]["ranks"]:
            self.assertAlmostEqual(rank["exposed_us"], rank["communication_us"], delta=1e-6)

    def test_prefetch_hides_the_gathers_of_sharded_layers(self):
        prefetch, late, kept = (self.times[f"clock/prefetch[{name}]"]["ranks"]
                                for name in ("prefetch", "no_prefetch", "no_reshard"))
        for with_it, without, once in zip(prefetch, late, kept):
            # The calls are the same; only the waiting for them differs.
            self.assertAlmostEqual(with_it["communication_us"], without["communication_us"], delta=1e-6)
            self.assertLess(with_it["exposed_us"], 0.6 * without["exposed_us"])
            self.assertLess(with_it["total_us"], without["total_us"])
            self.assertLess(once["communication_us"], with_it["communication_us"])

    def test_a_linear_layer_reduces_its_inputs_gradient_behind_its_weights(self):
        whole = {name: self.times[f"clock/linear_backward[{name}]"]["ranks"][0] for name in (
            "overlapped", "sequential", "overlapped_sp", "sequential_sp")}
        for name in ("sequential", "sequential_sp"):
            self.assertAlmostEqual(whole[name]["exposed_us"], whole[name]["communication_us"], delta=1e-6)
        self.assertLess(whole["overlapped"]["exposed_us"], 1e-6)
        saved = whole["sequential"]["total_us"] - whole["overlapped"]["total_us"]
        self.assertAlmostEqual(saved, whole["sequential"]["communication_us"], delta=1e-6)
        # The second gather and the reduce-scatter are hidden; the forward's gather cannot be.
        again = whole["overlapped_sp"]["communication_us"] - whole["sequential_sp"]["communication_us"]
        self.assertGreater(again, 10)
        self.assertAlmostEqual(whole["overlapped_sp"]["exposed_us"], again, delta=1e-6)

    def test_a_straggler_is_the_critical_path_and_waits_for_nobody(self):
        time = self.times["clock/links[straggler]"]
        self.assertEqual(time["critical_path_shares"][0]["what"], "rank 3 compute")
        self.assertGreater(time["critical_path_shares"][0]["duration_us"], 0.9 * time["total_us"])
        self.assertLess(time["ranks"][3]["waiting_us"], 1e-6)
        self.assertGreater(time["ranks"][0]["waiting_us"], 0.3 * time["ranks"][0]["total_us"])

    def test_slow_links_cost_what_they_should(self):
        even, slow = (self.times[f"clock/links[{name}]"]["ranks"][0] for name in ("even", "slow_link"))
        self.assertAlmostEqual(slow["communication_us"], 5 * even["communication_us"], delta=1e-6)
        self.assertAlmostEqual(slow["compute_us"], even["compute_us"], delta=1e-6)

    def test_ranks_that_share_their_nodes_link_wait_for_each_other(self):
        even, shared, wide = (self.times[f"clock/links[{name}]"] for name in (
            "even", "one_link_per_node", "one_wide_link_per_node"))
        self.assertGreater(shared["total_us"], even["total_us"] + 1)
        for own, of_two in zip(even["ranks"], shared["ranks"]):
            self.assertGreater(of_two["communication_us"], own["communication_us"] + 1)
            self.assertAlmostEqual(of_two["compute_us"], own["compute_us"], delta=1e-6)
        for own, of_two in zip(even["ranks"], wide["ranks"]):
            for part in ("total_us", "communication_us", "exposed_us"):
                self.assertAlmostEqual(of_two[part], own[part], delta=1e-6)

    def test_a_refit_takes_time_on_the_ranks_that_receive_it(self):
        out = self.folder / "refit"
        done = run(self.write("refit.yaml", REFIT), out)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        case = json.loads((out / "results.json").read_text())["cases"][0]
        events = json.loads((out / "timeline.json").read_text())["traceEvents"]
        lanes = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
        of_ranks = {rank: [event for event in events if lanes.get(event.get("tid")) == f"rank {rank} in refit[0,2,3]"
                           and event["ph"] == "X"] for rank in (0, 2, 3)}
        for event in of_ranks[2]:
            self.assertAlmostEqual(event["dur"], 40 if "all_reduce" in event["name"] else 20, delta=1e-6, msg=event["name"])
        self.assertEqual(len(of_ranks[2]), case["ranks"][2]["calls"])
        self.assertGreater(len(of_ranks[2]), 3)
        # On one clock: a transfer begins and ends at the same time on all of its ranks.
        for rank in (0, 3):
            self.assertEqual([(event["name"], event["ts"], event["dur"]) for event in of_ranks[rank]],
                             [(event["name"], event["ts"], event["dur"]) for event in of_ranks[2]])
        time = {rank["rank"]: rank for rank in case["virtual_time"]["ranks"]}
        self.assertEqual(sorted(time), [0, 1, 2, 3])
        for rank in (2, 3):
            self.assertAlmostEqual(time[rank]["communication_us"], sum(event["dur"] for event in of_ranks[rank]), delta=1e-6)
            self.assertGreater(time[rank]["waiting_us"], time[rank]["compute_us"])  # while the others score

    def test_factors_on_links_and_delays(self):
        out = self.folder / "factors"
        done = run(self.write("factors.yaml", FACTORS), out)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        cases = json.loads((out / "results.json").read_text())["cases"]
        times = {case["name"].split("[")[1].rstrip("]"): case["virtual_time"] for case in cases}
        even = times["even"]["ranks"][0]["communication_us"]
        self.assertGreater(even, 10)
        # The slowest member counts, and a rank without a factor has 1; faults take wall time only.
        for name, factor in (("fast", 0.5), ("one_fast", 1), ("free", 0), ("delayed", 1)):
            for rank in times[name]["ranks"]:
                self.assertAlmostEqual(rank["communication_us"], factor * even, delta=1e-6, msg=name)
        self.assertEqual(times["delayed"], times["even"])

    def write(self, name, text):
        path = self.folder / name
        path.write_text(text)
        return path

    def test_a_world_that_cannot_be_is_refused_with_its_place(self):
        for line, words in (
                ("world: {nodes: 3}", "world.nodes is 3, which does not divide 4 ranks"),
                ("world: {nodes: 2, ranks_per_node: 4}", "2 nodes of 4 ranks do not come to 4 ranks"),
                ("world: {stragglers: [{rank: 4}]}", "a straggler is rank 4, but the mesh has 4 ranks"),
                ("world: {stragglers: [{compute: 2}]}", "has no rank"),
                ("world: {stragglers: [{rank: 1, compute: 2}, {rank: 0}, {rank: 1, links: 3}]}", "rank 1 is a straggler twice"),
                ("world: {links: {in_node: {latency: 3}}}", "latency_us"),
                ("world: {compute: fast}", "known are measured, fixed")):
            path = self.folder / "bad.yaml"
            path.write_text("parallel: {tensor_parallel_size: 4}\n" + line + "\n")
            done = run(path, self.folder / "bad")
            self.assertEqual(done.returncode, 2, line)
            self.assertIn(words, done.stdout + done.stderr)
            self.assertIn("bad.yaml:2", done.stdout + done.stderr)


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    PROGRAM = str(Path(sys.argv.pop(1)).resolve())
    unittest.main()
