#!/usr/bin/env python3
"""Steps of torch.optim.Muon, stored beside this script.

    LD_LIBRARY_PATH=$(tests/support/cuda_stand_ins.py .venv) \\
      .venv/bin/python tests/unit/optim/torch_muon/make.py            # writes steps.json anew
      .venv/bin/python tests/unit/optim/torch_muon/make.py --check    # compares with what is stored

PyTorch's own code makes the steps, in float64: its cast to bfloat16 is the only thing that is lifted. A weight of several
joined matrices is stepped as the separate weights that it joins.
"""
import json
import pathlib
import sys
from unittest import mock

import torch

HERE = pathlib.Path(__file__).resolve().parent
STEPS = 3
CASES = {
    "tall": {"rows": [7], "columns": 4},
    "wide": {"rows": [3], "columns": 8},
    "square": {"rows": [5], "columns": 5},
    "one_row": {"rows": [1], "columns": 6},
    "without_nesterov": {"rows": [6], "columns": 4, "nesterov": False},
    "other_constants": {"rows": [6], "columns": 4, "momentum": 0.5, "weight_decay": 0.3, "lr": 0.2},
    "without_momentum": {"rows": [4], "columns": 6, "momentum": 0.0},
    "tiny": {"rows": [4], "columns": 3, "size": 1e-9},
    "query_key_value": {"rows": [8, 4, 4], "columns": 6},
    "gate_up": {"rows": [5, 5], "columns": 4},
}


def made(case):
    constants = {"lr": 0.02, "weight_decay": 0.1, "momentum": 0.95, "nesterov": True}
    constants |= {key: value for key, value in case.items() if key in constants}
    torch.manual_seed(sum(case["rows"]) * 100 + case["columns"])
    draw = lambda rows: torch.randn(rows, case["columns"], dtype=torch.float64)
    weights = [torch.nn.Parameter(draw(rows)) for rows in case["rows"]]
    optimizer = torch.optim.Muon(weights, **constants)
    whole = lambda tensors: torch.cat([tensor.detach() for tensor in tensors]).tolist()
    out = {"rows": case["rows"], **constants, "weight": whole(weights), "steps": []}
    for _ in range(STEPS):
        for weight in weights:
            weight.grad = draw(weight.shape[0]) * case.get("size", 1.0)
        with mock.patch.object(torch.Tensor, "bfloat16", torch.Tensor.clone):
            optimizer.step()
        out["steps"].append({"grad": whole([weight.grad for weight in weights]), "weight": whole(weights),
                             "buffer": whole([optimizer.state[weight]["momentum_buffer"] for weight in weights])})
    return out


def main():
    stored = HERE / "steps.json"
    steps = {name: made(case) for name, case in CASES.items()}
    text = "{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(case)}" for name, case in steps.items()) + "\n}\n"
    if "--check" not in sys.argv:
        stored.write_text(text)
        return

    def near(a, b):
        if isinstance(a, dict):
            return a.keys() == b.keys() and all(near(a[key], b[key]) for key in a)
        if isinstance(a, list):
            return len(a) == len(b) and all(map(near, a, b))
        return a == b or abs(a - b) <= 1e-12 * max(1, abs(a))

    if not near(json.loads(text), json.loads(stored.read_text())):
        sys.exit("steps.json differs from what this PyTorch computes; write it anew, and say why it changed")


main()
