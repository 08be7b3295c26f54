#!/usr/bin/env python3
"""Drawn bad inputs through the real program: mutations of right inputs of every kind, whose outcome must be a sentence
and exit status 2, or a right verdict. Where the values that are judged differ by construction, a match is a failure.

Usage: drawn_test.py PROGRAM [--count N] [--seed S] [--kind NAME] [--stated] [--only I] [--show]
A failure prints the change, the folder with its input, and the command that repeats it.
"""
import argparse
import collections
import concurrent.futures
import hashlib
import os
import re
import resource
import shlex
import shutil
import stat
import subprocess
import sys
import tempfile
import time

from drawn_inputs import KINDS, Draw
from good_inputs import Good, environment
from stated_inputs import STATED

LONGEST_LINE = 1500
WRONG_PLURAL = re.compile(r"(?<![\w.,/:=-])1 (?:numbers|files|ranks|tensors|cases|rows|tokens|samples|steps|axes|values|"
                          r"elements|bytes|lines|hosts|errors|names|calls|weights|parameters|processes)\b")
PROGRESS = re.compile(r"^shardproof: waiting for .* s so far$")
SLOW_S = 10  # what takes longer is printed, for a look at whether it says something meanwhile
FORBIDDEN = ("terminate called", "Segmentation", "nlohmann", "std::", "c10::", "a fault in shardproof itself: ", "INTERNAL",
             "Traceback (most recent", "json.exception", "YAML::", "basic_string", "vector::", "frame #", "\x1b", "\x00")


def content(path):
    """What tells whether a file is as before."""
    kind = os.lstat(path)
    if stat.S_ISLNK(kind.st_mode):
        return "link", os.readlink(path)
    if not stat.S_ISREG(kind.st_mode):
        return "other", stat.S_IFMT(kind.st_mode)
    with open(path, "rb") as file:
        return "file", hashlib.sha256(file.read()).hexdigest()


def listing(folder, left_out):
    """{path: its content} of what a command must not change."""
    found = {}
    for where, folders, names in os.walk(folder):
        if where == folder:
            folders[:] = [name for name in folders if name not in {"out", "cache", *left_out}]
            names = [name for name in names if name not in {"out", "out.yaml"}]
        for name in names + [one for one in folders if os.path.islink(os.path.join(where, one))]:
            found[os.path.relpath(os.path.join(where, name), folder)] = content(os.path.join(where, name))
    return found


def run_it(draw):
    """Sets the draw's status and text."""
    def prepare():
        if draw.stdout == "closed":
            os.close(1)
        for limit, value in draw.limits:
            resource.setrlimit(limit, (value, value))

    # The cache of all draws is warm; a draw that limits files must write its own golden.
    cache = os.path.join(draw.folder if draw.limits else draw.good.folder, "cache")
    variables = {**environment(draw.folder), "XDG_CACHE_HOME": cache, **draw.variables}
    started = time.monotonic()
    with open("/dev/full" if draw.stdout == "full" else "/dev/null", "wb") as sink:
        try:
            done = subprocess.run([draw.good.program, *draw.words], cwd=draw.folder, env=variables, timeout=draw.limit_s,
                                  stdin=subprocess.DEVNULL, stdout=subprocess.PIPE if draw.stdout == "pipe" else sink,
                                  stderr=subprocess.STDOUT if draw.stdout == "pipe" else subprocess.PIPE, check=False,
                                  preexec_fn=prepare)
            draw.status, text = done.returncode, done.stdout if draw.stdout == "pipe" else done.stderr
        except subprocess.TimeoutExpired as hang:
            draw.status, text = "hung", (hang.stdout if draw.stdout == "pipe" else hang.stderr) or b""
    draw.text, draw.seconds = text.decode(errors="replace"), time.monotonic() - started


def problems(draw):
    """Runs the command; yields what is wrong with its outcome."""
    before = listing(draw.folder, draw.may_change)
    run_it(draw)
    if draw.status not in draw.allowed:
        yield f"the exit status is {draw.status}, and {sorted(draw.allowed)} are right"
    for word in (*FORBIDDEN, *draw.never):
        if word in draw.text:
            yield f"it says {word!r}"
    joined = " ".join(draw.text.split())
    for group in (*draw.says, draw.words_of_status.get(draw.status, [""])):
        if not any(" ".join(word.split()) in joined for word in group):
            yield f"it says none of {group}"
    plural = WRONG_PLURAL.search(draw.text)
    if plural:
        yield f"it says {plural.group()!r}"
    lines = draw.text.splitlines()
    sentences = [line for line in lines if line.startswith("shardproof") or re.match("BAD INPUT ", line)]
    sentences = [line for line in sentences if not PROGRESS.search(line)]
    if draw.status == 2 and len(sentences) != 1 and not draw.many:
        yield f"bad input is said in {len(sentences)} sentences"
    if any(len(line) > LONGEST_LINE for line in lines):
        yield "a line is longer than any terminal"
    after = listing(draw.folder, draw.may_change)
    for path in sorted(before):
        if before[path] != after.get(path):
            yield f"{path} is {'changed' if path in after else 'lost'}"
    if set(after) - set(before):
        yield f"it wrote beside its output: {sorted(set(after) - set(before))[:3]}"


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
    parser.add_argument("--count", type=int, default=len(KINDS))
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=KINDS)
    parser.add_argument("--stated", action="store_true", help="only those of stated_inputs.py")
    parser.add_argument("--only", type=int, help="this draw alone")
    parser.add_argument("--show", action="store_true", help="print what each draw said")
    options = parser.parse_args()
    good = Good(os.path.abspath(options.program), tempfile.mkdtemp(prefix="drawn-"))
    numbers = range(options.count) if options.only is None else [options.only]
    names = list(STATED if options.stated else KINDS)
    kinds = {i: options.kind or names[i % len(names)] for i in numbers}
    started, failed, right = time.monotonic(), 0, collections.Counter()
    table = collections.defaultdict(collections.Counter)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        for i, (draw, found) in zip(numbers, pool.map(lambda i: outcome(good, options.seed, i, kinds[i]), numbers)):
            table[draw.kind][draw.status] += 1
            right[draw.kind] += not found
            if draw.seconds > SLOW_S:
                print(f"{i} {draw.kind}: {draw.seconds:.0f} s, {shlex.join(draw.words)}")
            if options.show or options.only is not None:
                print(f"{i} {draw.kind}: {'; '.join(draw.said)} -> {draw.status}\n{shlex.join(draw.words)}\n"
                      f"{draw.text}")
            if found:
                failed += 1
                print(f"FAILED {i} ({draw.kind}): {'; '.join(found)}\n  changed  {'; '.join(draw.said)}\n"
                      f"  command  cd {draw.folder} && {options.program} {shlex.join(draw.words)}\n  repeat   "
                      f"{os.path.relpath(__file__)} {options.program} --seed {options.seed} --only {i} "
                      f"--kind {shlex.quote(draw.kind)}\n"
                      f"{draw.text[:2000]}", flush=True)
    for kind, statuses in table.items():
        print(f"{kind:20} {right[kind]:4} of {sum(statuses.values()):4} as stated: " +
              ", ".join(f"{count} ended with {status}" for status, count in sorted(statuses.items(), key=str)))
    print(f"{len(numbers)} drawn inputs in {time.monotonic() - started:.0f} s, {failed} failed")
    if not failed:
        shutil.rmtree(good.folder)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
