"""The steps of action.yml: steps.py install | run | summary. Inputs are in the environment, as action.yml gives them."""

import json
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


def error(text, status=1):
    print(f"::error::{text}")
    return status


def given(name):
    try:
        return shlex.split(os.environ.get(name, ""))
    except ValueError as fault:
        sys.exit(error(f"the input {name.lower()} cannot be split into words: {fault}; close its quotes", 2))


def program():
    return given("SHARDPROOF") or ["shardproof"]


def started(command):
    """The exit status; where the command cannot be started, the error is said."""
    try:
        return subprocess.run(command, check=False).returncode
    except OSError as fault:
        return error(f"{command[0]} cannot be started: {fault.strerror}; does the step install come before?", 2)


def call(*command):
    """Ends this step where the command fails."""
    if status := started(command):
        sys.exit(status)


def install():
    """Installs the wheel, or builds once what this job needs."""
    wheel, pytest = os.environ.get("WHEEL"), given("PYTEST")
    pip = ("python3", "-m", "pip", "install", "--quiet")
    if wheel:
        call(*pip, wheel)
        say("GITHUB_ENV", "SHARDPROOF=shardproof\n")
        return
    own = ROOT / "shardproof"
    if given("SCENARIOS"):
        call(own, "build", "--yes")
    if pytest:
        call(own, "build", "shardproof-light", "--yes")
        call(*pip, "--editable", ROOT / "python")
    say("GITHUB_ENV", f"SHARDPROOF={shlex.quote(str(own))}\n")


def run():
    """The exit status is that of the last command that failed."""
    out, shard, options = os.environ["OUT"], os.environ.get("SHARD"), given("OPTIONS")
    status = 0
    if scenarios := given("SCENARIOS"):
        share = ["--shard", shard] if shard else []
        command = [*program(), "run", *scenarios, *share, "--out", out]
        status = started([*command, *options])  # it prints its own annotations of cases
        if status == 2:
            error("shardproof run: bad input, no case selected, or cases that were not run; the log of this step says which")
        elif status == 0 and ran_nothing(Path(out), shard):
            status = error(f"no case {f'of share {shard} ' if shard else ''}was run: all are skipped, none was selected, or the "
                           "options run none")
    if tests := given("PYTEST"):
        Path(out).mkdir(parents=True, exist_ok=True)
        junit = Path(out, "pytest.xml")
        command = ["python3", "-m", "pytest", *tests, f"--junitxml={junit}", "-o", "junit_family=xunit1"]
        ended = started([*command, *([] if given("SCENARIOS") else options)])
        cases = cases_of(junit)
        if cases is None:
            cases, ended = [], error(f"{junit} is not XML; pytest may have been ended while it wrote the file")
        elif ended == 0 and all(is_skipped(case) for case in cases):
            ended = error("no test was run: all are skipped" if cases else
                          "no test was run: pytest ended with 0 and wrote no result; leave out options such as --collect-only")
        status = ended or status
        for case in cases:
            if failure := failure_of(case):
                print(annotation(case, failure))
    elif not scenarios:
        status = error("shardproof has nothing to run: give it scenarios or pytest", 2)
    return status


def ran_nothing(out, shard):
    """Whether a run has finished no case, though it, or its share, has some. One without results has run none."""
    try:
        totals = json.loads((out / "results.json").read_text(encoding="utf-8"))["totals"]
    except (OSError, ValueError):
        return True
    return not totals["cases"] and (totals["skipped"] + totals["not_run"] > 0 or not shard)


def cases_of(junit):
    """None where the file is cut off."""
    try:
        return list(xml.parse(junit).getroot().iter("testcase")) if junit.exists() else []
    except xml.ParseError:
        return None


def is_skipped(case):
    found = case.find("skipped")
    return found is not None and found.get("type") != "pytest.xfail" and failure_of(case) is None


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
    cases = cases_of(out / "pytest.xml") or []
    failed = [(case, failure) for case in cases if (failure := failure_of(case))]
    skipped = sum(is_skipped(case) for case in cases)
    passed = len(cases) - len(failed) - skipped
    more = f", {skipped} skipped" if skipped else ""
    text = [f"### shardproof in pytest: {passed} of {len(cases)} as expected{more}", ""] if cases else []
    if failed:
        text += ["| case | finding |", "|---|---|"]
    for case, failure in failed[:MOST_SHOWN]:
        cells = [cell.replace("\n", " ").replace("|", "\\|").replace("<", "&lt;") for cell in (case.get("name", ""), finding(failure))]
        text.append(f"| {cells[0]} | {cells[1]} |")
    if len(failed) > MOST_SHOWN:
        text.append(f"\n{len(failed) - MOST_SHOWN} more are in pytest.xml.")
    page = ""
    if (out / "results.json").exists() or (out / "journal").exists():
        status = started([*program(), "report", str(out)])
        page = str(out / "report.html") if status == 0 else ""
        text += ["", f"The page with pictures is report.html in the artifact {out.name}."] if page else []
    if text:
        say("GITHUB_STEP_SUMMARY", "\n".join(text) + "\n")
    say("GITHUB_OUTPUT", f"page={page}\n")


if __name__ == "__main__":
    sys.exit({"install": install, "run": run, "summary": summary}[sys.argv[1]]())
