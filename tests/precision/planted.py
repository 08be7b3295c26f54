#!/usr/bin/env python3
"""Plants a factor 2 or a lost addend of a sum into random cases of lower precisions, and counts the detected faults.

Cases are drawn as for calibrate.py. The fault hits a drawn sum over ranks: either all its ranks count their addend
twice, which doubles the result, or one rank's addend is lost. A case counts when its fault acted on a sum of
floating-point numbers and changed a tensor of the run; other cases are drawn again.

  python3 tests/precision/planted.py --count 200
"""

import argparse
import collections
import json
import pathlib
import random
import re
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).parent))
import calibrate
import draw

BATCH = 40
SUM = re.compile(r"^(all_reduce|reduce_scatter)\((sum|avg)\) .* (float64|float32|bfloat16|float16) ")


def ranks_of(case):
    sizes = case["parallel"]
    return (sizes["data_parallel_size"] * sizes["context_parallel_size"] * sizes["ulysses_size"]
            * sizes["tensor_parallel_size"])


def planted_case(seed):
    case = draw.draw_case(seed)
    rng = random.Random(f"planted {seed}")
    ranks = ranks_of(case)
    call = {"op": rng.choice(["all_reduce", "all_reduce", "reduce_scatter"]), "at_call": rng.randrange(12),
            "step": rng.randint(1, case["run"]["steps"])}
    if rng.random() < 0.5:
        case["faults"] = [{"kind": "duplicate", "rank": rank, **call} for rank in range(ranks)]
    else:
        case["faults"] = [{"kind": "drop", "rank": rng.randrange(ranks), **call}]
    case["name"] += "_planted"
    return case


def changed(plain, planted):
    """Whether the fault changed any number of the run."""
    values = lambda case: {(t["name"], t["step"], t.get("microbatch", 0)): t["worst_error"] for t in case["tensors"]}
    return values(plain) != values(planted)


def acted_on_a_sum(case):
    faults = (case["outcome"] or {}).get("faults", [])
    return bool(faults) and all(fault["fired"] and SUM.match(fault["call"]) for fault in faults)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--first", type=int, default=100000, help="the first random case")
    arguments = parser.parse_args()
    verdicts, missed, seed = collections.Counter(), [], arguments.first
    with tempfile.TemporaryDirectory() as place:
        place = pathlib.Path(place)
        while sum(verdicts.values()) < arguments.count:
            folder = place / f"from{seed}"
            folder.mkdir()
            for drawn in range(seed, seed + BATCH):
                for case in (draw.draw_case(drawn), planted_case(drawn)):
                    (folder / (case["name"].replace("/", "_") + ".yaml")).write_text(json.dumps(case))
            cases = {case["name"]: case for case in calibrate.run([folder], folder / "run", statuses=(0, 1, 2))}  # 2: a fault that never acts
            for drawn in range(seed, seed + BATCH):
                plain, planted = cases[f"random/{drawn}"], cases[f"random/{drawn}_planted"]
                if not acted_on_a_sum(planted) or not changed(plain, planted):
                    continue
                if sum(verdicts.values()) == arguments.count:
                    break
                verdicts[planted["verdict"]] += 1
                if planted["verdict"] != "mismatch":
                    missed.append(planted)
            seed += BATCH
            print(f"{sum(verdicts.values())} cases: {dict(verdicts)}", flush=True)
    for case in missed:
        fault = case["outcome"]["faults"][0]
        print(f"  {case['verdict']} {case['name']} ({case['precision']}): step {fault['step']} {fault['call']}: "
              f"{fault['effect']}; {case['message'][:150]}")
    found = verdicts["mismatch"]
    print(f"{found} of {arguments.count} are mismatches")
    return 0 if found >= 0.95 * arguments.count else 1


if __name__ == "__main__":
    sys.exit(main())
