#!/usr/bin/env python3
"""Makes the wheel of the Python package, with shardproof-light inside: light_wheel.py [--program FILE] OUT.

The program is compiled for an older glibc, by zig, whose headers and libraries are those of every glibc: PyPI has it, and
auditwheel, which says what the result asks of a system. yaml-cpp is compiled in from Debian's sources. --program takes a
program that is built already instead: the wheel is then for systems with this machine's glibc or a later one."""

import argparse
import hashlib
import os
import re
import subprocess
import sys
import tarfile
import urllib.request
import venv
from pathlib import Path

from wheel import ROOT, Wheel, platform_tag

PACKAGE = ROOT / "python"
WORK = ROOT / "build/wheel"
GLIBC = "2.28"  # what the wheels of PyTorch need
TOOLS = ("ziglang==0.17.1", "auditwheel==6.8.2")
YAML = ("http://deb.debian.org/debian/pool/main/y/yaml-cpp/yaml-cpp_0.7.0+dfsg.orig.tar.xz",
        "dc63708605404e0b963e0ca3a9619d1c8270eda2839603e6fa0384e5e51e5312")
TERMS = ("libyaml-cpp-dev", "libfmt-dev", "nlohmann-json3-dev", "libcli11-dev", "libboost-dev")

METADATA = """Metadata-Version: 2.1
Name: shardproof
Version: {version}
Summary: {summary}
License: Apache-2.0
Requires-Python: >=3.10
Provides-Extra: report
Requires-Dist: matplotlib; extra == "report"
Requires-Dist: jinja2; extra == "report"
Description-Content-Type: text/markdown

{readme}"""
WHEEL = """Wheel-Version: 1.0
Generator: shardproof light_wheel
Root-Is-Purelib: false
Tag: {tag}
"""
ENTRY_POINTS = """[console_scripts]
shardproof = shardproof.command:main

[pytest11]
shardproof = shardproof.pytest_plugin
"""


def version():
    return re.search(r'^__version__ = "(.*)"$', (PACKAGE / "shardproof/__init__.py").read_text(), re.MULTILINE)[1]


def tools():
    """The folder of a virtual environment with TOOLS."""
    folder = WORK / "venv"
    python = folder / "bin/python"
    if not python.exists():
        venv.create(folder, with_pip=True)
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *TOOLS], check=True)
    return folder / "bin"


def yaml_sources():
    url, digest = YAML
    archive = WORK / url.rpartition("/")[2]
    if not archive.exists():
        urllib.request.urlretrieve(url, archive)
    found = hashlib.sha256(archive.read_bytes()).hexdigest()
    if found != digest:
        archive.unlink()
        sys.exit(f"light_wheel.py: {url} has the digest {found}, not {digest}; look at what has changed there")
    with tarfile.open(archive) as content:
        content.extractall(WORK)
    return next(WORK.glob("yaml-cpp-*/CMakeLists.txt")).parent


def library_headers():
    """A folder with the headers of the other libraries alone: beside them lie those of this machine's glibc."""
    folder = WORK / "headers"
    folder.mkdir(exist_ok=True)
    for name in ("fmt", "nlohmann", "CLI", "boost"):
        if not (folder / name).exists():
            (folder / name).symlink_to(f"/usr/include/{name}")
    return folder


def build(bin_folder):
    compiler = WORK / "zig-c++"
    compiler.write_text(f'#!/bin/sh\nexec "{bin_folder}/python" -m ziglang c++ -target {os.uname().machine}-linux-gnu.{GLIBC} "$@"\n')
    compiler.chmod(0o755)
    folder = WORK / "light"
    subprocess.run(["cmake", "--preset", "light", "-B", folder, f"-DCMAKE_CXX_COMPILER={compiler}", "-DCMAKE_CXX_FLAGS=-O2",
                    f"-DSHARDPROOF_YAML_CPP={yaml_sources()}",
                    f"-DSHARDPROOF_HEADERS={library_headers()}"], cwd=ROOT, check=True, stdout=subprocess.DEVNULL)
    jobs = os.environ.get("SHARDPROOF_JOBS") or str(os.cpu_count())
    subprocess.run(["ninja", "-C", folder, "-j", jobs, "shardproof-light"], check=True, stdout=sys.stderr)
    return folder / "shardproof-light"


def files(program, libcxx):
    """(name in the wheel, content, mode) of each file. libcxx: the terms of that library, where the program has it inside."""
    for file in sorted((PACKAGE / "shardproof").rglob("*")):
        if file.is_file() and "__pycache__" not in file.parts:
            yield f"shardproof/{file.relative_to(PACKAGE / 'shardproof')}", file.read_bytes(), 0o644
    yield "shardproof/SKILL.md", (ROOT / "SKILL.md").read_bytes(), 0o644
    yield "shardproof/light/shardproof-light", program.read_bytes(), 0o755
    beside = [ROOT / "LICENSE", ROOT / "NOTICE", *(ROOT / "reports").glob("*.py"),
              *(ROOT / "reports").glob("*.html")]
    for file in sorted(beside):
        yield f"shardproof/light/{file.relative_to(ROOT)}", file.read_bytes(), 0o644
    if libcxx:
        yield "shardproof/light/licenses/libcxx", libcxx.read_bytes(), 0o644
    for package in TERMS:
        yield f"shardproof/light/licenses/{package}", Path(f"/usr/share/doc/{package}/copyright").read_bytes(), 0o644


def make_wheel(program, tag, out, libcxx=None):
    name = f"shardproof-{version()}"
    path = out / f"{name}-{tag}.whl"
    wheel = Wheel(path)
    for file in files(program, libcxx):
        wheel.add(*file)
    summary = re.search(r'^description = "(.*)"$', (PACKAGE / "pyproject.toml").read_text(), re.MULTILINE)[1]
    metadata = METADATA.format(version=version(), summary=summary, readme=(PACKAGE / "README.md").read_text())
    for file, text in (("METADATA", metadata), ("WHEEL", WHEEL.format(tag=tag)), ("entry_points.txt", ENTRY_POINTS)):
        wheel.add(f"{name}.dist-info/{file}", text.encode())
    wheel.finish(f"{name}.dist-info")
    return path


def check_platform(bin_folder, path):
    """Prints what auditwheel says of the wheel, and ends where it asks for a later glibc than its name says."""
    text = subprocess.run([bin_folder / "auditwheel", "show", path], check=True, capture_output=True, text=True).stdout
    print(text.strip(), file=sys.stderr)
    reached = re.search(r'platform\s+tag:\s+"manylinux_(\d+)_(\d+)_', text)
    if reached is None or (int(reached[1]), int(reached[2])) > tuple(map(int, GLIBC.split("."))):
        sys.exit(f"light_wheel.py: {path.name} says glibc {GLIBC}, and auditwheel does not agree")


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--program", type=Path, help="a built shardproof-light")
    parser.add_argument("out", type=Path)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    if options.program:
        print(make_wheel(options.program, f"py3-none-{platform_tag()}", options.out))
        return
    WORK.mkdir(parents=True, exist_ok=True)
    bin_folder = tools()
    tag = f"py3-none-manylinux_{GLIBC.replace('.', '_')}_{os.uname().machine}"
    [libcxx] = bin_folder.parent.glob("lib/python3*/site-packages/ziglang/lib/libcxx/LICENSE.TXT")
    path = make_wheel(build(bin_folder), tag, options.out, libcxx)
    check_platform(bin_folder, path)
    print(path)


if __name__ == "__main__":
    main()
