#!/usr/bin/env python3
"""Makes the wheel of the built program, of the files that cmake/wheel.cmake lists: wheel.py BUILD_FOLDER OUT. A wheel
is a zip file with four files of metadata; they are written here, so that nothing has to be downloaded."""

import base64
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
REQUIREMENTS = ROOT / "requirements.txt"
PACKAGE = "shardproof_program"

METADATA = """Metadata-Version: 2.1
Name: shardproof-program
Version: {version}
Summary: Runs sharded training on emulated and real ranks, and judges every number against one device.
License: Apache-2.0
Requires-Python: >=3.10
Requires-Dist: torch=={torch}
Requires-Dist: matplotlib
Requires-Dist: jinja2
"""
WHEEL = """Wheel-Version: 1.0
Generator: shardproof package
Root-Is-Purelib: false
Tag: {tag}
"""
ENTRY_POINTS = f"""[console_scripts]
shardproof = {PACKAGE}:main
"""


def versions(program):
    """Of the program and of the LibTorch that it is built with, as it says them itself."""
    text = subprocess.run([program, "version"], check=True, capture_output=True, text=True).stdout
    return re.fullmatch(r"shardproof (\S+) \(LibTorch ([\d.]+)\S*\)\n", text).groups()


def platform_tag():
    """For pip: Linux with this glibc or a later one."""
    return "manylinux_{}_{}_{}".format(*platform.libc_ver()[1].split("."), platform.machine())


class Wheel:
    def __init__(self, path):
        self.zip = zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=9)
        self.record = ""

    def add(self, name, content, mode=0o644):
        entry = zipfile.ZipInfo(name)  # dated 1980: the same files make the same wheel
        entry.external_attr = (0o100000 | mode) << 16
        entry.compress_type = zipfile.ZIP_DEFLATED
        self.zip.writestr(entry, content)
        digest = base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
        self.record += f"{name},sha256={digest},{len(content)}\n"

    def finish(self, info):
        name = f"{info}/RECORD"
        self.add(name, f"{self.record}{name},,\n".encode())
        self.zip.close()


def installed_files(build, folder):
    command = ["cmake", "--install", build, "--component", "wheel", "--strip", "--prefix", folder]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    files = [file for file in Path(folder).rglob("*") if file.is_file()]
    # A library is known by its link, libx.so.1; a wheel has no links, and so holds the file under that name.
    linked = {file.parent / os.readlink(file) for file in files if file.is_symlink()}
    return sorted(file for file in files if file not in linked)


def make_wheel(build, out):
    version, torch = versions(build / "shardproof-bin")
    tag = f"py3-none-{platform_tag()}"
    info = f"{PACKAGE}-{version}.dist-info"
    path = out / f"{PACKAGE}-{version}-{tag}.whl"
    wheel = Wheel(path)
    wheel.add(f"{PACKAGE}/__init__.py", (HERE / "launcher.py").read_text().replace("@torch@", torch).encode())
    with tempfile.TemporaryDirectory() as folder:
        for file in installed_files(build, folder):
            mode = 0o755 if os.access(file, os.X_OK) else 0o644
            wheel.add(f"{PACKAGE}/{file.relative_to(folder)}", file.read_bytes(), mode)
    for name, text in (("METADATA", METADATA.format(version=version, torch=torch)),
                       ("WHEEL", WHEEL.format(tag=tag)), ("entry_points.txt", ENTRY_POINTS)):
        wheel.add(f"{info}/{name}", text.encode())
    wheel.finish(info)
    if f"torch=={torch}\n" in REQUIREMENTS.read_text():
        shutil.copy(REQUIREMENTS, out)
    return path


if __name__ == "__main__":
    Path(sys.argv[2]).mkdir(parents=True, exist_ok=True)
    print(make_wheel(Path(sys.argv[1]), Path(sys.argv[2])))
