#!/usr/bin/env python3
"""What experts cost, in seconds of CPU for each step, so that other programs on the machine count little: four ranks with
ep 4 beside one rank that loops over all experts for the same tokens; and the golden's masked loop, which computes every
expert for every token, beside the golden of a dense model whose MLP is as wide as the experts that a token has together.

Usage: experts.py [PROGRAM]    default: build/release/shardproof-bin
"""
import json
import resource
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FEW, MANY, RUNS = 2, 8, 3  # steps, whose difference leaves out the start of a program; and of how many runs the best
EXPERTS, CHOSEN, WIDTH = 8, 2, 256
SIZES = {"vocab_size": 512, "hidden_size": 256, "num_hidden_layers": 2, "num_attention_heads": 8, "num_key_value_heads": 4}
MOE = {**SIZES, "family": "qwen3_moe", "head_dim": 32, "intermediate_size": WIDTH,
       "config": {"num_experts": EXPERTS, "num_experts_per_tok": CHOSEN, "moe_intermediate_size": WIDTH}}
DENSE = {**SIZES, "family": "qwen3", "head_dim": 32, "intermediate_size": CHOSEN * WIDTH}
CASES = {
    "ep4": {"model": MOE, "parallel": {"data_parallel_size": 4, "expert_parallel_size": 4}},
    "gathered": {"model": MOE, "parallel": {"data_parallel_size": 4, "expert_parallel_size": 4,
                                            "experts": {"dispatch": "all_gather"}}},
    "one": {"model": MOE}, "dense": {"model": DENSE}}


def cpu_seconds(command):
    def used():
        usage = resource.getrusage(resource.RUSAGE_CHILDREN)
        return usage.ru_utime + usage.ru_stime

    before = used()
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, cwd=ROOT)
    if done.returncode != 0:
        sys.exit(done.stdout)
    return used() - before


def of_a_step(program, name, words, folder):
    """The least difference of a long and a short run, for each step."""
    scenario = folder / f"{name}.yaml"
    case = {"name": name, "judged": words[0] == "golden", "workload": "train", "seed": 36, "record_activations": False,
            "world": {"backend": "emulated"},
            "data": {"batch_size": 4, "sequence_length": 128, "token_mask_probability": 1.0}, **CASES[name]}
    writes = ["--out", folder / "out", "--force"] if words[0] == "run" else []

    def best(steps):
        scenario.write_text(json.dumps({**case, "run": {"steps": steps}}))
        return min(cpu_seconds([program, *words, scenario, "--no-cache", *writes]) for _ in range(RUNS))

    return (best(MANY) - best(FEW)) / (MANY - FEW)


def main():
    program = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "build/release/shardproof-bin").resolve()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        one = of_a_step(program, "one", ["run"], folder)
        print(f"one rank, loop over {EXPERTS} experts     {1e3 * one:8.1f} ms of CPU a step")
        for case in ("ep4", "gathered"):
            spread = of_a_step(program, case, ["run"], folder)
            print(f"four ranks, {case:10}             {1e3 * spread:8.1f} ms, {spread / one:.2f} times (1.5)", flush=True)
        dense = of_a_step(program, "dense", ["golden"], folder)
        masked = of_a_step(program, "one", ["golden"], folder)
        print(f"golden, dense and masked loop      {1e3 * dense:8.1f} and {1e3 * masked:.1f} ms, {masked / dense:.2f} times (3)")


if __name__ == "__main__":
    main()
