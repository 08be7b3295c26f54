"""`shardproof score`: the faults that fit, what it says of a suite of which one test sees little, and its statuses."""

import contextlib
import importlib
import importlib.util
import io
import json
import os
import subprocess
import sys
import tempfile
import time
import unittest
from pathlib import Path
from types import SimpleNamespace
from unittest import mock

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE.parents[1] / "python"), str(HERE.parent / "support")]

import in_fork  # noqa: E402
import ranks  # noqa: E402,F401 (imports what ranks need)
import shardproof.command  # noqa: E402
from processes import process_of, wait_for  # noqa: E402
from said import FolderTest  # noqa: E402
from shardproof.score import command, faults  # noqa: E402

CASES = str(HERE / "score_cases.py")
LAYOUTS = """
import pytest
import torch
import torch.distributed as dist

@pytest.mark.layouts("dp2")
def test_numbers(layout):
    scale = torch.full((1,), 3.0, dtype=torch.float64)
    dist.broadcast(scale, 0)
    model = torch.nn.Linear(4, 2, dtype=torch.float64)
    layout.load(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with layout.record(model, optimizer) as rec:
        rec.tensor("scale", scale)
        model(torch.ones(2, 4, dtype=torch.float64)).sum().backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= dist.get_world_size()
        optimizer.step()
"""
SIZES = """
import torch, forks
import torch.distributed as dist

def total(rank):
    value = torch.ones(1)
    dist.all_reduce(value)
    return value.item()

assert [forks.run(size, total) for size in (1, 2, 3)] == [[1], [2, 2], [3, 3, 3]]
"""


def score(*arguments):
    """Status and text of the command, run in the folder of the cases."""
    with contextlib.redirect_stdout(io.StringIO()) as out, contextlib.redirect_stderr(io.StringIO()) as errors:
        status = command.main(list(arguments))
    return status, out.getvalue(), errors.getvalue()


class WhatANoticedFaultIs(unittest.TestCase):
    def noticed(self, status, **outcomes):
        return command.Finding(None, command.Run(status=status, outcomes=outcomes, acted=True)).noticed_by()

    def test_a_status_that_no_test_explains_says_nothing(self):
        self.assertEqual(self.noticed(1, a="passed"), [])  # such as a threshold of coverage
        self.assertEqual(self.noticed(1, a="passed", b="failed"), ["b"])
        self.assertEqual(self.noticed(1, a="passed", b="started"), ["b"])
        self.assertEqual(self.noticed(0, a="passed", b="started"), [])

    def test_a_command_that_was_ended_or_has_no_tests(self):
        for status in (None, -9, 2, 3, 137):
            self.assertEqual(self.noticed(status, a="passed"), [command.WHOLE])
        self.assertEqual(self.noticed(3), [command.WHOLE])
        self.assertEqual(self.noticed(0), [])


class FaultsThatFit(FolderTest):
    """What the logs of a clean run allow."""

    def write(self, name, *rows):
        path = self.folder / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join("\t".join(row) + "\n" for row in rows))

    def kinds(self):
        return [str(fault) for fault in faults.planned(self.folder, faults.KINDS)]

    def test_a_sum(self):
        for rank in (0, 1):
            self.write(f"w{rank}/rank{rank}.calls", *[("0", "world [0, 1]", "all_reduce(sum)", "float32", "[4]",
                                                       "a.py:3", "t.py::test_a (call)")] * 2)
        self.assertEqual(self.kinds(), ["drop on rank 1", "double on rank 1", "stale on rank 1", "corrupt on rank 1",
                                        "skip on all ranks", "average on all ranks"])
        fault, *_ = faults.planned(self.folder, ["drop"])
        self.assertEqual(fault.place.tests, {"t.py::test_a"})
        self.assertEqual(fault.environment(), {
            "SHARDPROOF_FAULT": "op=all_reduce,group=world,site=a.py:3,call=all,kind=drop,rank=1"})

    def test_a_broadcast_is_spoiled_at_its_root(self):
        for rank in (0, 1):
            self.write(f"w{rank}/rank{rank}.calls",
                       ("0", "world [0, 1]", "broadcast from rank 0", "float32", "[4]", "a.py:3"))
        self.assertEqual(self.kinds(), ["drop on rank 0", "double on rank 0", "corrupt on rank 0", "skip on all ranks"])

    def test_integers_barriers_objects_and_groups_of_one(self):
        self.write("w/rank1.calls", ("0", "world [0, 1]", "all_to_all_single", "int64", "[4]", "a.py:1"),
                   ("1", "world [0, 1]", "barrier", "-", "-", "a.py:2"),
                   ("2", "world [0, 1]", "broadcast from rank 0", "uint8", "[99]", "a.py:3"),
                   ("0", "own [1]", "all_reduce(sum)", "float32", "[4]", "a.py:4"))
        self.assertEqual(self.kinds(), ["skip on all ranks"])

    def test_messages(self):
        self.write("w/rank0.calls", ("0", "world [0, 1]", "send to rank 1 (tag 3)", "float32", "[4]", "a.py:1"))
        self.write("w/rank1.calls", ("0", "world [0, 1]", "recv from rank 0 (tag 3)", "float32", "[4]", "a.py:2"))
        self.assertEqual(self.kinds(), ["drop on rank 0", "double on rank 0", "corrupt on rank 0"])

    def test_another_group_of_as_many_ranks(self):
        for rank, tp, dp in ((0, "0, 1", "0, 2"), (3, "2, 3", "1, 3")):
            self.write(f"w{rank}/rank{rank}.calls",
                       ("0", "world [0, 1, 2, 3]", "all_gather", "float32", "[4]", "a.py:1"),
                       ("0", f"tp [{tp}]", "all_gather", "float32", "[4]", "a.py:2"),
                       ("0", f"dp [{dp}]", "all_gather", "float32", "[4]", "a.py:3"))
        found = [(str(fault), str(fault.place)) for fault in faults.planned(self.folder, ["wrong_group"])]
        self.assertEqual(found, [("wrong_group dp on all ranks", "all_gather of tp at a.py:2"),
                                 ("wrong_group tp on all ranks", "all_gather of dp at a.py:3")])

    def test_weights(self):
        notes = [{"test": "t (call)", "model": "Net", "number": 1, "name": f"layers.{i}.weight", "shape": [4, 2]}
                 for i in (0, 1)]
        notes.append({"test": "t (call)", "model": "Net", "number": 1, "name": "scale", "shape": []})
        for rank, stepped in ((0, []), (1, [{"test": "t (call)", "stepped": True}])):
            path = self.folder / f"w{rank}" / f"rank{rank}.weights"
            path.parent.mkdir()
            path.write_text("".join(json.dumps(note) + "\n" for note in notes + stepped))
        found = [(str(fault), str(fault.place)) for fault in faults.planned(self.folder, faults.KINDS)]
        self.assertEqual(found, [(f"weight_{kind} on rank 1", "layers.0.weight of Net")
                                 for kind in ("corrupt", "shift", "stale")] +
                         [(f"weight_{kind} on rank 1", "scale of Net") for kind in ("corrupt", "stale")])


class Ends(FolderTest):
    def test_a_command_that_fails_without_a_fault(self):
        self.assertEqual(score("--", sys.executable, "-c", "print('why'); exit(3)")[::2], (
            2, "why\nshardproof score: the command ends with status 3 without a fault; make it pass first\n"))

    def test_a_command_without_collectives(self):
        self.expect(score("--", sys.executable, "-c", "")[::2], 2,
                    "no group of Gloo with two or more ranks calls what a fault fits")

    def test_options_that_are_wrong(self):
        for option, value, fact in (("--max", "0", "'0' is not a whole number"), ("--max", "-3", "'-3' is not a whole"),
                                    ("--fail-under", "nan", "'nan' is not a number of percent; give one from 0 to 100"),
                                    ("--fail-under", "101", "'101' is not"), ("--timeout", "0", "'0' is not a number of sec"),
                                    ("--timeout", "inf", "'inf' is not a number of seconds; give one from")):
            with self.assertRaises(SystemExit) as end, contextlib.redirect_stderr(io.StringIO()) as errors:
                command.main([option, value, "--", sys.executable, "-c", ""])
            self.assertEqual(end.exception.code, 2)
            self.assertIn(f"argument {option}: {fact}", errors.getvalue())

    def test_a_result_that_cannot_be_written(self):
        for path, fact in ((f"{self.folder}/no/r.json", f"there is no folder {self.folder}/no; make it"),
                           (self.folder, "cannot be written; name another")):
            errors = self.expect(score("--json", str(path), "--", sys.executable, "-c", "exit(3)")[::2], 2, fact)
            self.assertRegex(errors, f"^shardproof score: {path} cannot be written.*\n$")

    def with_fault(self, fault, *options, **run):
        """What is said where one fault fits, and its run ends so."""
        runs = [command.Run(1, 0, {"t": "passed"}, False), command.Run(**run)]
        with mock.patch.object(command, "run", side_effect=runs), mock.patch.object(
                command, "planned", lambda _, kinds: [fault] if fault.kind in kinds else []):
            return score(*options, "--", "command")

    def test_a_fault_that_did_not_act(self):
        fault = faults.Fault("drop", 1, faults.Place("all_reduce", "sum", "world", "a.py:1"))
        status, text, errors = self.with_fault(fault, "--timeout", "0.2", status=None, outcomes={"t": "started"})
        self.assertEqual(status, 2)
        self.assertIn("- (ended before the fault acted)", text)
        self.assertIn("no fault acted, so that nothing is said of the tests; run more faults, or give a longer --timeout "
                      "than 0.2 s", errors)

    def test_kinds_of_which_none_fits(self):
        fault = faults.Fault("drop", 1, faults.Place("all_reduce", "sum", "world", "a.py:1"))
        self.assertEqual(self.with_fault(fault, "--kinds", "wrong_group,stale")[::2], (
            2, "shardproof score: no fault of --kinds wrong_group,stale fits, and 1 of others; choose among drop\n"))

    def test_a_command_that_is_not_there(self):
        self.assertEqual(score("--", "/no/such/command")[::2], (
            2, "shardproof score: /no/such/command cannot be started: No such file or directory\n"))

    def test_a_machine_without_a_compiler(self):
        environment = dict(os.environ, PYTHONPATH=str(HERE.parents[1] / "python"), XDG_CACHE_HOME=str(self.folder),
                           CXX="/no/such/compiler")
        done = subprocess.run([sys.executable, "-B", "-m", "shardproof", "score", "--", sys.executable, "-c", "exit(3)"],
                              env=environment, capture_output=True, text=True, check=False)
        self.assertEqual((done.returncode, done.stdout), (2, ""))
        self.assertRegex(done.stderr, "^shardproof score: there is no compiler '/no/such/compiler' .*install g.*\n$")

    def test_the_time_limit_ends_all_processes(self):
        mark = self.folder / "pid"
        program = f"import os, subprocess; open('{mark}', 'w').write(str(subprocess.Popen(['sleep', '600']).pid)); " \
                  "__import__('time').sleep(600)"
        start = time.monotonic()
        ended = command.run([sys.executable, "-c", program], self.folder / "run", {}, 6)
        self.assertLess(time.monotonic() - start, 300)
        self.assertIsNone(ended.status)
        self.assertTrue(wait_for(lambda: not process_of(mark.read_text()), 60))

    def test_a_signal_ends_the_run_under_way(self):
        mark = self.folder / "pid"
        program = f"import os, time; open('{mark}', 'w').write(str(os.getpid())); time.sleep(60)"
        process = subprocess.Popen([sys.executable, "-m", "shardproof", "score", "--", sys.executable, "-c", program],
                                   env=dict(os.environ, PYTHONPATH=str(HERE.parents[1] / "python")))
        self.addCleanup(process.kill)
        wait_for(lambda: mark.exists() and mark.read_text(), 30)
        process.terminate()
        self.assertEqual(process.wait(50), 143)
        self.assertFalse(Path(f"/proc/{mark.read_text()}").exists())

    def test_what_counts(self):
        """A test that fails or does not end notices; a fault that changed nothing is not counted."""
        place = faults.Place("all_reduce", "sum", "world", "a.py:1")

        def finding(status, acted=True, **outcomes):
            return command.Finding(faults.Fault("drop", 1, place), command.Run(1, status, outcomes, acted))
        found = [finding(1, a="failed", b="passed"), finding(None, a="passed", b="started"), finding(0, a="passed"),
                 finding(0, False, a="passed"), finding(1, False, a="failed"), finding(2)]
        self.assertEqual([one.text() for one in found], ["a", "b (time limit)", "NONE", "- (changed nothing)",
                                                         "- (a failed before the fault acted)", "the command"])
        self.assertEqual(command.percent(found), 75)
        self.assertIn("3 of 4 faults were noticed (75 %), 1 of them by the time limit; 1 by no test; 1 changed nothing and "
                      "does not count; 1 ended before the fault acted and does not count", command.table(found))
        result = command.as_json([], command.Run(), found)["faults"]
        self.assertEqual([one["ended_before"] for one in result], [False] * 4 + [True, False])


class InFork:
    """As subprocess.Popen of a Python that would import what this process has: torch takes seconds for each fault."""

    def __init__(self, words, env, stdout, **_):
        forget = ("shardproof.pytest_plugin", "shardproof.score.planting", "shardproof.score.results")
        self._process = in_fork.start(self.begin, words[2:], os.getcwd(), env, (stdout, stdout), forget)
        self.pid = self._process.pid

    def wait(self, timeout=None):
        self._process.join(timeout)
        if self._process.exitcode is None:
            raise subprocess.TimeoutExpired("", timeout)
        return self._process.exitcode

    @staticmethod
    def begin(words):
        """Of python -B: -c TEXT, or -m pytest and its words. What is imported already is watched at once."""
        os.setsid()
        planting = importlib.import_module("shardproof.score.planting")
        for name, watch in (("torch.distributed.distributed_c10d", planting.wrap_gloo),
                            ("torch.optim.optimizer", planting.watch_steps),
                            ("torch.nn.modules.module", planting.watch_modules)):
            watch(importlib.import_module(name))
        if words[0] == "-c":
            return exec(words[1], {"__name__": "__main__"})
        return importlib.import_module("pytest").main(words[2:])


def main_in_forks(arguments):
    forks = SimpleNamespace(Popen=InFork, DEVNULL=subprocess.DEVNULL, TimeoutExpired=subprocess.TimeoutExpired)
    with mock.patch.object(command, "subprocess", forks):
        return shardproof.command.main(arguments)


class Suites(unittest.TestCase):
    """The suite in score_cases.py. The backend's extension is built if it was not. What Python's start and its imports plant,
    the script and pytest show, which each fault starts anew."""

    @classmethod
    def setUpClass(cls):
        command.why_no_faults()  # imports torch and the extension, which forks then have

    def setUp(self):
        self.json = Path(self.enterContext(tempfile.TemporaryDirectory())) / "score.json"

    def run_in(self, folder, *arguments, main=shardproof.command.main, anew=False):
        environment = dict(os.environ, PYTHONPATH=str(HERE.parents[1] / "python"), SHARDPROOF_CHECKER="python")
        arguments = ["score", "--json", str(self.json), *arguments]
        if not anew:
            return in_fork.run(main, arguments, folder, environment, 300)
        return subprocess.run([sys.executable, "-B", "-m", "shardproof", *arguments],
                              cwd=folder, env=environment, capture_output=True, text=True, timeout=300, check=False)

    def test_a_script(self):
        """As a user runs the command."""
        done = self.run_in(HERE, "--kinds", "average,weight_corrupt", "--max", "3", "--fail-under", "50", "--",
                           sys.executable, CASES, anew=True)
        self.assertEqual(done.returncode, 1, done.stderr)  # 33 % is less than 50 %
        self.assertIn("1 of 3 faults were noticed (33 %)", done.stdout)
        lines = [line for line in done.stdout.splitlines() if line.startswith(("average", "weight"))]
        self.assertEqual([line.split("  ")[-1].strip() for line in lines], ["the command", "NONE", "NONE"], done.stdout)
        self.assertRegex(lines[0], r"average on all ranks +all_reduce\(sum\) of world at score_cases.py:\d+ ")
        self.assertRegex(lines[2], "weight_corrupt on rank 1 +weight of Linear ")
        result = json.loads(self.json.read_text())
        self.assertEqual((result["counted"], result["noticed"], result["percent"]), (3, 1, 33.3))

    @unittest.skipUnless(importlib.util.find_spec("pytest"), "pytest is not installed")
    def test_pytest(self):
        done = self.run_in(HERE, "--kinds", "average", "--", sys.executable, "-B", "-m", "pytest", "-p",
                           "no:cacheprovider", CASES)
        self.assertEqual(done.returncode, 0, done.stderr)
        first, second = json.loads(self.json.read_text())["faults"]
        self.assertEqual(first["by"], ["score_cases.py::test_numbers"])
        self.assertEqual((second["by"], second["changed_something"]), ([], True))

    def test_worlds_of_several_sizes(self):
        """A fault of a rank that the smaller worlds lack."""
        done = self.run_in(HERE, "--kinds", "drop", "--", sys.executable, "-B", "-c", SIZES, main=main_in_forks)
        self.assertIn("1 of 1 fault was noticed", done.stdout, done.stderr)

    @unittest.skipUnless(importlib.util.find_spec("pytest"), "pytest is not installed")
    @unittest.skipUnless(os.environ.get("SHARDPROOF_PROGRAM"), "SHARDPROOF_PROGRAM is not set")
    def test_the_marker_layouts(self):
        """No fault is in the golden: rank 1 is not in it, and what rank 0 sends there is right."""
        (self.json.parent / "test_it.py").write_text(LAYOUTS)
        done = self.run_in(self.json.parent, "--kinds", "drop", "--", sys.executable, "-B", "-m", "pytest", "-p",
                           "shardproof.pytest_plugin", "-p", "no:cacheprovider", f"--basetemp={self.json.parent}/runs", "test_it.py",
                           main=main_in_forks)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([(one["rank"], one["by"]) for one in json.loads(self.json.read_text())["faults"]],
                         [(0, ["test_it.py::test_numbers[dp2]"]), (1, ["test_it.py::test_numbers[dp2]"])], done.stdout)


if __name__ == "__main__":
    unittest.main()
