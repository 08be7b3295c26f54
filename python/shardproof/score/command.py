"""The command: a clean run, then one run for each fault, and the table of what was noticed."""

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path

from .. import arguments as values
from .faults import KINDS, Fault, places, planned
from .planting import FOLDER, TESTS

PACKAGES = Path(__file__).resolve().parents[2]
SITE = Path(__file__).resolve().parent / "site"
WHOLE = "the command"  # stands for the tests of a command that is not pytest
LEAST_SECONDS, TIMES = 20.0, 4.0
DESCRIPTION = """\
Runs COMMAND once as it is, then once for each fault that is planted in its collectives and weights, and says which
tests notice. COMMAND is pytest, or any command that ends with a status other than 0 when it finds an error."""


def parse(arguments):
    parser = argparse.ArgumentParser("shardproof score", description=DESCRIPTION, epilog=f"Kinds: {', '.join(KINDS)}.",
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kinds", type=kinds_of, default=KINDS, help="the kinds of faults, separated by commas; all")
    parser.add_argument("--max", type=values.at_least_1, metavar="N", help="at most N faults, spread over all that fit")
    parser.add_argument("--timeout", type=values.seconds, metavar="SECONDS",
                        help=f"how long a run may take; {TIMES:g} times the clean run and {LEAST_SECONDS:g} s")
    parser.add_argument("--json", type=Path, metavar="FILE", help="writes the result as JSON, too")
    parser.add_argument("--fail-under", type=values.percent, metavar="PERCENT",
                        help="ends with status 1 if fewer are noticed")
    parser.add_argument("--list", action="store_true", help="only the clean run, and the faults that fit")
    parser.add_argument("command", nargs="+", metavar="COMMAND", help="after --, such as: -- pytest tests")
    if "--" in arguments:  # what follows is the command's own
        cut = arguments.index("--")
        options = parser.parse_args([*arguments[:cut], "--", arguments[cut + 1]] if arguments[cut + 1:] else arguments)
        options.command = arguments[cut + 1:]
        return options
    return parser.parse_args(arguments)


def kinds_of(text: str) -> list[str]:
    kinds = text.split(",")
    for kind in kinds:
        if kind not in KINDS:
            raise argparse.ArgumentTypeError(f"{kind!r} is not a kind; choose one of {', '.join(KINDS)}")
    return kinds


@dataclass
class Run:
    """How one run of the command ended."""

    seconds: float = 0.0
    status: int | None = None                    # None: it was ended at the time limit
    outcomes: dict = field(default_factory=dict)  # of each test that began
    acted: bool = False

    def failed(self) -> list[str]:
        return [test for test, outcome in self.outcomes.items() if outcome == "failed"]

    def unfinished(self) -> list[str]:
        return [test for test, outcome in self.outcomes.items() if outcome == "started"]


def run(command, folder: Path, environment: dict, timeout: float | None) -> Run:
    folder.mkdir()
    paths = [str(SITE), str(PACKAGES), os.environ.get("PYTHONPATH", "")]
    options = f"{os.environ.get('PYTEST_ADDOPTS', '')} -p shardproof.score.results".strip()
    found = dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, paths)), PYTEST_ADDOPTS=options,
                 SHARDPROOF_CHECKS="0", SHARDPROOF_CHECKER="extension", **{FOLDER: str(folder)}, **environment)
    start = time.monotonic()
    with open(folder / "output", "wb") as output:
        process = subprocess.Popen(command, env=found, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                   start_new_session=True)
        try:
            status = process.wait(timeout)
        except subprocess.TimeoutExpired:
            status = None
        finally:
            end_all(process)
    return Run(time.monotonic() - start, status, outcomes_in(folder), any(
        path.stat().st_size for path in folder.glob("*/rank*.faults")))


def end_all(process) -> None:
    """Ends the processes that the command has left, such as ranks that wait for others."""
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    process.wait()


def outcomes_in(folder: Path) -> dict[str, str]:
    """{test: outcome}; of tests that several processes ran, the worst."""
    worst = ("skipped", "passed", "started", "failed")
    found: dict[str, str] = {}
    for path in sorted(folder.glob("*.results")):
        own: dict[str, str] = {}
        for line in map(json.loads, path.read_text().splitlines()):
            if own.get(line["test"]) != "failed":
                own[line["test"]] = line["outcome"]
        for test, outcome in own.items():
            if test not in found or worst.index(outcome) > worst.index(found[test]):
                found[test] = outcome
    return found


@dataclass
class Finding:
    """What became of one fault."""

    fault: Fault
    run: Run

    @property
    def counts(self) -> bool:
        """A fault that never acted says nothing of the tests."""
        return self.run.acted

    @property
    def ended_before(self) -> bool:
        """Whether the run failed or was ended, and not by its fault."""
        return not self.counts and bool(self.noticed_by())

    def noticed_by(self) -> list[str]:
        """The tests that failed or were cut short; the command where it has no tests, or where a signal or the time limit
        ended it, or pytest itself failed. The status 1 of tests that all passed, as a threshold of coverage makes it, says
        nothing of the fault."""
        status = self.run.status
        by = self.run.failed() + (self.run.unfinished() if status != 0 else [])
        ended = status is None or status < 0 or status > 1
        return by or ([WHOLE] if ended or status != 0 and not self.run.outcomes else [])

    def text(self) -> str:
        names = [test.rsplit("::", 1)[-1] for test in self.noticed_by()]
        text = (names or ["NONE"])[0] + (f" and {len(names) - 1} more" if len(names) > 1 else "")
        if self.ended_before:
            return f"- ({'ended' if self.run.status is None else f'{text} failed'} before the fault acted)"
        if not self.counts:
            return "- (changed nothing)"
        return text + (" (time limit)" if self.run.status is None else "")


def main(arguments) -> int:
    options = parse(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))  # ends the run that is under way, too
    with tempfile.TemporaryDirectory(prefix="shardproof-score-") as folder:
        return score(options, Path(folder))


def score(options, folder: Path) -> int:
    if problem := values.why_not_written(options.json):
        return refuse(problem)
    if problem := why_no_faults():
        return refuse(f"{problem}; without it no fault can be planted")
    try:
        clean = run(options.command, folder / "clean", {}, None)
    except OSError as error:
        return refuse(f"{options.command[0]} cannot be started: {error.strerror}")
    if clean.status != 0:
        sys.stderr.write((folder / "clean" / "output").read_text(errors="replace")[-4000:])
        return refuse(f"the command ends with status {clean.status} without a fault; make it pass first")
    everything = planned(folder / "clean", KINDS)
    faults = [fault for fault in everything if fault.kind in options.kinds]
    calls = places(folder / "clean")
    tests = [test for test, outcome in clean.outcomes.items() if outcome == "passed"] or [WHOLE]
    print(f"clean run: {counted(len(tests), 'test')} in {clean.seconds:.1f} s, {counted(len(calls), 'place')} with "
          f"collective calls, {counted(len(faults), 'fault')} fit", flush=True)
    if everything and not faults:
        return refuse(f"no fault of --kinds {','.join(options.kinds)} fits, and {len(everything)} of others; choose "
                      f"among {', '.join(kind for kind in KINDS if kind in {fault.kind for fault in everything})}")
    if not faults:
        return refuse("no group of Gloo with two or more ranks calls what a fault fits, and no model computes in one; "
                      "score tests that run on several ranks over Gloo")
    if options.max is not None and len(faults) > options.max:
        faults = [faults[i * len(faults) // options.max] for i in range(options.max)]
    if options.list:
        for fault in faults:
            print(f"  {fault}: {fault.place}")
        return 0
    timeout = options.timeout or TIMES * clean.seconds + LEAST_SECONDS
    findings = []
    for number, fault in enumerate(faults, 1):
        findings.append(Finding(fault, run(options.command, folder / str(number),
                                           environment_of(fault, folder / f"{number}.tests"), timeout)))
        print(f"{number} of {len(faults)}: {fault}: {fault.place}: {findings[-1].text()}", file=sys.stderr, flush=True)
    print(table(findings))
    if options.json:
        options.json.write_text(json.dumps(as_json(options.command, clean, findings), indent=1) + "\n")
    if not any(one.counts for one in findings):
        return refuse("no fault acted, so that nothing is said of the tests; run more faults, or give a longer --timeout "
                      f"than {timeout:g} s if runs were ended, or make tests pass that fail without a fault")
    return 1 if options.fail_under is not None and percent(findings) < options.fail_under else 0


def why_no_faults() -> str:
    """Why the backend's extension, which plants the faults, cannot be built; empty if it is there."""
    with contextlib.suppress(ImportError):  # torch may be in the Python of the command alone
        from .. import backend
        try:
            backend.extension()
        except backend.build.NoCompiler as error:
            return str(error)
    return ""


def environment_of(fault: Fault, path: Path) -> dict[str, str]:
    """Plants the fault, and leaves out the tests that do not come to its place."""
    found = fault.environment()
    if fault.place.tests:
        path.write_text(json.dumps(sorted(fault.place.tests)))
        found[TESTS] = str(path)
    return found


def refuse(reason: str) -> int:
    print(f"shardproof score: {reason}", file=sys.stderr)
    return 2


def counted(number: int, what: str) -> str:
    return f"{number} {what}{'' if number == 1 else 's'}"


def percent(findings: list[Finding]) -> float:
    counting = [finding for finding in findings if finding.counts]
    return 100.0 * sum(bool(finding.noticed_by()) for finding in counting) / len(counting) if counting else 0.0


def table(findings: list[Finding]) -> str:
    rows = [("fault", "where", "noticed by")]
    rows += [(str(one.fault), str(one.fault.place), one.text()) for one in findings]
    widths = [max(len(row[column]) for row in rows) for column in range(2)]
    lines = [f"{row[0]:<{widths[0]}}  {row[1]:<{widths[1]}}  {row[2]}" for row in rows]
    counting = [finding for finding in findings if finding.counts]
    missed = sum(not finding.noticed_by() for finding in counting)
    timed_out = sum(finding.run.status is None for finding in counting)
    were = "was" if len(counting) == 1 else "were"
    text = (f"{len(counting) - missed} of {counted(len(counting), 'fault')} {were} noticed ({percent(findings):.0f} %), "
            f"{timed_out} of them by the time limit; {missed} by no test")
    ended = sum(one.ended_before for one in findings)
    for number, what in ((len(findings) - len(counting) - ended, "changed nothing"),
                         (ended, "ended before the fault acted")):
        if number:
            text += f"; {number} {what} and {'does' if number == 1 else 'do'} not count"
    return "\n".join([*lines, text])


def as_json(command, clean: Run, findings: list[Finding]) -> dict:
    counting = [finding for finding in findings if finding.counts]
    return {"command": command, "seconds": round(clean.seconds, 1),
            "tests": [test for test, outcome in clean.outcomes.items() if outcome == "passed"],
            "faults": [{"kind": one.fault.kind, "rank": one.fault.rank, "where": str(one.fault.place),
                        "planted": one.fault.environment(), "changed_something": one.counts, "ended_before": one.ended_before,
                        "noticed": one.counts and bool(one.noticed_by()),
                        "by": one.noticed_by() if one.counts else [], "time_limit": one.run.status is None,
                        "status": one.run.status, "seconds": round(one.run.seconds, 1)} for one in findings],
            "counted": len(counting), "noticed": sum(bool(one.noticed_by()) for one in counting),
            "percent": round(percent(findings), 1)}
