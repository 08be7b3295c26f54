#!/usr/bin/env python3
"""Cases that this machine cannot hold: they are refused before anything starts, with both numbers and the flag that
starts them anyway. What runs out nevertheless is a sentence.

Usage: limits_test.py PROGRAM [unittest arguments]
"""
import json
import os
import re
import resource
import signal
import socket
import subprocess
import tempfile
import threading

import cli_test

LIMIT_S = 300  # a hang, not a wall-time test
GIB = 1 << 30
NOBODY = 65534
MANY_RANKS = 600  # which are not judged within a second

LARGE = """
name: t/large
model: {vocab_size: 24, hidden_size: 16, intermediate_size: 24, num_hidden_layers: 2}
data: {batch_size: 4000, sequence_length: 4000}
"""
SMALL = LARGE.replace("4000, sequence_length: 4000", "4, sequence_length: 8")
# Held at once: about 0.5 GiB on each of two ranks, of it most in activations.
HALF = LARGE.replace("4000, sequence_length: 4000", "64, sequence_length: 1024") + "precision: float64\n"

# One rank, which makes no call, computes for seconds; none of its ops takes long, however busy the machine.
SLOW = """
name: t/slow
workload: logprobs
precision: float64
model: {vocab_size: 1000, hidden_size: 384, intermediate_size: 1024, num_hidden_layers: 24}
data: {batch_size: 2, sequence_length: 320}
record_activations: false
"""
# A second rank sleeps before its first call.
ASLEEP = """
parallel: {tensor_parallel_size: 2}
faults: [{kind: hang, rank: 1, at_call: 0}]
expect: {verdict: failed, kind: hung}
"""


class Limited(cli_test.CommandTest):
    def scenario(self, text):
        return self.write("s.yaml", text)

    def call(self, *words, limits=(), status=None, as_nobody=False):
        def limit():
            for kind, value in limits:
                resource.setrlimit(kind, (value, value))
            if as_nobody and os.geteuid() == 0:  # root has as many processes as it likes
                os.setgroups([])
                os.setgid(NOBODY)
                os.setuid(NOBODY)

        before_loading = as_nobody or any(kind in (resource.RLIMIT_AS, resource.RLIMIT_DATA) for kind, _ in limits)
        done = self.run_program(*words, **{"preexec_fn": limit} if before_loading else {"limits": limits})
        text = " ".join((done.stdout + done.stderr).split())
        self.assertNotIn("a fault in shardproof", text)
        self.assertNotRegex(text, r"c10::|\.so|frame #|std::")
        if status is not None:
            self.assertEqual(done.returncode, status, text)
        return text


class Limits(Limited):
    def test_a_batch_that_no_machine_holds_is_refused_at_once(self):
        scenario = self.scenario(LARGE)
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        text = self.call("run", scenario, "--backend", "emulated", "--no-cache", status=2)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        needed, there = (float(number) for number in re.search(
            r"the ranks need at least ([\d.]+) GiB of memory, and ([\d.]+) GiB are available", text).groups())
        self.assertGreater(needed, there)
        self.assertIn("--ignore-limits", text)
        self.assertLess(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime, 10)

    def test_the_golden_is_held_to_the_machine_too(self):
        text = self.call("golden", self.scenario(LARGE), status=2)
        self.assertRegex(text, r"the golden needs at least [\d.]+ GiB of memory, and [\d.]+ GiB are available")

    def test_a_mesh_with_more_ranks_than_files_or_address_space_is_refused(self):
        self.make_case()
        text = self.call("check", self.case, "--mesh", "dp=40", "--backend", "gloo", "--no-cache",
                         limits=[(resource.RLIMIT_NOFILE, 64)], status=2)
        self.assertIn("40 rank processes need at least 132 open files, and 64 are allowed", text)
        text = self.call("check", self.case, "--mesh", "dp=30000", status=2)
        needed, there = map(float, re.search(r"the ranks need at least ([\d.]+) GiB of memory, and ([\d.]+) GiB are "
                                             r"available; .*--ignore-limits", text).groups())
        self.assertGreater(needed, 800)  # 1.2 KiB for each pair of ranks
        self.assertGreater(needed, there)
        text = self.call("check", self.case, "--mesh", "dp=600", limits=[(resource.RLIMIT_AS, 4 * GIB)], status=2)
        self.assertRegex(text, r"the process of the ranks needs to map at least [\d.]+ GiB, and ulimit -v allows "
                               r"[\d.]+ GiB more; .*--ignore-limits")

    def test_open_files_that_run_out_are_bad_input_wherever_that_is_noticed(self):
        scenario = self.scenario(SMALL + "parallel: {data_parallel_size: 2}\n")
        seen = set()
        for backend in ("gloo", "emulated"):
            for files in (8, 9, 10, 12, 16, 18, 20, 22, 26):
                for flag in ((), ("--ignore-limits",))[:1 + (files == 16)]:
                    with self.subTest(backend=backend, files=files, flag=flag):
                        text = self.call("run", scenario, "--backend", backend, "--no-cache", "--out", self.path("out"),
                                         "--force", *flag, limits=[(resource.RLIMIT_NOFILE, files)])
                        self.assertNotIn("internal", text)
                        if "1 as expected" not in text and "all as expected" not in text:
                            self.assertRegex(text, r"open files|Too many open files")
                            self.assertRegex(text, "raise the limit|--ignore-limits")
                            seen.add((backend, files))
        self.assertLess({(backend, files) for backend in ("gloo", "emulated") for files in (8, 10, 12, 16)}, seen)

    def test_few_open_files_are_bad_input_of_every_command_that_starts_ranks(self):
        self.make_case()
        scenario = self.scenario(SMALL)
        for words in (("run", scenario, "--backend", "gloo"), ("check", self.case, "--mesh", "dp=2", "--backend", "gloo"),
                      ("validate", "--ranks", "2"), ("fuzz", "--count", "1"), ("shrink", scenario), ("golden", scenario),
                      ("calls", scenario)):
            for files in (8, 16):
                with self.subTest(words=words, files=files):
                    text = self.call(*words, limits=[(resource.RLIMIT_NOFILE, files)])
                    if words[0] in ("run", "check", "validate"):
                        self.assertIn("open files", text)
                    self.assertNotIn("this host", text)
                    self.assertNotIn("internal", text.lower())

    def test_open_files_that_run_out_are_no_finding_of_validate(self):
        for files in (16, 17, 18, 19, 20):
            with self.subTest(files=files):
                text = self.call("validate", "--ranks", "2", "--backend", "emulated", "--no-cache", "--out",
                                 self.path(f"out{files}"), limits=[(resource.RLIMIT_NOFILE, files)])
                self.assertNotIn("FINDING", text)
                self.assertRegex(text, r"raise the limit on open files|no findings")

    def test_processes_that_run_out_are_bad_input_and_no_finding_about_a_host(self):
        os.chmod(self.scratch, 0o777)
        scenario = self.scenario(SMALL + "parallel: {data_parallel_size: 2}\n")
        for words in (("run", scenario, "--backend", "gloo", "--no-cache"), ("validate", "--ranks", "2")):
            for processes in (1, 2, 3, 6, 7, 8, 9):
                for flag in ((), ("--ignore-limits",))[:1 + (processes == 1)]:
                    with self.subTest(words=words, processes=processes, flag=flag):
                        text = self.call(*words, *flag, "--out", self.path(f"out{processes}{len(flag)}{words[0]}"),
                                         limits=[(resource.RLIMIT_NPROC, processes)], as_nobody=True, status=2)
                        self.assertRegex(text, r"ulimit -u")
                        self.assertNotIn("this host", text)
        text = self.call("validate", "--ranks", "200", limits=[(resource.RLIMIT_NPROC, 60)], as_nobody=True, status=2)
        self.assertIn("200 ranks need as many processes, and 60 are allowed", text)

    def test_validate_says_at_once_what_the_machine_lacks(self):
        text = self.call("validate", "--ranks", "40", limits=[(resource.RLIMIT_NOFILE, 64)], status=2)
        self.assertIn("40 rank processes need at least 132 open files, and 64 are allowed", text)
        text = self.call("validate", "--ranks", "60000", limits=[(resource.RLIMIT_NOFILE, 4096)], status=2)
        self.assertRegex(text, r"60000 rank processes need at least .* --ignore-limits")

    def test_more_rank_processes_than_the_cores_can_turn_to_are_refused_everywhere(self):
        self.make_case()
        many = 128 * len(os.sched_getaffinity(0)) + 2
        said = rf"{many} rank processes would share \d+ cores?, 1\d\d on each, and at most 128 on each are started; " \
               "choose a smaller mesh, or start it anyway with --ignore-limits"
        mesh = self.scenario(SMALL.replace("length: 8", "length: 8, uneven: true") +
                             f"parallel: {{data_parallel_size: {many}}}\n")
        for words in (("validate", "--ranks", str(many)), ("run", mesh, "--backend", "gloo"),
                      ("check", self.case, "--mesh", f"dp={many}", "--backend", "gloo")):
            with self.subTest(words=words):
                self.assertRegex(self.call(*words, status=2), said)

    def test_a_file_whose_read_fails_is_bad_input(self):
        self.assertIn("/proc/self/mem cannot be read: Input/output error", self.call("run", "/proc/self/mem", status=2))

    def test_what_is_no_file_is_not_waited_for(self):
        """A pipe has no end, and to open it waits for its other end."""
        self.make_case()
        self.call("check", self.case, "--mesh", "dp=2", status=0)
        [key] = self.folder.glob("cache/**/*.key")
        for number, suffix in enumerate((".key", ".golden", ".key", ".golden")):
            with self.subTest(suffix=suffix, folder=number > 1):
                entry = key.with_suffix(suffix)
                if entry.is_dir():
                    entry.rmdir()
                entry.unlink(missing_ok=True)
                os.mkdir(entry) if number > 1 else os.mkfifo(entry)
                self.assertIn("MATCH", self.call("check", self.case, "--mesh", "dp=2", status=0))
        self.call("run", self.scenario(SMALL), "--backend", "emulated", "--out", self.path("run"), status=0)
        for name, commands in (("results.json.part", (["run", "s.yaml", "--backend", "emulated", "--out", "run", "--force"],)),
                               ("journal", (["run", "--resume", "run"],)),
                               ("results.json", (["report", "run"], ["compare-runs", "run", "run"]))):
            place = self.path("run", name)
            if os.path.exists(place):
                os.unlink(place)
            os.mkfifo(place)
            for words in commands:
                with self.subTest(words=words, name=name):
                    text = self.call(*words, status=0 if name.endswith(".part") else 2)
                    if name == "journal" and words[0] == "run":
                        self.assertIn("journal is a pipe, not a file", text)
            if os.path.exists(place):
                os.unlink(place)

    def test_a_wait_says_what_for_and_an_interrupt_is_said(self):
        scenario = self.scenario(SLOW.replace("num_hidden_layers: 24", "num_hidden_layers: 96"))
        self.make_case()
        self.call("check", self.case, status=0)  # its golden is in the cache then
        for words, what in ((["golden", scenario], "the golden"),
                            (["check", self.case, "--mesh", f"dp={MANY_RANKS}"], f"{MANY_RANKS} emulated ranks")):
            with self.subTest(words=words):
                process = subprocess.Popen([cli_test.PROGRAM, *words], cwd=self.scratch, env=self.environment,
                                           stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
                guard = threading.Timer(LIMIT_S, process.kill)
                guard.start()
                self.addCleanup(process.kill)
                self.addCleanup(guard.cancel)
                line = process.stderr.readline()
                while "warning: " in line:
                    line = process.stderr.readline()
                self.assertRegex(line, rf"^shardproof: waiting for {what}, \d+ s so far\n$")
                process.send_signal(signal.SIGINT)
                _, rest = process.communicate(timeout=LIMIT_S)
                self.assertEqual((process.returncode, rest.splitlines()[-1]), (130, "shardproof: interrupted"))

    def test_more_ranks_than_cores_can_run_are_said(self):
        self.make_case()
        cores = os.sched_getaffinity(0)
        self.addCleanup(os.sched_setaffinity, 0, cores)
        os.sched_setaffinity(0, {min(cores)})
        text = self.call("check", self.case, "--mesh", "dp=9", status=0)
        self.assertRegex(text, r"warning: 9 ranks, \d+ samples, 1 core: the ranks share the cores, so this may take long")
        self.assertNotIn("warning: ", self.call("check", self.case, "--mesh", "dp=8", status=0))

    def test_a_master_that_does_not_resolve_is_said(self):
        name = "no.such.host.invalid"
        try:
            socket.getaddrinfo(name, 1)
            unknown = False
        except socket.gaierror as error:
            unknown = error.errno == socket.EAI_NONAME
        self.environment.update(RANK="1", WORLD_SIZE="2", MASTER_ADDR=name, MASTER_PORT="1", SHARDPROOF_SECRET="s" * 64)
        if unknown:  # else no name server answers here, and the name may be known later
            self.says(self.call("rank", self.scenario(SMALL), status=2),
                      f"MASTER_ADDR: {name} does not resolve: ", absent=["waiting for it"])
        self.environment["SHARDPROOF_MEETING_S"] = "1"
        text = self.call("rank", self.scenario(SMALL), status=2)
        self.assertRegex(text, rf"{name} does not resolve yet \(.*\); waiting for it for up to 1 s")
        self.assertIn(f"{name} does not resolve after 1 s", text)

    def test_memory_that_runs_out_is_a_sentence(self):
        scenario = self.scenario(HALF)
        for gib in (0.5, 0.8, 1.2, 1.6):
            for flag in ((), ("--ignore-limits",)):
                with self.subTest(gib=gib, flag=flag):
                    text = self.call("run", scenario, "--backend", "emulated", "--no-cache", *flag,
                                     limits=[(resource.RLIMIT_AS, int(gib * GIB))])
                    self.assertRegex(text, r"\d MiB|\d GiB|MATCH|no further thread")

    def test_too_little_memory_to_load_libtorch_is_a_sentence(self):
        for gib in (0.4, 0.41):
            for words in (("version",), ("check", self.path("none")), ("run", self.scenario(SMALL))):
                with self.subTest(gib=gib, words=words):
                    text = self.call(*words, limits=[(resource.RLIMIT_AS, int(gib * GIB))], status=2)
                    self.assertRegex(text, r"^shardproof: memory ran out: LibTorch needs at least \d+ MiB of address "
                                           r"space to be loaded, and its limit is \d+ MiB \(ulimit -v\); raise the limit$")

    def test_a_full_disk_is_bad_input_before_and_after_the_start(self):
        disk = self.path("disk")
        os.mkdir(disk)
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=4k", "none", disk], capture_output=True)
        if mounted.returncode != 0:
            self.skipTest("a small file system cannot be mounted here")
        self.addCleanup(subprocess.run, ["umount", disk])
        self.make_case()
        dump = ("check", self.case, "--mesh", "tp=2", "--dump", os.path.join(disk, "d.safetensors"))
        text = self.call(*dump, status=2)
        self.assertRegex(text, r"--dump .*at least \d+ KiB will be written, and the disk has room for \d+ KiB")
        self.says(self.call(*dump, "--ignore-limits", status=2), "d.safetensors",
                  absent=["went on"])
        save = ("check", self.case, "--mesh", "tp=2", "--ignore-limits", "--save", os.path.join(disk, "model"))
        self.assertNotIn("went on", self.call(*save, status=2))

    def test_what_fits_is_not_refused(self):
        self.call("run", self.scenario(SMALL), "--backend", "emulated", status=0)


class Deadlines(Limited):
    """Some are those of ranks that get a core: run alone."""

    def test_a_rank_that_computes_for_longer_than_the_deadline_without_a_call_is_slow(self):
        """It goes on with ops, and so does the golden. One that does nothing is hung."""
        def seconds(text, *backends):  # of the golden and of the ranks, per case; no two machines are equally fast
            out = tempfile.mkdtemp(dir=self.scratch)
            said = self.call("run", self.scenario(text), "--backend", ",".join(backends), "--no-cache", "--jobs", "1",
                             "--out", out, status=0)
            self.assertIn(f"{len(backends)} match", said)
            with open(os.path.join(out, "results.json"), encoding="utf-8") as file:
                cases = json.load(file)["cases"]
            return [(case["golden_seconds"], case["seconds"] - case["golden_seconds"]) for case in cases]

        # a quarter of what the slowest of them takes: 10 deadlines would be too long
        deadline_s = max(max(both) for both in seconds(SLOW, "gloo")) / 4
        slow = SLOW + f"world: {{deadline_s: {deadline_s:.3f}}}\n"
        for _, ranks in seconds(slow, "emulated", "gloo"):  # longer than the deadline: the case shows what it is to show
            self.assertGreater(ranks, deadline_s)
        text = self.call("run", self.scenario(slow + ASLEEP), "--backend", "emulated,gloo", "--jobs", "1", status=0)
        self.assertEqual(text.count("as expected: "), 2)
        self.assertIn("no rank entered a collective", text)

    def test_many_ranks_on_a_slow_machine_are_not_hung(self):
        """Each rank computes little, all together longer than the deadline: what counts is that calls go on."""
        self.make_case()
        self.says(self.call("check", self.case, "--mesh", "dp=40", "--deadline", "1"), "MATCH")


if __name__ == "__main__":
    cli_test.main()
