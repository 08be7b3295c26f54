#!/usr/bin/env python3
"""The steps of action.yml, run as GitHub runs them: each `run` line in a shell, with the variables that GitHub sets and the
inputs that a job gives. action_test.py PROGRAM. Nothing is installed or uploaded; build and pip are written down."""

import os
import re
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PROGRAM = Path(sys.argv.pop()).resolve()
RIGHT = "name: t/right\nmodel: {num_hidden_layers: 1}\nparallel: {data_parallel_size: 2}\n"
WRONG = ("name: t/wrong\nmodel: {num_hidden_layers: 1}\nparallel: {data_parallel_size: 2}\n"
         "faults: [{kind: corrupt, rank: 1, op: all_reduce, axis: dp, label: grad, bit: 62}]\n")
TESTS = '''
import pytest

@pytest.mark.parametrize("case", ["right", "wrong"])
def test_layout(case):
    if case == "wrong":
        pytest.fail("""layout "dp2" differs from one rank: grad.bias [3] of step 1
MISMATCH  run   dp=2   values
  tensor    grad.bias   [3]   of step 1
  worst     [2]   reference 0.3   here 0.6, on rank 0
  pattern   every element is 2.00 x golden, 100% of it
  likely    summed once too often""", pytrace=False)
'''


def steps():
    """[(condition, id, {variable: value}, command)] of the `run` steps of action.yml."""
    text = (ROOT / "action.yml").read_text()
    for step in re.split(r"(?m)^    - ", text)[1:]:
        if command := re.search(r"(?m)^ *run: (.*)$", step):
            variables = re.findall(r"(?m)^        ([A-Z]+): (.*)$", step)
            yield "always()" in step, dict(variables), command[1]


def defaults():
    text = (ROOT / "action.yml").read_text().partition("inputs:")[2].partition("\noutputs:")[0]
    return dict(re.findall(r'(?m)^  (\w+):\n    description: .*\n    default: "?(.*?)"?$', text))


class Job:
    """One job with the action in it. The page of its run, which takes a second to draw, is drawn where a test looks for it."""

    def __init__(self, case, files=(), draws=False):
        self.draws = draws
        self.folder = Path(tempfile.mkdtemp(prefix="action."))
        case.addCleanup(subprocess.run, ["rm", "-r", self.folder])
        self.files = {name: self.folder / name for name in ("GITHUB_ENV", "GITHUB_OUTPUT", "GITHUB_STEP_SUMMARY")}
        self.outcome, self.output = 0, ""
        for path in self.files.values():
            path.touch()
        for name, text in dict(files).items():
            (self.folder / name).write_text(text)

    def stub(self, name, text):
        path = self.folder / "bin" / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)

    def stub_python(self):
        """One that writes down what pip is to install, and is otherwise that of .venv."""
        own = ROOT / ".venv/bin/python"
        self.stub("python3", f'if [ "$2" = pip ]; then echo "$@" >>"{self.folder}/pip.log"; '
                             f'else exec "{own if own.exists() else sys.executable}" -B "$@"; fi')

    def run_pytest(self, options=""):
        """The tests of test_it.py."""
        self.stub_python()
        self.run(pytest="test_it.py", wheel="some.whl", options=f"-p no:cacheprovider {options}")
        if "No module named pytest" in self.output:
            raise unittest.SkipTest("this Python has no pytest")
        return self

    def read(self, name):
        return self.files[name].read_text()

    def run(self, **inputs):
        """All steps; after one that fails only those that always run. The action's folder, which has a space in its name, has
        its own `shardproof`."""
        action = self.folder / "the action"
        (action / ".github").mkdir(parents=True)
        (action / ".github/action").symlink_to(ROOT / ".github/action")
        page = "" if self.draws else "report) ;; "
        (action / "shardproof").write_text(
            f'#!/bin/sh\ncase $1 in build) echo "$@" >>"{self.folder}/built" ;; {page}*) exec "{PROGRAM}" "$@" ;; esac\n')
        (action / "shardproof").chmod(0o755)
        values = defaults() | inputs
        for always, variables, command in steps():
            if self.outcome and not always:
                continue
            env = os.environ | {name: str(path) for name, path in self.files.items()}
            env |= {"GITHUB_ACTIONS": "true", "GITHUB_ACTION_PATH": str(action), "GITHUB_WORKSPACE": str(self.folder),
                    "XDG_CACHE_HOME": str(self.folder / "cache"), "PATH": f"{self.folder}/bin:{os.environ['PATH']}"}
            env |= dict(line.split("=", 1) for line in self.read("GITHUB_ENV").splitlines())
            env |= {name: re.sub(r"\$\{\{ inputs\.(\w+) \}\}", lambda found: values[found[1]], value)
                    for name, value in variables.items()}
            done = subprocess.run(["bash", "-e", "-c", command], cwd=self.folder, env=env, capture_output=True, text=True)
            self.output += done.stdout + done.stderr
            self.outcome = self.outcome or done.returncode
        return self


class Action(unittest.TestCase):
    def test_it_has_three_steps(self):
        self.assertEqual([command.split()[-1] for _, _, command in steps()], ["install", "run", "summary"])
        self.assertEqual(set(defaults()), {"scenarios", "pytest", "shard", "options", "wheel", "cache", "out"})
        used = re.findall(r"inputs\.(\w+)", (ROOT / "action.yml").read_text())
        self.assertEqual(set(used), set(defaults()))

    def test_scenarios_that_match(self):
        job = Job(self, {"right.yaml": RIGHT}).run(scenarios="right.yaml",
                                                   options="--backend emulated")
        self.assertEqual(job.outcome, 0, job.output)
        self.assertEqual((job.folder / "built").read_text(), "build --yes\n")
        self.assertNotIn("::error", job.output)
        self.assertIn("### shardproof: 1 of 1 as expected\n", job.read("GITHUB_STEP_SUMMARY"))

    def test_a_scenario_that_does_not(self):
        job = Job(self, {"wrong.yaml": WRONG}, draws=True).run(scenarios="wrong.yaml",
                                                               options="--backend emulated", out="here")
        self.assertEqual(job.outcome, 1, job.output)
        self.assertRegex(job.output, r"(?m)^::error file=wrong.yaml,line=\d+.*grad\.")
        summary = job.read("GITHUB_STEP_SUMMARY")
        self.assertIn("### shardproof: 0 of 1 as expected", summary)
        self.assertRegex(summary, r"\| t/wrong.* \| .*grad\..*rank")
        self.assertRegex(job.read("GITHUB_OUTPUT"), r"^page=(here/report\.html)?\n$")
        if "page=here" in job.read("GITHUB_OUTPUT"):
            self.assertTrue((job.folder / "here/report.html").exists())

    def test_shards_are_disjoint_and_complete(self):
        ran = []
        for shard in ("1/2", "2/2"):
            job = Job(self, {"many.yaml": RIGHT + "matrix: {seed: [1, 2, 3]}\n"})
            job.run(scenarios="many.yaml", options="--backend emulated", shard=shard)
            self.assertEqual(job.outcome, 0, job.output)
            ran += re.findall(r'testcase [^>]*name="([^"]*)"', (job.folder / "shardproof-run/junit.xml").read_text())
        self.assertEqual(len(ran), 3)
        self.assertEqual(len(set(ran)), 3)

    def test_pytest(self):
        job = Job(self, {"test_it.py": TESTS}).run_pytest()
        self.assertEqual(job.outcome, 1, job.output)
        self.assertEqual((job.folder / "pip.log").read_text(), "-m pip install --quiet some.whl\n")
        self.assertRegex(job.output, r"(?m)^::error file=test_it.py,line=4,title=test_layout\[wrong\]::tensor grad.bias \[3\] of "
                                     r"step 1; worst \[2\] .* on rank 0; pattern every .*, 100%25 of it; likely summed")
        self.assertIn("| test_layout[wrong] | tensor grad.bias", job.read("GITHUB_STEP_SUMMARY"))
        self.assertIn("1 of 2 as expected", job.read("GITHUB_STEP_SUMMARY"))

    def test_without_a_wheel_the_light_program_is_built_for_pytest(self):
        job = Job(self)
        job.stub_python()
        job.run(pytest="no_such_test.py")
        self.assertEqual((job.folder / "built").read_text(), "build shardproof-light --yes\n")
        self.assertRegex((job.folder / "pip.log").read_text(), r"--editable .*/python\n$")
        self.assertNotEqual(job.outcome, 0)

    def test_a_job_that_ran_nothing_is_red(self):
        job = Job(self, {"skipped.yaml": RIGHT + "skip: not now\n"})
        job.run(scenarios="skipped.yaml", options="--backend emulated")
        self.assertEqual(job.outcome, 1, job.output)
        self.assertIn("::error::no case was run: all are skipped, none was selected, or the options run none", job.output)

        job = Job(self, {"skipped.yaml": RIGHT + "skip: not now\n"})
        job.run(scenarios="skipped.yaml", options="--backend emulated", shard="1/1")
        self.assertEqual(job.outcome, 1, job.output)
        self.assertIn("::error::no case of share 1/1 was run: all are skipped, none was selected, or the options run none", job.output)

        job = Job(self, {"right.yaml": RIGHT})  # an empty share
        job.run(scenarios="right.yaml", options="--backend emulated", shard="2/2")
        self.assertEqual(job.outcome, 0, job.output)

        test = "import pytest\n\n\ndef test_it():\n    pytest.skip('not now')\n"
        job = Job(self, {"test_it.py": test}).run_pytest()
        self.assertEqual(job.outcome, 1, job.output)
        self.assertIn("::error::no test was run: all are skipped", job.output)
        self.assertIn("0 of 1 as expected, 1 skipped", job.read("GITHUB_STEP_SUMMARY"))

    def test_options_that_run_nothing_are_red(self):
        job = Job(self, {"test_it.py": TESTS}).run_pytest("--collect-only")
        self.assertEqual(job.outcome, 1, job.output)
        self.assertIn("::error::no test was run: pytest ended with 0 and wrote no result; leave out options", job.output)

        job = Job(self, {"right.yaml": RIGHT}).run(scenarios="right.yaml", options="--help")
        self.assertEqual(job.outcome, 1, job.output)
        self.assertIn("::error::no case was run: all are skipped, none was selected, or the options run none", job.output)
        self.assertNotIn("Traceback", job.output)

    def test_a_result_of_pytest_that_is_cut_off_is_said(self):
        job = Job(self)
        job.stub("python3", f'if [ "$2" = pytest ]; then mkdir -p shardproof-run; echo "<testsuites><" >shardproof-run/pytest.xml; '
                            f'elif [ "$2" != pip ]; then exec "{sys.executable}" -B "$@"; fi')
        job.run(pytest="test_it.py", wheel="some.whl")
        self.assertEqual(job.outcome, 1, job.output)
        self.assertRegex(job.output, "::error::.*pytest.xml is not XML; pytest may have been ended")
        self.assertNotIn("Traceback", job.output)

    def test_a_finding_is_no_markup_in_the_summary(self):
        test = "import pytest\n\n\ndef test_it():\n    pytest.fail('a <b>| c', pytrace=False)\n"
        job = Job(self, {"test_it.py": test}).run_pytest()
        self.assertIn("| test_it | Failed: a &lt;b>\\| c |", job.read("GITHUB_STEP_SUMMARY"))

    def test_bad_input_is_an_annotation(self):
        for inputs, text in (({"scenarios": "none.yaml"}, "::error::shardproof run: bad input, no case"),
                             ({"scenarios": "right.yaml", "options": "--filter 'a"}, "::error::the input options cannot be split")):
            with self.subTest(text=text):
                job = Job(self, {"right.yaml": RIGHT}).run(**inputs)
                self.assertEqual(job.outcome, 2, job.output)
                self.assertIn(text, job.output)
                self.assertNotIn("Traceback", job.output)

    def test_nothing_to_run_is_said(self):
        job = Job(self).run()
        self.assertEqual(job.outcome, 2)
        self.assertIn("::error::shardproof has nothing to run", job.output)


if __name__ == "__main__":
    unittest.main()
