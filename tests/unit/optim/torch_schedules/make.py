#!/usr/bin/env python3
"""Learning rates of torch.optim.lr_scheduler, stored beside this script.

    LD_LIBRARY_PATH=$(tests/support/cuda_stand_ins.py .venv) \
      .venv/bin/python tests/unit/optim/torch_schedules/make.py            # writes rates.json anew
      .venv/bin/python tests/unit/optim/torch_schedules/make.py --check    # compares with what is stored

Each case is built as a policy's configuration says it: one scheduler, or several with milestones. The
rate of every step is written as a hexadecimal float, so that the test compares bits.
"""
import json
import pathlib
import sys
import warnings

import torch
from torch.optim import lr_scheduler

HERE = pathlib.Path(__file__).resolve().parent
STEPS = 30


def stage(name, **kwargs):
    return {"name": name, "kwargs": kwargs}


CASES = {
    "none": [],
    "constant": [stage("ConstantLR", factor=0.3, total_iters=4)],
    "constant_defaults": [stage("ConstantLR")],
    "linear": [stage("LinearLR", start_factor=0.1, end_factor=0.7, total_iters=7)],
    "linear_down": [stage("LinearLR", start_factor=1.0, end_factor=0.25, total_iters=11)],
    "linear_to_zero": [stage("LinearLR", start_factor=0.9, end_factor=0.0, total_iters=6)],
    "linear_defaults": [stage("LinearLR")],
    "cosine": [stage("CosineAnnealingLR", T_max=9, eta_min=1e-5)],
    "cosine_of_one": [stage("CosineAnnealingLR", T_max=1)],
    "cosine_twice_down": [stage("CosineAnnealingLR", T_max=5, eta_min=2e-4)],
    "lambda": [stage("LambdaLR", lr_lambda=[1.0, 0.5, 0.7, 0.1])],
    "warmup_then_constant": [stage("LinearLR", start_factor=0.1, end_factor=1.0, total_iters=5),
                             stage("ConstantLR", factor=1.0, total_iters=100000),
                             {"milestones": [5]}],
    "warmup_then_cosine": [stage("LinearLR", start_factor=0.05, total_iters=6),
                           stage("CosineAnnealingLR", T_max=12, eta_min=1e-6),
                           {"milestones": [6]}],
    "three": [stage("ConstantLR", factor=0.5, total_iters=3),
              stage("LinearLR", start_factor=0.2, end_factor=0.8, total_iters=4),
              stage("CosineAnnealingLR", T_max=7),
              {"milestones": [4, 10]}],
    "at_once": [stage("LinearLR", start_factor=0.5, total_iters=3),
                stage("CosineAnnealingLR", T_max=6, eta_min=1e-4),
                {"milestones": [0]}],
    "two_at_one_step": [stage("ConstantLR", factor=0.5, total_iters=3),
                        stage("LambdaLR", lr_lambda=[0.3]),
                        stage("LinearLR", start_factor=0.4, total_iters=4),
                        {"milestones": [3, 3]}],
}


def build(optimizer, item):
    kwargs = dict(item["kwargs"])
    if item["name"] == "LambdaLR":
        factors = kwargs["lr_lambda"]
        kwargs["lr_lambda"] = lambda epoch: factors[min(epoch, len(factors) - 1)]
    return getattr(lr_scheduler, item["name"])(optimizer, **kwargs)


def rates(case, initial):
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimizer = torch.optim.SGD([parameter], lr=initial)
    stages = [build(optimizer, item) for item in case if "name" in item]
    milestones = [item["milestones"] for item in case if "milestones" in item]
    scheduler = stages[0] if stages else None
    if milestones:
        scheduler = lr_scheduler.SequentialLR(optimizer, stages, milestones[0])
    seen = []
    for _ in range(STEPS):
        seen.append(float(optimizer.param_groups[0]["lr"]).hex())
        optimizer.step()
        if scheduler is not None:
            scheduler.step()
    return seen


def text_of(made):
    """JSON with a line for each case."""
    return "{\n" + ",\n".join(f"{json.dumps(name)}: {json.dumps(case)}" for name, case in made.items()) + "\n}\n"


def main():
    warnings.simplefilter("ignore")
    made = {name: {"scheduler": case, "lr": 0.003, "rates": rates(case, 0.003)}
            for name, case in CASES.items()}
    path = HERE / "rates.json"
    if "--check" in sys.argv[1:]:
        same = json.loads(path.read_text()) == made
        print("the same" if same else "rates differ from what is stored")
        return 0 if same else 1
    path.write_text(text_of(made))
    return 0


if __name__ == "__main__":
    sys.exit(main())
