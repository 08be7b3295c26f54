#!/usr/bin/env python3
"""Nodes of a Gloo world as network namespaces that the program makes: ranks run in them, links are limited, cut and
healed, a finding names node and link, and nothing is left of them however a run ends.

  nodes_test.py PROGRAM [--many]

--many runs the slow tests too. Without the right to make namespaces it is skipped (exit status 77).
"""

import json
import math
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path

import machines  # makes tests/support importable
import loaded
from machines import ROOT
from processes import descendants, networks, wait_for

MANY = "--many" in sys.argv
SCENARIO = """
name: {name}
workload: train
model: {{vocab_size: 24, hidden_size: 16, intermediate_size: 24, num_hidden_layers: 1}}
data: {{lengths: [5, 3, 4, 2]}}
parallel: {{data_parallel_size: 2, tensor_parallel_size: 2}}
world: {{backend: gloo, nodes: 2, {world}}}
faults: [{faults}]
{rest}
"""
WAITS = "{kind: delay, rank: 1, seconds: 30}"
BEGUN_S = 120
GLOO_S = 60  # what Gloo itself waits for; found later, a cut would have been found by that alone


def ranks_of(pid):
    """{rank: pid} of the workers below this process."""
    return {int(name[8:]): worker for worker, name in descendants(pid).items()
            if name.startswith("sp-rank-")}


class Nodes(machines.FolderTest):
    def setUp(self):
        super().setUp()
        self.folder.chmod(0o777)
        self.links_before = self.own_links()

    def tearDown(self):
        self.assertEqual(self.own_links(), self.links_before, "a link is left in the namespace of the test")

    @staticmethod
    def own_links():
        return sorted(os.listdir("/sys/class/net"))

    def scenario(self, name="t/nodes", world="hang_s: 1.5", faults="", rest=""):
        path = self.folder / (name.replace("/", "_") + ".yaml")
        path.write_text(SCENARIO.format(name=name, world=world, faults=faults, rest=rest))
        return path

    def start(self, *words, before=()):
        out = tempfile.mkdtemp(dir=self.folder)
        os.chmod(out, 0o777)
        process = self.start_process([*before, PROGRAM, "run", *words, "--out", Path(out) / "run"])
        process.out = Path(out) / "run"
        return process

    def end_of(self, process):
        text = process.communicate(timeout=120)[0]
        results = process.out / "results.json"
        cases = json.loads(results.read_text())["cases"] if results.exists() else []
        return process.returncode, cases, text

    def longest_reductions(self, process):
        """{call: seconds} of the all_reduces along dp, on the rank where each took longest."""
        longest = {}
        for event in json.loads((process.out / "timeline.json").read_text())["traceEvents"]:
            if event["ph"] == "X" and event["name"].startswith("all_reduce") and " dp[" in event["name"]:
                longest[event["name"]] = max(longest.get(event["name"], 0), event["dur"] / 1e6)
        self.assertTrue(longest, "no all_reduce along dp")
        return longest

    def run_it(self, *words, before=()):
        return self.end_of(self.start(*words, before=before))

    def hung(self, before=(), **scenario):
        """What a run says whose case hangs."""
        status, cases, text = self.run_it(self.scenario(**scenario), before=before)
        self.assertEqual((status, cases[0]["kind"]), (3, "hung"), text)
        return text

    def matched(self, before=(), **scenario):
        """The results of a case that matches."""
        status, cases, text = self.run_it(self.scenario(**scenario), before=before)
        self.assertEqual((status, [case["verdict"] for case in cases]), (0, ["match"]), text)
        return cases[0]

    def waiting_ranks(self, process):
        """The ranks, and their namespaces, when all are there; while one of them waits for long."""
        def are_there():
            ranks, where = ranks_of(process.pid), networks()
            return len(ranks) == 4 and len({where.get(pid) for pid in ranks.values()}) > 1
        self.assertTrue(wait_for(are_there, BEGUN_S), "the ranks did not start")
        time.sleep(0.5)  # groups are being made
        ranks, where = ranks_of(process.pid), networks()
        return ranks, {rank: where[pid] for rank, pid in ranks.items()}

    def gone(self, ranks, where):
        """Every rank has ended, and no process is in their namespaces."""
        def are_gone():
            return not any(Path(f"/proc/{pid}").exists() for pid in ranks.values()) and \
                not set(where.values()) & set(networks().values())
        self.assertTrue(wait_for(are_gone, 60), "a rank, or a process in a node, is left")

    def gone_with_its_launcher(self, scenario, before=()):
        process = self.start(scenario, before=before)
        ranks, where = self.waiting_ranks(process)
        process.kill()
        process.communicate()
        self.gone(ranks, where)

    def test_ranks_are_in_the_namespace_of_their_node(self):
        process = self.start(self.scenario(world="hang_s: 60", faults=WAITS))
        ranks, where = self.waiting_ranks(process)
        self.assertEqual(where[0], where[1])
        self.assertEqual(where[2], where[3])
        self.assertEqual(len({where[0], where[2], networks()[os.getpid()]}), 3)
        links = subprocess.run(["nsenter", "--target", str(ranks[2]), "--net", "ip", "-4", "-oneline", "address"],
                               text=True, stdout=subprocess.PIPE, check=True).stdout
        self.assertIn("10.77.0.2/16", links)
        sockets = subprocess.run(["nsenter", "--target", str(ranks[2]), "--net", "cat", "/proc/net/tcp"],
                                 text=True, stdout=subprocess.PIPE, check=True).stdout
        self.assertIn("0100 4D0A".replace(" ", ""), sockets, "no connection to the other node")
        process.send_signal(signal.SIGINT)
        self.assertEqual(self.end_of(process)[0], 130)
        self.gone(ranks, where)

    def test_nothing_is_left_after_a_kill_of_the_launcher(self):
        self.gone_with_its_launcher(self.scenario(world="hang_s: 60", faults=WAITS))

    def test_two_runs_at_once_do_not_meet(self):
        scenario = self.scenario(world="hang_s: 60", faults=WAITS.replace("30", "2"))
        both = [self.start(scenario), self.start(scenario)]
        first, second = (set(self.waiting_ranks(process)[1].values()) for process in both)
        self.assertFalse(first & second)
        for process in both:
            status, cases, text = self.end_of(process)
            self.assertEqual(status, 0, text)
            self.assertEqual([case["verdict"] for case in cases], ["match"], text)

    def test_a_cut_link_is_named_before_gloo_gives_up(self):
        """1.9 s with the start of four processes, on idle cores; a busy machine takes its time for the start."""
        cut = self.scenario(faults="{kind: cut, rank: 3, at_call: 5}", rest="run: {steps: 2}")
        status, cases, text = self.run_it(cut)
        self.assertEqual(status, 3, text)
        self.assertEqual((cases[0]["verdict"], cases[0]["kind"]), ("failed", "hung"), text)
        self.assertIn("the link of node 1 (10.77.0.2) is down", text)
        for rank in (2, 3):
            self.assertIn(f"rank {rank}: the link of node 1", text)
        self.assertNotIn("the link of node 0", text)
        self.assertLess(cases[0]["seconds"], GLOO_S)

    def test_a_link_that_heals_in_time_costs_no_value(self):
        case = self.matched(faults="{kind: cut, rank: 3, at_call: 5, heal_s: 0.4}", rest="run: {steps: 2}")
        self.assertIn("goes down for 0.4 s", json.dumps(case))

    def test_a_link_that_heals_too_late_is_hung_before(self):
        text = self.hung(faults="{kind: cut, rank: 3, at_call: 5, heal_s: 20}")
        self.assertIn("the link of node 1 (10.77.0.2) is down", text)

    def test_a_slow_link_is_named_and_not_taken_for_a_cut_one(self):
        self.says(self.hung(faults="{kind: slow, rank: 0, axis: dp, gb_per_s: 2.0e-6}"),
                  "the link of node 0 (10.77.0.1) is slow", absent=["is down"])

    def test_a_rate_takes_its_time(self):
        """Of a sum of two ranks as many bytes as it has cross the link each way, after the first of them has entered."""
        rate, burst = 4e5, 4096  # bytes a second, and what a link that was idle takes at once
        path = self.scenario(name="t/rate", world=f"hang_s: 20, links: {{inter_node: {{gb_per_s: {rate / 1e9}, "
                                                  "per_node: true}}")
        path.write_text(path.read_text().replace("hidden_size: 16", "hidden_size: 64")
                        .replace("vocab_size: 24", "vocab_size: 384"))
        process = self.start(path)
        self.expect(self.end_of(process)[::2], 0)
        seconds = self.longest_reductions(process)
        sizes = [re.search(r" \[([\d,]*)\] [a-z]+(\d+) ", name).groups() for name in seconds]
        count = sum(math.prod(map(int, filter(None, shape.split(",")))) * int(bits) // 8 for shape, bits in sizes)
        self.assertGreater(count, 2e5, list(seconds))
        self.assertGreaterEqual(sum(seconds.values()), (count - burst * len(sizes)) / rate, seconds)

    def test_a_user_without_rights_has_nodes_in_a_user_namespace(self):
        before = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
        probe = subprocess.run([*before, "unshare", "--user", "--net", "true"], stderr=subprocess.PIPE)
        if os.geteuid() != 0 or probe.returncode != 0:
            self.skipTest("not root, or no user namespaces here")
        readable = subprocess.run([*before, str(PROGRAM), "version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        if readable.returncode != 0:
            self.skipTest("that user may not run the program in this folder")
        before += ["env", f"HOME={self.folder}"]
        self.matched(before)
        text = self.hung(before, faults="{kind: cut, rank: 3, at_call: 5}")
        self.assertIn("the link of node 1 (10.77.0.2) is down", text)
        self.gone_with_its_launcher(self.scenario(world="hang_s: 60", faults=WAITS), before)

    def test_where_no_namespace_can_be_made_a_sentence_says_so(self):
        """In a user namespace that may have no network namespace."""
        script = 'echo 0 > /proc/sys/user/max_net_namespaces && exec "$@"'
        before = ["unshare", "--user", "--map-root-user", "sh", "-c", script, "sh"]
        if subprocess.run([*before, "true"], stderr=subprocess.PIPE).returncode != 0:
            self.skipTest("no user namespaces here")
        status, cases, text = self.run_it(self.scenario(), "--no-skips", before=before)
        self.assertEqual((status, cases), (2, []), text)
        self.says(text, "nodes over Gloo are network namespaces, and this process may not make them", "run as root")

    def refused(self, path, said):
        out = tempfile.mkdtemp(dir=self.folder)
        done = loaded.run([PROGRAM, "run", path, "--out", out], cwd=ROOT, text=True, stdin=subprocess.DEVNULL,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        self.expect((done.returncode, done.stdout), 2, said)

    def test_wrong_values_are_refused_with_a_sentence(self):
        cut = "{kind: cut, rank: 1}"
        for changes, said in [
                ({"world": "ranks_per_node: 3"}, "2 nodes of 3 ranks do not come to 4 ranks"),
                ({"faults": "{kind: cut, rank: 4}"}, "but the mesh has 4 ranks"),
                ({"faults": "{kind: slow, rank: 1, gb_per_s: 0}"}, "gb_per_s"),
                ({"faults": "{kind: cut, rank: 1, heal_s: -1}"}, "heal_s"),
                ({"faults": "{kind: lose, rank: 1, loss: 1.5}"}, "loss"),
                ({"faults": "{kind: lose, rank: 1, loss: 0}"}, "the fault lose has loss 0, which changes nothing"),
                ({"world": "links: {inter_node: {loss: 0.7}}"}, "loss"),
                ({"faults": "{kind: cut, rank: 1, label: nowhere}"}, "never acted"),
                ({"world": "links: {inter_node: {gb_per_s: fast}}"}, "gb_per_s")]:
            with self.subTest(changes):
                self.refused(self.scenario(**changes), said)
        no_link = "the fault cut changes the link of a node, and this world has none"
        for old, new, said in [("backend: gloo, ", "", no_link), ("nodes: 2, ", "", no_link),
                               ("nodes: 2", "nodes: 1", "no packet of the only node crosses it; set world.nodes"),
                               ("nodes: 2", "nodes: 3", "world.nodes is 3, which does not divide 4 ranks"),
                               ("nodes: 2", "nodes: 0", "nodes")]:
            path = self.scenario(faults=cut)
            path.write_text(path.read_text().replace(old, new))
            self.refused(path, said)

    def test_a_latency_is_in_every_call_between_nodes(self):
        """The rank that enters first waits at least as long as the other's data is on the way."""
        latency_s = 0.1
        path = self.scenario(world=f"hang_s: 20, links: {{inter_node: {{latency_us: {latency_s * 1e6:.0f}}}}}")
        process = self.start(path)
        status, cases, text = self.end_of(process)
        self.assertEqual((status, cases[0]["verdict"]), (0, "match"), text)
        self.assertGreaterEqual(min(self.longest_reductions(process).values()), latency_s)

    def test_a_link_that_loses_packets_costs_no_value(self):
        self.matched(world="hang_s: 20, links: {inter_node: {loss: 0.05}}", rest="run: {steps: 3}")
        case = self.matched(world="hang_s: 20", faults="{kind: lose, rank: 3, at_call: 5, loss: 0.2, heal_s: 1}",
                            rest="run: {steps: 2}")
        self.assertIn("the link of node 1 (10.77.0.2) loses 20% of its packets for 1 s", json.dumps(case))

    def test_a_link_that_loses_all_is_hung(self):
        self.hung(faults="{kind: lose, rank: 3, at_call: 5, loss: 1}")

    def test_a_link_that_lags_for_too_long_is_named(self):
        self.says(self.hung(faults="{kind: lag, rank: 0, axis: dp, seconds: 60}"), "the link of node 0 (10.77.0.1) is slow",
                  absent=["the link of node 1"])

    def test_links_with_a_relay_are_cut_and_heal(self):
        """Packets that wait in the relay, or come while the link is down, are lost, and TCP sends them again."""
        links = "links: {inter_node: {latency_us: 1000}}"
        self.matched(world=f"hang_s: 20, {links}", faults="{kind: cut, rank: 3, at_call: 5, heal_s: 0.4}",
                     rest="run: {steps: 2}")
        text = self.hung(world=f"hang_s: 1.5, {links}", faults="{kind: cut, rank: 3, at_call: 5}", rest="run: {steps: 2}")
        self.assertIn("the link of node 1 (10.77.0.2) is down", text)

    def test_validate_names_the_host_of_a_link_that_lags(self):
        """A node has one link: all links of its host lag."""
        suite, out = self.folder / "suite.yaml", self.folder / "validated"
        suite.write_text("stages: [times]\ntimes: {bytes: 4096, repeats: 2}\nworld: {nodes: 4, hang_s: 20}\n"
                         "faults: [{kind: lag, host: 1, at_call: 0, seconds: 0.1}]\n")
        done = subprocess.run([PROGRAM, "validate", suite, "--ranks", "8", "--slow", "20", "--out", out], cwd=ROOT,
                              text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=300)
        found = json.loads((out / "validation.json").read_text())["findings"]
        self.assertEqual(done.returncode, 3, done.stdout)
        self.assertEqual([(one["kind"], one["hosts"]) for one in found], [("slow", ["host1"])], done.stdout)
        self.assertIn("3 of its 3 measured links are", found[0]["message"])

    @unittest.skipUnless(MANY, "slow")
    def test_eight_nodes_of_two_ranks_again_and_again(self):
        path = self.scenario(world="ranks_per_node: 2")
        path.write_text(path.read_text().replace("nodes: 2", "nodes: 8").replace(
            "data_parallel_size: 2", "data_parallel_size: 4").replace(
            "tensor_parallel_size: 2", "tensor_parallel_size: 4").replace("hidden_size: 16", "hidden_size: 32"))
        for repeat in range(20):
            status, cases, text = self.run_it(path)
            self.assertEqual(status, 0, (repeat, text))

    @unittest.skipUnless(MANY, "slow")
    def test_every_cut_is_named(self):
        for repeat in range(10):
            rank, call = repeat % 4, 3 + 2 * repeat
            text = self.hung(faults=f"{{kind: cut, rank: {rank}, at_call: {call}}}", rest="run: {steps: 2}")
            self.assertIn(f"the link of node {rank // 2} (10.77.0.{rank // 2 + 1}) is down", text)


if __name__ == "__main__":
    PROGRAM = machines.program()
    if subprocess.run(["unshare", "--net", "true"], stderr=subprocess.PIPE).returncode != 0:
        print("skipped: no right to make network namespaces here")
        sys.exit(77)
    unittest.main(argv=[word for word in sys.argv if word != "--many"])
