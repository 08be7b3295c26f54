"""Distributed checkpoint: a load restores none of the optimizer states of parameters that are frozen at that time.

torch 2.14.1, pytorch issue 192202. A program that freezes layers first and loads afterwards goes on with moments of
zero when it thaws them, and nothing says so. Exit status 1 while the defect is there.
"""

import sys

import torch
from torch.distributed.checkpoint.state_dict import get_optimizer_state_dict, set_optimizer_state_dict


def build():
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 4, bias=False), torch.nn.Linear(4, 4, bias=False))
    return model, torch.optim.AdamW(model.parameters())


def moments(model, optimizer):
    return [optimizer.state[one]["exp_avg"].norm().item() for one in model.parameters() if "exp_avg" in optimizer.state[one]]


def main():
    model, optimizer = build()
    model(torch.ones(2, 4)).square().sum().backward()
    optimizer.step()
    optimizer.zero_grad()
    reference = moments(model, optimizer)
    saved = get_optimizer_state_dict(model, optimizer)
    again, fresh = build()
    for parameter in again.parameters():
        parameter.requires_grad_(False)
    set_optimizer_state_dict(again, fresh, saved)
    observed = [norm for norm in moments(again, fresh) if norm > 0]
    print(f"{len(observed)} of {len(reference)} optimizer states are restored; norms: reference {reference}, observed {observed}")
    return 0 if observed == reference else 1


if __name__ == "__main__":
    sys.exit(main())
