"""The page of a validation names who is at fault and shows what was checked; changed files are refused or said to be."""

import contextlib
import copy
import io
import json
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from report_packages import REPORTS

import report  # noqa: E402
import report_page_test  # noqa: E402

FACTS = {"cpu": "Model 7", "gpu": "H100", "limit_open_files": "1024"}


def host(number, **more):
    return {"name": f"node{number}", "ranks": [2 * number, 2 * number + 1], "facts": FACTS, "odd": [],
            "clock_offset_s": 0.002, "clock_uncertainty_s": 0.001, **more}


def finding(**fields):
    return {"stage": "groups", "kind": "values", "round": 1, "hosts": ["node1"], "ranks": [3], "link": "",
            "pattern": "every 32nd element from 5", "message": "host node1 spoils data: element 5 is altered", **fields}


def example(*findings):
    """validation.json of two hosts."""
    stages = [{"stage": "groups", "round": 1, "verdict": "findings" if findings else "ok", "seconds": 3.25, "checks": 700,
               "elements": 123456, "findings": len(findings), "without": ["node9"], "note": "700 results"}]
    pair = {"a": 1, "b": 3, "latency_us": 812.5, "gb_per_s": 0.25, "latency_factor": 7.5, "bandwidth_factor": 1.5}
    medians = {"pairs": 6, "latency_us": 108.25, "gb_per_s": 0.375}
    return {"format": "shardproof-validation/1", "command": "shardproof validate --ranks 4", "version": "shardproof 0",
            "started": "2026-01-02T03:04:05Z", "seconds": 12.5, "suite": "short.yaml", "backend": "gloo", "device": "cpu",
            "world_size": 4, "slow_factor": 20.0, "interrupted": False, "exit_status": 1 if findings else 0,
            "hosts": [{"name": f"node{n}", "ranks": [2 * n, 2 * n + 1]} for n in range(2)], "stages": stages,
            "findings": list(findings),
            "environment": {"hosts": [host(0), host(1, odd=[{"fact": "gpu", "value": "A100", "usual": "H100"}])]},
            "times": {"in_host": {"pairs": 0, "latency_us": 0, "gb_per_s": 0}, "between_hosts": medians,
                      "compute_ms": [1.5, 1.25], "compute_median_ms": 1.375, "pairs": [pair]},
            "training": [{"case": "small Llama", "round": 0, "shift": 1, "matches": True, "finding": ""}],
            "left_out": ["all_reduce(avg) int8 in world: no exact codes for 9 members"]}


class Shown(report_page_test.Page):
    """Cells and lines of a list stand apart."""

    def handle_data(self, data):
        super().handle_data(data + " ")


class ValidationPage(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)

    def draw(self, validation):
        """(status, what the page says, what stood on standard error)."""
        written = validation if isinstance(validation, str) else json.dumps(validation)
        (self.folder / "validation.json").write_text(written)
        said, page = io.StringIO(), self.folder / "report.html"
        page.unlink(missing_ok=True)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
            status = report.main([str(self.folder)])
        shown = Shown(page.read_text()).text if page.exists() else ""
        return status, " ".join(shown.split()), said.getvalue()

    def test_host_gpu_and_link_are_named_first(self):
        status, page, _ = self.draw(example(finding(), finding(hosts=[], ranks=[], link="node0 - node1", kind="slow",
                                                               message="the link node0 - node1 is slow")))
        self.assertEqual(status, 0)
        self.assertIn("node1, rank 3: wrong values, and 1 more", page)
        self.assertIn("host node1 spoils data: element 5 is altered", page)
        self.assertIn("link node0 - node1: too slow", page)
        self.assertIn("every 32nd element from 5", page)
        self.assertIn("gpu A100 H100", page)

    def test_a_clean_run_says_so_and_what_was_checked(self):
        status, page, said = self.draw(example())
        self.assertEqual((status, said), (0, ""))
        for text in ("No findings", "groups 1 ok 700 123456 3.25", "went on without node9", "108.2", "x 7.50",
                     "1 and 3", "small Llama 0 1 match", "no exact codes for 9 members", "exit status 0",
                     "by a factor of 20.0"):
            self.assertIn(text, page)

    def test_texts_are_never_markup(self):
        self.draw(example(finding(message="<script>alert(1)</script>")))
        self.assertIn("&lt;script&gt;alert(1)", (self.folder / "report.html").read_text())

    def test_a_run_that_was_interrupted_is_not_called_clean(self):
        _, page, _ = self.draw(example() | {"interrupted": True, "exit_status": 130})
        self.assertIn("Interrupted", page)
        self.assertNotIn("No findings", page)

    def test_contradictions_are_at_the_head_and_give_status_2(self):
        status, page, said = self.draw(example(finding()) | {"exit_status": 0})
        self.assertEqual(status, 2)
        self.assertIn("The results contradict themselves", page)
        self.assertIn("the exit status is 0, but there are 1 findings", said)

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
