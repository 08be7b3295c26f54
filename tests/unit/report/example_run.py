"""A run's folder written by hand, in the schema of reports/README.md: matches, a mismatch, a dead rank,
a refusal, skips, and numbers that JSON cannot hold. `python example_run.py FOLDER` writes it."""

import json
import math
import random
import sys
from pathlib import Path

HIDDEN, FFN, VOCABULARY, LAYERS = 32, 64, 96, 2


def parameter_layouts(tp):
    cut = (lambda dim: f"S({dim})tp") if tp > 1 else (lambda dim: "")
    found = {"model.embed_tokens.weight": (cut(0), [VOCABULARY, HIDDEN])}
    for layer in range(LAYERS):
        prefix = f"model.layers.{layer}."
        for name in ("q_proj", "k_proj", "v_proj"):
            found[f"{prefix}self_attn.{name}.weight"] = (cut(0), [HIDDEN, HIDDEN])
        found[prefix + "self_attn.o_proj.weight"] = (cut(1), [HIDDEN, HIDDEN])
        found[prefix + "mlp.up_proj.weight"] = (cut(0), [FFN, HIDDEN])
        found[prefix + "mlp.up_proj.bias"] = (cut(0), [FFN])
        found[prefix + "mlp.down_proj.weight"] = (cut(1), [HIDDEN, FFN])
        found[prefix + "input_layernorm.weight"] = ("", [HIDDEN])
    found["model.norm.weight"] = ("", [HIDDEN])
    return found


def tensor(name, phase, step, order, layout, shape, ratio, wrong=()):
    worst = max(ratio, key=lambda value: math.inf if isinstance(value, str) else value or 0)
    return {"name": name, "phase": phase, "step": step, "order": order, "ok": not wrong, "dtype": "float64",
            "global_shape": shape, "layout": layout, "worst_rank": ratio.index(worst), "worst_ratio": worst,
            "worst_error": 1e-13, "allowance": 1e-12, "golden_scale": 0.3, "ratio": ratio,
            **({"wrong": list(wrong)} if wrong else {})}


def tensors(rng, world_size, tp, wrong_from=None, factor=1.0):
    small = lambda: [10 ** rng.uniform(-5, -1.2) for _ in range(world_size)]
    found, layouts = [], parameter_layouts(tp)
    activations = ["model.embed_tokens.output"]
    for layer in range(LAYERS):
        activations += [f"model.layers.{layer}.{name}.output" for name in
                        ("input_layernorm", "self_attn.q_proj", "self_attn.core", "self_attn.o_proj",
                         "mlp.up_proj", "mlp.down_proj")]
    activations += ["model.norm.output", "logprobs", "loss"]
    for name in activations:
        found.append(tensor(name, "forward", 1, len(found), "", [4, 16, HIDDEN], small()))
    for name, (layout, shape) in reversed(layouts.items()):
        ratio, wrong = small(), []
        if wrong_from and (wrong or name == wrong_from):
            ratio = [value * 10 if rank % tp else factor for rank, value in enumerate(ratio)]
            wrong = [{"rank": 0, "factor": 2.0}]
        found.append(tensor("grad." + name, "step", 1, len(found), layout, shape, ratio, wrong))
    return found


def ranks(case_id, mesh, layouts, ending=None):
    found = []
    for rank in range(math.prod(size for _, size in mesh)):
        at, rest = {}, rank
        for name, size in reversed(mesh):
            at[name], rest = rest % size, rest // size
        entry = {"rank": rank, "coordinates": at, "ending": "finished", "message": "", "last_call": "",
                 "log": f"logs/{case_id}/rank{rank}.log", "calls": 42, "findings": [], "seconds": 0.2,
                 "compare_seconds": 0.01, "peak_tensor_bytes": 1 << 20,
                 "metrics": {"loss": 4.57, "grad_norm": "inf"}}
        if rank == 0:
            entry["metrics"]["parameters"] = {
                name: {"layout": layout, "global_shape": shape} for name, (layout, shape) in layouts.items()}
        if ending:
            entry.update(ending(rank))
        found.append(entry)
    return found


def case(number, name, mesh, verdict="match", kind="", precision="float64", **more):
    sizes = dict(mesh)
    axes = [{"name": axis, "size": sizes.get(axis, 1)} for axis in ("dp", "cp", "ulysses", "tp")]
    case_id = f"{number:03}-{name.replace('/', '.')}"
    base = {"id": case_id, "name": name, "file": f"scenarios/{name}.yaml", "line": 3, "workload": "train",
            "precision": precision, "seed": 7, "steps": 1, "backend": "emulated", "device": "cpu",
            "mesh": {"axes": axes, "text": " ".join(f"{n}={s}" for n, s in mesh if s > 1) or "one rank"},
            "world_size": math.prod(size for _, size in mesh), "sequence_parallel": "sp" in name,
            "data_parallel": "replicate", "tags": ["tp"], "expected": {"verdict": "match", "kind": "", "tensor": ""},
            "verdict": verdict, "kind": kind, "as_expected": verdict == "match", "unexpected": "", "message": "",
            "text": "", "seconds": 0.21, "golden_seconds": 0.05, "compare_seconds": 0.01, "tensors_compared": 0,
            "elements_compared": 0, "worst_ratio": 0, "worst_tensor": "", "divergence": None, "replay": "",
            "replay_file": None, "files": [], "ranks": [], "tensors": []}
    base.update(more)
    return base


MISMATCH = """MISMATCH  scenarios/tp/llama_dp2_tp3_float64.yaml:11   train, step 1
  tensor    grad.model.layers.1.mlp.down_proj.weight   global [32, 64]   S(1) on tp
  worst     [3, 40]   golden 0.0127   actual 0.0254   held by ranks 1, 4 (tp 1) at local [3, 18]
  pattern   every element is 2.00 x golden on all ranks; 2 is the size of dp
  likely    this gradient was summed over dp twice"""


def example_cases():
    rng = random.Random(7)
    cases = []

    def judged(name, mesh, precision="float64", **more):
        sizes = dict(mesh)
        found = tensors(rng, math.prod(sizes.values()), sizes.get("tp", 1))
        number = len(cases)
        layouts = parameter_layouts(sizes.get("tp", 1))
        entry = case(number, name, mesh, precision=precision, tensors=found, tensors_compared=len(found),
                     worst_ratio=max(max(t["ratio"]) for t in found), worst_tensor="loss")
        entry["ranks"] = ranks(entry["id"], mesh, layouts)
        entry.update(more)
        cases.append(entry)

    for tp in (1, 2, 3, 4):
        judged(f"tp/llama_tp{tp}_float64", [("tp", tp)])
    judged("tp/llama_tp2_sp_float64", [("tp", 2)])
    judged("tp/llama_tp4_sp_bfloat16", [("tp", 4)], "bfloat16",
           unresolved=[{"tensor": "param.model.norm.weight", "phase": "step", "step": 8, "elements": 96,
                        "reason": "rounding is <0.7> of its update"}])
    mesh = [("dp", 2), ("tp", 3)]
    wrong = "model.layers.1.mlp.down_proj.weight"
    judged("tp/llama_dp2_tp3_float64", mesh, verdict="mismatch", kind="values", as_expected=False,
           text=MISMATCH, replay="./shardproof run scenarios/tp/llama_dp2_tp3_float64.yaml --seed 7 --only "
           "tp/llama_dp2_tp3_float64", replay_file="replay/006-tp.llama_dp2_tp3_float64.json",
           files=["tensors/006-tp.llama_dp2_tp3_float64.safetensors"], tensors=tensors(rng, 6, 3, wrong, 4.1e9),
           worst_ratio=4.1e9, divergence={"tensor": "grad." + wrong, "phase": "step", "step": 1})
    died = lambda rank: ({"ending": "died", "message": "ended by signal 9 (killed)",
                          "printed": "loading\nNCCL WARN <no route> & gave up",
                          "last_call": "all_reduce tp[2,3] model.layers.0.mlp.down_proj forward"} if rank == 2 else
                         {"ending": "aborted", "message": "ended because rank 2 died", "last_call": "barrier"})
    number = len(cases)
    entry = case(number, "faults/kill_rank2", [("dp", 2), ("tp", 2)], "failed", "died",
                 unexpected="expected match, got failed (died)",
                 text="FAILED  faults/kill_rank2   rank 2 died <signal 9> & took its peers with it",
                 replay="./shardproof run scenarios/faults/kill_rank2.yaml")
    entry["ranks"] = ranks(entry["id"], [("dp", 2), ("tp", 2)], {}, died)
    cases.append(entry)
    cases.append(case(number + 1, "refused/heads_tp5", [("tp", 5)], "refused", "layout", as_expected=True,
                      expected={"verdict": "refused", "kind": "", "tensor": ""},
                      message="8 heads do not divide by tp=5; choose a tp size that divides 8"))
    nan = tensors(rng, 2, 2)
    nan[3]["ratio"][1] = nan[3]["worst_ratio"] = "nan"
    nan[3]["ok"] = False
    cases.append(case(number + 2, "tp/llama_tp2_nan", [("tp", 2)], "mismatch", "values", as_expected=False,
                      text="MISMATCH  a NaN", tensors=nan, tensors_compared=len(nan), worst_ratio="nan"))
    return cases


def totals_of(cases, skipped):
    totals = {"cases": len(cases), "skipped": skipped, "unexpected": sum(not c["as_expected"] for c in cases)}
    for entry in cases:
        totals[entry["verdict"]] = totals.get(entry["verdict"], 0) + 1
    return totals


def example_results(case_count=None):
    cases = example_cases()[:case_count]
    return {"format": "shardproof-results/1",
            "run": {"command": "./shardproof run scenarios/tp --backend emulated", "version": "0.1.0",
                    "started": "2026-01-31T12:00:00Z", "seconds": 4.2, "interrupted": False,
                    "exit_status": 3 if len(cases) > 6 else 0,
                    "environment": {"host": "node7", "LibTorch": "2.11.0", "cpu": "16 cores, AVX512"}},
            "totals": totals_of(cases, 1),
            "skipped": [{"name": "tp/nccl", "file": "", "backend": "nccl", "reason": "no GPU on this machine"}],
            "cases": cases}


def example_timeline(cases, rounds=4):
    rng, events = random.Random(3), []
    for number, entry in enumerate(cases):
        events.append({"ph": "M", "name": "process_name", "pid": number, "tid": 0, "args": {"name": entry["name"]}})
        for rank in range(entry["world_size"]):
            at = 0.0
            for kind in ("all_gather", "all_reduce", "reduce_scatter", "all_reduce", "barrier") * rounds:
                at += rng.uniform(300, 1500)
                took = rng.uniform(100, 900)
                events.append({"ph": "X", "name": f"{kind} tp", "cat": kind, "ts": at, "dur": took,
                               "pid": number, "tid": rank})
                at += took
    return {"traceEvents": events}


def write(folder, case_count=None):
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    results = example_results(case_count)
    (folder / "results.json").write_text(json.dumps(results))
    (folder / "timeline.json").write_text(json.dumps(example_timeline(results["cases"])))
    return folder


if __name__ == "__main__":
    print(write(sys.argv[1]))
