"""The steps of action.yml: steps.py install | run | summary. Inputs are in the environment, as action.yml gives them."""

import os
import shlex
import subprocess
import sys
import xml.etree.ElementTree as xml
from pathlib import Path

ROOT = Path(os.environ["GITHUB_ACTION_PATH"])
MOST_SHOWN = 20  # failures in the summary
KEYS = ("tensor", "worst", "pattern", "likely")


def say(file, text):
    """To the next steps, in a file that GitHub names in this variable."""
    with open(os.environ[file], "a", encoding="utf-8") as out:
        out.write(text)


def given(name):
    return shlex.split(os.environ.get(name, ""))


def call(*command):
    """Ends this step where the command fails."""
    if status := subprocess.run(command, check=False).returncode:
        sys.exit(status)


def install():
    """Installs the wheel, or builds once what this job needs."""
    wheel, pytest = os.environ.get("WHEEL"), given("PYTEST")
    pip = ("python3", "-m", "pip", "install", "--quiet")
    if wheel:
        call(*pip, wheel)
        say("GITHUB_ENV", "SHARDPROOF=shardproof\n")
        return
    program = ROOT / "shardproof"
    if given("SCENARIOS"):
        call(program, "build", "--yes")
    if pytest:
        call(program, "build", "shardproof-light", "--yes")
        call(*pip, "--editable", ROOT / "python")
    say("GITHUB_ENV", f"SHARDPROOF={program}\n")


def run():
    """The exit status is that of the last command that failed."""
    out, shard, options = os.environ["OUT"], os.environ.get("SHARD"), given("OPTIONS")
    status = 0
    if scenarios := given("SCENARIOS"):
        share = ["--shard", shard] if shard else []
        command = [*shlex.split(os.environ["SHARDPROOF"]), "run", *scenarios, *share, "--out", out]
        status = subprocess.run([*command, *options], check=False).returncode  # it prints its own annotations
    if tests := given("PYTEST"):
        Path(out).mkdir(parents=True, exist_ok=True)
        junit = Path(out, "pytest.xml")
        command = ["python3", "-m", "pytest", *tests, f"--junitxml={junit}", "-o", "junit_family=xunit1"]
        status = subprocess.run([*command, *([] if given("SCENARIOS") else options)], check=False).returncode or status
        for case in cases_of(junit):
            if failure := failure_of(case):
                print(annotation(case, failure))
    elif not scenarios:
        print("::error::shardproof has nothing to run: give it scenarios or pytest")
        status = 2
    return status


def cases_of(junit):
    return list(xml.parse(junit).getroot().iter("testcase")) if junit.exists() else []


def failure_of(case):
    """What a failed case says; None of one that passed or was skipped."""
    found = next((child for child in case if child.tag in ("failure", "error")), None)
    return None if found is None else "\n".join(filter(None, [found.get("message"), found.text]))


def finding(text):
    """The lines of a finding that say what is wrong, whose it is, and why; else the first line."""
    lines = [line for line in text.splitlines() if line.strip()]
    found = {}
    for line in lines:
        key = line.split()[0]
        if key in KEYS and line.startswith("  "):
            found.setdefault(key, " ".join(line.split()[1:]))
    return "; ".join(f"{key} {value}" for key, value in found.items()) or (lines[0] if lines else "no message")


def annotation(case, failure):
    """As GitHub reads it: percent signs and line ends are encoded."""
    def coded(text, more=""):
        for sign in "%\r\n" + more:
            text = text.replace(sign, f"%{ord(sign):02X}")
        return text
    place = f"file={coded(case.get('file', ''), ':,')},line={int(case.get('line') or 0) + 1}," if case.get("file") else ""
    return f"::error {place}title={coded(case.get('name', ''), ':,')}::{coded(finding(failure))}"


def summary():
    """Writes what the job's summary lacks, which has the scenarios from the program, and draws the page."""
    out = Path(os.environ["OUT"])
    cases = cases_of(out / "pytest.xml")
    failed = [(case, failure) for case in cases if (failure := failure_of(case))]
    text = [f"### shardproof in pytest: {len(cases) - len(failed)} of {len(cases)} as expected", ""] if cases else []
    if failed:
        text += ["| case | finding |", "|---|---|"]
    for case, failure in failed[:MOST_SHOWN]:
        text.append(f"| {case.get('name')} | {finding(failure)} |".replace("\n", " "))
    if len(failed) > MOST_SHOWN:
        text.append(f"\n{len(failed) - MOST_SHOWN} more are in pytest.xml.")
    page = ""
    if (out / "results.json").exists() or (out / "journal").exists():
        done = subprocess.run([*shlex.split(os.environ["SHARDPROOF"]), "report", out], check=False)
        page = str(out / "report.html") if done.returncode == 0 else ""
        text += ["", f"The page with pictures is report.html in the artifact {out.name}."] if page else []
    if text:
        say("GITHUB_STEP_SUMMARY", "\n".join(text) + "\n")
    say("GITHUB_OUTPUT", f"page={page}\n")


if __name__ == "__main__":
    sys.exit({"install": install, "run": run, "summary": summary}[sys.argv[1]]())
