#!/usr/bin/env python3
"""Drawn bad inputs through the real program: mutations of right inputs of every kind, whose outcome must be a sentence
and exit status 2, or a right verdict. Where the values that are judged differ by construction, a match is a failure.

Usage: drawn_test.py PROGRAM [--count N] [--seed S] [--kind NAME] [--stated] [--silence] [--only I] [--show]
A failure prints the change, the folder with its input, and the command that repeats it.
"""
import argparse
import collections
import concurrent.futures
import hashlib
import math
import os
import re
import resource
import select
import shlex
import shutil
import stat
import statistics
import subprocess
import sys
import tempfile
import threading
import time

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "../support"))
import loaded  # noqa: E402
from drawn_inputs import KINDS, Draw  # noqa: E402
from good_inputs import Good, environment  # noqa: E402
from stated_inputs import STATED  # noqa: E402

LONGEST_LINE = 1500
WRONG_PLURAL = re.compile(r"(?<![\w.,/:=-])1 (?:numbers|files|ranks|tensors|cases|rows|tokens|samples|steps|axes|values|"
                          r"elements|bytes|lines|hosts|errors|names|calls|weights|parameters|processes)\b")
PROGRESS = re.compile(r"^shardproof: (?:.*, \d+ s so far|\d+ s: .*)$")
SILENT_S = 12  # a command says something at least every 10 s, where it gets a core
SAMPLE_S, SPIN_S = 1, 0.02  # between two samples of Slowness, and of a core in each
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
    with open("/dev/full" if draw.stdout == "full" else "/dev/null", "wb") as sink:
        streams = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT} if draw.stdout == "pipe" else \
            {"stdout": sink, "stderr": subprocess.PIPE}
        words = [draw.good.program, *draw.words]
        call = {"args": words, "env": variables, "preexec_fn": prepare} if draw.limits or draw.stdout == "closed" else \
            loaded.call(words, variables)
        process = subprocess.Popen(**call, cwd=draw.folder, stdin=subprocess.DEVNULL, **streams)
    with process:
        said, is_ended = read_all(process.stdout or process.stderr, draw.limit_s)
        if not is_ended:
            process.kill()
    draw.status = process.returncode if is_ended else "hung"
    draw.text = b"".join(text for _, text in said).decode(errors="replace")
    times = [when for when, _ in said]
    draw.silent = max(zip(times, times[1:]), key=lambda span: span[1] - span[0])


def read_all(pipe, limit_s):
    """[(when, what came)] from now to its end, and whether it ended within the limit."""
    said = [(time.monotonic(), b"")]
    end = said[0][0] + limit_s
    while select.select([pipe], [], [], max(0, end - time.monotonic()))[0]:
        text = os.read(pipe.fileno(), 1 << 16)
        said.append((time.monotonic(), text))
        if not text:
            return said, True
    return [*said, (time.monotonic(), b"")], False


class Slowness:
    """How much longer computations take than they would on a core of their own, sampled from now on."""

    def __init__(self):
        self.samples = []  # (when, factor)
        threading.Thread(target=self.sample, daemon=True).start()

    def sample(self):
        while True:
            began, own = time.monotonic(), time.thread_time()
            while time.thread_time() < own + SPIN_S:
                pass
            self.samples.append((began, (time.monotonic() - began) / SPIN_S))
            time.sleep(SAMPLE_S)

    def within(self, first, last):
        near = [factor for when, factor in list(self.samples) if first - 3 * SAMPLE_S <= when <= last]
        return max(1, statistics.mean(near or [1]))


def problems(draw, slowness):
    """Runs the command; yields what is wrong with its outcome, with `slowness` also where it was silent for long."""
    before = listing(draw.folder, draw.may_change)
    run_it(draw)
    silent_s, factor = draw.silent[1] - draw.silent[0], slowness.within(*draw.silent) if slowness else math.inf
    if silent_s > SILENT_S * factor:
        yield f"it said nothing for {silent_s:.0f} s, while computations took {factor:.1f} x their time on a free core"
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


def outcome(good, seed, number, kind, slowness):
    folder = os.path.join(good.folder, f"{seed}-{number}")
    draw = Draw(good, folder, seed, number, kind)
    found = list(problems(draw, slowness))
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
    parser.add_argument("--silence", action="store_true", help=f"what says nothing for {SILENT_S} s is a failure")
    parser.add_argument("--only", type=int, help="this draw alone")
    parser.add_argument("--show", action="store_true", help="print what each draw said")
    options = parser.parse_args()
    good = Good(os.path.abspath(options.program), tempfile.mkdtemp(prefix="drawn-"))
    slowness = Slowness() if options.silence else None
    numbers = range(options.count) if options.only is None else [options.only]
    names = list(STATED if options.stated else KINDS)
    kinds = {i: options.kind or names[i % len(names)] for i in numbers}
    started, failed, right = time.monotonic(), 0, collections.Counter()
    table = collections.defaultdict(collections.Counter)
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        outcomes = pool.map(lambda i: outcome(good, options.seed, i, kinds[i], slowness), numbers)
        for i, (draw, found) in zip(numbers, outcomes):
            table[draw.kind][draw.status] += 1
            right[draw.kind] += not found
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
