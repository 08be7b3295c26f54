"""Reads the results of asynchronous calls before their wait(), at one place after the other, and counts the schedules
until `run --schedules` says so: by wrong values, and as a race, which needs no golden values. The program is built once
with the change, which an environment variable switches on.

  late_waits.py [--schedules N]"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys

from rows import Edit, Row
from scratch import PLACE, Scratch

SCENARIO = "scenarios/explore/schedules.yaml"
# What is read too early: a case, and what the call's op and label hold.
PLACES = [("ring", "recv.* kv forward"), ("ring", "recv.* grad_kv backward"), ("ring_all_to_all", " kv forward"),
          ("ring_all_to_all", "grad_kv backward"), ("ulysses", "qkv . forward"), ("ulysses", "out . backward"),
          ("replicate", "all_reduce.*grad"), ("fsdp", "gather"), ("fsdp", "reduce"), ("tp_async", "q_proj backward"),
          ("sp_async", "k_proj backward"), ("sp_async_buffer", "regather")]
LATE = """
  const char* late = std::getenv("SHARDPROOF_LATE_WAIT");
  if (late != nullptr && state->work && state->finish && state->call.asynchronous &&
      std::regex_search(op_text(state->call) + " " + state->call.label, std::regex(late))) {
    const at::Tensor early = state->finish().clone();
    run_backend_call(state->call, [&] { state->work->wait(); });
    if (state->listener != nullptr) state->listener->after_call(state->call);
    return early;
  }
  if (state->work) run_backend_call(state->call, [&] { state->work->wait(); });"""
FILE = "src/comm/pending_collective.cpp"
ROW = Row(id="late-wait", source="", what="A result is read before its wait().", edits=[
    Edit(FILE, "if (state->work) run_backend_call(state->call, [&] { state->work->wait(); });", LATE, "wait"),
    Edit(FILE, '#include "comm/pending_collective.h"', '#include "comm/pending_collective.h"\n#include <ATen/ATen.h>\n'
         "#include <cstdlib>\n#include <regex>\n")])


def run(scratch, case, late, schedules):
    """The schedule of the first unexpected case of the run, that of the first race (0: none), and the race's message."""
    out = PLACE / "runs" / f"late-{case}"
    shutil.rmtree(out, ignore_errors=True)
    words = ["run", SCENARIO, "--only", f"explore/schedules[{case}]", "--schedules", str(schedules), "--jobs", "1", "-q",
             "--out", str(out)]
    environment = dict(os.environ, SHARDPROOF_LATE_WAIT=late) if late else dict(os.environ)
    done = subprocess.run([str(scratch.program), *words], cwd=scratch.tree, env=environment, text=True,
                          capture_output=True)
    if not (out / "results.json").is_file():
        raise SystemExit(f"{case}: {done.stderr or done.stdout}")
    cases = json.loads((out / "results.json").read_text())["cases"]
    wrong = [(place, each) for place, each in enumerate(cases, 1) if not each["as_expected"]]
    race = next(((place, each["message"]) for place, each in wrong if each["kind"] == "race"), (0, ""))
    return (wrong[0][0] if wrong else 0), *race


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--schedules", type=int, default=20)
    arguments = parser.parse_args()
    scratch = Scratch(1)
    missed = 0
    try:
        for line in scratch.begin():
            print(line)
        scratch.plant(ROW)
        scratch.compile()
        for case, late in PLACES:
            alarm, _, _ = run(scratch, case, "", arguments.schedules)
            wrong, race, message = run(scratch, case, late, arguments.schedules)
            missed += not race or alarm > 0
            what = re.sub(r"\s+", " ", message)[:110] or "no race"
            print(f"{'ALARM' if alarm else 'found' if race else 'MISSED':7} {case:16} {late:24} "
                  f"wrong from schedule {wrong} on, race from {race} on: {what}", flush=True)
    finally:
        scratch.close()
    print(f"{len(PLACES) - missed} of {len(PLACES)} found")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
