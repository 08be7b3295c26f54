"""The programs that judge recorded runs: shardproof-light, which the wheel holds and a clone builds, and the whole program."""

import os
import re
import shutil
import subprocess
from importlib.util import find_spec
from pathlib import Path

TOO_LONG = 124  # the status that timeout(1) gives
OF_THE_JOB = ("GITHUB_ACTIONS", "GITHUB_STEP_SUMMARY")  # in which the caller says what the judge found
NO_JUDGE = 126  # a program that says no verdict, whatever its status
HERE = Path(__file__).resolve().parent
CLONE = HERE.parents[1]


def light() -> str | None:
    """The small program of this package's wheel, or of the clone that this package lies in."""
    places = (HERE / "light" / "shardproof-light", CLONE / "build" / "light" / "shardproof-light")
    return next(filter(None, map(shutil.which, map(str, places))), None)


def whole() -> str | None:
    """The first whole program in PATH. This package's own command has that name, too, and has no program to judge with
    unless the wheel of the whole program is installed."""
    if find_spec("shardproof_program"):
        return shutil.which("shardproof")
    found = (shutil.which("shardproof", path=folder) for folder in os.get_exec_path())
    return next((one for one in found if one and not _is_own(one)), None)


def _is_own(program: str) -> bool:
    try:
        with open(program, "rb") as file:
            return b"shardproof.command" in file.read(2000)
    except OSError:  # it may be run and not read, which a script cannot
        return False


def find(name: str = "") -> tuple[str, str]:
    """The program of this name or path, without one the program that is there; and what to do where none is."""
    found = shutil.which(name) if name else shutil.which("shardproof-light") or light() or whole()
    return (found, "") if found else ("", missing(name))


def judged(name: str, run: Path, golden: Path, timeout: float) -> tuple[int, str]:
    """The status of the program and what it says of a run; TOO_LONG where it does not end within so many seconds,
    NO_JUDGE where it says no verdict."""
    environment = {key: value for key, value in os.environ.items() if key not in OF_THE_JOB}
    try:
        done = subprocess.run([name, "judge", str(run), "--golden", str(golden)], stdin=subprocess.DEVNULL, env=environment,
                              capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return TOO_LONG, f"the judge did not end within {timeout:g} s; give more"
    said = done.stdout + done.stderr
    if done.returncode in (0, 1) and not re.search(("^MATCH", "^MISMATCH")[done.returncode], said, re.MULTILINE):
        return NO_JUDGE, f'"{name}" gave no verdict, so that it is not shardproof\n{said}'
    return done.returncode, said or "the judge wrote nothing"


def missing(name: str = "") -> str:
    in_clone = (CLONE / "shardproof").is_file()
    build = f"{CLONE / 'shardproof'} build shardproof-light" if in_clone else "./shardproof build shardproof-light"
    install = "" if in_clone else (" in a clone of shardproof, and install this package from there with "
                                   "pip install -e ./python, so that it finds the clone's build folder")
    wheel = "" if name else " The wheel of this package for x86-64 Linux holds it, and this installation does not."
    return (f'The program "{name or "shardproof-light"}", which judges the recorded runs, is not found.{wheel} '
            f"Build it with {build}{install}")
