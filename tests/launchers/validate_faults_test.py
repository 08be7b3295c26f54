#!/usr/bin/env python3
"""`validate` on 8 nodes of 2 ranks that the program makes (network namespaces): each fault, on hosts and links that are
drawn, must be named in each repeat, and a clean world must have no findings.

  validate_faults_test.py PROGRAM [--repeats 10] [--clean 20] [--only NAME,NAME] [--seed 1] [--emulated]

Prints a line for each fault. The exit status is 0 if all were named, 1 if not, 77 where no namespaces can be made.
"""

import argparse
import json
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
HOSTS = 8
SUITE = """
seed: {seed}
rounds: 1
sizes: [33, 129]
dtypes: [float32, bfloat16, int32]
ops: [all_reduce, all_gather, all_to_all]
times: {{bytes: 65536, repeats: 3}}
training: {{rotations: 2}}
world: {{{nodes}hang_s: 3}}
{rest}
"""
LIMIT_S = 600  # a hang, not a wall-time test


def corrupt(draw, pattern, more=""):
    """Flips one bit in the inputs or outputs of a host."""
    side = draw.choice(["input", "output"])
    host = draw.randrange(HOSTS)
    fault = (f"{{kind: corrupt, host: {host}, pattern: {pattern}, side: {side}, first: {draw.randrange(33)}, "
             f"bit: {draw.randrange(2, 15)}{more}}}")
    return fault, "values", [host]


def of_host(draw, kind, more):
    host = draw.randrange(HOSTS)
    return f"{{kind: {kind}, host: {host}, {more}}}", host


def sector(draw):
    return corrupt(draw, "sector")


def lane(draw):
    return corrupt(draw, "lane", ", stride: 32")


def every_nth(draw):
    return corrupt(draw, "lane", f", stride: {draw.randrange(3, 17)}")


def intermittent(draw):
    return corrupt(draw, "sector", ", probability: 0.1")


def link(draw):
    a, b = sorted(draw.sample(range(HOSTS), 2))
    return f"{{kind: corrupt, link: [{a}, {b}], pattern: element, bit: {draw.randrange(2, 15)}}}", "values", [a, b]


def slow_host(draw):
    fault, host = of_host(draw, "slow", "seconds: 0.1, stage: times")
    return fault, "slow", [host]


def slow_link(draw):
    a, b = sorted(draw.sample(range(HOSTS), 2))
    return f"{{kind: slow, link: [{a}, {b}], seconds: 0.1, stage: times}}", "slow", [a, b]


def lagging_link(draw):
    fault, host = of_host(draw, "lag", "seconds: 0.25, at_call: 0, stage: times")
    return fault, "slow", [host]


def cut(draw):
    fault, host = of_host(draw, "cut", f"stage: groups, at_call: {draw.randrange(1, 40)}")
    return fault, "hung", [host]


def killed(draw):
    stage = draw.choice(["environment", "groups", "pairs", "times", "training"])
    fault, host = of_host(draw, "kill", f"stage: {stage}, at_call: {draw.randrange(1, 5)}")
    return fault, "died", [host]


def hung(draw):
    stage = draw.choice(["groups", "pairs", "times", "training"])
    fault, host = of_host(draw, "hang", f"stage: {stage}, at_call: {draw.randrange(1, 5)}")
    return fault, "hung", [host]


def clock(draw):
    fault, host = of_host(draw, "clock", f"seconds: {draw.choice([-1, 1]) * draw.randrange(5, 50)}")
    return fault, "clock", [host]


FAULTS = [sector, lane, every_nth, intermittent, link, slow_host, slow_link, lagging_link, cut, killed, hung, clock]
LOUD = {sector, lane, every_nth, intermittent, link}  # change values


class Runs:
    def __init__(self, options):
        self.options = options
        self.folder = tempfile.TemporaryDirectory()

    def run(self, seed, fault=""):
        """(exit status, findings, seconds, text)"""
        rest = f"faults: [{fault}]" if fault else ""
        nodes = f"nodes: {HOSTS}, " if not self.options.emulated else ""
        if self.options.emulated:
            rest += "\nhosts: {ranks_per_host: 2}"
        suite, out = Path(self.folder.name) / "suite.yaml", Path(tempfile.mkdtemp(dir=self.folder.name))
        suite.write_text(SUITE.format(seed=seed, nodes=nodes, rest=rest))
        words = ["--backend", "emulated"] if self.options.emulated else []
        begun = time.monotonic()
        done = subprocess.run([self.options.program, "validate", suite, "--ranks", str(2 * HOSTS), "--slow", "100",
                               "--out", out, *words], cwd=ROOT, text=True, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, timeout=LIMIT_S)
        found = json.loads((out / "validation.json").read_text()) if (out / "validation.json").exists() else {}
        return done.returncode, found, time.monotonic() - begun, done.stdout


def problem_of(status, found, kind, hosts):
    """Why this is not the fault that was planted; "" if it is. Every finding must name it, and nothing beside it."""
    names = [f"host{host}" for host in hosts]
    if status != {"values": 1}.get(kind, 3):
        return f"exit status {status}"
    findings = found["findings"]
    if not any(one["kind"] == kind and one["hosts"] == names for one in findings):
        return "not named"
    beside = [one for one in findings if one["hosts"] != names]
    if beside:
        return f"also {beside[0]['hosts']} ({beside[0]['stage']}: {beside[0]['message'][:200]})"
    if len(hosts) == 2 and any(one["link"] != " - ".join(names) for one in findings):
        return "not as a link"
    if kind in ("died", "hung"):
        stages = {one["stage"]: one for one in found["stages"]}
        if len(stages) != 5 or any(one["checks"] == 0 for name, one in stages.items() if name != "environment"):
            return "a stage has no results"
        if not any(one["without"] == names for one in stages.values()):
            return "no stage went on without it"
    return ""


def many(runs, name, draw_fault, repeats, seed):
    good, longest, problems = 0, 0, []
    for repeat in range(repeats):
        draw = random.Random(f"{name} {seed} {repeat}")
        fault, kind, hosts = draw_fault(draw)
        status, found, seconds, text = runs.run(draw.randrange(1000), fault)
        problem = problem_of(status, found, kind, hosts) if found else text[-500:]
        longest = max(longest, seconds)
        good += not problem
        if problem:
            problems.append(f"  {fault}: {problem}")
    print(f"{name}: {good} of {repeats} named, at most {longest:.1f} s", *problems, sep="\n", flush=True)
    return good == repeats


def clean(runs, repeats):
    good, longest, problems = 0, 0, []
    for repeat in range(repeats):
        status, found, seconds, text = runs.run(repeat)
        longest = max(longest, seconds)
        good += status == 0
        if status != 0:
            problems.append(text[-1500:])
    print(f"clean: {good} of {repeats} without findings, at most {longest:.1f} s", *problems, sep="\n", flush=True)
    return good == repeats


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program", type=Path)
    parser.add_argument("--repeats", type=int, default=10)
    parser.add_argument("--clean", type=int, default=20)
    parser.add_argument("--only", default="")
    parser.add_argument("--seed", default="1")
    parser.add_argument("--emulated", action="store_true", help="without namespaces; cuts and processes are left out")
    options = parser.parse_args()
    options.program = options.program.resolve()
    if not options.emulated and subprocess.run(["unshare", "--net", "true"], stderr=subprocess.PIPE).returncode != 0:
        print("skipped: no right to make network namespaces here")
        return 77
    chosen = [one for one in FAULTS if not options.only or one.__name__ in options.only.split(",")]
    if options.emulated:
        chosen = [one for one in chosen if one in LOUD]
    runs, right = Runs(options), True
    for one in chosen:
        right &= many(runs, one.__name__, one, options.repeats, options.seed)
    if options.clean:
        right &= clean(runs, options.clean)
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
