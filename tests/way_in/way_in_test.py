#!/usr/bin/env python3
"""The script ./shardproof on a stub project: what it sets up, what it says when it cannot, how it
recovers."""

import contextlib
import http.server
import os
import pty
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import zipfile
from pathlib import Path

from stub import PROGRAM, ROOT, Stub, write_wheel

# A Python that copies a .venv where it is to make one, which takes four seconds of a core.
PYTHON = """#!/bin/sh
if [ "$1 $2" = "-m venv" ]; then exec /bin/cp -a "{made}" "$3"; fi
exec "{python}" "$@"
"""


class StallingIndex(http.server.BaseHTTPRequestHandler):
    """A package index whose one file stops after its first kilobyte."""

    def do_GET(self):
        self.send_response(200)
        if self.path.endswith(".whl"):
            self.send_header("Content-Length", "500000000")
            self.end_headers()
            self.wfile.write(b"x" * 1024)
            self.wfile.flush()
            self.server.stalled.set()
            self.server.release.wait(600)
        else:
            self.send_header("Content-Type", "text/html")
            self.end_headers()
            self.wfile.write(b'<a href="/torch-2.11.0-py3-none-any.whl">torch</a>')

    def log_message(self, *_):
        pass


class WayIn(Stub):
    @classmethod
    def setUpClass(cls):
        folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory(prefix="way_in.")))
        subprocess.run([sys.executable, "-m", "venv", folder / ".venv"], check=True)
        cls.python = folder / "python"
        cls.python.write_text(PYTHON.format(made=folder / ".venv", python=sys.executable))
        cls.python.chmod(0o755)

    def setUp(self):
        super().setUp()
        self.env["SHARDPROOF_PYTHON"] = str(self.python)

    def stalled_download(self):
        """Starts a call and returns it once its download hangs in the middle."""
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), StallingIndex)
        server.stalled, server.release = threading.Event(), threading.Event()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        self.addCleanup(server.release.set)
        process = self.start("run", PIP_NO_INDEX="0", PIP_FIND_LINKS="",
                             PIP_INDEX_URL=f"http://127.0.0.1:{server.server_port}/simple")
        self.addCleanup(lambda: process.poll() is None and os.killpg(process.pid, signal.SIGKILL))
        self.assertTrue(server.stalled.wait(600), "pip never asked for the wheel")
        return process

    def pip_under(self, process):
        """The id of the pip process that this call runs."""
        listing = subprocess.check_output(["ps", "-o", "pid=,args=", "-g", str(process.pid)], text=True)
        pids = [int(line.split()[0]) for line in listing.splitlines() if " -m pip install" in line]
        self.assertTrue(pids, listing)
        return pids[0]

    def assert_recovers(self):
        self.assertFalse((self.stub / ".venv/.complete").exists())
        self.assert_says("first [run] [x]\n", "run", "x")

    def test_builds_once_then_only_what_changed(self):
        err = self.assert_says("first [run] [a b] [--flag]\n", "run", "a b", "--flag", SHARDPROOF_PYTHON=sys.executable)
        self.assertIn("built (cold) in", err)
        # Once built: no compiler, no Python, no cmake, not a word.
        bare = self.folder / "bin"
        bare.mkdir()
        for name in ("bash", "env", "find"):
            (bare / name).symlink_to(shutil.which(name))
        self.assertEqual(self.call("run", PATH=str(bare)), (0, "first [run]\n", ""))
        time.sleep(0.02)
        self.write_program("second")
        self.assertEqual(self.call("run")[:2], (0, "second [run]\n"))
        self.assertEqual(self.call("run")[2], "")
        # A removed file counts too: its folder is newer then.
        (self.stub / "src/extra.h").touch()
        self.call("run")
        time.sleep(0.02)
        (self.stub / "src/extra.h").unlink()
        self.assertNotEqual(self.call("run", PATH=str(bare))[0], 0)  # it wants to look again

    def test_a_longer_list_of_packages_keeps_what_is_installed(self):
        self.call("run")
        header = self.stub / f".venv/lib/python3.{sys.version_info.minor}/site-packages/torch/include/ATen/ATen.h"
        before = header.stat().st_ino
        (self.stub / "requirements.txt").write_text("torch==2.11.0\nmore==1.0\n")
        write_wheel(self.wheels, "more", "1.0")
        status, _, err = self.call("run")
        self.assertEqual((status, header.stat().st_ino), (0, before), err)
        self.assertIn("bringing .venv up to date", err)
        self.assertTrue((header.parents[3] / "more/lib").exists())

    def test_counts_tests_and_fails_when_one_fails(self):
        status, out, err = self.call("test", "--torch", str(self.installed_torch()))
        self.assertEqual(status, 1, err)
        self.assertEqual(out.splitlines()[-1], "1 passed, 1 failed")
        status, out, _ = self.call("test", "-R", "passes")
        self.assertEqual((status, out.splitlines()[-1]), (0, "1 passed, 0 failed"))
        self.assertNotEqual(self.call("test", "-R", "no such test")[0], 0)

    def test_no_network_is_one_sentence(self):
        err = self.assert_says("", "run", status=2, PIP_NO_INDEX="0", PIP_FIND_LINKS="",
                               PIP_INDEX_URL="http://127.0.0.1:9/simple")
        self.says(err, "could not download LibTorch", "--torch DIR", absent=["Traceback"])
        self.assert_recovers()

    def small_disk(self, kilobytes):
        """A file system of that size; needs the right to mount one."""
        disk = self.folder / "disk"
        disk.mkdir()
        if os.geteuid() != 0 or subprocess.run(
                ["mount", "-t", "tmpfs", "-o", f"size={kilobytes}k", "tmpfs", disk],
                stderr=subprocess.DEVNULL).returncode != 0:
            self.skipTest("no right to mount a small disk here")
        self.addCleanup(subprocess.run, ["umount", "-l", disk])
        return disk

    def test_a_disk_that_fills_during_the_download_is_one_sentence(self):
        disk = self.small_disk(kilobytes=60 * 1024)  # .venv with pip takes 20 MB
        with zipfile.ZipFile(self.wheels / "torch-2.11.0-py3-none-any.whl", "a") as wheel:
            wheel.writestr("torch/lib/large.so", os.urandom(50 << 20))
        shutil.move(self.stub, disk / "repository")
        self.stub = disk / "repository"
        self.says(self.assert_says("", "run", status=2), "the disk is full", absent=["Traceback"])

    def test_a_disk_that_fills_during_the_build_is_one_sentence(self):
        torch = str(self.installed_torch())
        disk = self.small_disk(kilobytes=8 * 1024)
        (self.stub / "build").symlink_to(disk)
        (self.stub / "sim/main.cpp").write_text(
            "char large[9 << 20] = {1};\n" + PROGRAM.replace("VERSION", "large"))
        err = self.assert_says("", "run", status=2, SHARDPROOF_TORCH=torch)
        self.assertIn("the disk is full", err)
        (self.stub / "sim/main.cpp").write_text(PROGRAM.replace("VERSION", "small"))
        self.assertEqual(self.call("run", SHARDPROOF_TORCH=torch)[:2], (0, "small [run]\n"))

    def test_a_killed_download_starts_over(self):
        process = self.stalled_download()
        os.kill(self.pip_under(process), signal.SIGKILL)
        out, err = process.communicate(timeout=240)
        self.assertEqual((process.returncode, out), (2, ""), err)
        self.assertIn("ended by signal 9; call again", err)
        self.assert_recovers()

    def test_ctrl_c_during_the_download(self):
        process = self.stalled_download()
        os.killpg(process.pid, signal.SIGINT)
        _, err = process.communicate(timeout=240)
        self.assertEqual(process.returncode, 130, err)
        self.assertIn("interrupted", err)
        self.assert_recovers()

    def test_a_killed_script_leaves_no_trap(self):
        process = self.stalled_download()
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate(timeout=240)
        self.assert_recovers()

    def test_a_wrong_python_is_one_sentence(self):
        fake = self.folder / "python3"
        fake.write_text('#!/bin/sh\n[ "$1" = -V ] && echo Python 3.8.1 || echo 3 8\n')
        fake.chmod(0o755)
        for python, words in ((str(fake), "Python 3.8.1"), ("/no/such/python3", "/no/such/python3")):
            self.says(self.assert_says("", "run", status=2, SHARDPROOF_PYTHON=python), words, "3.10 to 3.13")

    def test_lint_needs_no_libtorch_and_takes_the_program_once_it_is_there(self):
        self.assert_says("first [lint] [a file]\n", "lint", "a file", PIP_FIND_LINKS="")
        self.assert_nothing_is_installed()
        self.assertEqual(self.call("fuzz")[:2], (0, "first [fuzz]\n"))
        self.assertEqual(self.call("lint", "x"), (0, "first [lint] [x]\n", ""))
        time.sleep(0.02)
        self.write_program("second")
        self.assertEqual(self.call("lint", "x")[:2], (0, "second [lint] [x]\n"))
        self.assertEqual(self.call("judge", "x")[:2], (0, "second [judge] [x]\n"))  # the program, built anew
        self.assertEqual(self.call("lint", "x"), (0, "second [lint] [x]\n", ""))

    def test_judge_needs_no_libtorch_where_no_program_is(self):
        self.assert_says("first [judge] [a run] [--golden] [one]\n", "judge", "a run", "--golden", "one",
                         PIP_FIND_LINKS="")
        self.assert_nothing_is_installed()

    def test_build_makes_the_light_program_without_libtorch(self):
        self.assert_says("", "build", "shardproof-light", PIP_FIND_LINKS="")
        self.assertTrue((self.stub / "build/light/shardproof-light").exists())
        self.assert_nothing_is_installed()

    def on_terminal(self, *arguments, **env):
        """Exit status, and what a terminal gets."""
        terminal, other = pty.openpty()
        process = subprocess.Popen([self.stub / "shardproof", *arguments], cwd=self.folder, env=self.env | {"TERM": "xterm"} | env,
                                   stdin=subprocess.DEVNULL, stdout=other, stderr=other)
        os.close(other)
        text = b""
        with open(terminal, "rb", buffering=0) as file, contextlib.suppress(OSError):  # it ends so once nobody writes
            while found := file.read(4096):
                text += found
        return process.wait(), text.decode()

    def test_a_terminal_shows_how_far_the_build_is(self):
        status, text = self.on_terminal("build", "shardproof-light")
        self.assertEqual(status, 0, text)
        self.assertRegex(text, r"\r\x1b\[K\[1/2\] \d+ s(, about \d+ s left)?  Building CXX object")
        self.assertRegex(text, r"\r\x1b\[K\[2/2\] \d+ s(, about 0 s left)?  Linking CXX executable")
        (self.stub / "sim/main.cpp").write_text("int main() { return nothing; }\n")
        for env, color in (({}, "\x1b[1;31m"), ({"NO_COLOR": "1"}, "")):
            status, text = self.on_terminal("build", "shardproof-light", **env)
            self.assertEqual(status, 5, text)
            self.assertRegex(text, re.escape(f"\x1b[K{color}") + r"[^\n]*sim/main.cpp:1:\d+: error: .nothing. was not declared")
            self.assertIn("the compiler's words are above", text)
        self.assertIn("was not declared", (self.stub / "build/light/build.log").read_text())

    def test_how_long_the_build_takes_is_guessed_from_what_is_finished(self):
        function = (ROOT / "shardproof").read_text().partition("show_progress() {")[2].partition("\n}\n")[0]
        lines = "[0/8, 0.1 s] first\n[2/8, 30.5 s] second\n[8/8, 99.0 s] last\n"
        done = subprocess.run(["bash", "-euc", f"show_progress() {{{function}\n}}; show_progress"], input=lines.encode(),
                              capture_output=True, env=self.env | {"TERM": "xterm"}, check=True)
        self.assertEqual([line for line in done.stdout.decode().split("\r\x1b[K") if line],
                         ["[0/8] 0 s  first", "[2/8] 30 s, about 90 s left  second", "[8/8] 99 s, about 0 s left  last"])

    def test_a_report_of_a_whole_run_needs_no_program(self):
        (self.stub / "reports/report.py").write_text("import sys; print('report of', *sys.argv[1:])")
        run = self.folder / "a run"
        run.mkdir()
        (run / "results.json").touch()
        self.assert_says(f"report of {run}\n", "report", str(run))
        self.assert_says(f"report of --all {run}\n", "report", str(run), "--all")
        self.assert_says(f"report of {run} {run}\n", "report", str(run), str(run))
        self.assertFalse((self.stub / "build/release").exists())
        (run / "journal").touch()  # it was ended: the program puts its results together
        self.assert_says(f"first [report] [{run}]\n", "report", str(run))

    def test_an_installed_libtorch_is_taken_and_remembered(self):
        status, _, err = self.call("run", "--torch", str(self.folder / "nothing"))
        self.assertEqual(status, 2)
        self.assertIn("no lib/libtorch_cpu.so", err)
        torch = self.installed_torch()
        self.assert_says("first [run] [x]\n", "run", "--torch=installed", "x")
        self.assertFalse((self.stub / ".venv").exists())
        self.assertIn(f"SHARDPROOF_TORCH:UNINITIALIZED={torch}",
                      (self.stub / "build/release/CMakeCache.txt").read_text())
        self.assertEqual(self.call("run"), (0, "first [run]\n", ""))
        shutil.rmtree(torch)
        self.assertEqual(self.call("run")[0], 2)  # gone: said, not a loader's message

    def test_code_that_does_not_compile_is_shown(self):
        torch = str(self.installed_torch())
        self.write_program('" ERROR_HERE(')
        err = self.assert_says("", "run", status=5, SHARDPROOF_TORCH=torch)
        self.assertIn("ERROR_HERE", err)
        self.write_program("mended")
        self.assertEqual(self.call("run", SHARDPROOF_TORCH=torch)[:2], (0, "mended [run]\n"))

    def test_missing_packages(self):
        bare = self.folder / "bin"  # everything but mold
        bare.mkdir()
        for folder in ("/usr/bin", "/bin"):
            for tool in Path(folder).iterdir():
                if tool.name not in ("mold", "ld.mold", "apt-get", "sudo") \
                        and not (bare / tool.name).exists():
                    (bare / tool.name).symlink_to(tool)
        apt = bare / "apt-get"
        apt.write_text('#!/bin/sh\necho "E: no mirror answers: $*" >&2\nexit 100\n')
        apt.chmod(0o755)
        err = self.assert_says("", "run", status=2, PATH=str(bare))
        self.assertIn("apt-get install -y --no-install-recommends mold", err)
        if os.geteuid() == 0:
            self.assertIn("no mirror answers", err)
        else:
            self.assertIn("paste this line", err)

    def test_two_calls_at_once_build_once(self):
        torch = str(self.installed_torch())
        first = self.start("run", "1", SHARDPROOF_TORCH=torch)
        second = self.start("run", "2", SHARDPROOF_TORCH=torch)
        for process, text in ((first, "1"), (second, "2")):
            out, err = process.communicate(timeout=600)
            self.assertEqual((process.returncode, out), (0, f"first [run] [{text}]\n"), err)


if __name__ == "__main__":
    unittest.main()
