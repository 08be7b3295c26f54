#!/usr/bin/env python3
"""Builds the tests under a sanitizer of gcc, runs them, and says which had findings.

  run.py asan|tsan [--build FOLDER] [--jobs N] [--no-build] [--list] [NAME ...]

A NAME is a test program (unit_comm), or a folder of scenarios that the program itself runs (scenarios/smoke);
without one all of the sanitizer's table below. One line each; exit status 1 when any had a finding, failed or
hung. A process that the program forks is watched too: each writes what it finds to a file of its own.
"""
import argparse
import os
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
LIMIT_S = 1800  # of one program: a hang, not a wall-time test
SHOWN_LINES = 60

ASAN_TESTS = """unit_base unit_mesh unit_scenario unit_tensor unit_compare unit_report unit_comm unit_collective
unit_sequence unit_launch unit_model unit_optim unit_golden unit_logprob unit_random unit_parallel unit_cp unit_ulysses
unit_fsdp unit_train unit_policy unit_rank unit_workload unit_cli multirank_worlds fuzz_corpus""".split()
ASAN_SCENARIOS = ["scenarios/smoke", "scenarios/layers", "scenarios/clock", "scenarios/faults"]
# What has threads: the emulated world (in unit_comm and multirank_worlds, and as the program runs it), the trace,
# and the launcher with its forked workers.
TSAN_TESTS = ["unit_comm", "unit_launch", "unit_rank"]
TSAN_SCENARIOS = ["scenarios/smoke", "scenarios/clock"]

TABLES = {"asan": (ASAN_TESTS, ASAN_SCENARIOS), "tsan": (TSAN_TESTS, TSAN_SCENARIOS)}


def options(preset, reports):
    """Environment: every process writes its findings to REPORTS.<pid>."""
    suppressions = os.path.join(HERE, preset + ".supp")
    if preset == "asan":
        return {"ASAN_OPTIONS": f"detect_leaks=0:detect_stack_use_after_return=1:log_path={reports}",
                "UBSAN_OPTIONS": f"halt_on_error=1:print_stacktrace=1:log_path={reports}"}
    return {"TSAN_OPTIONS": f"second_deadlock_stack=1:die_after_fork=0:history_size=4:log_path={reports}:"
                            f"suppressions={suppressions}"}


def command_of(name, build, out):
    if "/" in name:
        return [os.path.join(build, "shardproof-bin"), "run", name, "--backend", "emulated", "--out", out]
    return [os.path.join(build, name)]


def build_all(preset, build, names, jobs):
    if not os.path.exists(os.path.join(build, "build.ninja")):
        subprocess.run(["cmake", "--preset", preset, "-B", build, "-DCMAKE_UNITY_BUILD=ON"], cwd=ROOT, check=True)
    targets = sorted({"shardproof-bin" if "/" in name else name for name in names})
    subprocess.run(["ninja", "-C", build, "-j", str(jobs), *targets], check=True)


def last_lines(text, count=SHOWN_LINES):
    return "\n".join(text.splitlines()[-count:])


def run_one(preset, name, build, scratch):
    """What went wrong, as text; "" when nothing did. And the seconds."""
    folder = os.path.join(scratch, name.replace("/", "_"))
    os.makedirs(folder)
    environment = {**os.environ, **options(preset, os.path.join(folder, "found"))}
    began = time.monotonic()
    try:
        done = subprocess.run(command_of(name, build, os.path.join(folder, "run")), cwd=ROOT, env=environment,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                              timeout=LIMIT_S, check=False)
        wrong = f"exit status {done.returncode}\n{last_lines(done.stdout)}" if done.returncode != 0 else ""
    except subprocess.TimeoutExpired:
        wrong = f"did not end within {LIMIT_S} s"
    for entry in sorted(os.listdir(folder)):
        if entry.startswith("found."):
            with open(os.path.join(folder, entry), encoding="utf-8", errors="replace") as file:
                text = file.read()
            if text.strip():
                wrong += ("\n" if wrong else "") + "\n".join(text.splitlines()[:SHOWN_LINES])
    return wrong, time.monotonic() - began


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset", choices=sorted(TABLES))
    parser.add_argument("names", nargs="*")
    parser.add_argument("--build", help="folder of the build; build/PRESET")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--no-build", action="store_true")
    parser.add_argument("--list", action="store_true")
    given = parser.parse_intermixed_args()
    tests, scenarios = TABLES[given.preset]
    names = given.names or tests + scenarios
    if given.list:
        print("\n".join(names))
        return 0
    build = os.path.abspath(given.build or os.path.join(ROOT, "build", given.preset))
    if not given.no_build:
        build_all(given.preset, build, names, given.jobs)
    bad = 0
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            wrong, seconds = run_one(given.preset, name, build, scratch)
            print(f"{'FOUND' if wrong else 'clean':<6} {name:<24} {seconds:7.1f} s", flush=True)
            if wrong:
                bad += 1
                print(wrong, flush=True)
    print(f"{given.preset}: {len(names)} run, {len(names) - bad} clean, {bad} not")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
