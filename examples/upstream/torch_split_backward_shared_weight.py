"""Pipelining: a split backward pass counts a shared weight twice.

torch 2.11.0, fixed in 2.14.1, pytorch issue 180952. A weight that two layers use in turn has two paths in the
backward pass of the weights, and the second contains the first. Zero-bubble schedules split that pass. Exit status 1
while the defect is there.
"""

import sys

import torch
from torch.distributed.pipelining._backward import stage_backward_input, stage_backward_weight


def outputs(weight, inputs):
    return (inputs @ weight @ weight).sum()


def main():
    torch.manual_seed(0)
    weight = torch.nn.Parameter(torch.randn(3, 3))
    inputs = torch.randn(2, 3, requires_grad=True)
    reference, = torch.autograd.grad(outputs(weight, inputs), [weight])
    _, groups = stage_backward_input([outputs(weight, inputs)], None, [inputs], iter([weight]))
    stage_backward_weight(iter([weight]), groups)
    print(f"gradient of the shared weight: reference {reference.flatten()[0]:.6f}, observed {weight.grad.flatten()[0]:.6f}")
    return 0 if torch.allclose(weight.grad, reference) else 1


if __name__ == "__main__":
    sys.exit(main())
