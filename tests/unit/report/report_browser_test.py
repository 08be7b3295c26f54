"""The page in a real browser, wide and narrow, light and dark: no labels overlap, nothing is cut off, only boxes scroll
sideways, and every text stands out from what is below it.

Without chromium the test installs it where it may (root, Debian); else it counts as skipped."""

import html
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

import report_packages  # noqa: F401

HERE = Path(__file__).resolve().parent


def browser():
    """The path of chromium, or nothing."""
    found = shutil.which("chromium") or shutil.which("chromium-browser")
    if not found and os.geteuid() == 0 and shutil.which("apt-get"):
        subprocess.run(["apt-get", "install", "-q", "-y", "--no-install-recommends", "chromium", "fonts-dejavu-core"],
                       env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"}, stdin=subprocess.DEVNULL,
                       capture_output=True, timeout=240, check=False)
        found = shutil.which("chromium")
    return found


CHROMIUM = browser()
if not CHROMIUM:
    print("skipped: no chromium (apt-get install chromium)")
    sys.exit(77)

import example_run  # noqa: E402
import numpy as np  # noqa: E402
import report  # noqa: E402
import report_pictures_test as pictures  # noqa: E402
import report_validation_test as validation  # noqa: E402
import run_data  # noqa: E402
import validation_page  # noqa: E402

WIDTHS = (1400, 390)


def wrong_tensor(number, layout, mesh, holds):
    """A mismatch with its values; `holds` are each rank's indices of a [8, 12] tensor."""
    golden = np.arange(96, dtype=float).reshape(8, 12)
    arrays = {}
    for rank, part in holds.items():
        arrays.update(pictures.piece(rank, golden[part].copy(), golden[part] + 1, np.arange(96).reshape(8, 12)[part]))
    row = {"rank": 0, "bad_count": 96, "count": 96, "global_shape": [8, 12], "local_shape": [8, 12], "layout": layout,
           "allowance": 1e-12, "worst_ratio": 1e12, "worst_global_index": [7, 11], "golden_value": 95.0,
           "actual_value": 96.0}
    case = example_run.case(number, f"wrong/{layout}", mesh, "mismatch", "values", as_expected=False,
                            text=example_run.MISMATCH, replay="./shardproof run x --only " + "a_long_name_" * 12)
    case["divergence"] = {"tensor": "grad.w", "phase": "step", "step": 1, "ranks": list(holds), "worst": row,
                          "last_good": "y", "collectives": ["all_reduce(sum) tp[0,1] [4,6] float64 w"] * 12}
    case["tensors"] = [{"name": "grad.w", "phase": "step", "step": 1, "ok": False, "layout": layout, "wrong": [row],
                        "global_shape": [8, 12], "worst_ratio": 1e12, "ratio": [1e12] * case["world_size"]}]
    case["files"] = [f"tensors/{number}.safetensors"]
    case["ranks"] = example_run.ranks(case["id"], mesh, {})
    return case, arrays


def write_run(folder):
    """A run with all that a page can show: failures of each kind, wide meshes, long names, cut and packed sequences,
    tensors cut over rows, columns and both, virtual time, cases that were not run."""
    results = example_run.example_results()
    cases = results["cases"]
    cases[0]["name"] = "a/case[" + ",".join(f"option{i}=value" for i in range(12)) + "]"
    cases[1]["tensors"][0]["name"] = "model.layers.0." + "a_module_with_a_long_name." * 4 + "output"
    cases[1]["ranks"][0]["warnings"] = ["a stream moved"]
    cases[1]["ranks"][0]["metrics"]["figures"] = {"kept_bytes": {"before": 4321, "after": 1234}}
    tokens = pictures.token_case()
    cases[2].update(mesh={**tokens["mesh"], "text": "cp=2 tp=2"}, world_size=4)
    for rank, told in zip(cases[2]["ranks"], tokens["ranks"]):
        rank.update(told)
    mesh = [("dp", 4), ("cp", 2), ("tp", 8)]
    wide = example_run.tensors(example_run.random.Random(5), 64, 8, "model.norm.weight", 3.0)
    case = example_run.case(len(cases), "wide/mesh", mesh, "mismatch", "values", as_expected=False, tensors=wide,
                            tensors_compared=len(wide), worst_ratio=3.0, text=example_run.MISMATCH)
    case["ranks"] = example_run.ranks(case["id"], mesh, example_run.parameter_layouts(8))
    cases.append(case)
    (Path(folder) / "tensors").mkdir()
    rows, columns = [np.s_[:4, :], np.s_[4:, :]], [np.s_[:, 6 * i:6 * i + 6] for i in (0, 1)]
    both = [np.s_[4 * i:4 * i + 4, 6 * j:6 * j + 6] for i in (0, 1) for j in (0, 1)]
    for layout, mesh, parts in (("S(0)tp", [("tp", 2)], rows), ("S(1)tp", [("tp", 2)], columns),
                                ("S(0)dp S(1)tp", [("dp", 2), ("tp", 2)], both)):
        case, arrays = wrong_tensor(len(cases), layout, mesh, dict(enumerate(parts)))
        (Path(folder) / case["files"][0]).write_bytes(pictures.tensor_bytes(arrays))
        cases.append(case)
    results["not_run"] = [{"name": f"late/case{i}", "reason": "the run ended before this case had"} for i in range(90)]
    results["totals"] = {**example_run.totals_of(cases, 1), "not_run": 90}
    timeline = example_run.example_timeline(cases)
    virtual = [{"ph": "X", "name": kind, "cat": kind, "ts": 700 * i, "dur": 600, "pid": 3, "tid": 1,
                "args": {"rank": 0}}
               for i, kind in enumerate(["compute", "waiting", "exposed", "communication", "critical path"])]
    timeline["traceEvents"] = [event for event in timeline["traceEvents"] if event["pid"] != 3] + virtual
    (Path(folder) / "results.json").write_text(json.dumps(results))
    (Path(folder) / "timeline.json").write_text(json.dumps(timeline))


def look(*frames, dark=False):
    """What layout_probe.js finds in each (page, width, "#anchor" or ""). A page lies in a frame of its width, because a window of
    chromium is at least 500 pixels wide; all frames lie in one window, as each chromium takes a second to start."""
    probe = (HERE / "layout_probe.js").read_text(encoding="utf-8")
    with tempfile.TemporaryDirectory() as folder:
        window = Path(folder) / "window.html"
        window.write_text("<body>" + "".join(
            f'<iframe name="{number}" src="page{number}.html{anchor}" width="{width}" height="2000" style="border:0"></iframe>'
            for number, (_, width, anchor) in enumerate(frames)))
        for number, (page, _, _) in enumerate(frames):
            (Path(folder) / f"page{number}.html").write_text(page.replace("</body>", f"<script>{probe}</script></body>"), "utf-8")
        done = subprocess.run(
            [CHROMIUM, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars",
             "--allow-file-access-from-files", f"--user-data-dir={folder}/profile", "--window-size=1500,2000",
             f"--blink-settings=preferredColorScheme={0 if dark else 1}", "--dump-dom", window.as_uri()],
            capture_output=True, text=True, timeout=360, check=False)
    found = dict(re.findall(r'<pre class="layout-probe" id="found-(\d+)">(.*?)</pre>', done.stdout, re.S))
    assert len(found) == len(frames), (done.returncode, done.stderr[-2000:], done.stdout[:500])
    return [json.loads(html.unescape(found[str(number)])) for number in range(len(frames))]


def at_both_widths(page):
    """(width, whether it is dark, what is found)."""
    for dark in (False, True):
        for width, found in zip(WIDTHS, look(*((page, width, "") for width in WIDTHS), dark=dark)):
            yield width, dark, found


class Layout(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        with tempfile.TemporaryDirectory() as folder:
            write_run(folder)
            cls.page = report.render(run_data.read_results(folder), [folder])

    def test_every_text_can_be_read_at_both_widths(self):
        for width, dark, found in at_both_widths(self.page):
            with self.subTest(width=width, dark=dark):
                self.assertEqual((found["width"], found["dark"]), (width, dark))
                self.assertEqual(found["brightness"] < 0.2, dark)
                self.assertEqual(found["problems"], [])
                self.assertGreater(found["texts"], 1000)
                self.assertGreater(found["drawn"], 400)

    def test_every_text_of_a_validation_can_be_read_at_both_widths(self):
        found = validation.example(validation.finding(), validation.finding(message="a long word " + "x" * 400))
        page = validation_page.render(found).replace(  # the page itself forbids scripts, and the probe is one
            "style-src 'unsafe-inline'", "style-src 'unsafe-inline'; script-src 'unsafe-inline'")
        for width, dark, seen in at_both_widths(page):
            with self.subTest(width=width, dark=dark):
                self.assertEqual((seen["width"], seen["dark"], seen["problems"]), (width, dark, []))
                self.assertEqual(seen["brightness"] < 0.2, dark)
                self.assertGreater(seen["texts"], 50)

    def test_a_link_from_outside_reaches_its_case(self):
        states = {"case-tp-llama_tp2_nan-emulated": {"filter": ""},
                  "case-tp-llama_tp3_float64-emulated": {"open": True, "filter": ""},  # is folded
                  "case-refused-heads_tp5-emulated": {"filter": "refused/heads_tp5"}}  # is a row only
        for (anchor, state), found in zip(states.items(), look(*((self.page, 1400, "#" + anchor) for anchor in states))):
            with self.subTest(anchor):
                self.assertEqual(found["reached"], {"id": anchor, "inView": True, **state})

    def test_what_is_planted_is_found(self):
        card = '<h2 id="cases-of-run">All cases</h2>'
        planted = {
            "overlap": '<svg width="300" height="40"><text x="10" y="20">one label</text>'
                       '<text x="40" y="24">another label</text></svg>',
            "cut off by svg": '<svg width="60" height="40"><text x="10" y="20">a label that is too long</text></svg>',
            "cut off by DIV": '<div style="width:80px;overflow:hidden;white-space:nowrap">hidden after a few words</div>',
            "pixels wide": '<div style="width:1500px">wide</div>',
            "too small": '<svg viewBox="0 0 300 40" width="150" height="20"><text x="10" y="20">tiny</text></svg>',
            "contrast": '<p style="background:#fff;color:#eee">white on white</p>',
        }
        self.assertTrue(card in self.page)
        looked = look(*((self.page.replace(card, markup + card), 390, "") for markup in planted.values()))
        for what, found in zip(planted, looked):
            with self.subTest(what):
                self.assertTrue(any(what in problem for problem in found["problems"]), found["problems"])


if __name__ == "__main__":
    unittest.main()
