#!/usr/bin/env python3
"""Runs that are ended before all of their cases have run: nothing is lost, nothing partial is called whole.

Usage: resume_test.py PROGRAM [unittest arguments]
"""
import os
import pathlib
import re
import shlex
import shutil
import signal
import subprocess
import zlib

import cli_test

NAME = "t/" + 15 * "a_long_"  # so that the lines of all cases are more than a small pipe holds
MANY = """
name: %s
model: {vocab_size: 24, hidden_size: 16, intermediate_size: 24, num_hidden_layers: 2}
data: {lengths: [5, 3, 4, 2]}
run: {steps: 2}
matrix:
  parallel.tensor_parallel_size: [1, 2, 4]
  parallel.data_parallel_size: [1, 2]
  seed: [1, 2, 3, 4, 5]
""" % NAME
CASES = 30
TIMES = {"seconds", "golden_seconds", "compare_seconds", "text", "metrics", "peak_tensor_bytes", "virtual_time"}


def without_times(value):
    """What two runs of the same cases have in common."""
    if isinstance(value, dict):
        return {key: without_times(one) for key, one in value.items() if key not in TIMES}
    return [without_times(one) for one in value] if isinstance(value, list) else value


def read_line(file):
    """A line of a pipe, and nothing after it: what a buffer takes, a program that waits can write."""
    line = b""
    while not line.endswith(b"\n") and (byte := os.read(file.fileno(), 1)):
        line += byte
    return line.decode()


def journal(folder):
    return pathlib.Path(folder, "journal")


class EndedRun(cli_test.CommandTest):
    whole = None  # in_common() of an undisturbed run, once a test has made it

    def setUp(self):
        super().setUp()
        self.scenario, self.wrong = "many.yaml", "wrong.yaml"  # in the scratch folder: results are the same in each
        self.write(self.scenario, MANY)
        self.write(self.wrong, MANY + "expect: {verdict: mismatch}\n")
        self.words = [cli_test.PROGRAM, "run", self.scenario, "--backend", "emulated", "--jobs", "2"]

    def start(self, *words):
        """A run that cannot end before its lines are read."""
        return subprocess.Popen(words, cwd=self.scratch, env=self.environment, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, pipesize=4096)

    def finished(self, folder):
        """Cases in the journal."""
        return len(re.findall(rb"^[0-9a-f]{8} case \d+ ", journal(folder).read_bytes(), re.M))

    def killed(self, name):
        """The folder of a run that was killed when some cases had finished."""
        out = self.path(name)
        self.end_early(out, signal.SIGKILL)
        return out

    def run_maxfail(self, scenario, most, *more):
        """One case at a time, until so many are not as expected."""
        return self.call("run", scenario, "--backend", "emulated", "--jobs", "1", "--maxfail", most, *more, status=1)

    def end_early(self, out, how):
        """A run that got `how` when some cases had finished; its output."""
        process = self.start(*self.words, "--out", out)
        head = [read_line(process.stdout) for _ in range(4)]
        process.send_signal(how)
        rest = process.communicate(timeout=cli_test.LIMIT_S)[0]
        self.assertTrue(all(line.startswith("match") for line in head), head)
        said = sum(line.startswith("match") for line in [*head, *rest.splitlines()])
        self.assertLess(said, CASES)
        self.assertGreaterEqual(self.finished(out), said)
        return process.returncode, "".join(head) + rest

    def in_common(self, folder):
        """What all undisturbed runs have in common: (cases, totals)."""
        results = self.results(folder)
        return without_times(results["cases"]), results["totals"]

    def check_resumed(self, out):
        """The folder becomes that of an undisturbed run."""
        self.says(self.call("run", "--resume", out), f"{CASES} cases: {CASES} match",
                  "all as expected")
        if EndedRun.whole is None:
            self.call(*self.words[1:], "--out", self.path("whole"))
            EndedRun.whole = self.in_common(self.path("whole"))
        ours, whole = self.in_common(out), EndedRun.whole
        for one, other in zip(whole[0], ours[0], strict=True):
            self.assertTrue(one == other, one["name"])
        self.assertEqual(whole[1], ours[1])
        for name in ("junit.xml", "timeline.json"):
            self.assertTrue(os.path.exists(os.path.join(out, name)))
        self.assertFalse(journal(out).exists())
        self.assertIn("nothing is left to run", self.call("run", "--resume", out, status=2))

    def test_after_a_signal_the_rest_is_said_and_can_be_run(self):
        for how in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            with self.subTest(how):
                out = self.path(how.name)
                status, text = self.end_early(out, how)
                self.assertEqual(130, status)
                self.assertNotIn("all as expected", text)
                results = self.results(out)
                ran = len(results["cases"])
                self.assertRegex(text, rf"{ran} of {CASES} cases: {ran} match; {CASES - ran} not run")
                self.assertIn("the run was interrupted", text)
                self.assertEqual([CASES - ran] * 2, [len(results["not_run"]), results["totals"]["not_run"]])
                self.assertEqual(130, results["run"]["exit_status"])
                self.assertEqual(CASES - ran, self.read(out, "junit.xml").count('<skipped message="not run: '))
                self.check_resumed(out)

    def test_a_record_that_is_not_ours_is_a_sentence(self):
        out = self.killed("altered")
        lines = journal(out).read_bytes().splitlines()
        place = next(i for i, line in enumerate(lines) if line.split()[1] == b"junit")
        for text in (b'{"file": "f", "failed": false, "in_error": false, "seconds": 1, "xml": 0}', b"{}", b"[", b"3"):
            rest = b"junit " + lines[place].split()[2] + b" " + text
            lines[place] = b"%08x %s" % (zlib.crc32(rest), rest)
            journal(out).write_bytes(b"\n".join(lines) + b"\n")
            self.assertIn('a record "junit" of the journal is not whole', self.call("report", out, status=2))

    def test_a_damaged_head_is_said(self):
        out = self.killed("headless")
        damaged = (b"x" + journal(out).read_bytes()[1:]).rstrip(b"\n")
        journal(out).write_bytes(damaged)
        for words in (["run", "--resume", out], ["report", out]):
            said = self.call(*words, status=2)
            self.assertIn('the journal is damaged: its record "head" is not whole; run the cases again', said)
        self.assertEqual(damaged, journal(out).read_bytes())  # a refused command changes nothing

    def test_after_a_kill_the_report_says_what_there_is(self):
        out = self.path("killed")
        status, _ = self.end_early(out, signal.SIGKILL)
        self.assertEqual(-signal.SIGKILL, status)
        self.assertFalse(os.path.exists(os.path.join(out, "results.json")))
        ran = self.finished(out)
        shutil.copytree(out, self.path("copy"))
        self.assertIn(f"{ran} of {CASES} cases had run",
                      self.run_program("report", self.path("copy")).stdout)
        results = self.results(self.path("copy"))
        self.assertEqual([ran, CASES - ran], [len(results["cases"]), len(results["not_run"])])
        self.assertIsNone(results["run"]["exit_status"])
        self.assertEqual(CASES, len(results["cases"]) + len(results["not_run"]))
        self.check_resumed(out)

    def test_a_line_that_is_cut_off_or_altered_is_a_case_that_did_not_run(self):
        out = self.killed("torn")
        ran = self.finished(out)
        lines = journal(out).read_bytes().split(b"\n")
        for case, kind in enumerate((b"events ", b"junit ", b"case ")):  # of three cases
            row = [i for i, line in enumerate(lines) if line[9:].startswith(kind)][case]
            lines[row] = lines[row][:-3] + b"x" + lines[row][-2:]
        journal(out).write_bytes(b"\n".join(lines)[:-40])
        text = self.call("run", "--resume", out)
        again = sum(line.startswith("match") for line in text.splitlines())
        self.assertGreaterEqual(again, CASES - ran + 3)
        self.assertEqual(CASES, len(self.results(out)["cases"]))
        self.results(out, "timeline.json")  # it is whole

    def test_a_report_of_a_run_that_goes_on_changes_nothing(self):
        out = self.path("live")
        process = self.start(*self.words, "--out", out)
        for _ in range(2):
            read_line(process.stdout)
        self.assertIn("still going on", self.call("report", out, status=2))
        process.kill()
        process.communicate()
        ran = self.finished(out)
        self.call("report", out)
        self.assertEqual(ran, len(self.results(out)["cases"]))
        self.end_resumed(out)
        self.assertGreater(self.finished(out), ran)
        self.call("report", out)
        self.assertEqual(self.finished(out), len(self.results(out)["cases"]))

    def end_resumed(self, out):
        """A resumed run that is killed as well."""
        process = self.start(cli_test.PROGRAM, "run", "--resume", out, "--jobs", "1")
        for _ in range(2):
            read_line(process.stdout)
        process.kill()
        process.communicate()

    def test_the_failures_of_an_earlier_run_are_resumed_by_name(self):
        """runs/latest is the run itself by then."""
        self.call("run", self.wrong, "--backend", "emulated", status=1)
        self.run_maxfail(self.wrong, "3", "--rerun-failed", "runs/latest")
        text = self.call("run", "--resume", "runs/latest", status=1)
        self.assertIn(f"{CASES} cases: {CASES} match", text)

    def test_failures_that_are_run_again_keep_their_worlds_and_rows(self):
        one = self.write("both.yaml", "name: t/both\nworkload: train\nparallel: {tensor_parallel_size: 2}\n"
                                      "expect: {verdict: mismatch}\nmatrix: {seed: [1, 2]}\n")
        # Those that failed over Gloo alone, by a command that names no world.
        self.call("run", one, "--backend", "gloo", "--out", self.path("first"), status=1)
        self.call("run", "--rerun-failed", self.path("first"), "--maxfail", "1", "--jobs", "1", "--out", self.path("again"), status=1)
        self.assertIn("2 cases: 2 match", self.call("run", "--resume", self.path("again"), status=1))
        # Under all schedules, with a case beside them that had not failed.
        self.call("run", one, "--backend", "emulated", "--only", "t/both[seed=1]", "--sample-rows", "1", "--out",
                  self.path("rows"), status=1)
        self.call("run", one, "--rerun-failed", self.path("rows"), "--schedules", "all", "--time-budget", "0", "--out",
                  self.path("all"), status=2)
        self.assertIn("1 case: 1 match", self.call("run", "--resume", self.path("all"), status=1))
        elements = {name: self.results(self.path(name))["cases"][0]["rests_on"]["elements"] for name in ("rows", "all")}
        self.assertEqual(elements["rows"], elements["all"])

    def test_schedules_of_a_case_are_compared_with_those_that_had_run(self):
        one = self.write("one.yaml", "name: t/one\nworkload: train\nparallel: {tensor_parallel_size: 2}\n"
                                     "expect: {verdict: mismatch}\n")
        out = self.path("schedules")
        self.call("run", one, "--schedules", "4", "--maxfail", "2", "--jobs", "1", "--out", out, status=1)
        self.assertIn("t/one: the values of 4 schedules are equal to the bit", self.call("run", "--resume", out, status=1))

    def test_a_resumed_run_keeps_its_own_options(self):
        out = self.killed("ended")
        for words in (["--seed", "3"], ["--filter", "tp"], [self.scenario], ["--out", self.path("x")], ["--no-cache"]):
            self.assertIn("excludes", self.call("run", "--resume", out, *words, status=2))
        one = [*self.words[1:], "--only", NAME + "[tp=2,dp=1,seed=2]", "--dump", self.path("dump")]
        self.call(*one, "--time-budget", "0", "--out", self.path("one"), status=2)
        self.call("run", "--resume", self.path("one"))
        self.assertTrue(os.path.exists(self.path("dump")))

    def test_an_output_folder_is_of_a_run_or_empty(self):
        out = self.path("first")
        self.run_maxfail(self.wrong, "1", "--out", out)
        replay = os.path.join(out, "replay", os.listdir(os.path.join(out, "replay"))[0])
        self.assertIn("which the same command reads", self.call("run", replay, "--out", out, status=2))
        self.assertTrue(os.path.exists(replay))
        for name, text in (("results.json", "{}"), ("journal", "dear diary\n")):
            other = self.path("other_" + name)
            os.makedirs(os.path.join(other, "logs"))
            self.write(os.path.join(other, name), text)
            self.assertIn("not of a run", self.call("run", self.scenario, "--out", other, status=2))
            self.assertTrue(os.path.exists(os.path.join(other, "logs")))

    def test_a_full_disk_loses_nothing_that_had_finished(self):
        """On a disk of 1 MiB in a mount namespace of its own; what lies there is kept."""
        disk, kept = self.path("disk"), self.path("kept")
        os.mkdir(disk)
        namespace = ["unshare", "-m", "sh", "-c"]
        mounts = f"mount -t tmpfs -o size=1m none {disk}"
        if subprocess.run([*namespace, mounts], stderr=subprocess.DEVNULL, check=False).returncode != 0:
            self.skipTest("no disk can be mounted here")
        run = shlex.join([*self.words, "--out", disk + "/run"])
        done = subprocess.run([*namespace, f"{mounts} && {run}; echo status $?; cp -a {disk}/run {kept}"],
                              cwd=self.scratch, env=self.environment, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, timeout=cli_test.LIMIT_S, check=True)
        self.says(done.stdout, "cannot write", "No space left", "status 2")
        said = sum(line.startswith("match") for line in done.stdout.splitlines())
        self.assertGreater(said, 0)
        self.assertGreaterEqual(self.finished(kept), said)
        self.check_resumed(kept)

    def test_a_case_that_nothing_judged_is_no_match_after_a_resume(self):
        scenario = self.write("free.yaml", MANY.replace("name: t/", "judged: false\nname: t/free_"))
        out = os.path.join(self.scratch, "free")
        words = ("run", scenario, "--backend", "emulated", "--out", out)
        self.run_to_end(*words, "--time-budget", "0.05", status=2)
        text = self.run_to_end("run", "--resume", out).stdout
        self.assertIn(f"{CASES} cases: {CASES} not judged", text)
        totals = self.results(out)["totals"]
        self.assertEqual((totals["match"], totals["not_judged"]), (0, CASES))

    def test_what_has_changed_is_not_resumed(self):
        out = self.killed("changed")
        self.write("many.yaml", MANY.replace("steps: 2", "steps: 3"))
        journal(out).write_bytes(journal(out).read_bytes() + b"01234567 case 2 cut o")  # and off by the kill
        before = {path: path.read_bytes() for path in pathlib.Path(out).rglob("*") if path.is_file()}
        self.assertIn("has changed since the run", self.call("run", "--resume", out, status=2))
        self.write("many.yaml", MANY.replace("[1, 2, 3, 4, 5]", "[1, 2]"))
        self.assertIn("had selected 30 cases", self.call("run", "--resume", out, status=2))
        self.assertEqual(before, {path: path.read_bytes() for path in pathlib.Path(out).rglob("*") if path.is_file()})
        self.assertIn("no run that was ended", self.call("run", "--resume", self.path("none"), status=2))

    def test_another_program_does_not_resume(self):
        out = self.killed("out")
        other = shutil.copy(cli_test.PROGRAM, self.path("other"))
        with open(other, "ab") as file:
            file.write(b"x")  # no loader reads it
        run = subprocess.run([other, "run", "--resume", out], cwd=self.scratch, env=self.environment,
                             capture_output=True, text=True, timeout=cli_test.LIMIT_S)
        self.assertEqual(2, run.returncode, run)
        self.assertIn("another program made the run", run.stderr)

    def test_two_runs_do_not_share_a_folder(self):
        out = self.path("shared")
        process = self.start(*self.words, "--out", out)
        read_line(process.stdout)
        self.assertIn("another run is writing", self.call("run", self.scenario, "--out", out, status=2))
        self.assertIn("another run is writing", self.call("run", "--resume", out, status=2))
        process.communicate(timeout=cli_test.LIMIT_S)
        self.assertEqual(CASES, len(self.results(out)["cases"]))

    def test_maxfail_keeps_the_status_of_the_failure(self):
        self.says(self.run_maxfail(self.wrong, "2"), "2 of 30 cases",
                  "2 cases were not as expected (--maxfail 2)")


if __name__ == "__main__":
    cli_test.main()
