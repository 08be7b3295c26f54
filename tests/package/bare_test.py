#!/usr/bin/env python3
"""The wheel on a bare Debian 12, a chroot with the base system, python3-venv and nothing else: bare_test.py
BUILD_FOLDER. Its two commands must give the first verdict within 90 seconds. It needs root, mmdebstrap and the
network, and downloads 0.6 GB; SHARDPROOF_WHEELS names a folder of wheels that are at hand. Exit status 77: it
cannot run here."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 90
SMOKE = "/env/bin/shardproof run scenarios/smoke"


def make_system(target, *options):
    """A folder or a file that ends in .tar."""
    subprocess.run(["mmdebstrap", "--quiet", "--variant=minbase", *options, "bookworm", target,
                    "http://deb.debian.org/debian"], check=True, stdout=subprocess.DEVNULL)


def make_wheel(build, folder):
    subprocess.run([sys.executable, "-B", ROOT / "python/program/wheel.py", build, folder], check=True)


def add_required(wheels):
    at_hand = os.environ.get("SHARDPROOF_WHEELS")
    if at_hand:
        shutil.copytree(at_hand, wheels, dirs_exist_ok=True)
        return
    # Wheels for the Python of Debian 12, whichever runs this.
    subprocess.run([sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:",
                    "--python-version", "3.11", "-r", ROOT / "requirements.txt", "-d", wheels], check=True)


def inside(system, command):
    """Starts a shell command there, in namespaces of its own."""
    return subprocess.Popen(["unshare", "--mount", "--pid", "--fork", "sh", "-c",
                             'mount -t proc proc "$0/proc" && exec chroot "$0" sh -ec "cd /root; $1"', system, command],
                            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
                            env={"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root"})


def timed_lines(process, start):
    return [(time.monotonic() - start, line.rstrip()) for line in process.stdout]


def size_of(folder):
    return sum(file.lstat().st_size for file in folder.rglob("*")) / 1e6


def measure(build, folder):
    system, wheels = folder / "system", folder / "system/wheels"
    make_system(system, "--include=python3-venv")
    wheels.mkdir()
    make_wheel(build, wheels)
    add_required(wheels)
    [wheel] = wheels.glob("shardproof_program-*.whl")
    tools = inside(system, "for tool in cc g++ cmake ninja make; do command -v $tool || true; done;"
                   " find / -xdev -name 'libyaml-cpp*' -o -xdev -name 'libtorch*'")
    assert tools.communicate() == ("", None) and tools.returncode == 0, "the system is not bare"
    start = time.monotonic()
    install = inside(system, "python3 -m venv /env; /env/bin/pip install -q --no-compile --no-index --find-links /wheels"
                     f" --no-deps -r /wheels/requirements.txt /wheels/{wheel.name}")
    text = install.communicate()[0]
    assert install.returncode == 0, text
    installed = time.monotonic() - start
    run = inside(system, SMOKE)
    lines = timed_lines(run, start)
    status = run.wait()
    verdicts = [(seconds, line) for seconds, line in lines if line.startswith("match ")]
    shown = "\n".join(line for _, line in lines)
    assert status == 0 and verdicts and "all as expected" in shown, f"exit status {status}\n{shown}"
    seconds, line = verdicts[0]
    print(f"wheel {wheel.stat().st_size / 1e6:.1f} MB, environment {size_of(system / 'env'):.0f} MB\n"
          f"installed after {installed:.1f} s, first verdict after {seconds:.1f} s: {line}\n"
          f"{len(verdicts)} verdicts after {lines[-1][0]:.1f} s: {lines[-1][1]}")
    report = inside(system, "/env/bin/shardproof report")
    text = report.communicate()[0]
    assert report.returncode == 0 and text.rstrip().endswith("report.html"), text
    assert seconds < SECONDS, f"the first verdict came after {seconds:.1f} s, more than {SECONDS} s"


def main():
    if os.geteuid() != 0 or not shutil.which("mmdebstrap"):
        print("needs root and mmdebstrap")
        return 77
    with tempfile.TemporaryDirectory(prefix="bare.") as folder:
        measure(Path(sys.argv[1]).resolve(), Path(folder))
    return 0


if __name__ == "__main__":
    sys.exit(main())
