"""Counts the cases and seconds until `fuzz` finds each of some bugs of fuzz_rows.py, and says how small `shrink` makes
the finding. The program is built once with all of them, which an environment variable switches on one by one.

  fuzz_bugs.py [--draw N --seed S | --rows fz-01,fz-02,..] [--minutes M] [--jobs J]
  fuzz_bugs.py --gate      all rows at once in the default scenarios of the emulated world, which must stay as expected
  fuzz_bugs.py --built ..  with the program of the run before"""

import argparse
import json
import os
import random
import re
import shutil
import subprocess
import sys
import time

from fuzz_rows import ROWS
from rows import Edit, Row
from scratch import PLACE, ROOT, BuildError, Scratch

PROGRAM, RUNS = PLACE / "planted" / "shardproof-bin", PLACE / "runs" / "fuzz"
VARIABLE = "SHARDPROOF_PLANTED"
DECLARED = "namespace shardproof { bool planted(int bug); }\n"
DEFINED = f"""{DECLARED}
#include <cstdlib>
#include <set>
#include <string>
namespace shardproof {{
bool planted(int bug) {{
  static const std::set<int> on = [] {{
    std::set<int> found;
    const char* text = std::getenv("{VARIABLE}");
    for (int number = 0; text != nullptr && *text != '\\0'; ++text) {{
      number = *text == ',' ? 0 : 10 * number + (*text - '0');
      if (text[1] == ',' || text[1] == '\\0') found.insert(number);
    }}
    return found;
  }}();
  return on.count(bug) != 0;
}}
}}  // namespace shardproof
"""
DEFINED_IN = "src/base/error.cpp"
SHRINK_S = 60
CASE_SIZES = {"num_hidden_layers": 2, "data_parallel_size": 1, "context_parallel_size": 1, "ulysses_size": 1,
              "tensor_parallel_size": 1}  # and their defaults


def first_include(file):
    text = (ROOT / file).read_text()
    return re.search(r"^#include .*$", text, re.MULTILINE).group(0)


def all_of_them():
    """One row with the edits of all, and with what tells them whether they are on."""
    edits = [edit for row in ROWS for edit in row.row().edits]
    for file in sorted({edit.file for edit in edits}):
        include = first_include(file)
        edits.append(Edit(file, include, f"{DECLARED}{include}", nth=1))
    include = first_include(DEFINED_IN)
    edits.append(Edit(DEFINED_IN, include, f"{DEFINED}{include}", nth=1))
    return Row(id="fuzz-rows", source="", what="All rows of fuzz_rows.py, each behind a switch.", edits=edits)


def build():
    scratch = Scratch(1)
    try:
        for line in scratch.begin():
            print(line, flush=True)
        scratch.plant(all_of_them())
        scratch.compile()
        PROGRAM.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(scratch.program, PROGRAM)
    finally:
        scratch.close()


def run(words, rows, out):
    """The exit status, the seconds and the output of the program with these rows switched on."""
    environment = dict(os.environ, **{VARIABLE: ",".join(str(row.number) for row in rows)})
    start = time.monotonic()
    done = subprocess.run([str(PROGRAM), *words], cwd=PLACE / "tree", env=environment, text=True, errors="replace",
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    out.with_suffix(".log").write_text(done.stdout)
    return done.returncode, time.monotonic() - start, done.stdout


def cleared(name):
    out = RUNS / name
    shutil.rmtree(out, ignore_errors=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    return out


def unexpected(out):
    return [case for case in json.loads((out / "results.json").read_text())["cases"] if not case["as_expected"]]


def gate(rows, jobs):
    """The rows that a default scenario catches; a case that fails with all of them is run with each alone."""
    tree = PLACE / "tree"
    folders = sorted(str(path.relative_to(tree)) for path in (tree / "scenarios").iterdir()
                     if path.is_dir() and path.name != "faults")
    out = cleared("gate")
    status, seconds, text = run(["run", *folders, "--backend", "emulated", "--jobs", jobs, "--out", str(out)], rows,
                                out)
    print(f"all rows at once, default scenarios: exit status {status} in {seconds:.0f} s: "
          f"{[line for line in text.splitlines() if line.strip()][-1]}", flush=True)
    caught = {}
    for case in unexpected(out):
        for row in rows:
            alone = cleared("gate-alone")
            run(["run", case["file"], "--only", case["name"], "--backend", "emulated", "--out", str(alone)], [row],
                alone)
            if not (alone / "results.json").is_file() or unexpected(alone):
                caught.setdefault(row.id, case["name"])
    for name, case in sorted(caught.items()):
        print(f"CAUGHT  {name} by {case}", flush=True)
    print(f"{len(rows) - len(caught)} of {len(rows)} rows are caught by no default scenario", flush=True)
    return 1 if caught else 0


def sizes_of(scenario):
    """The mesh and the layers of a shrunk scenario."""
    text = re.sub(r"^#.*$", "", scenario, flags=re.MULTILINE)
    return {name: int(found.group(1)) if (found := re.search(rf"{name}: *(\d+)", text)) else default
            for name, default in CASE_SIZES.items()}


def too_large(row, sizes, is_model):
    """What is larger than the row needs; an axis that it needs may have two ranks."""
    large = []
    for name, size in sizes.items():
        if name == "num_hidden_layers" and not is_model:
            continue
        most = 1 if name == "num_hidden_layers" else max(row.needs.get(name, 1), 2 if name in row.needs else 1)
        if size > most:
            large.append(f"{name} {size}")
    return large


def one_line(text):
    return re.sub(r"\s+", " ", text)[:90]


class Hunt:
    """One row: fuzz, the same case without the bug, and shrink."""

    def __init__(self, row, arguments):
        self.row, self.cases, self.fuzz_s, self.finding, self.problem, self.small = row, 0, 0.0, "", "", ""
        self.found = self.shrunk = False
        self.hunt(arguments)

    def hunt(self, arguments):
        out = cleared(f"{self.row.id}-{arguments.fuzz_seed}")
        words = ["fuzz", "--minutes", str(arguments.minutes), "--seed", str(arguments.fuzz_seed), "--maxfail", "1",
                 "--jobs", arguments.jobs, "--out", str(out)]
        status, self.fuzz_s, text = run(words, [self.row], out)
        if not (out / "coverage.json").is_file():
            self.problem = f"fuzz ended with {status}: {one_line(text[-90:])}"
            return
        coverage = json.loads((out / "coverage.json").read_text())
        self.cases = coverage["cases"]["run"]
        if not coverage["unexpected"]:
            return
        found = coverage["unexpected"][0]
        self.finding = one_line(found["finding"])
        file = out / "corpus" / (found["case"].split("/")[-1] + ".yaml")
        clean = cleared(f"{self.row.id}-without")
        run(["run", str(file), "--backend", "emulated", "--out", str(clean)], [], clean)
        if unexpected(clean):
            self.problem = f"{file} fails without the bug too"
            return
        self.found = True
        self.shrink(file)

    def shrink(self, file):
        small = RUNS / f"{self.row.id}.yaml"
        small.unlink(missing_ok=True)
        status, seconds, said = run(["shrink", str(file), "--deadline", str(SHRINK_S), "--out", str(small)], [self.row],
                                    RUNS / f"{self.row.id}-shrink")
        if not small.is_file():
            self.problem = f"shrink ended with {status}: {one_line(said[-90:])}"
            return
        text = small.read_text()
        sizes = sizes_of(text)
        is_model = re.search(r"^workload: *\"?(train|logprobs|policy)\"?", text, re.MULTILINE) is not None
        large = too_large(self.row, sizes, is_model)
        self.shrunk = not large
        shown = ", ".join(f"{name.split('_')[0]} {size}" for name, size in sizes.items() if size > 1)
        self.small = f"{shown or 'one rank'} in {seconds:.0f} s" + (f"; TOO LARGE: {', '.join(large)}" if large else "")

    def line(self):
        said = "ERROR" if self.problem else "found" if self.found else "MISSED"
        return (f"{said:6} {self.row.id} {self.row.area:28} {self.cases:5} cases {self.fuzz_s:4.0f} s  "
                f"{self.small or self.problem or self.row.trigger}  {self.finding}")


def chosen(arguments):
    if arguments.rows:
        return [row for row in ROWS if row.id in arguments.rows.split(",")]
    if not arguments.draw:
        return ROWS
    return sorted(random.Random(arguments.seed).sample(ROWS, arguments.draw), key=lambda row: row.number)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", default="", help="these rows")
    parser.add_argument("--draw", type=int, default=0, help="so many rows, drawn by --seed; default: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--fuzz-seed", type=int, default=1)
    parser.add_argument("--minutes", type=float, default=5)
    parser.add_argument("--jobs", default="2")
    parser.add_argument("--gate", action="store_true", help="only what the default scenarios catch")
    parser.add_argument("--built", action="store_true", help="with the program of the run before")
    arguments = parser.parse_args()
    rows = chosen(arguments)
    try:
        if not arguments.built:
            build()
    except BuildError as error:
        print(f"shardproof: {error}", file=sys.stderr)
        return 2
    RUNS.mkdir(parents=True, exist_ok=True)
    if arguments.gate:
        return gate(rows, arguments.jobs)
    hunts = []
    for row in rows:
        hunts.append(Hunt(row, arguments))
        print(hunts[-1].line(), flush=True)
    found, small = sum(hunt.found for hunt in hunts), sum(hunt.shrunk for hunt in hunts)
    print(f"{found} of {len(hunts)} found within {arguments.minutes:g} minutes each, {small} shrunk to what they need")
    return 0 if found >= len(hunts) * 11 / 12 and small == found else 1


if __name__ == "__main__":
    sys.exit(main())
