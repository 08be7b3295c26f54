#!/usr/bin/env python3
"""`validate` on four machines: network namespaces with names of their own, joined by a switch, made here. Their names are
those of the hosts; a slow one and one whose processes are killed are named.

  validate_machines_test.py PROGRAM

Without the right to make namespaces it is skipped (exit status 77).
"""

import json
import subprocess

import machines  # makes tests/support importable
from processes import kill_all

COUNT = 4
PORT = 29581
SECRET = "2c26b46b68ffc68ff99b453c1d304134"
SUITE = "rounds: 1\nsizes: [65]\nstages: [environment, groups, pairs, times]\ntimes: {bytes: 65536, repeats: 5}\n"


def address(number):
    return f"10.78.0.{number + 1}"


def joined_machines():
    """The switch and the machines."""
    return machines.switched([f"node{number}" for number in range(COUNT)], address)


class ValidateMachines(machines.SwitchedTest):
    def setUp(self):
        super().setUp()
        self.join(joined_machines())

    def start(self, suite, *words):
        (self.folder / "suite.yaml").write_text(suite)
        processes = []
        for rank, node in enumerate(self.nodes):
            env = machines.environment(rank, COUNT, MASTER_ADDR=address(0), MASTER_PORT=str(PORT),
                                       SHARDPROOF_SECRET=SECRET)
            command = node.command(PROGRAM, "validate", self.folder / "suite.yaml", "--out", self.folder / "run", *words)
            processes.append(self.start_process(command, env=env))
        return processes

    def first_round(self):
        """The processes of a run of two stages, once the first has ended."""
        suite = SUITE.replace("stages: [environment, groups, pairs, times]", "stages: [groups, pairs]")
        processes = self.start(suite, "--minutes", "5")
        self.assertIn("waits for the others", processes[0].stdout.readline())
        self.assertIn("groups", processes[0].stdout.readline())
        return processes

    def end_of(self, processes):
        outputs = [process.communicate(timeout=120)[0] for process in processes]
        found = json.loads((self.folder / "run/validation.json").read_text())
        self.assertEqual(found["exit_status"], processes[0].returncode, outputs)
        return processes[0].returncode, found, "\n".join(outputs)

    def test_machines_are_hosts_and_a_clean_network_has_no_findings(self):
        processes = self.start(SUITE)
        status, found, text = self.end_of(processes)
        self.assertEqual(status, 0, text)
        self.assertEqual([process.returncode for process in processes], [0] * COUNT, text)
        self.assertEqual([host["name"] for host in found["hosts"]], [f"node{n}" for n in range(COUNT)])
        self.assertEqual(found["times"]["between_hosts"]["pairs"], COUNT * (COUNT - 1) // 2)
        for number, host in enumerate(found["environment"]["hosts"]):
            self.assertIn(address(number), host["facts"]["addresses"])

    def test_a_machine_that_spoils_data_is_named(self):
        fault = "faults: [{kind: corrupt, host: 2, side: output, pattern: sector, bit: 20, stage: pairs}]\n"
        status, found, text = self.end_of(self.start(SUITE + fault))
        self.assertEqual(status, 1, text)
        self.assertEqual([(one["kind"], one["hosts"]) for one in found["findings"]], [("values", ["node2"])], text)

    def test_a_machine_behind_a_slow_link_is_named(self):
        try:
            self.nodes[2].run("tc", "qdisc", "add", "dev", "link0", "root", "tbf", "rate", "10mbit", "burst", "32kbit",
                              "latency", "400ms")
        except subprocess.CalledProcessError as error:
            self.skipTest(f"this kernel has no tbf: {error.output}")
        status, found, text = self.end_of(self.start(SUITE, "--slow", "10"))
        self.assertEqual(status, 3, text)
        self.assertIn(("slow", ["node2"]), [(one["kind"], one["hosts"]) for one in found["findings"]], text)

    def test_a_machine_whose_processes_are_killed_is_named(self):
        processes = self.first_round()
        kill_all(self.nodes[3].processes())
        status, found, text = self.end_of(processes)
        self.assertEqual(status, 3, text)
        self.assertEqual((found["findings"][0]["kind"], found["findings"][0]["hosts"]), ("died", ["node3"]), text)

    def test_a_machine_that_is_cut_off_is_named_and_not_those_that_wait_for_it(self):
        for cut, words in ((1, "control hears nothing of this rank: its host is cut off or down"),
                           (0, "node0, where control is, hears nothing of the 3 other hosts")):
            with self.subTest(cut=cut):
                processes = self.first_round()
                self.nodes[cut].run("ip", "link", "set", "link0", "down")
                text = processes[0].communicate(timeout=120)[0]
                kill_all(pid for node in self.nodes for pid in node.processes())  # they wait 30 s for control
                for process in processes[1:]:
                    process.communicate()
                first = json.loads((self.folder / "run/validation.json").read_text())["findings"][0]
                self.assertEqual((processes[0].returncode, first["kind"], first["hosts"]), (3, "hung", [f"node{cut}"]), text)
                self.assertIn(words, first["message"])
                self.nodes[cut].run("ip", "link", "set", "link0", "up")


if __name__ == "__main__":
    PROGRAM = machines.program()
    machines.main(joined_machines)
