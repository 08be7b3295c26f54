#!/usr/bin/env python3
"""The wheel of ./shardproof package, installed by pip beside the LibTorch of .venv: wheel_test.py BUILD_FOLDER.
What it holds, where its libraries come from, and a verdict. Without network."""

import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest
import zipfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(sys.argv.pop()).resolve()
# Each shared library that the wheel carries, and the Debian package whose terms are in licenses/.
CARRIED = {"libyaml-cpp.so.0.7": "libyaml-cpp-dev"}


def torch_folder():
    """Of the LibTorch that the program was linked with."""
    libraries = subprocess.check_output(["ldd", BUILD / "shardproof-bin"], text=True)
    return Path(re.search(r"=> (\S+)/lib/libtorch_cpu\.so", libraries)[1])


@unittest.skipUnless((torch_folder().parent / "pip").exists(), "LibTorch is not in a virtual environment (--torch)")
class Wheel(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = Path(cls.enterClassContext(tempfile.TemporaryDirectory()))
        subprocess.run([sys.executable, "-B", ROOT / "python/program/wheel.py", BUILD, cls.folder], check=True,
                       stdout=subprocess.DEVNULL)
        [cls.wheel] = cls.folder.glob("*.whl")
        cls.site = cls.folder / "site"
        installed = torch_folder().parent
        python = installed.parents[2] / "bin/python"
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-index", "--no-deps", "--no-compile",
                        "--disable-pip-version-check", "--target", cls.site, cls.wheel], check=True)
        for name in ("torch", "nvidia", *(path.name for path in installed.glob("torch-*.dist-info"))):
            if (installed / name).exists():
                (cls.site / name).symlink_to(installed / name)
        cls.program = cls.site / "shardproof_program"
        cls.python = python

    def call(self, *arguments, torch=True):
        """The command as pip makes it, in an empty folder."""
        site = self.site if torch else self.folder / "bare"
        code = "import sys; from shardproof_program import main; sys.exit(main())"
        with tempfile.TemporaryDirectory() as folder:
            done = subprocess.run([self.python, "-c", code, *arguments], cwd=folder, capture_output=True, text=True,
                                  env=os.environ | {"PYTHONPATH": str(site), "XDG_CACHE_HOME": folder})
        return done.returncode, done.stdout, done.stderr

    def test_what_it_holds(self):
        names = zipfile.ZipFile(self.wheel).namelist()
        for name in ("shardproof-bin", "scenarios/smoke/llama.yaml", "reports/report.py", "reports/page.html",
                     "golden/hf/llama_untied/model.safetensors", "docs/judge.md", "LICENSE", "NOTICE"):
            self.assertIn(f"shardproof_program/{name}", names)
        self.assertEqual([name for name in names if "__pycache__" in name], [])
        self.assertLess(self.wheel.stat().st_size, 20 << 20)
        self.assertEqual((self.wheel.parent / "requirements.txt").read_text(),
                         (ROOT / "requirements.txt").read_text())

    def test_the_terms_of_what_it_carries(self):
        carried = {file.name for file in (self.program / "lib").iterdir()}
        self.assertEqual(carried, set(CARRIED),
                         "name the new library's Debian package here, in cmake/wheel.cmake and in NOTICE")
        for package in CARRIED.values():
            self.assertTrue((self.program / "licenses" / package).stat().st_size, package)

    def test_all_libraries_are_found_in_the_wheel_in_torch_and_in_the_system(self):
        libraries = subprocess.check_output(["ldd", self.program / "shardproof-bin"], text=True)
        self.assertNotIn("not found", libraries)
        places = re.findall(r"=> (\S+)", libraries)
        self.assertTrue(any(place.endswith("shardproof_program/lib/libyaml-cpp.so.0.7") for place in places), libraries)
        self.assertEqual([place for place in places if place.startswith(str(ROOT))], [])
        headers = subprocess.check_output(["readelf", "-d", self.program / "shardproof-bin"], text=True)
        self.assertRegex(headers, r"RUNPATH.*\[\$ORIGIN/lib:\$ORIGIN/\.\./torch/lib\]")

    def test_the_first_verdict(self):
        status, out, err = self.call("run", "scenarios/smoke/llama.yaml", "--backend", "emulated", "--no-cache")
        self.assertEqual(status, 0, out + err)
        self.assertRegex(out, r"(?m)^match .* smoke/llama\[tp4_sp\] ")
        self.assertIn("all as expected", out)
        self.assertRegex(out, r"\(pictures: shardproof report \S+\)")
        status, out, err = self.call("run", "scenarios/none")
        self.assertEqual((status, out), (2, ""))
        self.assertIn("scenarios/none does not exist", err)

    def test_doctor_names_the_python_that_report_starts(self):
        status, out, err = self.call("doctor")
        self.assertEqual(status, 0, out + err)
        self.assertRegex(out, r"(?m)^python +python3, the first one on PATH$")
        self.assertNotIn(".venv", out)
        self.assertNotIn(".venv", (self.program / "reports/page.html").read_text())

    def test_without_its_libtorch_it_says_what_to_install(self):
        bare = self.folder / "bare"
        shutil.copytree(self.program, bare / "shardproof_program")
        status, out, err = self.call("list", torch=False)
        self.assertEqual((status, out), (2, ""))
        self.assertIn("the Python package torch, which holds LibTorch, is not in", err)
        self.assertIn("pip install torch==", err)
        (bare / "torch").symlink_to(self.site / "torch")
        info = bare / "torch-1.13.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: torch\nVersion: 1.13.0\n")
        status, out, err = self.call("list", torch=False)
        self.assertEqual((status, out), (2, ""))
        self.assertRegex(err, r"the installed torch is 1\.13\.0, and the program is built with LibTorch \d")


if __name__ == "__main__":
    unittest.main()
