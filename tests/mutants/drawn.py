#!/usr/bin/env python3
"""Which unit tests do scenarios make redundant? Draws one-token changes of a folder's code from a seed, and says of each
whether its unit tests and the default scenarios catch it.

  drawn.py src/parallel/tp --tests unit_parallel_tp --first tp,smoke,layers --count 40 --seed 1

The scenarios of --first run on every change. The whole gate runs after all of these, on what unit tests alone caught.
Each line is kept in build/drawn/<folder>_<seed>.jsonl; --resume goes on from there, and runs a deleted line again.
"""

import argparse
import json
import random
import re
import subprocess
import sys
import time
from typing import NamedTuple

from cpp_tokens import tokens_of
from gate import shuffled_gate, shuffled_scenarios
from marks import said_of
from scratch import ROOT, BuildError, NotCompiled, SameProgram, Scratch, compilers

PLACE = ROOT / "build" / "drawn"
LIMIT_S = 300  # of one file of unit tests
OTHER = {"+": "-", "-": "+", "*": "/", "/": "*", "%": "/", "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=",
         "!=": "==", "&&": "||", "||": "&&", "+=": "-=", "-=": "+=", "*=": "/=", "/=": "*=", "!": "",
         "true": "false", "false": "true", "min": "max", "max": "min", "break": "continue", "continue": "break",
         "kSum": "kAvg", "kAvg": "kSum", "front": "back", "back": "front"}
OF_TYPES = ("*", "<", ">", "&&")  # signs of types too, where they have no spaces around them


class Change(NamedTuple):
    file: str
    start: int
    old: str
    new: str

    def text(self, source):
        return source[:self.start] + self.new + source[self.start + len(self.old):]

    def place(self, source):
        line = source.count("\n", 0, self.start) + 1
        return f"{self.file}:{line}", source.splitlines()[line - 1].strip()


def _new_token(text, token):
    """What a token becomes; None: it is left."""
    old = token.text
    if old.isdigit():
        return str(int(old) + 1)
    if old.replace(".", "", 1).isdigit():
        return str(float(old) + 1)
    spaced = text[token.start - 1:token.start].isspace() and text[token.end:token.end + 1].isspace()
    return None if old in OF_TYPES and not spaced else OTHER.get(old)


def changes_of(file, text):
    """Every one-token change of a C++ text; preprocessor lines, comments and literals of texts are left."""
    new_tokens = ((token, _new_token(text, token)) for token in tokens_of(text))
    return [Change(file, token.start, token.text, new) for token, new in new_tokens if new is not None]


def drawn_changes(folder, seed, root=ROOT):
    """All changes of a folder's code, each once, in the order of the seed."""
    changes = [change for path in sorted((root / folder).rglob("*")) if path.suffix in (".cpp", ".h")
               and not path.name.endswith("_plugin.cpp")
               for change in changes_of(str(path.relative_to(root)), path.read_text())]
    random.Random(seed).shuffle(changes)
    return changes


def failing_files(said):
    """The files of unit tests with failed assertions; none when Catch2's compact report has no end, or ends at a signal."""
    if "fatal error condition" in said or not re.search(r"^Failed (?:both |all )?\d+ test case", said, re.MULTILINE):
        return []
    return sorted(set(re.findall(r"(\w+_test)\.cpp:\d+: failed: ", said)))


class Records:
    """One JSON line for each change; a later line of the same change takes the place of an earlier one."""

    def __init__(self, path, resume):
        self.path, self.of = path, {}
        if resume and path.is_file():
            for line in path.read_text().splitlines():
                record = json.loads(line)
                self.of[Change(*record["change"])] = record
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("")

    def add(self, change, record):
        self.of[change] = {"change": list(change), **record}
        with open(self.path, "a", encoding="utf-8") as file:
            file.write(json.dumps(self.of[change]) + "\n")

    def judged(self):
        return [record for record in self.of.values() if record["state"] == "judged"]

    def of_tests_alone(self):
        return [record for record in self.judged() if record["tests"] and not record["scenario"]]


class Draw:
    def __init__(self, arguments):
        self.arguments = arguments
        self.scratch = Scratch(0, place=PLACE, test=arguments.tests, folder=arguments.folder)
        name = f"{arguments.folder.replace('/', '_')}_{arguments.seed}.jsonl"
        self.records = Records(PLACE / name, arguments.resume)

    def run(self):
        for sentence in self.scratch.begin():
            print(sentence, flush=True)
        drawn = drawn_changes(self.arguments.folder, self.arguments.seed)
        print(f"{len(drawn)} changes of {self.arguments.folder}", flush=True)
        for change in drawn:
            if len(self.records.judged()) >= self.arguments.count:
                break
            if change not in self.records.of:
                self._take(change, self._judge)
        for change, record in list(self.records.of.items()):
            if record in self.records.of_tests_alone() and not record["whole"]:
                self._take(change, lambda record=record: self._judge_by_all(record))
        self.scratch.close()
        self._tell()

    def _take(self, change, judge):
        source, start = (self.scratch.tree / change.file).read_text(), time.monotonic()
        self.scratch.write({change.file: change.text(source)})
        try:
            record = judge()
        except SameProgram:
            record = {"state": "the same program"}
        except NotCompiled as error:
            record = {"state": f"does not compile: {error}"}
        finally:
            self.scratch.restore()
        place, line = change.place(source)
        self.records.add(change, {"place": place, "line": line, **record})
        said = (f"{'tests' if record['tests'] else '-----'} {'scenarios' if record['scenario'] else '---------'}"
                if record["state"] == "judged" else record["state"].splitlines()[0][:60])
        print(f"{len(self.records.judged()):3} {said} {time.monotonic() - start:5.0f} s  {place}: {change.old} -> "
              f"{change.new or 'nothing'}   {line[:70]}\n      {', '.join(record.get('tests', []))[:100]}   "
              f"{record.get('scenario', '')[:150]}", flush=True)

    def _judge(self):
        tests, finding, name = [], None, f"{self.arguments.folder.replace('/', '_')}-{len(self.records.of)}"
        try:
            self.scratch.compile(self.scratch.test)
            tests = self._failing_tests()
        except SameProgram:  # no unit test links the changed file
            pass
        try:
            self.scratch.compile()
            finding = shuffled_scenarios(self.scratch, name, self.arguments.first, compilers())
        except SameProgram:
            if not tests:
                raise
        return {"state": "judged", "tests": tests, "scenario": said_of(finding), "whole": False}

    def _judge_by_all(self, record):
        finding = None
        try:
            self.scratch.compile()
            finding = shuffled_gate(self.scratch, "all", compilers())
        except SameProgram:  # only tests use it
            pass
        return {"state": "judged", "tests": record["tests"], "scenario": said_of(finding), "whole": True}

    def _run_tests(self, *words):
        """None when they do not end."""
        try:
            return subprocess.run([str(self.scratch.test), *words], cwd=ROOT, stdout=subprocess.PIPE,
                                  stderr=subprocess.DEVNULL, text=True, errors="replace", timeout=LIMIT_S,
                                  pass_fds=(self.scratch.lock.fileno(),))
        except subprocess.TimeoutExpired:
            return None

    def _failing_tests(self):
        """The files of unit tests that fail, crash or do not end."""
        done = self._run_tests("-r", "compact")
        if done and done.returncode == 0:
            return []
        if done and (named := failing_files(done.stdout)):
            return named
        # A crash, or a test that does not end, hides those behind it.
        words = self._run_tests("-#", "--list-tags").stdout.split()
        files = [word[2:-1] for word in words if word.startswith("[#")]
        return [file for file in files if not (done := self._run_tests("-#", f"[#{file}]")) or done.returncode != 0]

    def _tell(self):
        judged, alone = self.records.judged(), self.records.of_tests_alone()
        caught = [record for record in judged if record["tests"]]
        print(f"\n{self.arguments.folder}: {len(judged)} drawn ({len(self.records.of) - len(judged)} more do not "
              f"compile or change no program), {len(caught)} caught by unit tests, "
              f"{sum(bool(record['scenario']) for record in judged)} by scenarios, "
              f"{len(alone)} by unit tests alone")
        for file in sorted({file for record in caught for file in record["tests"]}):
            mine = [record for record in caught if file in record["tests"]]
            only = [record["place"] for record in mine if record in alone]
            print(f"  {file:40} catches {len(mine):3}, {len(only)} of them no scenario  {' '.join(only)}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", help="whose code is changed, as in src/parallel/tp")
    parser.add_argument("--tests", required=True, help="the program of its unit tests")
    parser.add_argument("--first", default="smoke", type=lambda text: text.split(","),
                        help="folders of scenarios/ that run on every change")
    parser.add_argument("--count", type=int, default=40)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--resume", action="store_true", help="go on after a run that was stopped")
    arguments = parser.parse_args()
    if not (ROOT / arguments.folder).is_dir():
        parser.error(f"there is no folder {arguments.folder}")
    try:
        Draw(arguments).run()
    except BuildError as error:
        print(f"shardproof: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
