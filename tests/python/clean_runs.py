#!/usr/bin/env python3
"""Clean runs of small models over layouts, seeds and dtypes, each judged: a mismatch is a false alarm.

    SHARDPROOF_PROGRAM=build/release/shardproof-bin python tests/python/clean_runs.py [--count 200] [--first 1]

Prints a line for each run, what the judge says of one that does not match, and the counts. Exit status 1 if there is one.
"""

import argparse
import collections
import itertools
import re
import sys
import tempfile
from pathlib import Path

import judging
import layouts
import ranks
import torch

DTYPES = (torch.float64, torch.float32, torch.bfloat16)
UNRESOLVED = re.compile(r"(\d+) of (\d+) not judged")


def draws(first):
    """Seeds with their dtypes, in turns."""
    for seed in itertools.count(first):
        yield layouts.Draw(seed, DTYPES[seed % len(DTYPES)])


def clean_runs(count, first, scratch):
    """Yields (draw, layout, exit status, text of the judge)."""
    left = count
    for draw in draws(first):
        golden = str(Path(scratch) / f"{draw.seed}")
        layouts.golden_run(ranks.run, draw, golden)
        for number, layout in enumerate(layouts.LAYOUTS):
            if not left:
                return
            left -= 1
            out = f"{golden}-{number}"
            ranks.run(layout[1] * layout[2], layouts.train, draw, layout, out, golden)
            yield draw, layout, *judging.judge(out, golden)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--first", type=int, default=1, help="the first seed")
    parser.add_argument("--text", action="store_true", help="print what the judge says of each run")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        return counted(((draw.dtype, f"seed {draw.seed} {layout}", status, text) for draw, layout, status, text
                        in clean_runs(options.count, options.first, scratch)), options.text)


def counted(runs, says_all):
    """Prints what became of the runs (dtype, name, exit status, text of the judge), of which those with the status None are
    left out for the reason that is their text. 1 if one does not match."""
    counts, left_out, false_alarms, unresolved = (collections.Counter() for _ in range(4))
    for dtype, name, status, text in runs:
        dtype = str(dtype)[6:]
        if status is None:
            left_out[text] += 1
            continue
        counts[dtype] += 1
        false_alarms[dtype] += bool(status)
        for some, of_all in UNRESOLVED.findall(text):
            unresolved[dtype] += int(some) / int(of_all)
        print(f"{dtype} {name}: exit status {status}", *[text] * bool(status or says_all), sep="\n", flush=True)
    shares = ", ".join(f"{100 * unresolved[dtype] / number:.1f}% of the tensors in {dtype}"
                       for dtype, number in counts.items())
    print(f"{counts.total()} clean runs {dict(counts)}, {false_alarms.total()} do not match; unresolved are {shares}")
    for reason, number in left_out.items():
        print(f"{number} more are left out: {reason}")
    return 1 if false_alarms.total() else 0


if __name__ == "__main__":
    sys.exit(main())
