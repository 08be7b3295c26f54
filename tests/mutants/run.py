#!/usr/bin/env python3
"""Plants known bugs, one at a time, and runs the gate on each: ./shardproof mutants (README.md here)."""

import argparse
import json
import random
import shutil
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from threading import Lock, Semaphore

from changed import NoCommit, changed_rows, default_base
from gate import run_gate
from marks import Marks, marks_of, said_of
from plant import CannotPlant, Sources, plant
from rows import BadRow, Row, read_rows
from scratch import PLACE, ROOT, BuildError, Scratch, compilers, digest_of
from syntax import NoBuild, compile_all


class Outcome:
    def __init__(self, row):
        self.row, self.problem, self.finding, self.marks = row, "", None, Marks(caught=False)
        self.build_s = self.gate_s = 0.0
        self.digest = ""  # of the program that was built from the row's tree
        self.ended = False

    def failed(self):
        """Whether the command must not end well because of this row."""
        return self.verdict() in ("ERROR", "ALARM", "MISSED")

    def verdict(self):
        if self.problem:
            return "ERROR"
        if self.row.control:
            return "ALARM" if self.marks.caught else "silent"
        return "caught" if self.marks.caught else "survives" if self.row.survives else "MISSED"

    def line(self):
        cells = [f"{self.verdict():9}"]
        for name in ("tensor", "ranks", "pattern"):
            right = getattr(self.marks, name)
            show = self.marks.caught and not self.row.control
            cells.append(f"{name if right else '-' * len(name):8}" if show else " " * 8)
        said = self.problem or said_of(self.finding) or self.row.survives
        return f"{' '.join(cells)} {self.build_s + self.gate_s:6.1f} s  {self.row.id:30} {said[:150]}"


def selected(rows, arguments):
    texts = [text for text in arguments.filter.lower().split(",") if text] or [""]
    chosen = [row for row in rows if any(text in f"{row.id} {row.source}".lower() for text in texts)]
    if arguments.sample and arguments.sample < len(chosen):
        chosen = random.Random(arguments.seed).sample(chosen, arguments.sample)
    # Controls last: they take the whole gate, and a stopped run has then seen most rows.
    return sorted(chosen, key=lambda row: (row.control, row.id))


class Run:
    """Builds one row after another in the scratch tree; gates run beside on copies of the program."""

    def __init__(self, jobs, rows):
        self.scratch, self.outcomes = Scratch(rows), []
        self.gates = ThreadPoolExecutor(jobs)
        self.places = Semaphore(jobs + 1)  # programs that wait for a gate
        self.saying = Lock()

    def prepare(self, rows):
        start = time.monotonic()
        for sentence in self.scratch.begin():
            print(sentence, flush=True)
        for scenario in sorted({row.scenario for row in rows if row.relations}):  # no other test runs all of it
            right = Row(id="no bug", source="", what="", edits=[], scenario=scenario, relations=True)
            if finding := run_gate(self.scratch.program, right, self.scratch):
                raise BuildError(f"the relations of {scenario} do not hold in the right code: {said_of(finding)}")
        print(f"the tree without bugs is built ({time.monotonic() - start:.0f} s)", flush=True)

    def plant(self, row):
        outcome = Outcome(row)
        self.outcomes.append(outcome)
        self.places.acquire()
        start = time.monotonic()
        try:
            for sentence in self.scratch.plant(row):
                print(f"{row.id}: {sentence}", flush=True)
            outcome.digest = self.scratch.compile()
            program = PLACE / "programs" / row.id / "shardproof-bin"
            program.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(self.scratch.program, program)
        except CannotPlant as error:
            outcome.problem = str(error)
        except BuildError as error:
            outcome.problem = f"does not compile: {error}"
        finally:
            self.scratch.restore()
        outcome.build_s = time.monotonic() - start
        if outcome.problem:
            self.places.release()
            self.say(outcome)
            return None
        return self.gates.submit(self.judge, outcome, program)

    def plant_controls(self, rows):
        """All in one program: where nothing is reported of all, nothing is of each. Else one after the other."""
        if len(rows) > 1 and self.are_silent(rows):
            self.outcomes += [Outcome(row) for row in rows]
            return
        for row in rows:
            self.plant(row)

    def are_silent(self, rows):
        together = Row(id=f"{len(rows)} controls at once", source="", what="", control=True,
                       edits=[edit for row in rows for edit in row.edits],
                       backend="gloo" if any(row.backend == "gloo" for row in rows) else "emulated")
        if gate := self.plant(together):
            gate.result()
        return self.outcomes.pop().verdict() == "silent"

    def judge(self, outcome, program):
        start = time.monotonic()
        try:
            if digest_of(program) != outcome.digest:
                raise BuildError("the program is not the one that was built from the row's tree")
            outcome.finding = run_gate(program, outcome.row, self.scratch)
            outcome.marks = marks_of(outcome.row, outcome.finding)
            is_broken = (outcome.finding or {}).get("verdict") in ("broken", "endless")
            if is_broken and not outcome.marks.pattern:  # unless the row expects it, it says nothing of the bug
                outcome.marks = Marks(caught=False)
                raise BuildError(outcome.finding["message"])
            shutil.rmtree(program.parent)
        except Exception as error:  # of this row alone: it is said, and the others go on
            outcome.problem = f"the gate: {error!r}"
        outcome.gate_s = time.monotonic() - start
        self.say(outcome)
        self.places.release()

    def say(self, outcome):
        """One line, and the results so far, so that a run that is stopped leaves them."""
        with self.saying:
            outcome.ended = True
            print(outcome.line(), flush=True)
            write_results([one for one in self.outcomes if one.ended])

    def close(self):
        self.gates.shutdown()
        self.scratch.close()


def totals(outcomes, seconds):
    bugs = [outcome for outcome in outcomes if not outcome.row.control]
    controls = [outcome for outcome in outcomes if outcome.row.control]

    def share(name):
        count = sum(getattr(outcome.marks, name) for outcome in bugs)
        return f"{count} of {len(bugs)}" + (f" ({100 * count / len(bugs):.0f}%)" if bugs else "")

    both = sum(outcome.marks.tensor and outcome.marks.ranks for outcome in bugs)
    for outcome in bugs:
        if not outcome.marks.caught and not outcome.problem:
            yield f"not caught: {outcome.row.id}: {outcome.row.survives or outcome.row.what}"
    yield f"bugs caught       {share('caught')}"
    yield f"right tensor      {share('tensor')}; with the right ranks {both}"
    yield f"right explanation {share('pattern')}"
    quiet = sum(not outcome.marks.caught and not outcome.problem for outcome in controls)
    yield f"controls silent   {quiet} of {len(controls)}"
    yield f"errors of rows    {sum(bool(outcome.problem) for outcome in outcomes)}"
    yield f"{len(outcomes)} rows in {seconds / 60:.1f} min"


def write_results(outcomes):
    rows = [{"id": o.row.id, "control": o.row.control, "verdict": o.verdict(), "problem": o.problem,
             "marks": vars(o.marks), "said": said_of(o.finding), "build_s": round(o.build_s, 2),
             "gate_s": round(o.gate_s, 2)} for o in sorted(outcomes, key=lambda o: o.row.id)]
    (PLACE / "results.json").write_text(json.dumps(rows, indent=1) + "\n")


def check(rows):
    """Plants every row in memory."""
    sources, failed = Sources.below(ROOT), 0
    for row in rows:
        try:
            said = plant(sources, row)[1]
        except CannotPlant as error:
            said, failed = [str(error)], failed + 1
        for sentence in said:
            print(f"{row.id}: {sentence}")
    print(f"{len(rows)} rows, {failed} that cannot be planted")
    return 1 if failed or not rows else 0


def since(rows, base):
    """The rows of functions that differ from those of the commit `base`, '' for a fitting one."""
    base = base or default_base(ROOT)
    chosen = changed_rows(rows, ROOT, base)
    print(f"{len(chosen)} of {len(rows)} rows are in functions that differ from {base}")
    return chosen


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--filter", default="", help="only rows whose id or source holds this text, or one of A,B,C")
    parser.add_argument("--jobs", type=int, default=1, help="gates at the same time")
    parser.add_argument("--sample", type=int, default=0, help="only so many rows, drawn by --seed")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--check", action="store_true", help="only whether they can be planted; builds nothing")
    parser.add_argument("--compile", action="store_true",
                        help="only whether the changed files compile; makes nothing, 20 minutes of one core for all")
    parser.add_argument("--changed", nargs="?", const="", metavar="BASE",
                        help="only rows whose function differs from that of a commit (default: where the branch "
                             "left origin/main, else HEAD~1)")
    arguments = parser.parse_args()
    try:
        rows = read_rows()
        if arguments.changed is not None:
            rows = since(rows, arguments.changed)
            if not rows:
                return 0
        rows = selected(rows, arguments)
        if arguments.check:
            return check(rows)
        if not rows:
            print("no row was selected")
            return 2
        if arguments.compile:
            failed = compile_all(rows, Sources.below(ROOT), ROOT, ROOT / "build" / "release", int(compilers()))
            return 1 if failed else 0
        start = time.monotonic()
        run = Run(max(1, arguments.jobs), len(rows))
        run.prepare(rows)
    except (BadRow, BuildError, CannotPlant, NoBuild, NoCommit) as error:
        print(f"shardproof: {error}", file=sys.stderr)
        return 2
    try:
        for row in rows:
            if not row.control:
                run.plant(row)
        run.plant_controls([row for row in rows if row.control])
    finally:
        run.close()
    write_results(run.outcomes)
    print("\n".join(["", *totals(run.outcomes, time.monotonic() - start)]))
    return 1 if any(outcome.failed() for outcome in run.outcomes) else 0


if __name__ == "__main__":
    sys.exit(main())
