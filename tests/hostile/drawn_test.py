#!/usr/bin/env python3
"""Drawn bad inputs through the real program: mutations of right inputs of every kind, whose outcome must be a sentence
and exit status 2, or a right verdict. Where the values that are judged differ by construction, a match is a failure.

Usage: drawn_test.py PROGRAM [--count N] [--seed S] [--kind NAME] [--only I] [--show]
A failure prints the change, the folder with its input, and the command that repeats it.
"""
import argparse
import collections
import concurrent.futures
import os
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import time

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
from drawn_inputs import KINDS, Draw  # noqa: E402
from good_inputs import LIMIT_S, Good, environment  # noqa: E402

LONGEST_LINE = 1500
FORBIDDEN = ("terminate called", "Segmentation", "nlohmann", "std::", "c10::", "a fault in shardproof itself: ",
             "Traceback (most recent", "json.exception", "YAML::", "basic_string", "vector::", "\x1b", "\x00")


def listing(folder, left_out):
    """{path: size and time} of what a command must not change."""
    found = {}
    for where, folders, names in os.walk(folder):
        if where == folder:
            folders[:] = [name for name in folders if name not in {"out", "cache", *left_out}]
        for name in names:
            status = os.stat(os.path.join(where, name), follow_symlinks=False)
            found[os.path.relpath(os.path.join(where, name), folder)] = (status.st_size, status.st_mtime_ns)
    return found


def problems(draw):
    """Runs the command; yields what is wrong with its outcome."""
    before = listing(draw.folder, draw.may_change)
    variables = dict(environment(draw.folder), XDG_CACHE_HOME=os.path.join(draw.good.folder, "cache"))
    try:
        done = subprocess.run([draw.good.program, *draw.words], cwd=draw.folder, env=variables, timeout=LIMIT_S,
                              stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
        draw.status, draw.text = done.returncode, done.stdout.decode(errors="replace")
    except subprocess.TimeoutExpired as hang:
        draw.status, draw.text = "hung", (hang.stdout or b"").decode(errors="replace")
    if draw.status not in draw.allowed:
        yield f"the exit status is {draw.status}, and {sorted(draw.allowed)} are right"
    for word in FORBIDDEN:
        if word in draw.text:
            yield f"it says {word!r}"
    lines = draw.text.splitlines()
    sentences = [line for line in lines if line.startswith("shardproof") or re.match("BAD INPUT ", line)]
    if draw.status == 2 and len(sentences) != 1:
        yield f"bad input is said in {len(sentences)} sentences"
    if any(len(line) > LONGEST_LINE for line in lines):
        yield "a line is longer than any terminal"
    if listing(draw.folder, draw.may_change) != before:
        yield "it wrote beside its output"


def outcome(good, seed, number, kind):
    folder = os.path.join(good.folder, f"{seed}-{number}")
    draw = Draw(good, folder, seed, number, kind)
    found = list(problems(draw))
    if not found:
        shutil.rmtree(folder)
    return draw, found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--count", type=int, default=24)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--only", type=int, help="this draw alone")
    parser.add_argument("--show", action="store_true", help="print what each draw said")
    options = parser.parse_args()
    good = Good(os.path.abspath(options.program), tempfile.mkdtemp(prefix="drawn-"))
    numbers = range(options.count) if options.only is None else [options.only]
    kinds = {i: options.kind or list(KINDS)[i % len(KINDS)] for i in numbers}
    started, failed, table = time.monotonic(), 0, collections.defaultdict(collections.Counter)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for i, (draw, found) in zip(numbers, pool.map(lambda i: outcome(good, options.seed, i, kinds[i]), numbers)):
            table[draw.kind][draw.status] += 1
            if options.show or options.only is not None:
                print(f"{i} {draw.kind}: {'; '.join(draw.said)} -> {draw.status}\n{shlex.join(draw.words)}\n"
                      f"{draw.text}")
            if found:
                failed += 1
                print(f"FAILED {i} ({draw.kind}): {'; '.join(found)}\n  changed  {'; '.join(draw.said)}\n"
                      f"  command  cd {draw.folder} && {options.program} {shlex.join(draw.words)}\n  repeat   "
                      f"{os.path.relpath(__file__)} {options.program} --seed {options.seed} --only {i}"
                      f"{f' --kind {shlex.quote(options.kind)}' if options.kind else ''}\n"
                      f"{draw.text[:2000]}", flush=True)
    for kind, statuses in table.items():
        print(f"{kind:14} {sum(statuses.values()):4}  " +
              ", ".join(f"{count} ended with {status}" for status, count in sorted(statuses.items(), key=str)))
    print(f"{len(numbers)} drawn inputs in {time.monotonic() - started:.0f} s, {failed} failed")
    if not failed:
        shutil.rmtree(good.folder)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
