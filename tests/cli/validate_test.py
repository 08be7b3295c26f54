#!/usr/bin/env python3
"""Tests `validate` through the program: clean worlds have no findings, and each planted fault is found and named.

Usage: validate_test.py PROGRAM [--many] [unittest arguments]

--many adds what takes minutes: 64 hosts of 8 ranks, and a hundred repeats of training.
"""
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import unittest
import xml.etree.ElementTree as xml
from pathlib import Path

import cli_test

ROOT = Path(__file__).resolve().parents[2]
LIMIT_S = 1800 if "--many" in sys.argv else 200  # a hang, not a wall-time test
MANY = "--many" in sys.argv
STAGES = ["environment", "groups", "pairs", "times", "training"]
FOUR_HOSTS = "hosts: {ranks_per_host: 1}\nrounds: 1\nsizes: [65]\n"


def own_environment():
    """Without the variables of a launcher."""
    launchers = ("OMPI_", "SLURM_", "PMI_")
    return {name: value for name, value in os.environ.items()
            if not name.startswith(launchers) and name not in ("RANK", "WORLD_SIZE")}


class Validate(cli_test.CommandTest):
    def result_of(self, done):
        """validation.json, which must fit the exit status, the text and junit.xml."""
        text = done.stdout + done.stderr
        self.assertTrue((self.folder / "run/validation.json").exists(), text)
        found = json.loads((self.folder / "run/validation.json").read_text())
        self.assertEqual(found["format"], "shardproof-validation/1")
        self.assertEqual(found["exit_status"], done.returncode, text)
        suite = xml.parse(self.folder / "run/junit.xml").getroot().find("testsuite")
        self.assertEqual(len(suite.findall("testcase")), len(found["stages"]))
        self.assertGreaterEqual(len(suite.findall(".//failure")), len(found["findings"]))
        for stage, shown in zip(found["stages"], suite.findall("testcase")):
            self.assertEqual(stage["verdict"] == "findings", shown.find("failure") is not None, shown.get("name"))
        for one in found["findings"]:
            self.assertIn(one["message"], done.stdout)
        self.assertNotRegex(done.stdout, r"\bhosts? host\d")
        return found

    def validate(self, text, *words, ranks=4, status=None):
        """(the finished run, which must end with `status` unless that is None; what it found)."""
        words = ["--ranks", ranks, "--out", self.folder / "run", *words]
        if text:
            words.insert(0, self.write("suite.yaml", text))
        done = self.run_to_end("validate", *words, status=status)
        return done, (self.result_of(done) if done.returncode in (0, 1, 3) else None)

    def assert_one(self, done, found, status, kind, hosts, stages=None):
        """All findings are of this kind and name these hosts."""
        text = done.stdout + done.stderr
        self.assertEqual(done.returncode, status, text)
        self.assertGreater(len(found["findings"]), 0)
        for one in found["findings"]:
            self.assertEqual((one["kind"], one["hosts"]), (kind, hosts), text)
        if stages:
            self.assertEqual([one["stage"] for one in found["findings"]], stages, text)

    def test_a_clean_world_has_no_findings(self):
        done, found = self.validate("hosts: {ranks_per_host: 2}\nrounds: 2\n", status=0)
        self.assertEqual(found["findings"], [])
        self.assertEqual([one["stage"] for one in found["stages"]], STAGES + ["groups", "pairs"])
        self.assertEqual([one["name"] for one in found["hosts"]], ["host0", "host1"])
        for name in ("cpu", "kernel", "libtorch", "limit_open_files"):
            self.assertIn(name, found["environment"]["hosts"][0]["facts"])
        self.assertEqual(found["environment"]["hosts"][1]["odd"], [])
        self.assertEqual(len(found["times"]["pairs"]), 6)
        groups = found["stages"][1]
        self.assertGreater(groups["checks"], 1000)
        self.assertEqual([one["shift"] for one in found["training"]], [0, 0, 2, 0])
        self.assertIn("4 of 4 runs with equal digests", found["stages"][4]["note"])
        self.assertIn("no findings", done.stdout)

    def test_a_corrupted_lane_of_a_host_is_named(self):
        fault = "faults: [{kind: corrupt, host: 2, pattern: lane, stride: 16, first: 5, bit: 20}]\n"
        self.environment["GITHUB_STEP_SUMMARY"] = self.path("summary.md")
        done, found = self.validate("stages: [groups, pairs]\n" + FOUR_HOSTS + fault)
        self.assert_one(done, found, 1, "values", ["host2"], ["groups", "pairs"])
        for one in found["findings"]:
            self.assertIn("every 16th element from 5 (lane 5 of 16)", one["pattern"])
        self.assertRegex((self.folder / "summary.md").read_text(),
                         r"\A### shardproof validate\n\nvalidate: 4 ranks on 4 hosts, 2 findings in .*; exit status 1\n\n"
                         r"\| hosts \| finding \|\n\|---\|---\|\n(\| [^|]*2 \| values: .*lane 5 of 16.* \|\n){2}\n\Z")

    def test_a_sector_that_a_host_receives_wrong_now_and_then_is_named(self):
        fault = ("faults: [{kind: corrupt, host: 1, side: output, pattern: sector, first: 8, bit: 2, "
                 "probability: 0.3}]\n")
        done, found = self.validate("stages: [pairs]\nseed: 5\n" + FOUR_HOSTS + fault)
        self.assert_one(done, found, 1, "values", ["host1"])
        self.assertIn("32-byte sector", found["findings"][0]["pattern"])

    def test_a_link_that_spoils_messages_is_named(self):
        done, found = self.validate("stages: [pairs]\n" + FOUR_HOSTS +
                                    "faults: [{kind: corrupt, link: [1, 3], pattern: element}]\n")
        self.assert_one(done, found, 1, "values", ["host1", "host3"])
        self.assertEqual(found["findings"][0]["link"], "host1 - host3")

    def test_a_rank_that_meets_nobody_makes_the_group_with_the_others(self):
        # Of three ranks one has no partner in the one pairing that is asked for.
        done, found = self.validate("stages: [pairs]\nrounds: 1\nsizes: [33]\npairs: {rounds: 1}\n",
                                    "--backend", "gloo", ranks=3, status=0)
        self.assertGreater(found["stages"][0]["checks"], 0)

    def test_times_do_not_depend_on_messages_that_a_host_spoils(self):
        done, found = self.validate("stages: [times]\ntimes: {bytes: 4096, repeats: 2}\n"
                                    "hosts: {ranks_per_host: 1}\nfaults: [{kind: corrupt, host: 2, pattern: all}]\n",
                                    ranks=8, status=0)
        self.assertEqual(found["stages"][0]["checks"], 8 * 7 // 2)

    def test_an_axis_has_no_name_of_another_group(self):
        for name in ("world", "node", "rail", "half0"):
            text = f"stages: [groups]\nrounds: 1\nmesh: {{{name}: 4}}\n"
            done, _ = self.validate(text, status=2)
            self.assertIn(f"'{name}' is the name of a group that every suite has", done.stderr)

    def test_a_fault_that_never_acts_is_bad_input(self):
        for fault in ("{kind: kill, host: 1, at_call: 100000}", "{kind: corrupt, host: 1, probability: 0}",
                      "{kind: corrupt, host: 1, stage: times}", "{kind: clock, host: 1, seconds: 9, stage: pairs}",
                      "{kind: slow, host: 1, stage: training}", "{kind: hang, host: 1, stage: groups}"):
            with self.subTest(fault):
                done, _ = self.validate("stages: [environment, pairs]\n" + FOUR_HOSTS +
                                        f"faults: [{{kind: slow, host: 0, seconds: 0}}, {fault}]\n", status=2)
                self.assertRegex(done.stdout, r"FINDING bad_input \(no host\): faults\[1\], [a-z]+, never acted: ")
                self.assertEqual(done.stdout.count("round 0"), len({*re.findall(r"(?m)^(\w+) +round 0", done.stdout)}))

    def test_a_key_that_a_kind_of_fault_does_not_take_is_bad_input(self):
        for fault, said in (("{kind: corrupt, rank: 1, at_call: 3}", "a corrupt fault does not take at_call; leave it out, or "
                                                                     "plant one of kill, hang, cut, lag"),
                            ("{kind: kill, rank: 1, probability: 0.5}", "a kill fault does not take probability"),
                            ("{kind: cut, rank: 1, seconds: 2}", "a cut fault does not take seconds")):
            done, _ = self.validate(f"stages: [groups]\nfaults: [{fault}]\n", ranks=2, status=2)
            self.assertIn(said, done.stderr)

    def test_each_case_that_trains_wrong_is_a_finding(self):
        case = ("workload: train\nmodel: {vocab_size: 37, hidden_size: 24, intermediate_size: 40, num_attention_heads: 4, "
                "num_hidden_layers: 1}\ndata: {lengths: [9, 6, 3, 8], sequence_length: 9}\nmatrix:\n  m:\n"
                "    - {name: dp2, parallel.data_parallel_size: 2}\n    - {name: tp2, parallel.tensor_parallel_size: 2}\n")
        scenario = self.write("two.yaml", case)
        done, found = self.validate(f"stages: [training]\ntraining: {{scenarios: [{scenario}], rotations: 1}}\n"
                                    "hosts: {ranks_per_host: 1}\nfaults: [{kind: corrupt, rank: 1, pattern: element}]\n",
                                    "--backend", "emulated", ranks=2, status=1)
        self.assertEqual(len(found["findings"]), 2, done.stdout)
        for name in ("dp2", "tp2"):
            self.assertIn(f"[{name}]", "".join(one["message"] for one in found["findings"]))

    def test_wrong_training_follows_its_host(self):
        # Of 4 ranks on 4 hosts those of a tp pair change with the rotation.
        done, found = self.validate("stages: [training]\n" + FOUR_HOSTS +
                                    "faults: [{kind: corrupt, host: 1, side: output, pattern: lane, bit: 40}]\n")
        self.assert_one(done, found, 1, "values", ["host1"], ["training"])
        self.assertIn("each time first on host1:", found["findings"][0]["message"])

    def test_a_slow_host_and_a_slow_link_are_named(self):
        slow = "stages: [times]\ntimes: {bytes: 4096, repeats: 5}\n" + FOUR_HOSTS
        # A machine that does other work makes single pairs 30 times slower than the median; these are 500 times.
        done, found = self.validate(slow + "faults: [{kind: slow, host: 3, seconds: 0.1}]\n", "--slow", "100")
        self.assert_one(done, found, 3, "slow", ["host3"])
        done, found = self.validate(slow + "faults: [{kind: slow, link: [0, 2], seconds: 0.1}]\n", "--slow", "100")
        self.assert_one(done, found, 3, "slow", ["host0", "host2"])
        self.assertEqual(found["findings"][0]["link"], "host0 - host2")
        # Without --slow nothing is too slow.
        done, _ = self.validate(slow + "faults: [{kind: slow, host: 3, seconds: 0.05}]\n", status=0)

    def test_a_killed_host_is_named_and_the_other_stages_run(self):
        done, found = self.validate("stages: [environment, groups, pairs, training]\nhosts: {ranks_per_host: 2}\n"
                                    "rounds: 1\nsizes: [9]\nfaults: [{kind: kill, host: 1, stage: groups}]\n")
        self.assert_one(done, found, 3, "died", ["host1"], ["groups"])
        self.assertEqual([one["verdict"] for one in found["stages"]], ["ok", "findings", "ok", "ok"])
        self.assertEqual([one["without"] for one in found["stages"]], [[], ["host1"], [], []])
        self.assertIn("went on without host1", done.stdout)
        self.assertGreater(found["stages"][1]["checks"], 100)

    def test_a_host_that_ends_two_stages_is_left_out_of_the_others(self):
        done, found = self.validate("stages: [environment, groups, pairs, times, training]\nworld: {hang_s: 1}\n"
                                    "sizes: [9]\nrounds: 1\nhosts: {ranks_per_host: 1}\n"
                                    "faults: [{kind: kill, host: 0, stage: groups}, {kind: hang, host: 0, stage: pairs},\n"
                                    "         {kind: kill, host: 0, stage: times, at_call: 0}]\n")
        text = done.stdout + done.stderr
        self.assertEqual(done.returncode, 3, text)
        self.assertEqual([(one["stage"], one["kind"], one["hosts"]) for one in found["findings"]],
                         [("groups", "died", ["host0"]), ("pairs", "hung", ["host0"])], text)
        self.assertEqual([one["without"] for one in found["stages"]], [[]] + 4 * [["host0"]], text)
        for stage in found["stages"][1:]:
            self.assertGreater(stage["checks"], 0, text)
        # Three ranks remain, and the case of four is not for them.
        self.assertEqual([one["shift"] for one in found["training"]], [0, 0, 1, 2], text)

    def test_a_rank_that_hangs_is_named(self):
        done, found = self.validate("stages: [pairs]\nworld: {hang_s: 1}\n" + FOUR_HOSTS +
                                    "faults: [{kind: hang, rank: 2, stage: pairs}]\n")
        self.assert_one(done, found, 3, "hung", ["host2"])

    def test_a_clock_that_is_off_is_named(self):
        done, found = self.validate("stages: [environment]\n" + FOUR_HOSTS +
                                    "faults: [{kind: clock, host: 2, seconds: -30}]\n")
        self.assert_one(done, found, 3, "clock", ["host2"])
        off, unsure = map(float, re.match(r"the clock of host2 is (\S+) s behind the median of the hosts \(uncertainty (\S+) s",
                                          found["findings"][0]["message"]).groups())
        of_others = max(host["clock_uncertainty_s"] for host in found["environment"]["hosts"])
        self.assertLess(abs(off - 30), 0.01 + unsure + of_others)

    def test_one_lane_of_sixteen_emulated_hosts_is_named_by_sums(self):
        done, found = self.validate(
            "stages: [groups]\nops: [all_reduce]\ndtypes: [float32]\nhosts: {ranks_per_host: 2}\nrounds: 1\n"
            "sizes: [129]\nfaults: [{kind: corrupt, host: 11, pattern: lane, stride: 32, bit: 12}]\n",
            "--backend", "emulated", ranks=32)
        self.assert_one(done, found, 1, "values", ["host11"])
        self.assertIn("every 32nd element from 3", found["findings"][0]["pattern"])

    @unittest.skipUnless(MANY, "runs with --many")
    def test_one_lane_of_64_emulated_hosts_of_8_ranks_is_named(self):
        done, found = self.validate(
            "stages: [groups]\nrounds: 1\nops: [all_reduce]\ndtypes: [float32]\n"
            "hosts: {ranks_per_host: 8}\n"
            "faults: [{kind: corrupt, host: 37, pattern: lane, stride: 32, first: 5, bit: 12}]\n",
            "--backend", "emulated", ranks=512)
        self.assert_one(done, found, 1, "values", ["host37"])
        self.assertIn("every 32nd element from 5 (lane 5 of 32)", found["findings"][0]["pattern"])
        print(f"64 hosts of 8 ranks: {found['stages'][0]['note']}, {found['seconds']:.0f} s", flush=True)

    @unittest.skipUnless(MANY, "runs with --many")
    def test_digests_are_equal_to_the_bit_in_a_hundred_repeats_and_wherever_the_ranks_run(self):
        for ranks, scenario, cases in ((4, "", 1), (4, f"{ROOT}/scenarios/smoke/llama.yaml", 2), (8, "", 1)):
            named = f", scenarios: [{scenario}]" if scenario else ""
            done, found = self.validate(f"stages: [training]\nhosts: {{ranks_per_host: 1}}\n"
                                        f"training: {{rotations: 100{named}}}\n", ranks=ranks)
            text = done.stdout + done.stderr
            self.assertEqual(done.returncode, 0, text)
            self.assertEqual(found["findings"], [], text)
            shifts = [one["shift"] for one in found["training"]]
            self.assertEqual(len(shifts), 101 * cases)
            self.assertEqual(sorted(set(shifts)), list(range(ranks)))
            self.assertIn("101 of 101 runs with equal digests", found["stages"][0]["note"])
            print(f"{scenario or 'the small Llama'}, {ranks} ranks: {len(shifts)} runs, {found['stages'][0]['note']}, "
                  f"{found['seconds']:.0f} s", flush=True)
            shutil.rmtree(self.folder / "run")

    def test_processes_of_a_launcher(self):
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        suite = self.write("suite.yaml", "hosts: {ranks_per_host: 1}\nrounds: 1\nsizes: [33]\n"
                           "faults: [{kind: corrupt, host: 1, stage: pairs, pattern: all, bit: 20}]\n")
        processes = []
        for rank in range(3):
            env = os.environ | {"OMPI_COMM_WORLD_RANK": str(rank), "OMPI_COMM_WORLD_SIZE": "3",
                                "OMPI_COMM_WORLD_LOCAL_RANK": str(rank), "OMPI_COMM_WORLD_LOCAL_SIZE": "3",
                                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
            processes.append(subprocess.Popen([cli_test.PROGRAM, "validate", suite, "--out", self.folder / "run"], env=env,
                                              text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT))
        outputs = [process.communicate(timeout=LIMIT_S) for process in processes]
        self.assertEqual([process.returncode for process in processes], [1, 1, 1], outputs)
        done = subprocess.CompletedProcess([], 1, *outputs[0])
        self.assert_one(done, self.result_of(done), 1, "values", ["host1"], ["pairs"])

    def test_a_rank_of_a_launcher_starts_no_ranks_of_its_own(self):
        for launcher, names in (("torchrun", ("RANK", "WORLD_SIZE")),
                                ("srun", ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_STEP_ID")),
                                ("mpirun", ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"))):
            done = self.run_to_end("validate", "--ranks", "2", "--out", self.folder / "run", status=2,
                                   env=own_environment() | dict(zip(names, ("1", "4", "0"))))
            self.assertIn("validate --ranks starts ranks of its own, but this process is rank 1 of 4 of "
                          f"{launcher}; leave out --ranks", done.stderr)
            self.assertFalse((self.folder / "run").exists())

    def test_a_single_process_of_a_launcher_and_a_batch_script_may_start_ranks(self):
        suite = self.write("suite.yaml", "stages: [pairs]\nrounds: 1\nsizes: [5]\n")
        for place in ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1", "SLURM_STEP_ID": "0"},  # a shell of `srun --pty`
                      {"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}):  # a script of `sbatch --ntasks=4`
            self.run_to_end("validate", suite, "--ranks", "2", "--out", self.folder / "run", env=own_environment() | place)

    def test_help_has_the_exit_statuses_of_validate(self):
        done = self.run_to_end("validate", "--help", status=0)
        for said in ("0: no findings", "1: wrong values", "2: bad input\n", "a clock is off", "130: interrupted"):
            self.assertIn(said, done.stdout)
        self.says(done.stdout, absent=["--no-unresolved", "selected cases"])

    def test_stages_without_anything_to_compare_are_no_success(self):
        done, _ = self.validate("stages: [groups]\nops: [send]\nrounds: 1\n", ranks=2, status=2)
        self.assertIn("nothing was compared: groups had nothing to do on 2 ranks", done.stdout)

    def test_slow_needs_the_times(self):
        done, _ = self.validate("stages: [groups]\nrounds: 1\n", "--slow", "3", ranks=2, status=2)
        self.assertIn("has no stage times", done.stderr)

    def test_rounds_go_on_for_some_minutes(self):
        _, found = self.validate("stages: [pairs]\nrounds: 1\nsizes: [5, 9, 33]\n", "--minutes", "0.02", ranks=2, status=0)
        self.assertGreater(len(found["stages"]), 2)
        self.assertGreaterEqual(found["seconds"], 1.2)

    def test_bad_input_is_a_sentence(self):
        for text, words, said in (
                ("sead: 1\n", [], r"suite\.yaml:1:1: 'sead' is not a key here; did you mean seed\?"),
                ("# nothing\n", [], "the file is empty; write `key: value` lines"),
                ("sizes: []\n", [], "sizes is an empty list; write a list of at least one value"),
                ("mesh: {tp: 3}\n", [], "is for 3 ranks, there are 4"),
                ("faults: [{kind: kill, rank: 9}]\n", [], "is on rank 9, and there are 4"),
                (FOUR_HOSTS + "faults: [{kind: corrupt, host: 4}]\n", [], "is on host 4, and there are 4"),
                (f"training: {{scenarios: [{ROOT}/scenarios/refused]}}\n", [], "no case of training.scenarios"),
                ("world: {nodes: 3}\n", [], "3 nodes do not divide 4 ranks"),
                ("world: {nodes: 2}\n", ["--backend", "emulated"], "--backend emulated has none"),
                ("faults: [{kind: cut, host: 1}]\n", [], "there are no nodes"),
                ("", ["--slow", "0.5"], "--slow")):
            done, _ = self.validate(text, *words, status=2)
            self.assertRegex(done.stderr, said)
        self.assertIn("--ranks",
                      self.run_to_end("validate", status=2, env=own_environment()).stderr)


if __name__ == "__main__":
    if MANY:
        sys.argv.remove("--many")
        cli_test.LIMIT_S = LIMIT_S
    cli_test.main()
