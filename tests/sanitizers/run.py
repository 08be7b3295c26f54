#!/usr/bin/env python3
"""Builds the tests under a sanitizer of gcc, runs them, and says which had findings.

  run.py asan|tsan|heap [--build FOLDER] [--jobs N] [--no-build] [--list] [NAME ...]

A NAME is one of
  unit_comm                      a test program
  scenarios/train:1/8@gloo       a folder of scenarios that the program itself runs: the first of eight equal
                                 shares of its cases (without ":1/8" all), over Gloo (without "@gloo" emulated)
  tests/hostile/hostile_test.py  a test that starts the program
and without one all of the sanitizer's table below. One line each:
  clean    it passed, and no process had a finding
  FOUND    a process had a finding: the report follows
  failed   no finding, but it did not pass: what it said last follows
`heap` builds nothing of its own: the programs of the dev build run with asan's allocator and its checked
functions of the C library (free, delete, memcpy, read, ..), which see less than asan, in minutes.
Exit status 1 unless all are clean. A process that the program forks is watched too: each writes what it finds to
a file of its own, which counts whatever becomes of the process.
"""
import argparse
import os
import re
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.dirname(os.path.dirname(HERE))
LIMIT_S = 1800  # of one program: a hang, not a wall-time test
SHOWN_LINES = 60
EXIT_STATUS = 99  # of a process with a finding: no status of the program's own

ASAN_TESTS = """unit_base unit_mesh unit_tensor unit_random unit_comm unit_collective unit_sequence unit_model
unit_optim unit_logprob unit_parallel_tp unit_parallel_cp unit_parallel_ulysses unit_parallel_pp
unit_parallel_data unit_parallel_hf unit_train unit_policy unit_case unit_golden unit_judge unit_world
unit_world_launch unit_proofs unit_report unit_cli fuzz_corpus multirank_worlds""".split()
# Whole where it is small; of wide sweeps a share, which a sanitizer slows down three to ten times.
ASAN_RUNS = """scenarios/smoke scenarios/smoke@gloo scenarios/layers scenarios/faults scenarios/clock
scenarios/random scenarios/policy scenarios/refused scenarios/fsdp:1/4 scenarios/train:1/4 scenarios/cp:1/8
scenarios/packing:1/8 scenarios/tp:1/8 scenarios/ulysses:1/4 scenarios/logprob:1/4 scenarios/families:1/16
scenarios/layers:1/8@gloo tests/hostile/hostile_test.py tests/cli/cli_test.py tests/cli/outputs_test.py
tests/cli/recorded_test.py tests/cli/logprobs_test.py tests/cli/compare_runs_test.py tests/cli/explore_test.py""".split()
# What has threads: the emulated world (as unit_comm and the program run it), the trace, the launcher with its
# forked workers, and goldens in float32, two of whose runs go side by side.
TSAN_TESTS = ["unit_comm", "unit_world", "unit_world_launch"]
TSAN_RUNS = ["scenarios/smoke", "scenarios/clock", "scenarios/faults", "bench/twelve.yaml"]

TABLES = {"asan": (ASAN_TESTS, ASAN_RUNS), "tsan": (TSAN_TESTS, TSAN_RUNS), "heap": (ASAN_TESTS, ASAN_RUNS)}
BUILDS = {"asan": "asan", "tsan": "tsan", "heap": "dev"}
RUN = re.compile(r"(?P<folder>[^:@]+)(:(?P<share>\d+/\d+))?(@(?P<backend>\w+))?")


def options(preset, reports):
    """Environment: every process writes its findings to REPORTS.<pid>."""
    # handle_segv: tests of ends let a rank die of a real SIGSEGV and say so.
    every = f"exitcode={EXIT_STATUS}:handle_segv=0:log_path={reports}"
    if preset == "asan":
        return {"ASAN_OPTIONS": f"detect_leaks=0:detect_stack_use_after_return=1:{every}",
                "UBSAN_OPTIONS": f"halt_on_error=1:print_stacktrace=1:{every}"}
    if preset == "heap":
        library = subprocess.run(["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True,
                                 check=True).stdout.strip()
        return {"LD_PRELOAD": library, "ASAN_OPTIONS": f"detect_leaks=0:{every}"}
    suppressions = os.path.join(HERE, preset + ".supp")
    return {"TSAN_OPTIONS": f"second_deadlock_stack=1:die_after_fork=0:report_thread_leaks=0:atexit_sleep_ms=0:"
                            f"history_size=4:{every}:suppressions={suppressions}"}


def needs_program(name):
    return "/" in name


def command_of(name, build, out):
    program = os.path.join(build, "shardproof-bin")
    if not needs_program(name):
        return [os.path.join(build, name)]
    if name.endswith(".py"):
        return [sys.executable, "-B", os.path.join(ROOT, name), program]
    parts = RUN.fullmatch(name).groupdict()
    share = ["--shard", parts["share"]] if parts["share"] else []
    return [program, "run", parts["folder"], *share, "--backend", parts["backend"] or "emulated", "--out", out]


def build_all(preset, build, names, jobs):
    if not os.path.exists(os.path.join(build, "build.ninja")):
        unity = [] if preset == "heap" else ["-DCMAKE_UNITY_BUILD=ON", "-DCMAKE_UNITY_BUILD_BATCH_SIZE=16"]
        subprocess.run(["cmake", "--preset", BUILDS[preset], "-B", build, *unity], cwd=ROOT, check=True)
    targets = sorted({"shardproof-bin" if needs_program(name) else name for name in names})
    subprocess.run(["ninja", "-C", build, "-j", str(jobs), *targets], check=True)


def last_lines(text, count=SHOWN_LINES):
    return "\n".join(text.splitlines()[-count:])


def how_much(text):
    """How many test cases or cases of scenarios that was, as the program says it."""
    for pattern in (r"in (\d+) test cases?", r"test cases: +(\d+)", r"^Ran (\d+) tests?", r"^(\d+) cases?\b"):
        found = re.search(pattern, text, re.MULTILINE)
        if found:
            return found[1] + " cases"
    return ""


def reports_in(folder):
    texts = []
    for entry in sorted(os.listdir(folder)):
        if entry.startswith("found."):
            with open(os.path.join(folder, entry), encoding="utf-8", errors="replace") as file:
                texts.append(file.read())
    return [text for text in texts if text.strip()]


def run_one(preset, name, build, scratch):
    """(clean, FOUND or failed; how much; what went wrong, as text)"""
    folder = os.path.join(scratch, re.sub(r"\W", "_", name))
    os.makedirs(folder)
    # A cache of its own: goldens are computed here, by this program.
    environment = {**os.environ, "SHARDPROOF_LOADS": "each", "XDG_CACHE_HOME": os.path.join(folder, "cache"),
                   **options(preset, os.path.join(folder, "found"))}
    try:
        done = subprocess.run(command_of(name, build, os.path.join(folder, "run")), cwd=ROOT, env=environment,
                              stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
                              timeout=LIMIT_S, check=False)
        said, status = done.stdout, done.returncode
    except subprocess.TimeoutExpired:
        said, status = f"did not end within {LIMIT_S} s", "none"
    reports = reports_in(folder)
    if reports:
        shown = ["\n".join(text.splitlines()[:SHOWN_LINES]) for text in reports]
        return "FOUND", how_much(said), "\n".join(shown)
    if status != 0:
        return "failed", how_much(said), f"exit status {status}\n{last_lines(said)}"
    return "clean", how_much(said), ""


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset", choices=sorted(TABLES))
    parser.add_argument("names", nargs="*")
    parser.add_argument("--build", help="folder of the build; build/asan, build/tsan, build/dev")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--no-build", action="store_true")
    parser.add_argument("--list", action="store_true")
    given = parser.parse_intermixed_args()
    tests, runs = TABLES[given.preset]
    names = given.names or tests + runs
    if given.list:
        print("\n".join(names))
        return 0
    build = os.path.abspath(given.build or os.path.join(ROOT, "build", BUILDS[given.preset]))
    if not given.no_build:
        build_all(given.preset, build, names, given.jobs)
    counts = {"clean": 0, "FOUND": 0, "failed": 0}
    with tempfile.TemporaryDirectory() as scratch:
        for name in names:
            began = time.monotonic()
            word, much, wrong = run_one(given.preset, name, build, scratch)
            counts[word] += 1
            print(f"{word:<6} {name:<32} {much:>12} {time.monotonic() - began:8.1f} s", flush=True)
            if wrong:
                print(wrong, flush=True)
    print(f"{given.preset}: {len(names)} run, {counts['clean']} clean, {counts['FOUND']} with findings, "
          f"{counts['failed']} failed")
    return 0 if counts["clean"] == len(names) else 1


if __name__ == "__main__":
    sys.exit(main())
