"""The pytest plugin: pytest runs plugin_cases.py in another process, and its report must say what was planted.

SHARDPROOF_PROGRAM is the program that judges; without it the tests are skipped. They need pytest."""

import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import unittest
import xml.etree.ElementTree as xml
from pathlib import Path
from unittest import mock

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[2]
sys.path[:0] = [str(ROOT / "python"), str(ROOT / "tests/support"), str(HERE.parent)]

import in_fork  # noqa: E402
import pytest  # noqa: E402
import ranks  # noqa: E402,F401 (imports what ranks need)
from processes import process_of, wait_for  # noqa: E402
from said import SaidTest, ended  # noqa: E402
from shardproof import program, pytest_plugin  # noqa: E402

PROGRAM = os.environ.get("SHARDPROOF_PROGRAM")
TIMEOUT = 60  # seconds; what test_hangs takes
LIMIT = 300   # seconds that a busy machine may need for what takes one or two on an idle one


def arguments(*options):
    """Those of pytest with the plugin, and with no other."""
    return ["-p", "shardproof.pytest_plugin", "-p", "no:cacheprovider", *options]


def places(folder):
    return f"--basetemp={folder}/runs", f"--rootdir={folder}"


def environment_of(folder, **environment):
    return dict(os.environ, PYTEST_DISABLE_PLUGIN_AUTOLOAD="1", PYTHONPATH=str(ROOT / "python"), NOTES=f"{folder}/notes",
                **environment)


def start(folder, *options, **environment):
    """Starts pytest as a user does."""
    command = [sys.executable, "-B", "-m", "pytest", *arguments(*places(folder), *options)]
    return subprocess.Popen(command, cwd=folder, env=environment_of(folder, **environment), text=True,
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, preexec_fn=heeds_interrupts)


def heeds_interrupts():
    """A shell lets what it starts in the background ignore Ctrl-C, and so would pytest."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def heeding_pytest(words):
    signal.signal(signal.SIGINT, signal.default_int_handler)
    return pytest.main(words)


def run(folder, *options, **environment):
    """The exit status of a pytest that has ended, and its report before its errors."""
    return ended_in_fork(folder, *places(folder), *options, **environment)


def ended_in_fork(folder, *options, **environment):
    done = in_fork.run(pytest.main, arguments(*options), folder, environment_of(folder, **environment),
                       forget=("shardproof.pytest_plugin",))
    return done.returncode, done.stdout + done.stderr


def notes(folder, prefix=""):
    path = Path(folder) / "notes"
    lines = path.read_text().splitlines() if path.exists() else []
    return [line for line in lines if line.startswith(prefix)]


def started(folder):
    return [int(line.split()[1]) for line in notes(folder, "pid")]


def left(folder):
    return [pid for pid in started(folder) if process_of(pid)]


@unittest.skipUnless(PROGRAM, "SHARDPROOF_PROGRAM is not set")
class PluginTest(unittest.TestCase):
    """One pytest runs all cases."""

    @classmethod
    def setUpClass(cls):
        folder = cls.folder = cls.enterClassContext(tempfile.TemporaryDirectory())
        cls.status, cls.text = ended(start(
            folder, str(HERE / "plugin_cases.py"), f"--shardproof-timeout={TIMEOUT}", f"--junit-xml={folder}/junit.xml",
            "--durations=0", "-rA", "-o", "junit_logging=all"), 500)
        report = Path(folder) / "junit.xml"
        if not report.exists():
            raise AssertionError(cls.text)
        cls.cases = {case.get("name"): case for case in xml.parse(report).iter("testcase")}

    def passed(self, name):
        case = self.cases[name]
        self.assertEqual([child.tag for child in case if not child.tag.startswith(("system", "properties"))], [],
                         "".join(case.itertext()))

    def failure(self, name):
        """The message of a test, which must have failed."""
        found = self.cases[name].find("failure")
        self.assertIsNotNone(found, f"{name} passed\n{self.text}")
        return found.text

    def expect(self, name, *texts):
        message = self.failure(name)
        for text in texts:
            self.assertIn(text, message)
        return message

    def test_right_layouts_match(self):
        for layout in ("tp2", "dp2 tp2 sp", "dp2"):
            self.passed(f"test_right[{layout}]")
        self.passed("test_hand_written[dp2 tp2]")
        self.assertIn("MATCH", self.cases["test_right[tp2]"].find("system-out").text)

    def test_the_layout_that_a_test_sees(self):
        seen = notes(self.folder, "test_right dp2 tp2 sp")
        self.assertEqual(seen, ["test_right dp2 tp2 sp: {'dp': 2, 'tp': 2} ['sp'] 4"] * 4)

    def test_stages_and_chunks(self):
        for layout, seen in (("pp2", "2 {'pp': 2}"), ("pp2 vpp2", "2 {'pp': 2}")):
            self.passed(f"test_stages[{layout}-True]")
            self.expect(f"test_stages[{layout}-False]", "grad.layers.3.bias [8] of step 1", "2.00 x golden")
            self.assertEqual(notes(self.folder, f"test_stages {layout}:"), [f"test_stages {layout}: {seen}"] * 4)

    def test_experts_over_ranks(self):
        for layout, rank in (("ep2", 1), ("dp2 ep2", 3)):
            self.passed(f"test_experts[{layout}-False]")
            self.expect(f"test_experts[{layout}-True]", "grad.experts [4, 8, 8] of step 1",
                        "expert 2 holds the golden's expert 3, expert 3 holds the golden's expert 2", f"on rank {rank} only")

    def test_the_golden_runs_once(self):
        self.assertEqual(len(notes(self.folder, "test_right 1:")), 1)

    def test_each_parameter_has_its_golden(self):
        for rank in (1, 3):
            self.assertEqual(len(notes(self.folder, f"test_wrong_gradient {rank} 1")), 1)

    def test_a_golden_that_fails_runs_once(self):
        for layout in ("tp2", "dp2"):
            self.expect(f"test_golden_raises[{layout}]", "the golden (one rank): rank 0 raised ValueError: planted")
        self.assertEqual(len(notes(self.folder, "test_golden_raises")), 1)

    def test_a_wrong_gradient_is_named(self):
        text = self.expect("test_wrong_gradient[tp2-1]", "MISMATCH", "2.00 x golden", "on rank 1 only (tp 1)")
        self.assertTrue(text.startswith('layout "tp2" differs from one rank: grad.0.bias [16] of step 1 part [8:16]'))
        self.expect("test_wrong_gradient[dp2 tp2-3]", "grad.0.bias", "2.00 x golden on rank 3 only")
        self.passed("test_wrong_gradient[tp2-3]")  # it has no rank 3

    def test_repeats_with_noise_judge_float32(self):
        self.passed("test_noise[tp2-None]")
        self.assertRegex(self.cases["test_noise[tp2-None]"].find("system-out").text, "MATCH .*(\n.*)*16 repeats")
        self.expect("test_noise[tp2-1]", "MISMATCH", "grad.0.bias", "2.00 x golden", "on rank 1 only")
        for wrong_rank in (None, 1):
            self.assertEqual(sorted(notes(self.folder, f"test_noise {wrong_rank} 1 ")),
                             sorted(f"test_noise {wrong_rank} 1 {repeat}" for repeat in (None, *range(1, 17))))

    def test_what_is_left_unresolved_is_said(self):
        self.passed("test_unresolved[tp2]")
        said = r"MATCH, 1 of \d+ not judged"
        self.assertRegex(self.cases["test_unresolved[tp2]"].find("system-out").text, said)
        self.assertRegex(self.text, rf"not judged by shardproof =+\n(.*\n)?.*test_unresolved\[tp2\]: {said}\n")
        self.assertNotIn("not judged", self.cases["test_right[tp2]"].find("system-out").text)
        self.assertRegex(self.expect("test_unresolved_fails[tp2]", "narrow.output"),
                         rf'^layout "tp2": {said}, and no_unresolved is set\nMATCH')

    def test_what_a_match_does_not_say_is_said(self):
        for name, note in (("tp2", "not compared, because only the reference recorded it: acc"),
                           ("dp1 sp", "not compared, because only the reference recorded it: acc"),
                           ("dp1 sp", "this run has one rank")):
            self.passed(f"test_notes[{name}]")
            self.assertRegex(self.text, rf"not judged by shardproof =+\n(.*\n)*.*test_notes\[{name}\]: {note}")
        self.assertEqual(self.text.count("test_notes[tp2]: "), 1)

    def test_warnings_of_ranks_are_those_of_pytest(self):
        said = re.search(r"= warnings summary =+\n(.*?)\n-- Docs", self.text, re.DOTALL)[1]
        self.assertEqual(said.count("Planted: a planted <warning>"), 1, said)
        self.assertIn("::test_notes[tp2]\n", said)

    def test_a_long_name_of_a_layout(self):
        self.passed(next(name for name in self.cases if name.startswith("test_with_many_flags")))

    def test_an_expected_failure(self):
        self.assertEqual(self.cases["test_expected_to_fail[tp2]"].find("skipped").get("type"), "pytest.xfail")

    def test_a_rank_that_raises(self):
        text = self.expect("test_raises[tp2]", 'layout "tp2": rank 1 raised ValueError: planted',
                           '>           raise ValueError("planted")', "\nrank 0 ")
        self.assertLess(len(text.splitlines()), 20, text)

    def test_output_of_ranks_is_shown(self):
        self.assertIn("about to raise", self.cases["test_raises[tp2]"].find("system-out").text)
        for title, text in (("stdout", "about to raise"), ("stderr", "and its errors"), ("log", "a planted warning")):
            self.assertRegex(self.text, rf"-- Captured {title} of rank 1 call -+\n(.*\n)?{text}|"
                                        rf"-- Captured {title} of rank 1 call -+\nWARNING .*{text}")

    def test_ranks_with_the_same_failure_are_named_together(self):
        self.expect("test_asserts_on_all_ranks[tp2]", "ranks 0, 1 raised assert 2 == 1 (")

    def test_a_rank_that_exits(self):
        self.expect("test_exits[tp2]", "rank 1 exited with status 0 before the test ended")
        self.expect("test_calls_sys_exit[tp2]", "the golden (one rank): rank 0 raised SystemExit: 3")

    def test_a_rank_that_is_killed(self):
        self.expect("test_segfaults[tp2]", 'layout "tp2": rank 1 was killed by signal 11', "rank 0 still ran 1 s after",
                    "in test_segfaults")
        self.assertRegex(self.text, r"Fatal Python error: Segmentation fault")
        self.assertLess(float(self.cases["test_segfaults[tp2]"].get("time")), TIMEOUT)

    def test_a_rank_that_hangs(self):
        self.expect("test_hangs[tp2]", f"did not end within {TIMEOUT} s", "rank 1", "in test_hangs", "in barrier")
        self.assertGreater(float(self.cases["test_hangs[tp2]"].get("time")), TIMEOUT)

    def test_no_process_is_left(self):
        self.assertEqual(len(started(self.folder)), 4)
        self.assertEqual(left(self.folder), [])

    def test_nothing_recorded(self):
        self.passed("test_records_nothing[dp2]")
        self.passed("test_records_nothing[tp3]")
        nothing = "nothing was recorded, so nothing was compared"
        self.assertRegex(self.text, rf"not judged by shardproof =+\n(.*\n)*.*test_records_nothing\[tp3\]: {nothing}\n")
        self.expect("test_must_record[tp2]", f'layout "tp2": {nothing}, and no_unresolved is set')
        self.expect("test_records_only_on_one_rank[tp2]", 'recorded a run on one rank, but none on layout "tp2"')
        self.expect("test_leaves_its_recorder_open[tp2]", "the recorder was not closed")
        self.expect("test_raises_within_its_recorder[tp2]", "ValueError was raised within layout.record and caught outside")
        self.passed("test_records_in_a_fixture[tp2]")
        self.expect("test_records_twice[tp2]", "calls layout.record a second time")
        self.expect("test_records_with_what_the_marker_gives[tp2-noise]", "was given noise=. Leave it to the marker")
        self.expect("test_records_with_what_the_marker_gives[tp2-out]", "was given out=. Leave it out: each run has a folder")

    def test_a_skip_on_ranks(self):
        self.assertEqual(self.cases["test_skips[tp2]"].find("skipped").get("message"), "not here")
        self.assertEqual(self.cases["test_gives_up[tp2]"].find("skipped").get("message"), "not yet")

    def test_a_skip_on_one_rank_is_a_failure(self):
        self.expect("test_one_rank_skips[tp2]", "rank 1 skipped the test (only here), and others did not")

    def test_a_failure_that_a_hook_makes(self):
        self.expect("test_has_a_failed_subtest[tp2]", "contains 1 failed subtest")

    def test_fixtures_are_set_up_on_ranks(self):
        self.passed("test_fixtures[tp2]")
        self.assertEqual(sorted(notes(self.folder, "torn down")),
                         [f"torn down on rank {rank} of {size}, True" for rank, size in ((0, 1), (0, 2), (1, 2))])

    def test_after_failures_and_after_use_of_threads(self):
        self.passed("test_this_process_uses_threads")
        self.passed("test_after_all_these[tp2]")


@unittest.skipUnless(PROGRAM, "SHARDPROOF_PROGRAM is not set")
class SessionTest(SaidTest):
    """What concerns a whole session of pytest."""

    def setUp(self):
        self.folder = self.enterContext(tempfile.TemporaryDirectory())

    def write(self, text):
        path = Path(self.folder) / "test_one.py"
        path.write_text(text)
        return str(path)

    def test_nothing_is_imported_without_the_marker(self):
        test = self.write("import sys\ndef test():\n"
                          "    assert 'shardproof' in sys.modules\n"
                          "    assert not {'torch', 'multiprocessing', 'shardproof.pytest_ranks'} & set(sys.modules)\n")
        self.expect(ended(start(self.folder, test), LIMIT), 0)

    def test_the_example_of_the_page(self):
        page = (ROOT / "docs" / "recorded_runs.md").read_text()
        test = self.write(re.search(r"## In pytest\n.*?```python\n(.*?)```", page, re.DOTALL)[1])
        self.expect(run(self.folder, test), 0, "2 passed")

    def test_markers_that_are_wrong(self):
        test = self.write("import pytest\n@pytest.mark.layouts('tp2 sp')\ndef test_a(layout): pass\n")
        self.assertIn("1 passed", run(self.folder, test)[1])  # a flag
        for line, fact in (("@pytest.mark.layouts('tp2 tp4')", 'has the word "tp4"'),
                           ("@pytest.mark.layouts('tp-2')", 'has the word "tp-2"'),
                           ("@pytest.mark.layouts('dp2 tp')", 'has the axis "tp" without its size'),
                           ("@pytest.mark.layouts('sp')", "has flags alone, so that it has one rank, as the golden has"),
                           ("@pytest.mark.layouts('tp2', nois=3)", "has no argument 'nois'; it takes layouts, noise and"),
                           ("@pytest.mark.layouts(['dp2', 'dp4'])", "The layout ['dp2', 'dp4'] is of the type list"),
                           ("@pytest.mark.layouts('dp2', 2)", "The layout 2 is of the type int, and a layout is"),
                           ("@pytest.mark.layouts()", "the marker layouts names no layout"),
                           ("@pytest.mark.layouts('dp2')\n@pytest.mark.layouts('dp4')", "has 2 markers layouts"),
                           ("@pytest.mark.layouts('dp2', noise='16')", "noise='16' and no_unresolved=False of the marker"),
                           ("@pytest.mark.layouts('dp2', noise=-3)", "noise=-3 and"),
                           ("@pytest.mark.layouts('dp2', no_unresolved='no')", "no_unresolved='no' of the marker"),
                           ("@pytest.mark.layouts('dp2 tp3000')", '"dp2 tp3000" has 6000 ranks, each a process'),
                           ("", "takes the fixture layout without the marker layouts")):
            test = self.write(f"import pytest\n{line}\ndef test_a(layout): pass\n")
            status, text = run(self.folder, test)
            self.assertNotEqual(status, 0)
            self.assertIn(fact, text)
        test = self.write("import pytest\n@pytest.mark.layouts('tp2')\ndef test_a(): pass\n")
        self.assertIn("Write def test_a(layout)", run(self.folder, test)[1])

    def test_a_module_that_cannot_be_preloaded(self):
        self.expect(run(self.folder, str(HERE / "plugin_cases.py"), "-k", "test_records_nothing",
                        "--shardproof-preload", "json,no_such_module"), 1,
                    'The ranks need the module "no_such_module", which cannot be imported')

    def test_a_program_that_is_not_found(self):
        """The tests fail before a rank has started; other tests run."""
        said = run(self.folder, str(HERE / "plugin_cases.py"), "-k", "test_right and sp or uses_threads", "--shardproof",
                   "no-such-program")
        self.expect(said, 1, 'The program "no-such-program", which judges the recorded runs, is not found. Build it with '
                             f"{ROOT}/shardproof build shardproof-light. Or give the path")
        self.assertRegex(said[1], "1 passed, .*1 error in")
        self.assertEqual(notes(self.folder), [])

    def test_a_program_that_gives_no_verdict(self):
        for program in ("true", "false"):
            said = run(self.folder, str(HERE / "plugin_cases.py"), "-k", "test_right and sp", "--shardproof", shutil.which(program))
            self.expect(said, 1, "gave no verdict, so that it is not shardproof")

    def test_a_program_that_is_not_found_by_an_installed_package(self):
        with mock.patch.object(program, "CLONE", Path(self.folder)):
            found, problem = pytest_plugin.find_program("no-such-program")
        self.assertEqual(found, "")
        self.assertIn("Build it with ./shardproof build shardproof-light in a clone of shardproof, and install this package "
                      "from there with pip install -e ./python", problem)

    def test_a_program_that_pytest_takes_as_a_place_of_tests(self):
        test = self.write("def test_one(): pass\n")
        for options, status, words in ((["--shardproof", PROGRAM], 4, f"Write --shardproof={PROGRAM} with an equals sign"),
                                       ([f"--shardproof={PROGRAM}"], 0, "1 passed"),
                                       (["--shardproof", PROGRAM, f"--rootdir={self.folder}"], 0, "1 passed")):
            self.expect(ended_in_fork(self.folder, test, *options), status, words)

    def test_unresolved_tensors_fail_a_session_that_asks_for_it(self):
        test = [str(HERE / "plugin_cases.py"), "-k", "test_unresolved"]
        for options in (["--shardproof-no-unresolved"], ["-o", "shardproof_no_unresolved=true"]):
            self.expect(run(self.folder, *test, *options), 1, "2 failed, 1 passed", "and no_unresolved is set")

    def test_both_forms_of_the_judge_are_read(self):
        for text, counts in (("MATCH     run   tp=2   5 tensors, 9 elements, 33 of 38 tensors unresolved (a of step 1: b)",
                              "MATCH, 33 of 38 not judged"),
                             ("MATCH, 33 of 38 not judged\n  against one", "MATCH, 33 of 38 not judged"),
                             ("MATCH     run   38 tensors, 9 elements\n  note 1 of 2 not judged", ""),
                             ("MATCH, 0 of 38 not judged", ""), ("", "")):
            self.assertEqual(pytest_plugin.not_judged(text), counts)

    def test_the_light_program_judges_unless_another_is_named(self):
        programs = Path(self.folder, "programs")
        programs.mkdir()
        for name in ("shardproof-light", "shardproof"):
            program = programs / name
            program.write_text(f'#!/bin/sh\necho "{name} $1" >>"$NOTES"\nexec "{PROGRAM}" "$@"\n')
            program.chmod(0o755)
        path, test = f"{programs}:{os.environ['PATH']}", (str(HERE / "plugin_cases.py"), "-k", "test_right and sp")
        self.assertEqual(run(self.folder, *test, PATH=path, SHARDPROOF_PROGRAM="")[0], 0)
        self.assertEqual(notes(self.folder, "shardproof"), ["shardproof-light judge"])
        named = str(programs / "shardproof")
        self.assertEqual(run(self.folder, *test, PATH=path, SHARDPROOF_PROGRAM=named)[0], 0)
        self.assertEqual(notes(self.folder, "shardproof"), ["shardproof-light judge", "shardproof judge"])

    def hanging(self):
        """A pytest of which both ranks hang."""
        options = arguments(*places(self.folder), str(HERE / "plugin_cases.py"), "-k", "test_hangs",
                            f"--shardproof-timeout={4 * LIMIT}")
        with open(os.devnull, "w") as nothing:
            process = in_fork.start(heeding_pytest, options, self.folder, environment_of(self.folder), (nothing, nothing),
                                    ("shardproof.pytest_plugin",))
        self.addCleanup(process.kill)
        self.assertTrue(wait_for(lambda: len(started(self.folder)) == 4, LIMIT), "the ranks have not started")
        return process

    def test_a_time_limit_before_the_ranks_have_begun(self):
        test = self.write("import pytest, time\n@pytest.mark.parametrize('number', range(12))\n@pytest.mark.layouts('dp2')\n"
                          "def test_one(layout, number): time.sleep(60)\n")
        _, text = run(self.folder, test, "--shardproof-timeout=1e-6")
        self.assertIn("12 failed", text)
        # pytest's summary repeats the whole sentence where the variable CI is set.
        self.assertEqual(text.count("\nthe golden (one rank): rank 0 did not end within 1e-06 s"), 12, text)

    def test_time_limits_that_are_wrong(self):
        test = self.write("def test_one(): pass\n")
        for value in ("inf", "nan", "0", "soon"):
            self.expect(run(self.folder, test, f"--shardproof-timeout={value}"), 4,
                        f"'{value}' is not a number of seconds; give one from 1e-09 to 1e+09")

    def test_most_ranks_that_are_wrong(self):
        test = self.write("def test_one(): pass\n")
        for value in ("0", "-3", "many"):
            self.expect(run(self.folder, test, f"--shardproof-max-ranks={value}"), 4, f"'{value}' is not a whole number above 0")

    def test_an_interrupt_ends_all_at_once(self):
        process = self.hanging()
        os.kill(process.pid, signal.SIGINT)
        process.join(LIMIT)
        self.assertEqual(process.exitcode, 2)  # well before the ranks' own time-out
        self.assertEqual(left(self.folder), [])

    def test_no_process_outlives_a_pytest_that_is_killed(self):
        process = self.hanging()
        process.kill()
        process.join()
        self.assertTrue(wait_for(lambda: not left(self.folder), LIMIT))


if __name__ == "__main__":
    unittest.main()
