"""The page of a validation names who is at fault and shows what was checked; changed files are refused or said to be."""

import copy
import json
import subprocess
import sys
import unittest

from report_packages import REPORTS

import host_matrix  # noqa: E402
import numpy as np  # noqa: E402
import report_page_test  # noqa: E402
import validation_page  # noqa: E402
from report_pictures_test import texts_of  # noqa: E402
from said import FolderTest, SaidTest  # noqa: E402

FACTS = {"cpu": "Model 7", "gpu": "H100", "limit_open_files": "1024"}


def host(number, **more):
    return {"name": f"node{number}", "ranks": [2 * number, 2 * number + 1], "facts": FACTS, "odd": [],
            "clock_offset_s": -0.002, "clock_uncertainty_s": 0.001, **more}


def finding(**fields):
    return {"stage": "groups", "kind": "values", "round": 1, "hosts": ["node1"], "ranks": [3], "link": "",
            "pattern": "every 32nd element from 5", "message": "host node1 spoils data: element 5 is altered", **fields}


def example(*findings):
    """validation.json of two hosts."""
    stages = [{"stage": "environment", "round": 0, "verdict": "ok", "seconds": 0.5},
              {"stage": "groups", "round": 1, "verdict": "findings" if findings else "ok", "seconds": 3.25, "checks": 700,
               "elements": 123456, "findings": len(findings), "without": [], "note": "700 results"}]
    pair = {"a": 1, "b": 3, "latency_us": 812.5, "gb_per_s": 0.25, "latency_factor": 7.5, "bandwidth_factor": 1.5}
    medians = {"pairs": 6, "latency_us": 108.25, "gb_per_s": 0.375}
    return {"format": "shardproof-validation/1", "command": "shardproof validate --ranks 4", "version": "shardproof 0",
            "started": "2026-01-02T03:04:05Z", "seconds": 12.5, "suite": "short.yaml", "backend": "gloo", "device": "cpu",
            "world_size": 4, "slow_factor": 20.0, "interrupted": False, "exit_status": 1 if findings else 0,
            "hosts": [{"name": f"node{n}", "ranks": [2 * n, 2 * n + 1]} for n in range(2)], "stages": stages,
            "findings": list(findings),
            "environment": {"hosts": [host(0), host(1, odd=[{"fact": "gpu", "value": "A100", "usual": "H100"}])]},
            "times": {"in_host": {"pairs": 0, "latency_us": 0, "gb_per_s": 0}, "between_hosts": medians,
                      "compute_ms": [1.5, 1.25, 1.5, 1.25], "compute_median_ms": 1.375, "pairs": [pair]},
            "training": [{"case": "small Llama", "round": 0, "shift": 1, "matches": True, "finding": ""}],
            "left_out": ["all_reduce(avg) int8 in world: no exact codes for 9 members"]}


def named(validation, *names):
    """With hosts of these names."""
    for hosts in (validation["hosts"], validation["environment"]["hosts"]):
        for one, name in zip(hosts, names):
            one["name"] = name
    return validation


def put(*path):
    """A change: the last of `path` is put where the others lead."""
    *way, last, value = path

    def change(validation):
        for key in way:
            validation = validation[key]
        validation[last] = value
    return change


# Of a run without findings ("clean"), with one of wrong values ("wrong"), or with that and a host that died ("stopped"):
# (the run, the change, what the page says).
CHANGES = [
    ("wrong", put("findings", []), "the exit status is 1, but there are no findings"),
    ("wrong", put("findings", []), "stage groups of round 1 says that it has 1 finding, but 0 are listed"),
    ("wrong", lambda it: it.update(findings=[], exit_status=0), "but 0 are listed"),
    ("wrong", put("exit_status", 0), "the exit status is 0, but 1 finding makes it 1"),
    ("wrong", put("exit_status", 3), "the exit status is 3, but 1 finding makes it 1"),
    ("stopped", put("exit_status", 1), "but 2 findings make it 3"),
    ("stopped", lambda it: it["findings"].pop(0), "the exit status is 3, but 1 finding makes it 1"),
    ("wrong", lambda it: it["findings"].append(finding(ranks=[2])), "it has 1 finding, but 2 are listed"),
    ("wrong", put("findings", 0, "kind", "bad_input"), "but 1 finding makes it 2"),
    ("wrong", put("findings", 0, "kind", "odd"), "no finding of kind 'odd'"),
    ("wrong", put("findings", 0, "stage", "pairs"), "stage pairs of round 1, which is not among the stages"),
    ("wrong", put("findings", 0, "round", 4), "stage groups of round 4, which is not among the stages"),
    ("wrong", lambda it: it["stages"].pop(), "which is not among the stages"),
    ("wrong", put("stages", 1, "verdict", "ok"), "round 1 is ok, but it says that it has 1 finding"),
    ("wrong", put("stages", 1, "findings", 0), "is findings, but it says that it has 0 findings"),
    ("wrong", lambda it: it["stages"][1].update(verdict="ok", findings=0), "it has 0 findings, but 1 is listed"),
    ("wrong", put("stages", 1, "findings", 2), "says that it has 2 findings, but 1 is listed"),
    ("wrong", put("hosts", 1, "name", "other"), "a finding of groups names node1, which is not a host of the run"),
    ("wrong", put("findings", 0, "hosts", ["node0"]), "names rank 3, which is on node1 and not on node0"),
    ("wrong", put("findings", 0, "ranks", [4]), "names rank 4, which is on no host"),
    ("wrong", put("findings", 0, "link", "node1 - node7"), "the link node1 - node7, which is not between two hosts"),
    ("clean", put("exit_status", 1), "the exit status is 1, but there are no findings"),
    ("clean", put("exit_status", 3), "the exit status is 3, but there are no findings"),
    ("clean", put("exit_status", 130), "the exit status is 130, but the run was not interrupted"),
    ("clean", put("interrupted", True), "the exit status is 0, but the run was interrupted"),
    ("clean", put("stages", 1, "verdict", "findings"), "is findings, but it says that it has 0 findings"),
    ("clean", put("stages", 1, "findings", 1), "is ok, but it says that it has 1 finding"),
    ("clean", put("stages", 1, "verdict", "fine"), "is 'fine', which is not ok, findings or nothing"),
    ("clean", put("stages", 1, "verdict", "nothing"), "is nothing, but it says that it made"),
    ("clean", lambda it: it["stages"].append(it["stages"][1]), "stage groups of round 1 is there twice"),
    ("clean", put("stages", 1, "without", ["node1"]), "went on without node1, but there are no findings"),
    ("stopped", put("stages", 0, "without", ["node9"]), "went on without node9, which is not a host of the run"),
    ("clean", put("training", 0, "matches", False), "does not match, but there is no finding of training"),
    ("clean", put("training", 0, "finding", "mismatch"), "matches, but has what is wrong with it"),
    ("clean", put("world_size", 5), "world_size is 5, but the hosts have 4 ranks"),
    ("clean", put("world_size", 10**18), "but the hosts have 4 ranks"),
    ("clean", put("hosts", 1, "ranks", [2]), "world_size is 4, but the hosts have 3 ranks"),
    ("clean", put("hosts", 1, "ranks", [1, 2]), "are not 0 to 3, each on one host"),
    ("clean", put("hosts", 1, "ranks", [2, 4]), "are not 0 to 3, each on one host"),
    ("clean", lambda it: it["hosts"].pop(), "but the hosts have 2 ranks"),
    ("clean", lambda it: it["hosts"].append({"name": "node2", "ranks": []}), "a host has no ranks"),
    ("clean", put("hosts", 1, "name", "other"), "environment has other hosts or ranks than hosts"),
    ("clean", put("hosts", 1, "name", "node0"), "two hosts have the same name"),
    ("clean", put("environment", "hosts", 0, "ranks", [0]), "environment has other hosts or ranks than hosts"),
    ("clean", lambda it: it["environment"]["hosts"].pop(), "environment has other hosts or ranks than hosts"),
    ("clean", put("seconds", -1), "seconds is -1, which is negative"),
    ("clean", put("stages", 1, "seconds", -0.5), "seconds of stage groups is -0.5, which is negative"),
    ("clean", put("environment", "hosts", 0, "clock_uncertainty_s", -1), "clock_uncertainty_s of node0 is -1"),
    ("clean", put("times", "between_hosts", "latency_us", "-inf"), "times.between_hosts.latency_us is -inf"),
    ("clean", put("times", "compute_ms", 2, -1.5), "times.compute_ms of rank 2 is -1.5"),
    ("clean", lambda it: it["times"]["compute_ms"].pop(), "times.compute_ms has 3 ranks, and world_size is 4"),
    ("clean", put("times", "pairs", 0, "gb_per_s", -1), "gb_per_s of ranks 1 and 3 is -1"),
    ("clean", put("times", "pairs", 0, "b", 4), "times.pairs has ranks 1 and 4, and world_size is 4"),
]


class Shown(report_page_test.Page):
    """Cells and lines of a list stand apart."""

    def handle_data(self, data):
        super().handle_data(data + " ")


class Matrix(SaidTest):
    """Hosts by hosts."""

    def test_a_cell_has_the_slowest_pair_of_its_hosts(self):
        whole = example()
        pair = {"latency_us": 20.0, "gb_per_s": 1, "latency_factor": 1, "bandwidth_factor": 1}
        whole["times"]["pairs"] += [{**pair, "a": 0, "b": 3, "latency_us": 1500.0}, {**pair, "a": 0, "b": 1},
                                    {**pair, "a": 2, "b": 3, "latency_us": "nan"}]
        found = host_matrix.latencies(whole)
        self.assertEqual([found[0, 0], found[0, 1], found[1, 0]], [20, 1500, 1500])
        self.assertTrue(np.isnan(found[1, 1]))
        (picture,), left_out = host_matrix.draw(whole)
        self.assertEqual(left_out, "")
        self.assertEqual(sorted(texts_of([picture])), sorted(["node0", "node1"] * 2 + ["20 us", "1.5 ms", "1.5 ms"]))
        colors = [color for color, _ in picture.key]
        self.assertEqual(len(set(colors)), 4)

    def test_findings_are_counted_of_hosts_and_of_links(self):
        link = finding(hosts=["node0", "node1"], ranks=[1, 3], link="node0 - node1")
        found = host_matrix.errors(example(finding(), finding(round=2), link))
        self.assertEqual(found.tolist(), [[0, 1], [1, 2]])
        drawn, _ = host_matrix.draw(example(finding(), link))
        self.assertEqual(len(drawn), 2)
        self.assertEqual(sorted(texts_of(drawn[1:])), ["1", "1", "1", "node0", "node0", "node1", "node1"])
        self.assertIn('fill:var(--wrong)" x', drawn[1].svg.replace(";text-anchor:end", ""))
        self.assertEqual(len(host_matrix.draw(example() | {"times": {}})[0]), 0)

    def test_ranks_stand_for_the_only_host(self):
        whole = example(finding(hosts=["node0"]))
        whole["hosts"] = [{"name": "node0", "ranks": [0, 1, 2, 3]}]
        self.assertEqual(host_matrix.errors(whole).tolist(), np.diag([0, 0, 0, 1]).tolist())
        self.assertEqual(host_matrix.latencies(whole)[1, 3], 812.5)
        self.assertIn("rank 3", texts_of(host_matrix.draw(whole)[0]))

    def test_of_many_hosts_the_guilty_and_the_slow_are_drawn_and_the_others_counted(self):
        hosts = [{"name": f"n{i}", "ranks": [i]} for i in range(100)]
        whole = example(finding(hosts=["n97"], ranks=[97])) | {"hosts": hosts, "world_size": 100}
        whole["times"]["pairs"][0].update(a=60, b=88)
        drawn, left_out = host_matrix.draw(whole)
        self.assertEqual(left_out, f"{100 - host_matrix.MOST_HOSTS} more hosts are not drawn.")
        self.assertLessEqual({"n97", "n60", "n88"}, set(texts_of(drawn[:1])))
        self.says(validation_page.render(whole), "52 more hosts are not drawn.",
                  "Of 6 measured pairs of ranks the file lists the 1 slowest")


class ValidationPage(FolderTest):
    def draw(self, validation):
        """(status, what the page says, what stood on standard error)."""
        written = validation if isinstance(validation, str) else json.dumps(validation)
        (self.folder / "validation.json").write_text(written)
        page = self.folder / "report.html"
        page.unlink(missing_ok=True)
        status, said = report_page_test.report_of(self.folder)
        shown = Shown(page.read_text()).text if page.exists() else ""
        return status, " ".join(shown.split()), said

    def test_host_gpu_and_link_are_named_first(self):
        of_link = finding(hosts=["node0", "node1"], ranks=[1, 3], link="node0 - node1",
                          message="the link node0 - node1 spoils data")
        self.expect(self.draw(example(finding(), of_link))[:2], 0, "node1, rank 3: wrong values, and 1 more",
                    "host node1 spoils data: element 5 is altered", "link node0 - node1: wrong values",
                    "every 32nd element from 5", "gpu A100 H100")

    def test_a_clean_run_says_so_and_what_was_checked(self):
        status, page, said = self.draw(example())
        self.assertEqual((status, said), (0, ""))
        for text in ("No findings", "groups 1 ok 700 123456 3.25", "108.2", "x 7.50",
                     "1 and 3", "small Llama 0 1 ranks moved by 1 match", "no exact codes for 9 members", "exit status 0",
                     "by a factor of 20.0"):
            self.assertIn(text, page)

    def test_runs_that_are_not_moved_are_one_row(self):
        runs = [{"case": "small Llama", "round": 0, "shift": shift, "matches": True, "finding": ""} for shift in (0, 0, 1, 2)]
        _, page, _ = self.draw(example() | {"training": runs})
        self.says(page, "small Llama 0 2 match small Llama 0 1 ranks moved by 1 match", absent=["moved by 0"])

    def test_the_guilty_host_is_red_and_the_ends_of_a_link_are_not(self):
        def row_of(name, page):
            return next(row for row in page.split("<tr>") if f">{name}" in row and 'data-name="ranks"' in row)
        self.draw(example(finding()))
        page = (self.folder / "report.html").read_text()
        self.assertIn('class="guilty">node1, accused by 1 finding<', row_of("node1", page))
        self.assertNotIn("guilty", row_of("node0", page))
        self.draw(example(finding(hosts=["node0", "node1"], ranks=[1, 3], link="node0 - node1")))
        page = (self.folder / "report.html").read_text()
        self.assertNotIn('class="guilty"', page)
        self.assertIn("(at an accused link)", row_of("node0", page))

    def test_hosts_unfold_only_where_they_have_facts(self):
        for whole in (example() | {"environment": {}}, example()):
            for one in whole["environment"].get("hosts", []):
                one["facts"] = {}
            self.draw(whole)
            self.assertNotIn("Facts of", (self.folder / "report.html").read_text())
        whole = example()
        whole["environment"]["hosts"][1]["facts"] = {"gpu": "A100"}
        _, page, _ = self.draw(whole)
        self.assertIn("Facts of node0 cpu Model 7 gpu H100 limit_open_files 1024 Facts of node1 gpu A100", page)
        self.assertIn("Facts of node0, node1 cpu Model 7", self.draw(example())[1])

    def test_no_host_is_called_host_twice(self):
        message = "host host1 spoils data; the clock of host host10 is off; host vm is slow"
        whole = named(example(finding(hosts=["host1"], message=message)), "vm", "host1")
        _, page, _ = self.draw(whole)
        self.says(page, "host1 spoils data; the clock of host host10 is off; host vm is slow", "host1, rank 3: wrong values",
                  absent=["host host1 spoils"])
        whole["findings"][0].update(hosts=["vm"], ranks=[0])
        self.assertIn("host vm, rank 0: wrong values", self.draw(whole)[1])

    def test_texts_are_never_markup(self):
        self.draw(example(finding(message="<script>alert(1)</script>")))
        self.assertIn("&lt;script&gt;alert(1)", (self.folder / "report.html").read_text())

    def test_a_run_that_was_interrupted_is_not_called_clean(self):
        _, page, _ = self.draw(example() | {"interrupted": True, "exit_status": 130})
        self.says(page, "Interrupted", absent=["No findings"])
        _, page, _ = self.draw(example(finding()) | {"interrupted": True, "exit_status": 130})
        self.assertIn("Interrupted, 1 finding so far", page)

    def test_contradictions_are_at_the_head_and_give_status_2(self):
        *shown, said = self.draw(example(finding()) | {"exit_status": 0})
        self.expect(shown, 2, "The results contradict themselves")
        self.assertIn("the exit status is 0, but 1 finding makes it 1", said)

    def test_a_changed_file_contradicts_itself(self):
        stopped = finding(stage="environment", round=0, kind="died", hosts=["node0"], ranks=[0, 1])
        for number, (kind, change, sentence) in enumerate(CHANGES):
            with self.subTest(number=number, sentence=sentence):
                changed = example() if kind == "clean" else example(finding())
                if kind == "stopped":
                    changed["findings"].insert(0, stopped)
                    changed["stages"][0] |= {"verdict": "findings", "findings": 1, "without": ["node0"]}
                    changed["exit_status"] = 3
                self.assertEqual(self.draw(changed)[::2], (0, ""), "it does so unchanged")
                change(changed)
                *shown, said = self.draw(changed)
                self.expect(shown, 2, "The results contradict themselves", sentence)
                self.assertIn("the file was changed after the run", said)

    def test_what_validate_writes_contradicts_nothing(self):
        later = finding() | {"stage": "groups", "round": 1}
        soak = example(later)  # the second round finds the same, which is listed once
        soak["stages"].append(soak["stages"][1] | {"round": 2})
        bits = example(finding(stage="training", kind="digest", round=0, hosts=[], ranks=[]))
        bits["stages"][1] |= {"stage": "training", "round": 0}
        wrong = copy.deepcopy(bits)
        wrong["training"][0] |= {"matches": False, "finding": "mismatch (values): loss"}
        stopped = example() | {"interrupted": True, "exit_status": 130, "stages": []}
        stopped["training"][0] |= {"matches": False, "finding": "mismatch (values): loss"}
        unknown = example() | {"environment": {}, "times": {}, "training": []}
        slow = example(finding(kind="slow", hosts=["node0", "node1"], ranks=[0, 2], link="node0 - node1"))
        for number, whole in enumerate((soak, bits, wrong, stopped, unknown, slow | {"exit_status": 3},
                                        named(example(finding(hosts=["a - b", "c"], ranks=[], link="a - b - c")),
                                              "a - b", "c"))):
            with self.subTest(number=number):
                self.assertEqual(self.draw(whole)[::2], (0, ""))

    def test_a_host_that_was_left_out_is_named_at_its_stage(self):
        left = example(finding(kind="died")) | {"exit_status": 3}
        left["stages"][1]["without"] = ["node1"]
        self.expect(self.draw(left)[:2], 0, "went on without node1")

    def test_what_is_no_validation_is_refused_with_a_sentence(self):
        broken = copy.deepcopy(example())
        broken["hosts"][0]["ranks"] = "all"
        for bad, why in ((broken, "hosts[0].ranks is"), (example() | {"format": "other/1"}, "is not"),
                         ("{", "not JSON")):
            status, page, said = self.draw(bad)
            self.assertEqual((status, page), (2, ""))
            self.assertIn(why, said)

    def test_the_way_in_draws_it(self):
        (self.folder / "validation.json").write_text(json.dumps(example()))
        run = subprocess.run([sys.executable, "-B", str(REPORTS / "report.py"), str(self.folder)],
                             capture_output=True, text=True, check=False)
        self.assertEqual((run.returncode, run.stdout.strip()), (0, str(self.folder / "report.html")))


if __name__ == "__main__":
    unittest.main()
