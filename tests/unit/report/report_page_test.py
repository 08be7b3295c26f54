"""The page shows what is in a run's folder, whatever that is, and what was changed in it never runs or lies."""

import contextlib
import html.parser
import io
import json
import os
import random
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

from report_packages import REPORTS

import case_view  # noqa: E402
import example_run  # noqa: E402
import report  # noqa: E402
import run_data  # noqa: E402
from said import SaidTest  # noqa: E402


class Page(html.parser.HTMLParser):
    """What a page shows and links to; fails on tags that do not match."""

    VOID = {"meta", "img", "input", "br", "link"}

    def __init__(self, text):
        super().__init__()
        self.open, self.text, self.links, self.data = [], "", [], ""
        self.feed(text)
        assert not self.open, self.open

    def handle_starttag(self, tag, attributes):
        attributes = dict(attributes)
        if tag not in self.VOID:
            self.open.append(tag)
        if "href" in attributes and tag != "image":  # an image of a picture has its data in it
            self.links.append(attributes["href"])
        if tag == "image":
            assert attributes["href"].startswith("data:image/png;base64,"), attributes["href"][:60]

    def handle_endtag(self, tag):
        assert self.open and self.open[-1] == tag, (tag, self.open)
        self.open.pop()

    def handle_data(self, data):
        if not {"style", "script"} & set(self.open):
            self.text += data
        elif data.startswith("[["):
            self.data += data

    def rows(self):
        """The table of all cases, which the page's script shows."""
        return json.loads(self.data or "[]")


def quick(cases):
    """The cases with the tensors that are wrong, or with two: pictures of all of them take most of a page's time."""
    for case in cases:
        case["tensors"] = [tensor for tensor in case["tensors"] if not tensor["ok"]] or case["tensors"][-2:]
    return cases


def drawn(results, timeline=None):
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "results.json").write_text(json.dumps(results))
        if timeline:
            (Path(folder) / "timeline.json").write_text(json.dumps(timeline))
        return report.render(run_data.read_results(folder), [folder])


class SeveralRuns(SaidTest):
    """Runs that share no case make one page."""

    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.whole = example_run.example_results()
        quick(self.whole["cases"])
        for number, cases in enumerate((self.whole["cases"][::2], self.whole["cases"][1::2])):
            self.write(number, cases)
        self.runs = [str(self.folder / "run0"), str(self.folder / "run1")]

    def write(self, number, cases):
        run = self.folder / f"run{number}"
        run.mkdir(exist_ok=True)
        results = self.whole | {"cases": cases, "totals": example_run.totals_of(cases, 1)}
        results["run"] = self.whole["run"] | {"command": f"run --shard {number + 1}/2", "exit_status": 1 + 2 * number, "seconds": number + 1.0}
        (run / "results.json").write_text(json.dumps(results))
        timeline = example_run.example_timeline(self.whole["cases"])  # a case's number is that of its id
        (run / "timeline.json").write_text(json.dumps(timeline))

    def call(self, *words):
        out = io.StringIO()
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(out):
            status = report.main([*self.runs, "--out", str(self.folder / "page.html"), *words])
        return status, out.getvalue()

    def test_the_page_has_the_cases_of_all(self):
        status, text = self.call()
        self.assertEqual((status, text), (0, f"{self.folder}/page.html\n"))
        page = Page((self.folder / "page.html").read_text())
        self.assertEqual(sorted(row[3] for row in page.rows()), sorted(case["name"] for case in self.whole["cases"]))
        for words in ("3 of 10 cases did not end as expected", "run --shard 1/2; run --shard 2/2", "took 2.0 s", "exit status 3",
                      "no GPU on this machine"):
            self.assertIn(words, " ".join(page.text.split()))
        self.assertEqual(page.text.count("no GPU on this machine"), 1)  # which both runs skipped
        logs = [link for link in page.links if link.endswith(".log")]
        self.assertTrue(logs)
        self.assertEqual([link for link in logs if not link.startswith(("run0/logs/", "run1/logs/"))], [])
        one = Page(drawn(self.whole, example_run.example_timeline(self.whole["cases"])))
        self.assertEqual(page.text.count("Time"), one.text.count("Time"))

    def test_the_exit_status_is_that_of_one_run_of_all(self):
        bad, left_out = [self.whole["cases"][0] | {"verdict": "bad_input"}], [{"name": "left out"}]
        def status_of(*runs):
            return run_data.merged({number: self.whole | {"run": {"exit_status": status}, "cases": cases, "not_run": not_run}
                                    for number, (status, cases, not_run) in enumerate(runs)})["run"]["exit_status"]
        for first, second in ((1, 4), (130, 5), (5, 2), (3, 1), (4, 0)):
            pair = (first, [], []), (second, [], [])
            self.assertEqual((status_of(*pair), status_of(*pair[::-1])), (first, first))
        self.assertEqual([status_of((2, bad, left_out), (status, [], [])) for status in (0, 3, 4)], [2, 2, 2])
        self.assertEqual([status_of((2, [], left_out), (status, [], [])) for status in (0, 3, 4)], [2, 3, 4])

    def test_shares_that_are_missing_are_said(self):
        cases = [case for case in self.whole["cases"] if case["as_expected"]]
        def summary(*shards):
            return report.summary_of(run_data.merged({number: self.whole | {
                "run": {"exit_status": 0} | ({"shard": shard} if shard else {}), "cases": cases[number:number + 1]}
                for number, shard in enumerate(shards)}))
        all_right = "Every case ended as expected"
        for shards, missing in (
                (([1, 3], [2, 3]), "share 3 of 3 is missing"), (([3, 3], [3, 3]), "shares 1, 2 of 3 are missing"),
                (([1, 6], [2, 6], [4, 6], [6, 6]), "shares 3, 5 of 6 are missing"),
                (([1, 2], [1, 3]), "share 2 of 2 is missing; shares 2, 3 of 3 are missing"),
                (([1, 2], None), "share 2 of 2 is missing"),
                (([2, 10], [4, 10]), "shares 1, 3, 5, 6, 7, 8, 9, 10 of 10 are missing"),
                (([2, 1 << 60], [4, 1 << 60]), f"shares 1, 3, 5, 6, 7, 8, 9, 10 and {(1 << 60) - 10} more of {1 << 60} are missing")):
            said = summary(*shards)
            self.assertEqual((said["headline"], said["good"]),
                             (f"Incomplete: {missing}. Every case of the others ended as expected", False), shards)
        for shards in (([2, 2], [1, 2]), (None, None)):
            said = summary(*shards)
            self.assertEqual((said["headline"], said["good"]), (all_right, True), shards)

    def test_shares_that_are_missing_are_said_beside_failures(self):
        self.both(self.whole["cases"][::2], self.whole["cases"][1::2], shard=([1, 3], [2, 3]), exit_status=(3, 3))
        self.expect(self.call(), 2, "shardproof report: share 3 of 3 is missing; name the folders of all shares\n")
        self.says(Page((self.folder / "page.html").read_text()).text,
                  "3 of 10 cases did not end as expected; share 3 of 3 is missing", absent=["Incomplete"])
        left_out = report.headline_of({"run": {}, "cases": self.whole["cases"][:1], "skipped": [], "not_run": [{"name": "x"}]},
                                      "share 3 of 3 is missing")
        self.assertEqual(left_out, "1 of 2 cases were run; share 3 of 3 is missing")

    def test_a_case_of_two_runs_is_refused(self):
        self.write(1, self.whole["cases"][:1])
        self.expect(self.call(), 2,
                    f"{self.runs[0]} and {self.runs[1]} both have the case {self.whole['cases'][0]['name']}; name runs that "
                    "share no case")

    def test_a_case_has_one_path_however_it_is_written(self):
        cases = self.whole["cases"][:1]
        for first, second in (("scenarios/x.yaml", "./scenarios/x.yaml"), ("a/../scenarios/x.yaml", "/here/scenarios/x.yaml")):
            self.both(*([case | {"file": file} for case in cases] for file in (first, second)))
            self.expect(self.call(), 2, "both have the case")
        judged = [[case | {"name": name, "file": "runs/tp2/run.json"} for case in cases] for name in ("runs/tp2", "runs/tp2/")]
        self.both(*judged)
        self.expect(self.call(), 2, "both have the case")
        self.both(cases, [case | {"file": "other/x.yaml"} for case in cases])
        self.assertEqual(self.call()[0], 0)

    def both(self, *cases, **run):
        """Writes these cases of the two runs, and what a run may say of itself: a pair of values."""
        for number, own in enumerate(cases):
            self.write(number, own)
            path = self.folder / f"run{number}/results.json"
            results = json.loads(path.read_text())
            results["run"] |= {"directory": "/here", "exit_status": 0} | {key: pair[number] for key, pair in run.items()}
            path.write_text(json.dumps(results))

    def test_shares_of_different_cases_are_refused(self):
        halves = self.whole["cases"][:1], self.whole["cases"][1:2]
        self.both(*halves, shard=([1, 2], [2, 2]), selection=("12ab", "34cd"))
        self.expect(self.call(), 2, f"{self.runs[0]} and {self.runs[1]} are shares of 2 of different cases; name the shares of one")
        for shard, selection, status in ((([1, 2], [2, 2]), ("12ab", "12ab"), 0), (([1, 2], [2, 2]), ("12ab", None), 0),
                                         (([1, 2], [2, 3]), ("12ab", "34cd"), 2), ((None, None), ("12ab", "34cd"), 0)):
            self.both(*halves, shard=shard, selection=selection)
            self.assertEqual(self.call()[0], status, (shard, selection))

    def test_runs_of_different_programs_are_said(self):
        halves = self.whole["cases"][:1], self.whole["cases"][1:2]
        for program, version, said in ((("ab", "cd"), ("1", "1"), "The runs are of different programs: ab; cd."),
                                       (("ab", "cd"), ("1", "2"), "The runs are of different versions of shardproof: 1; 2."),
                                       (("ab", "ab"), ("1", "1"), "")):
            self.both(*halves, program=program, version=version)
            self.assertEqual(self.call()[0], 0)
            text = Page((self.folder / "page.html").read_text()).text
            self.says(text, *filter(None, [said]), absent=[] if said else ["The runs are of different"])

    def test_a_run_that_contradicts_itself_is_named(self):
        path = self.folder / "run1/results.json"
        results = json.loads(path.read_text())
        results["totals"]["unexpected"] += 1
        path.write_text(json.dumps(results))
        self.expect(self.call(), 2, f"{path}: totals.unexpected is")

    def test_what_one_run_did_not_run_and_another_ran_is_not_missing(self):
        path = self.folder / "run0/results.json"
        results = json.loads(path.read_text())
        ran = json.loads((self.folder / "run1/results.json").read_text())["cases"][0]
        entries = [{"name": name, "file": ran.get("file", ""), "backend": ran["backend"], "reason": "the time was over"}
                   for name in (ran["name"], "other")]
        path.write_text(json.dumps(results | {"not_run": entries, "totals": results["totals"] | {"not_run": 2}}))
        self.assertEqual(self.call()[0], 0)
        text = " ".join(Page((self.folder / "page.html").read_text()).text.split())
        self.assertIn("10 of 11 cases were run", text)


class WholePage(SaidTest):
    @classmethod
    def setUpClass(cls):
        cls.results = example_run.example_results()
        cls.source = drawn(cls.results, example_run.example_timeline(cls.results["cases"]))
        cls.page = Page(cls.source)

    def test_says_first_how_the_run_ended(self):
        self.assertIn("3 of 10 cases did not end as expected", self.page.text)
        self.assertLess(self.page.text.index("did not end as expected"), self.page.text.index("All cases"))

    def test_lists_first_what_failed_where_and_why(self):
        text = " ".join(self.page.text.split())
        text = text[text.rindex("3 of 10 cases did not end as expected"):]  # without the menu
        listed = text[text.index("What failed"):text.index("Not as expected")]
        for words in ("mismatch: valuestp/llama_dp2_tp3_float64", "grad.model.layers.1.mlp.down_proj.weightstep, step 1",
                      "failed: diedfaults/kill_rank2 rank 2expected match, got failed (died)", "tp/llama_tp2_nan"):
            self.assertIn(words, listed)

    def test_shows_every_case_and_skip_with_its_reason(self):
        rows = self.page.rows()
        self.assertEqual([row[3] for row in rows], [case["name"] for case in self.results["cases"]])
        self.assertEqual([run_data.VERDICTS[row[1]] for row in rows], [case["verdict"] for case in self.results["cases"]])
        self.says(self.page.text, "no GPU on this machine", "tp/nccl")

    def test_shows_each_failure_with_its_text_and_replay(self):
        self.assertIn("summed over dp twice", self.page.text)
        self.assertIn("--only tp/llama_dp2_tp3_float64", self.page.text)
        self.assertIn("rank 2 died <signal 9> & took its peers with it", self.page.text)  # escaped
        self.assertNotIn("<signal 9>", self.source)
        self.assertIn("all_reduce tp[2,3] model.layers.0.mlp.down_proj forward", self.page.text)

    def test_shows_what_a_failed_rank_printed(self):
        self.assertEqual(self.page.text.count("what its process printed"), 1)  # the others printed nothing
        self.assertIn("NCCL WARN <no route> & gave up", self.page.text)
        self.assertNotIn("<no route>", self.source)

    def test_names_what_a_precision_cannot_resolve(self):
        self.assertEqual([row[8] for row in self.page.rows()], [0] * 5 + [1] + [0] * 4)
        self.says(self.page.text, "param.model.norm.weight", "rounding is <0.7> of its update")
        self.assertNotIn("<0.7>", self.source)

    def test_has_the_pictures_of_every_judged_case_in_itself(self):
        judged = [case["name"] for case in self.results["cases"] if case["tensors"]]
        self.assertEqual(self.source.count("<h3>Error by tensor and rank</h3>"), len(judged))
        self.assertEqual(self.source.count("<h3>Time</h3>"), len(judged) + 1)  # also of the world that died
        self.assertIn(">layers.1.mlp.down_proj.weight</text>", self.source.replace("grad.", ""))

    def test_a_picture_that_two_cases_share_is_drawn_once(self):
        cases = example_run.example_cases()[1:2] * 2
        results = {**self.results, "cases": [{**case, "name": name} for case, name in zip(cases, ("first", "second"))]}
        text = " ".join(Page(drawn(results)).text.split())
        self.assertEqual(text.count("The same picture as of first"), 2)  # its errors, and its mesh

    def test_the_first_of_cases_with_equal_pictures_has_them(self):
        cases = [json.loads(json.dumps(example_run.example_cases()[1])) for _ in range(3)]
        for case, name, ratio in zip(cases, ("first", "second", "third"), (0.1, 0.2, 0.9)):
            case.update(name=name, worst_ratio=ratio)  # the pictures of the last are drawn first
        text = " ".join(Page(drawn({**self.results, "cases": cases})).text.split())
        self.assertEqual(text.count("The same picture as of first"), 4)  # errors and mesh, of the other two
        self.says(text, absent=["The same picture as of second", "The same picture as of third"])
        cases[1].update(verdict="mismatch", as_expected=False)  # which the page shows before the others, unfolded
        text = " ".join(Page(drawn({**self.results, "cases": cases})).text.split())
        self.assertEqual(text.count("The same picture as of second"), 4)
        self.assertEqual(text.count("The same picture as of "), 4)

    def test_a_case_is_found_by_its_name_in_junit(self):
        cases = quick(example_run.example_cases())
        cases[0].update(name="smoke/llama[dp2,tp=2]", backend="gloo")
        cases[1].update(name="smoke/llama[dp2]", backend="emulated")
        cases[2].update(name="smoke/llama(dp2)", backend="emulated")  # the same in letters and digits
        for selected in (cases, cases[1:]):
            anchors = dict(zip((case["name"] for case in selected), case_view.anchors(selected)))
            self.assertEqual(anchors["smoke/llama[dp2]"], "case-smoke-llama-dp2-emulated")
            self.assertEqual(anchors["smoke/llama(dp2)"], "case-smoke-llama-dp2-emulated-2")
        self.assertEqual(case_view.anchors(cases)[0], "case-smoke-llama-dp2-tp-2-gloo")
        page = Page(drawn({**self.results, "cases": cases}))
        self.assertEqual([row[0] for row in page.rows()], case_view.anchors(cases))

    def test_the_menu_has_all_cases_with_a_section(self):
        menu = self.source[self.source.index("<nav>"):self.source.index("</nav>")]
        anchors = case_view.anchors(self.results["cases"])
        for row, anchor in zip(self.page.rows(), anchors):
            self.assertEqual(menu.count(f'href="#{anchor}"'), row[11], anchor)
        self.assertLess(menu.index("llama_dp2_tp3"), menu.index("llama_tp1"))  # what failed is first

    def test_links_only_into_the_page_and_the_folder(self):
        for link in self.page.links:
            self.assertRegex(link, r"#[\w.-]+$|(logs|replay|tensors)/[^:]*")
            if link.startswith("#"):
                self.assertEqual(self.source.count(f'id="{link[1:]}"'), 1, link)

    def test_shows_what_workloads_measured_and_what_ranks_warn_of(self):
        few = lambda: example_run.example_results(2)
        results = few()
        ranks = results["cases"][1]["ranks"]
        for rank, after in zip(ranks, (96, 100)):
            rank["metrics"]["figures"] = {"kept_bytes": {"before": 4321, "after": after}}
            rank["warnings"] = ["a stream <moved>"]
        self.says(" ".join(Page(drawn(results)).text.split()), "kept bytes before4321", "kept bytes after0: 961: 100",
                  f"a stream <moved>{results['cases'][1]['name']}: 0, 1")
        self.says(drawn(few()), absent=["Warnings", "Measured by"])

    def test_cases_of_two_worlds_are_two(self):
        results = example_run.example_results(6)
        cases = results["cases"][4:] + json.loads(json.dumps(results["cases"][4:]))
        for case, world in zip(cases, ("emulated", "emulated", "gloo", "gloo")):
            case.update(backend=world)
            case["ranks"][0]["warnings"] = ["a stream moved"]
        text = " ".join(Page(drawn({**results, "cases": cases})).text.split())
        for world in ("emulated", "gloo"):
            self.says(text, f"{cases[0]['name']} {world}: 0", f"{cases[1]['name']} {world}: step 8")

    def test_warnings_that_are_not_shown_are_counted(self):
        results = example_run.example_results(1)
        results["cases"][0]["ranks"][0]["warnings"] = [f"warning {i}." for i in range(report.TABLE_ROWS + 3)]
        self.says(" ".join(Page(drawn(results)).text.split()), "warning 59.",
                  "and 3 more warnings, which are in results.json", absent=["warning 60."])
        results["cases"][0]["ranks"][0]["warnings"] = ["one"]
        self.says(drawn(results), absent=["more warnings"])

    def test_is_the_same_when_drawn_again(self):
        few = {**self.results, "cases": self.results["cases"][:2]}
        timeline = example_run.example_timeline(few["cases"])
        self.assertEqual(drawn(few, timeline), drawn(few, timeline))


class OddRuns(SaidTest):
    def page(self, **changes):
        results = example_run.example_results()
        results.update(changes)
        return Page(drawn(results))

    def test_a_run_without_cases(self):
        self.assertIn("No case was run", self.page(cases=[], totals={"cases": 0, "unexpected": 0}).text)

    def test_an_interrupted_run(self):
        run = {**example_run.example_results()["run"], "interrupted": True}
        self.assertIn("Interrupted", self.page(run=run, cases=[]).text)

    def as_expected(self, run, **changes):
        """A run without unexpected cases."""
        cases = quick([case for case in example_run.example_cases() if case["as_expected"]][-2:])
        results = example_run.example_results() | {"cases": cases} | changes
        results["run"] = results["run"] | {"exit_status": 0} | run
        return results | {"totals": run_data.totals_of(results)}

    def test_a_run_in_which_all_was_as_expected(self):
        results = self.as_expected({})
        self.says(Page(drawn(results)).text, "Every case ended as expected",
                  absent=["Not as expected", "of each tensor", "but the run's exit status"])
        self.assertTrue(report.summary_of(results)["good"])

    def test_another_exit_status_of_such_a_run_is_said(self):
        cases = self.as_expected({})["cases"]
        unresolved = [cases[0] | {"unresolved": [{"tensor": "grad.a"}]}, cases[1]]
        for status, changes, why in ((1, {"cases": unresolved}, ": 1 of 2 cases left tensors unresolved"),
                                     (2, {}, ": 1 case was skipped"), (2, {"skipped": []}, ""), (3, {}, "")):
            results = self.as_expected({"exit_status": status}, **changes)
            summary = report.summary_of(results)
            self.assertEqual(summary["headline"],
                             f"Every case ended as expected, but the run's exit status is {status}{why}")
            self.assertFalse(summary["good"])
            self.says(Page(drawn(results)).text, summary["headline"])

    def test_cases_that_were_not_judged_are_no_success(self):
        first, second = quick(example_run.example_cases()[:2])
        unjudged = lambda case: case | {"judged": False, "tensors": []}
        wrong = second | {"as_expected": False, "verdict": "mismatch"}
        for cases, run, headline, good in (
                ([unjudged(first), unjudged(second)], {}, "No case was judged", False),
                ([unjudged(first)], {"shard": [1, 3]}, "No case was judged (share 1 of 3 of the cases)", False),
                ([unjudged(first)], {"exit_status": 2},
                 "No case was judged, but the run's exit status is 2: 1 case was skipped", False),
                ([unjudged(first), second], {}, "Every case ended as expected, 1 of 2 was not judged", True),
                ([unjudged(first), wrong], {"exit_status": 1}, "1 of 2 cases did not end as expected, 1 of 2 was not judged", False)):
            results = self.as_expected(run, cases=cases)
            summary = report.summary_of(results)
            self.assertEqual((summary["headline"], summary["good"]), (headline, good))
            self.says(Page(drawn(results)).text, headline)
        left_out = self.as_expected({"exit_status": 2}, cases=[unjudged(first), unjudged(first), second], not_run=[{"name": "x"}])
        self.assertEqual(report.summary_of(left_out)["headline"], "3 of 4 cases were run, 2 of 3 were not judged")

    def test_relations_whose_changed_cases_were_all_refused_compared_nothing(self):
        first, second = quick(example_run.example_cases()[:2])
        refused = lambda case: case | {"verdict": "refused", "kind": "refused", "may_be_refused": True, "tensors": []}
        said = "Every changed case was refused: nothing was compared, and the run's exit status is 2"
        for cases, status, headline in (
                ([refused(first), refused(second)], 2, said),
                ([refused(first), refused(second)], 0, "Every case ended as expected"),  # drawn by fuzz, whose ranks refused them
                ([refused(first), second], 2, "Every case ended as expected, but the run's exit status is 2: 1 case was skipped")):
            results = self.as_expected({"exit_status": status}, cases=cases)
            summary = report.summary_of(results)
            self.assertEqual((summary["headline"], summary["good"]), (headline, status == 0))
            self.says(Page(drawn(results)).text, headline)

    def test_a_share_of_the_cases_is_said(self):
        for shard, more in (([1, 3], " (share 1 of 3 of the cases)"), ([1, 1], ""), (None, "")):
            results = self.as_expected({"shard": shard})
            self.says(Page(drawn(results)).text, "Every case ended as expected" + more,
                      absent=[] if more else ["of the cases)"])
        with self.assertRaisesRegex(run_data.BadRun, r"run.shard is \[4, 3\], which is not \[share, number of shares\]"):
            drawn(self.as_expected({"shard": [4, 3]}))

    def test_a_match_on_some_rows_is_not_shown_as_one_on_all(self):
        cases = [case for case in example_run.example_cases() if case["as_expected"]][-2:]
        cases[0]["sample_rows"], cases[1]["sample_rows"] = 4, None
        text = " ".join(self.page(cases=cases, totals={"cases": len(cases), "unexpected": 0}).text.split())
        self.assertIn("1 of 2 cases were judged on 4 rows of each tensor: an error outside of them is not seen.", text)

    def test_a_match_against_another_layout_is_not_shown_as_one_with_one_device(self):
        cases = example_run.example_cases()[:4] + example_run.example_cases()[8:9]
        for case, reference in zip(cases, ("tp2", "fsdp4 tp2", "tp2", None, "tp2")):  # the last one was refused
            case["reference"] = reference
        text = " ".join(self.page(cases=cases, totals={"cases": len(cases), "unexpected": 0}).text.split())
        for many, reference in ((1, "fsdp4 tp2"), (2, "tp2")):
            self.assertIn(f"{many} of 5 cases were judged against {reference}, not against one device: an error that "
                          "both layouts make is not seen.", text)
            self.assertIn(f"against {reference}, 0.21 s", text)

    def test_a_match_without_a_gradient_is_said(self):
        cases = [case for case in example_run.example_cases() if case["verdict"] == "match"][:3]
        for case, trains, gradients in zip(cases, (True, True, False), (0, 12, 0)):
            case["rests_on"] = {"trains": trains, "gradients": gradients}
        text = " ".join(self.page(cases=cases, totals={"cases": len(cases), "unexpected": 0}).text.split())
        self.assertIn(f"1 of {len(cases)} cases trained without a gradient to judge", text)

    def test_a_case_with_only_its_verdict(self):
        bare = {"name": "x", "verdict": "internal", "as_expected": False}
        self.assertIn("internal", self.page(cases=[bare], run={}).text)

    def test_text_from_a_hostile_case_is_not_markup(self):
        cases = example_run.example_cases()[:1]
        cases[0]["name"] = "<script>alert(1)</script>"
        results = {**example_run.example_results(), "cases": cases}
        self.assertNotIn("<script>alert", drawn(results))

    def test_many_cases_draw_the_nearest_to_their_allowance_and_say_so(self):
        cases = [json.loads(json.dumps(example_run.example_cases()[1])) for _ in range(30)]
        for i, case in enumerate(cases):
            case.update(name=f"case{i}", worst_ratio=i / 100, ranks=[], tensors=case["tensors"][:1])
        self.assertEqual(set(report.most_interesting(cases, False)), set(range(18, 30)))
        self.assertEqual(len(report.most_interesting(cases, True)), 30)
        self.assertEqual(len(re.findall("<details class=.card. id=", drawn({**example_run.example_results(),
                                                                              "cases": cases}))), 12)


class Command(SaidTest):
    def run_report(self, *arguments, **environment):
        return subprocess.run([sys.executable, "-B", str(REPORTS / "report.py"), *map(str, arguments)],
                              capture_output=True, text=True, timeout=360, env=dict(os.environ, **environment))

    def test_writes_the_page_into_the_folder(self):
        with tempfile.TemporaryDirectory() as folder:
            example_run.write(folder, 2)
            done = self.run_report(folder)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            self.assertEqual(done.stdout.strip(), str(Path(folder) / "report.html"))
            self.assertIn("llama_tp2", (Path(folder) / "report.html").read_text())

    def test_a_package_that_is_missing_is_bad_input(self):
        for name in ("jinja2", "matplotlib", "numpy"):
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                (Path(folder) / f"{name}.py").write_text(f"raise ModuleNotFoundError(\"No module named '{name}'\")\n")
                done = self.run_report(folder, PYTHONPATH=folder)
                self.assertEqual((done.returncode, done.stdout), (2, ""))
                self.assertRegex(done.stderr, f"^shardproof report: No module named '{name}'; install .*\n$")

    def test_what_cannot_be_drawn_is_a_sentence(self):
        whole = json.dumps(example_run.example_results(1))
        contents = {"none": None, "text": "{", "list": "[]", "old": '{"format": "shardproof-results/0"}',
                    "half": '{"format": "shardproof-results/1", "cases": []}', "deep": "[" * 100000,
                    "truncated": whole[:len(whole) // 2], "no case": whole.replace('"as_expected": true', '"x": 1')}
        for name, content in contents.items():
            with self.subTest(name), tempfile.TemporaryDirectory() as folder:
                if content is not None:
                    (Path(folder) / "results.json").write_text(content)
                said = self.expect(report_of(folder), 2)
                self.assertTrue(said.startswith("shardproof report: "), said)
                self.assertEqual(said.count("\n"), 1)
                self.assertFalse((Path(folder) / "report.html").exists())


def report_of(folder):
    """(status, what it says on stderr) of the command; an exception that it does not catch is one here, too."""
    said = io.StringIO()
    with contextlib.redirect_stderr(said), contextlib.redirect_stdout(io.StringIO()):
        return report.main([str(folder)]), said.getvalue()


class ChangedFile(SaidTest):
    """results.json after somebody has changed it."""

    def changed(self, change, count=8):
        """(status, what it says, the page or nothing) of an example after change(results)."""
        results = example_run.example_results(count)
        quick(results["cases"])
        change(results)
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "results.json").write_text(json.dumps(results))
            status, said = report_of(folder)
            page = Path(folder) / "report.html"
            return status, said, page.read_text() if page.exists() else ""

    def test_totals_are_counted_again(self):
        def hide(results):
            results["totals"].update(mismatch=0, match=7)
        *said, page = self.changed(hide)
        self.expect(said, 2, "totals.match is 7, but its list has 6, and 1 more contradictions")
        text = " ".join(Page(page).text.split())
        self.assertIn("The results contradict themselves", text)
        self.assertIn("totals.mismatch is 0, but its list has 1", text)
        self.assertIn("2 of 8 cases did not end as expected", text)  # what the cases say, not what the totals say

    def test_a_case_that_refutes_its_verdict_is_named(self):
        def call_expected(results):
            results["cases"][6]["as_expected"] = True
            results["totals"]["unexpected"] -= 1
        def call_match(results):
            results["cases"][6].update(verdict="match", kind="", as_expected=True)
            results["totals"].update(example_run.totals_of(results["cases"], 1), mismatch=0)
        def exit_well(results):
            results["run"]["exit_status"] = 0
        for change, sentence in ((call_expected, "called expected, but expected is match and its verdict is mismatch"),
                                 (call_match, "called a match, but its tensor"),
                                 (exit_well, "the exit status is 0, but 2 cases did not end as expected")):
            *said, page = self.changed(change)
            self.expect(said, 2, sentence)
            self.assertIn(sentence, Page(page).text)

    def test_what_refutes_a_match_is_found(self):
        for fields, fact in (({"worst_ratio": 5.0}, "its worst_ratio is 5.0"), ({"worst_ratio": "nan"}, "its worst_ratio is nan"),
                             ({"divergence": {"tensor": "grad.x"}}, "it diverges at grad.x"),
                             ({"not_judged": [{"tensor": "grad.x", "elements": 5}]}, "5 elements of grad.x were not judged"),
                             ({"elements": {"demanded": 100, "judged": 1, "excused": {}}},
                              "100 elements had to be judged, and 1 were judged or excused")):
            said = self.changed(lambda results: results["cases"][0].update(fields), 1)
            self.expect(said[:2], 2, f"tp/llama_tp1_float64: it is called a match, but {fact}")
        for place, fields, fact in (("tensors", {"ratio": [7.0]}, "its tensor grad"), ("tensors", {"outcome": "mismatch"}, "its tensor"),
                                    ("ranks", {"ending": "died"}, "its rank 0 ended as died")):
            said = self.changed(lambda results: results["cases"][0][place][0].update(fields), 1)
            self.expect(said[:2], 2, f"it is called a match, but {fact}")
        right = {"divergence": None, "not_judged": [], "elements": {"demanded": 100, "judged": 1, "excused": {"padding": 99}}}
        self.assertEqual(self.changed(lambda results: results["cases"][0].update(right), 1)[:2], (0, ""))

    def test_what_refutes_a_run_is_found(self):
        def twice(results):
            results["cases"].append(results["cases"][0])
            results["totals"].update(cases=2, match=2)
        self.expect(self.changed(twice, 1)[:2], 2, "the case tp/llama_tp1_float64 is there 2 times")
        for status in (1, 3, 4):
            said = self.changed(lambda results: results["run"].update(exit_status=status), 1)
            self.expect(said[:2], 2, f"the exit status is {status}, but every case ended as expected")
        self.assertEqual(self.changed(lambda results: results["run"].update(exit_status=1), 6)[:2], (0, ""))  # one left unresolved
        self.assertEqual(self.changed(lambda results: results["run"].update(exit_status=130, interrupted=True), 1)[:2], (0, ""))

    def test_a_refusal_that_a_case_may_end_in_is_as_expected(self):
        def end(verdict, may_be_refused):
            def change(results):
                results["cases"][0].update(verdict=verdict, kind="", may_be_refused=may_be_refused, tensors=[])
                results["totals"] = example_run.totals_of(results["cases"], 1)
            return self.changed(change, 1)[:2]
        self.expect(end("refused", True), 0)
        self.expect(end("refused", False), 2, "called expected, but expected is match and its verdict is refused")
        self.expect(end("failed", True), 2, "called expected, but expected is match and its verdict is failed")

    def test_no_text_becomes_a_link_or_markup(self):
        evil = ["javascript:alert(1)", "http://example.org/x", "//example.org/x", "logs/../../x", "/etc/passwd",
                "logs\\..\\x", "data:text/html,x", "tensors/\"onclick=alert(1)//<b>", "</script><script>alert(1)</script>"]
        def plant(results):
            for text in evil:
                for case in results["cases"][6:]:
                    case["files"].append(text)
                    case["replay_file"] = text
                    for rank in case["ranks"]:
                        rank["log"] = text
                case.update(name=text, text=text, message=text, replay=text, unexpected=text, file=text)
                results["run"]["environment"][text] = text
            results["cases"][0]["name"] = "$\\frac{$ \x00 \ud800 &lt; <img src=x onerror=alert(1)>"
            results["cases"][0]["tensors"][0]["name"] = results["cases"][0]["name"]
        status, said, source = self.changed(plant, 8)
        self.assertEqual((status, said), (0, ""))
        page = Page(source)
        self.assertTrue(page.links)
        for link in page.links:
            self.assertRegex(link, r"#[\w.-]+$|(logs|replay|tensors)/[^:]*$")
            self.assertNotIn("..", link)
        self.assertEqual(source.count("<script"), 2)  # the rows, and the page's own
        self.says(source, absent=["<img", "onclick=\""])

    def test_no_changed_field_ends_with_a_traceback(self):
        rng = random.Random(11)
        odd = [None, "", "x", "nan", -1, 0, 1 << 70, 1e308, [], {}, [[]], {"a": {}}, True, [None], "a" * 500]
        refused = 0
        for _ in range(40):
            def change(results):
                place = results
                while True:  # a random walk to a field
                    keys = list(place if isinstance(place, dict) else range(len(place)))
                    key = rng.choice(keys)
                    if not isinstance(place[key], (dict, list)) or not place[key] or rng.random() < 0.15:
                        break
                    place = place[key]
                place[key] = rng.choice(odd)
            status, said, page = self.changed(lambda results: (small(results), change(results)), 1)
            self.assertIn(status, (0, 2), said)
            self.assertEqual(said.count("\n"), 1 if status else 0)
            refused += status == 2
        self.assertGreater(refused, 10)


def small(results):
    """One case that is drawn quickly, with all that is drawn of a case."""
    case = results["cases"][0]
    case["tensors"] = case["tensors"][-2:]
    case["ranks"][0]["metrics"]["figures"] = {"kept_bytes": {"before": 1}}
    case.update(verdict="mismatch", as_expected=False)
    results["run"]["exit_status"], results["totals"] = 1, example_run.totals_of(results["cases"], 1)
    case["divergence"] = {"tensor": case["tensors"][1]["name"], "phase": "step", "step": 1, "ranks": [0],
                          "worst": {"rank": 0, "global_shape": [4, 4], "layout": "S(0)tp", "allowance": 1e-9}}


class Size(unittest.TestCase):
    def page_of(self, cases, rounds=0):
        results = {**example_run.example_results(0), "cases": cases}
        results["totals"] = example_run.totals_of(cases, 1)
        results["run"]["exit_status"] = 1
        return drawn(results, example_run.example_timeline(cases[:20], rounds))

    def test_a_hundred_cases_that_all_fail_take_at_most_a_megabyte(self):
        rng, mesh, cases = random.Random(1), [("dp", 8), ("tp", 8)], []
        for number in range(100):
            tensors = example_run.tensors(rng, 64, 8, "model.norm.weight", 3.0)
            case = example_run.case(number, f"many/failure{number}", mesh, "mismatch", "values", as_expected=False,
                                    text=example_run.MISMATCH, tensors=tensors, tensors_compared=len(tensors),
                                    replay="./shardproof run x", worst_ratio=3.0)
            case["ranks"] = example_run.ranks(case["id"], mesh, example_run.parameter_layouts(8))
            cases.append(case)
        page = self.page_of(cases, rounds=40)
        self.assertLess(len(page.encode()), 1_000_000)
        self.assertGreater(len(page.encode()), 700_000)  # it has as many pictures as fit
        self.assertGreater(page.count("<h3>Time</h3>"), 4)
        self.assertIn("Its pictures are left out", page)

    def test_thousands_of_cases_are_rows_of_data_and_not_of_the_page(self):
        cases = [example_run.case(number, f"many/case{number}", [("tp", 2)]) for number in range(3000)]
        source = self.page_of(cases)
        page = Page(source)
        self.assertEqual(len(page.rows()), 3000)
        self.assertLess(source.count("<tr"), 100)
        self.assertLess(len(source.encode()), 400_000)


class FileOfThePage(SaidTest):
    def setUp(self):
        self.run_folder = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.page = self.run_folder / "report.html"
        example_run.write(self.run_folder, 1)

    def test_a_link_is_replaced_and_not_the_file_that_it_leads_to(self):
        notes = self.run_folder / "notes"
        for link in (self.page.symlink_to, self.page.hardlink_to):
            notes.write_text("mine")
            self.page.unlink(missing_ok=True)
            link(notes)
            self.assertEqual(report_of(self.run_folder), (0, ""))
            self.assertEqual(notes.read_text(), "mine")
            self.assertIn("<html", self.page.read_text())

    def test_another_file_is_not_replaced(self):
        self.page.write_text("a thesis")
        status, said = report_of(self.run_folder)
        self.assertEqual((status, self.page.read_text()), (2, "a thesis"))
        self.assertIn("report.html is no page of shardproof, and would be replaced", said)

    def test_a_pipe_is_said_and_not_waited_for(self):
        os.mkfifo(self.page)
        self.expect(report_of(self.run_folder), 2, "report.html is not a regular file")


if __name__ == "__main__":
    unittest.main()
