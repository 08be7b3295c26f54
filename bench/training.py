#!/usr/bin/env python3
"""A training step beside PyTorch's DTensor and FSDP2, both at dp 2 x tp 2 with sequence parallelism over
Gloo, float32: seconds of a step, bytes held and peak of tensor memory of a rank, and the whole judged
case from start to verdict beside the peer's spawned check: against a float32 run on one device, and
against one in float64, with float32 beside it, as ours is.

  bench/training.py [--model small|large|both] [--rounds N] [--program FILE]

Run it on an idle machine. Ours and the peer take turns, so that both meet the same machine; the fastest
of the rounds counts for each. Seconds of our step: of a run of many steps less one of few, over the
steps between them, in the slowest rank. "Held" is parameters, gradients and optimizer state; the peak
is of all tensors that a rank holds in a step, counted by the allocator's own reports on either side.
Nothing here is asserted; tests never depend on wall time.
"""

import argparse
import json
import os
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))
import run as bench

SCENARIO = "bench/training.yaml"
STEPS = {"small": (3, 23), "large": (2, 5)}
MIB = 2 ** 20


def our_case(program, model, steps, judged):
    """(seconds of the whole command, the case of results.json)."""
    name = f"bench/training[{model},steps={steps},judged={'true' if judged else 'false'}]"
    seconds, cases = bench.run_ours(program, SCENARIO, "--backend", "gloo", "--only", name)
    return seconds, cases[0]


def our_step(program, model):
    few, many = STEPS[model]
    seconds = {}
    for steps in (few, many):
        _, case = our_case(program, model, steps, False)
        seconds[steps] = max(rank["seconds"] for rank in case["ranks"])
    held = max(sum(rank["metrics"]["held_bytes"].values()) for rank in case["ranks"])
    peak = max(rank["peak_tensor_bytes"] for rank in case["ranks"])
    return {"step": (seconds[many] - seconds[few]) / (many - few), "held": held, "peak": peak}


def peer(model, *arguments):
    command, env = bench.peer_command("peer_fsdp2.py")
    seconds, status, text = bench.timed([*command, model, *map(str, arguments)], env=env)
    if status != 0:
        sys.exit(f"{text}\npeer_fsdp2.py {model}: exit status {status}")
    return seconds, json.loads(text.splitlines()[-1])["ranks"]


def peer_step(model):
    few, many = STEPS[model]
    _, ranks = peer(model, "step", many - few)
    most = lambda key: max(rank[key] for rank in ranks)
    return {"step": most("step_seconds"), "held": most("held_bytes"), "peak": most("peak_bytes")}


def least(rounds):
    return {key: min(figures[key] for figures in rounds) for key in rounds[0]}


def compare(program, model, rounds):
    ours, theirs, our_checks, peer_checks, wide_checks = [], [], [], [], []
    for _ in range(rounds):
        ours.append(our_step(program, model))
        theirs.append(peer_step(model))
        our_checks.append(our_case(program, model, 1, True)[0])
        peer_checks.append(peer(model, "check")[0])
        wide_checks.append(peer(model, "check64")[0])
    us, them = least(ours), least(theirs)
    print(f"{model:6}                        {'ours':>10} {'FSDP2':>10}  FSDP2 / ours")
    rows = [("seconds of a step", 1, "{:10.4f}"), ("MiB held by a rank", MIB, "{:10.2f}"),
            ("MiB at a rank's peak", MIB, "{:10.2f}")]
    for (title, unit, form), key in zip(rows, ("step", "held", "peak")):
        print(f"  {title:26}  {form.format(us[key] / unit)} {form.format(them[key] / unit)}"
              f"  {them[key] / us[key]:8.2f}", flush=True)
    for title, checks in (("seconds, start to verdict", peer_checks), ("  its golden float64 too", wide_checks)):
        print(f"  {title:26}  {min(our_checks):10.2f} {min(checks):10.2f}"
              f"  {min(checks) / min(our_checks):8.2f}", flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", choices=("small", "large", "both"), default="both")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--program", type=Path, default=bench.RELEASE / "shardproof-bin")
    arguments = parser.parse_args()
    print(f"load before: {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores", flush=True)
    for model in ("small", "large") if arguments.model == "both" else (arguments.model,):
        compare(arguments.program.resolve(), model, arguments.rounds)


if __name__ == "__main__":
    main()
