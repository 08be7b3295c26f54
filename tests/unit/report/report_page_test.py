"""The page is drawn from a run's folder, whatever is in it; layouts are read as the C++ side means them."""

import html.parser
import json
import math
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPORTS = HERE.parents[2] / "reports"
sys.path[:0] = [str(HERE), str(REPORTS)]

try:
    import jinja2  # noqa: F401
    import matplotlib  # noqa: F401
except ImportError as missing:
    print(f"skipped: {missing} (./shardproof installs it)")
    sys.exit(77)

import error_budget  # noqa: E402
import error_heatmap  # noqa: E402
import example_run  # noqa: E402
import layouts  # noqa: E402
import mesh_picture  # noqa: E402
import report  # noqa: E402
import run_data  # noqa: E402


class Page(html.parser.HTMLParser):
    """What a page shows and links to; fails on tags that do not match."""

    VOID = {"meta", "img", "input", "br", "link"}

    def __init__(self, text):
        super().__init__()
        self.open, self.text, self.links, self.images = [], "", [], []
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag not in self.VOID:
            self.open.append(tag)
        if tag == "a":
            self.links.append(attributes["href"])
        if tag == "img":
            self.images.append(attributes["src"])

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, (tag, self.open)
        self.open.pop()

    def handle_data(self, data):
        if not {"style", "script"} & set(self.open):
            self.text += data


def drawn(results, timeline=None):
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "results.json").write_text(json.dumps(results))
        if timeline:
            (Path(folder) / "timeline.json").write_text(json.dumps(timeline))
        return report.render(run_data.read_results(folder), run_data.read_timelines(folder))


class WholePage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.results = example_run.example_results()
        cls.source = drawn(cls.results, example_run.example_timeline(cls.results["cases"]))
        cls.page = Page(cls.source)

    def test_says_first_how_the_run_ended(self):
        self.assertIn("3 of 10 cases did not end as expected", self.page.text)
        self.assertLess(self.page.text.index("did not end as expected"), self.page.text.index("All cases"))

    def test_shows_every_case_and_skip_with_its_reason(self):
        for case in self.results["cases"]:
            self.assertIn(case["name"], self.page.text)
        self.assertIn("no GPU on this machine", self.page.text)

    def test_shows_each_failure_with_its_text_and_replay(self):
        self.assertIn("summed over dp twice", self.page.text)
        self.assertIn("--only tp/llama_dp2_tp3_float64", self.page.text)
        self.assertIn("rank 2 died <signal 9> & took its peers with it", self.page.text)  # escaped
        self.assertNotIn("<signal 9>", self.source)
        self.assertIn("all_reduce tp[2,3] model.layers.0.mlp.down_proj forward", self.page.text)

    def test_has_the_pictures_of_every_judged_case_in_itself(self):
        judged = sum(bool(case["tensors"]) for case in self.results["cases"])
        # heatmap, mesh and time of each, mesh and time of the dead world, the budget
        self.assertEqual(len(self.page.images), 3 * judged + 2 + 1)
        for source in self.page.images:
            self.assertTrue(source.startswith("data:image/svg+xml;base64,"))

    def test_links_only_into_the_page_and_the_folder(self):
        for link in self.page.links:
            self.assertNotIn("//", link)
            if link.startswith("#case-"):
                self.assertIn(f'id="{link[1:]}"', self.source)

    def test_is_the_same_when_drawn_again(self):
        few = {**self.results, "cases": self.results["cases"][:2]}
        timeline = example_run.example_timeline(few["cases"])
        self.assertEqual(drawn(few, timeline), drawn(few, timeline))


class OddRuns(unittest.TestCase):
    def page(self, **changes):
        results = example_run.example_results()
        results.update(changes)
        return Page(drawn(results))

    def test_a_run_without_cases(self):
        self.assertIn("No case was run", self.page(cases=[], totals={"cases": 0, "unexpected": 0}).text)

    def test_an_interrupted_run(self):
        run = {**example_run.example_results()["run"], "interrupted": True}
        self.assertIn("Interrupted", self.page(run=run, cases=[]).text)

    def test_a_run_in_which_all_was_as_expected(self):
        cases = [case for case in example_run.example_cases() if case["as_expected"]][-2:]
        text = self.page(cases=cases, totals={"cases": len(cases), "unexpected": 0}).text
        self.assertIn("Every case ended as expected", text)
        self.assertNotIn("Not as expected", text)

    def test_a_case_with_only_its_verdict(self):
        bare = {"name": "x", "verdict": "internal", "as_expected": False, "seconds": 0, "worst_ratio": 0}
        self.assertIn("internal", self.page(cases=[bare]).text)

    def test_text_from_a_hostile_case_is_not_markup(self):
        cases = example_run.example_cases()[:1]
        cases[0]["name"] = "<script>alert(1)</script>"
        results = {**example_run.example_results(), "cases": cases}
        self.assertNotIn("<script>alert", drawn(results))

    def test_many_cases_draw_the_nearest_to_their_allowance_and_say_so(self):
        cases = [json.loads(json.dumps(example_run.example_cases()[1])) for _ in range(30)]
        for i, case in enumerate(cases):
            case.update(name=f"case{i}", worst_ratio=i / 100, ranks=[], tensors=case["tensors"][:1])
        self.assertEqual(report.most_interesting(cases, False), set(range(18, 30)))
        self.assertEqual(len(report.most_interesting(cases, True)), 30)
        self.assertIn("18 more cases are not drawn here", self.page(cases=cases).text)


class Command(unittest.TestCase):
    def run_report(self, *arguments):
        return subprocess.run([sys.executable, str(REPORTS / "report.py"), *map(str, arguments)],
                              capture_output=True, text=True, timeout=120)

    def test_writes_the_page_into_the_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            example_run.write(folder, 2)
            done = self.run_report(folder)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertEqual(done.stdout.strip(), str(Path(folder) / "report.html"))
            self.assertIn("llama_tp2", (Path(folder) / "report.html").read_text())

    def test_what_cannot_be_drawn_is_a_sentence(self):
        contents = {"none": None, "text": "{", "list": "[]", "old": '{"format": "shardproof-results/0"}',
                    "half": '{"format": "shardproof-results/1", "cases": []}'}
        for name, content in contents.items():
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                if content is not None:
                    (Path(folder) / "results.json").write_text(content)
                done = self.run_report(folder)
                self.assertEqual(done.returncode, 2)
                self.assertTrue(done.stderr.startswith("shardproof report: "), done.stderr)
                self.assertEqual(done.stderr.count("\n"), 1)
                self.assertFalse((Path(folder) / "report.html").exists())


class Layouts(unittest.TestCase):
    AXES = [("dp", 2), ("tp", 3)]

    def held(self, layout, size, axes=AXES):
        cuts = layouts.parse(layout)
        return [layouts.indices(cuts, 0, 1, size, axes, rank) for rank in range(layouts.world_size(axes))]

    def test_each_kind_of_cut_keeps_what_its_picture_shows(self):  # as in tests/unit/mesh/layout_test.cpp
        tp = [("tp", 3)]
        self.assertEqual(self.held("S(0)tp", 6, tp), [[0, 1], [2, 3], [4, 5]])
        self.assertEqual(self.held("S(0)tp", 7, tp), [[0, 1, 2], [3, 4, 5], [6]])
        self.assertEqual(self.held("S(0)tp:padded9", 7, tp), [[0, 1, 2], [3, 4, 5], [6]])
        self.assertEqual(self.held("B(0)tp:6|3", 9, tp), [[0, 1, 6], [2, 3, 7], [4, 5, 8]])
        self.assertEqual(self.held("Z(0)tp", 12, tp), [[0, 1, 10, 11], [2, 3, 8, 9], [4, 5, 6, 7]])
        self.assertEqual(self.held("S(0)tp:parts1", 2, tp), [[0, 1]] * 3)
        self.assertEqual(self.held("S(0)tp:parts2", 4, [("tp", 4)]), [[0, 1], [0, 1], [2, 3], [2, 3]])
        self.assertEqual(self.held("R", 2, tp), [[0, 1]] * 3)

    def test_cuts_of_one_dim_compose_in_order(self):
        self.assertEqual(self.held("S(0)tp S(0)dp", 9), [[0, 1], [3, 4], [6, 7], [2], [5], [8]])

    def test_holders_group_the_ranks_with_equal_copies(self):
        self.assertEqual(layouts.holders(layouts.parse("S(1)tp"), [4, 6], self.AXES),
                         [([0, 3], (((0, 4),), ((0, 2),))), ([1, 4], (((0, 4),), ((2, 2),))),
                          ([2, 5], (((0, 4),), ((4, 2),)))])

    def test_text_that_is_no_layout_is_told_apart(self):
        self.assertIsNone(layouts.parse("replicated over everything"))
        self.assertEqual(layouts.parse(""), [])

    def test_one_parameter_stands_for_each_layout(self):
        shown = mesh_picture.representatives({"a": ("S(0)tp", [4, 4]), "b": ("S(0)tp", [8, 4]), "c": ("", [4]),
                                              "odd": ("?", [4]), "scalar": ("", [])})
        self.assertEqual(shown, [("a", "S(0)tp", [4, 4], 2), ("c", "", [4], 1)])


class Numbers(unittest.TestCase):
    def test_what_json_cannot_hold_is_read_from_text(self):
        self.assertTrue(math.isnan(run_data.number("nan")))
        self.assertEqual(run_data.number("-inf"), -math.inf)
        self.assertTrue(math.isnan(run_data.number(None)))
        self.assertEqual(run_data.number(3), 3.0)

    def test_a_share_that_is_not_a_number_counts_as_infinite(self):
        grid = error_heatmap.ratio_grid([{"ratio": [None, "nan", 0.5, "inf"]}], 4)
        self.assertTrue(math.isnan(grid[0, 0]))
        self.assertEqual(list(grid[0, 1:]), [math.inf, 0.5, math.inf])
        self.assertEqual(error_budget.budget({"tensors": [{"worst_ratio": "nan"}]}), [math.inf])

    def test_wrong_tensors_are_always_among_the_drawn(self):
        tensors = [{"name": str(i), "ok": i != 3, "worst_ratio": 0.9} for i in range(100)]
        tensors[3]["worst_ratio"] = 0.1  # wrong for another reason than its values
        self.assertIn("3", [tensor["name"] for tensor in error_heatmap.chosen_tensors(tensors, 5)])


if __name__ == "__main__":
    unittest.main()
