#!/usr/bin/env python3
"""The wheel of the Python package in a fresh virtual environment, with no compiler and no clone in sight: install_test.py
PROGRAM. It holds the shardproof-light of build/light; WHEEL=FILE takes that wheel instead,
and ZIG=1 the one that a release has, whose compiler is downloaded."""

import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/cli"))
from build_light import build_light  # noqa: E402
from logprobs_test import write_file  # noqa: E402
from recorded_test import of, recorded  # noqa: E402
from said import SaidTest  # noqa: E402

PROGRAM = Path(sys.argv.pop()).resolve()

TESTS = '''
import pytest, torch, shardproof
import torch.distributed as dist

@pytest.mark.layouts("dp2")
@pytest.mark.parametrize("divides", [True, False])
def test_step(layout, divides):
    with shardproof.float64():
        model = torch.nn.Linear(4, 3)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        layout.load(model)
        with layout.record(model, optimizer):
            rows = shardproof.batch(torch.arange(16.0).reshape(4, 4).sin())
            model(rows).square().mean().backward()
            for parameter in model.parameters():
                dist.all_reduce(parameter.grad)
                if divides:
                    parameter.grad.div_(layout.sizes["dp"])
            optimizer.step()
'''


def torch_site():
    """The site-packages that have torch and pytest; empty where there are none."""
    found = sorted((ROOT / ".venv/lib").glob("python3*/site-packages/pytest"))
    return found[0].parent if found and (found[0].parent / "torch").exists() else None


def make_wheel(folder):
    if os.environ.get("WHEEL"):
        return Path(shutil.copy(os.environ["WHEEL"], folder))
    built = [] if os.environ.get("ZIG") else ["--program", build_light()]
    text = subprocess.check_output([sys.executable, "-B", ROOT / "python/program/light_wheel.py", *built, folder], text=True)
    return Path(text.strip())


class Installed(SaidTest):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        cls.wheel = make_wheel(cls.folder)
        own = ROOT / ".venv/bin/python" if torch_site() else sys.executable
        subprocess.run([own, "-m", "venv", "--without-pip", cls.folder / "env"], check=True)  # a pip takes seconds to install
        cls.bin = cls.folder / "env/bin"
        subprocess.run([own, "-m", "pip", "--python", cls.bin / "python", "install", "--quiet", "--no-index",
                        "--disable-pip-version-check", cls.wheel], check=True)
        if torch_site():  # as if they were installed there, too
            [site] = (cls.folder / "env/lib").glob("python3*/site-packages")
            (site / "torch.pth").write_text(f"{torch_site()}\n")

    def call(self, *words, place=None):
        """Exit status and what a command of the environment prints, in an empty folder, with nothing else on PATH."""
        env = {"PATH": str(self.bin), "HOME": str(self.folder)}
        if torch_site():
            env["LD_LIBRARY_PATH"] = subprocess.check_output(
                [sys.executable, "-B", ROOT / "tests/support/cuda_stand_ins.py", ROOT / ".venv"], text=True).strip()
        with tempfile.TemporaryDirectory() as here:
            done = subprocess.run([self.bin / words[0], *words[1:]], cwd=place or here, env=env, capture_output=True, text=True)
        return done.returncode, done.stdout + done.stderr

    def test_what_it_holds(self):
        names = zipfile.ZipFile(self.wheel).namelist()
        for name in ("recorder.py", "pytest_plugin.py", "run.schema.json", "backend/csrc/backend.cpp", "SKILL.md",
                     "light/shardproof-light", "light/reports/page.html", "light/LICENSE"):
            self.assertIn(f"shardproof/{name}", names)
        self.assertEqual([name for name in names if "__pycache__" in name], [])
        self.assertLess(self.wheel.stat().st_size, 4 << 20)

    def test_one_version(self):
        text = (ROOT / "python/shardproof/__init__.py").read_text()
        version = re.search(r'__version__ = "(.*)"', text)[1]
        self.assertEqual(self.call("shardproof", "version"), (0, f"shardproof {version} (without LibTorch)\n"))
        self.assertIn(f"-{version}-", self.wheel.name)
        self.assertRegex(subprocess.check_output([PROGRAM, "version"], text=True), rf"^shardproof {re.escape(version)} \(")
        self.assertRegex((ROOT / "CHANGELOG.md").read_text(), rf"(?m)^## {re.escape(version)} - \d{{4}}-\d\d-\d\d$")
        named = subprocess.run(["git", "grep", "-lF", f'"{version}"', "--", "*.py", "*.toml", "*.txt", "*.cpp", "*.h"], cwd=ROOT,
                               capture_output=True, text=True).stdout.split()
        self.assertIn(named, ([], ["python/shardproof/__init__.py"]))  # nothing in a tree without git

    def test_judge(self):
        one = recorded().write(str(self.folder / "one"))
        right = recorded([("dp", 2), ("tp", 2)]).write(str(self.folder / "right"))
        self.expect_patterns(self.call("shardproof", "judge", right, "--golden", one), 0, r"^MATCH .*17 tensors")
        wrong = of("grad", "norm", lambda value, run, rank: 2 * value)
        wrong = recorded([("dp", 2), ("tp", 2)], wrong).write(str(self.folder / "wrong"))
        out = self.folder / "judged"
        for command in (("shardproof",), ("python", "-m", "shardproof")):
            self.expect_patterns(self.call(*command, "judge", wrong, "--golden", one, "--out", str(out)), 1,
                                 r"^MISMATCH [^$]*every element is 2.00 x golden")
        status, text = self.call("shardproof", "report", str(out))
        self.assertEqual((status, text) if torch_site() else status, (0, f"{out}/report.html\n") if torch_site() else 1, text)

    def test_lint_and_logprobs(self):
        scenario = self.folder / "one.yaml"
        scenario.write_text("name: t/key\nparallel: {tensor_parallel_sise: 2}\n")
        self.expect(self.call("shardproof", "lint", str(scenario)), 2, "tensor_parallel_sise")
        files = []
        for name, factor in (("a", 1.0), ("b", 2.0)):
            files.append(str(self.folder / f"{name}.safetensors"))
            rows = [[-0.1 * factor * (1 + (7 * row + 3 * k) % 11) for k in range(8)] for row in range(2)]
            write_file(files[-1], {"logprobs": ("float64", rows)})
        self.expect(self.call("shardproof", "logprobs", *files), 1)
        self.assertEqual(self.call("shardproof", "logprobs", files[0], str(shutil.copy(files[0], self.folder / "same")))[0], 0)

    def test_the_commands_that_are_python(self):
        for command in ("score", "model"):
            said = self.call("shardproof", command, "--help")
            if command == "model" and not torch_site():
                self.expect(said, 2, "shardproof: model needs the module torch; install it for ")
            else:
                self.expect(said, 0, f"usage: shardproof {command} ")

    def test_where_the_whole_program_is_installed_it_has_the_command(self):
        [site] = (self.folder / "env/lib").glob("python3*/site-packages")
        whole = site / "shardproof_program"
        whole.mkdir()
        self.addCleanup(shutil.rmtree, whole)
        (whole / "__init__.py").write_text("import sys\ndef main():\n    print('whole', *sys.argv[1:])\n    return 3\n")
        self.assertEqual(self.call("shardproof", "run", "a"), (3, "whole run a\n"))

    def test_what_it_cannot_do(self):
        self.expect(self.call("shardproof", "run", "scenarios/smoke"), 2,
                    "run needs LibTorch, without which this program is built; run ./shardproof build in a clone")

    @unittest.skipUnless(torch_site(), "there is no .venv with torch and pytest")
    def test_pytest_judges_two_ranks(self):
        test = self.folder / "test_step.py"
        test.write_text(TESTS)
        said = self.call("python", "-B", "-m", "pytest", "-q", "-p", "no:cacheprovider", str(test))
        self.expect_patterns(said, 1, "1 failed, 1 passed", r'layout "dp2" differs from one rank: grad.bias \[3\] of step 1',
                             r"every element is 2\.00 x golden")

    @unittest.skipUnless(torch_site(), "there is no .venv with torch and pytest")
    def test_the_commands_of_the_skill(self):
        """Its example is found wrong as it says, and its commands work as they stand there."""
        skill = (ROOT / "SKILL.md").read_text()
        place = self.folder / "skill"
        place.mkdir()
        (place / "test_model.py").write_text(re.search(r"```python\n(.*?)```", skill, re.DOTALL)[1])
        commands = re.findall(r"(?m)^(?:pip .*&& )?((?:pytest -q|shardproof judge|shardproof report) .*?)(?:  |$)", skill)
        self.assertEqual([command.split()[:2] for command in commands],
                         [["pytest", "-q"]] * 2 + [["shardproof", "judge"], ["shardproof", "report"]])
        for command, status in zip(commands, (1, 1, 1, 0), strict=True):
            words = shlex.split(command)
            words = ["python", "-B", "-m", *words, "-p", "no:cacheprovider"] if words[0] == "pytest" else words
            text = self.expect(self.call(*words, place=place), status)
            if status:
                lines = [line.partition("  <- ")[0].rstrip() for line in skill.splitlines() if line.startswith("  ")]
                for key in ("tensor", "pattern", "likely", "also"):
                    self.assertIn(next(line for line in lines if line.split()[0] == key), text)

    def test_the_command_of_a_package_without_a_program(self):
        [light] = (self.folder / "env/lib").glob("python3*/site-packages/shardproof/light")
        light.rename(self.folder / "away")
        try:
            said = self.call("shardproof", "judge", "run")
        finally:
            (self.folder / "away").rename(light)
        self.expect(said, 2, "The wheel of this package for x86-64 Linux holds it, and this installation does not. Build it "
                             "with ./shardproof build shardproof-light in a clone")


if __name__ == "__main__":
    unittest.main()
