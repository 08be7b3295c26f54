"""FSDP2 on a mesh of one rank divides by the gradient's factor twice.

torch 2.14.1. Where FSDP2 does not let the collective divide (float16, float64, or set_force_sum_reduction_for_comms),
it divides before and after it, and on one rank both take the whole factor. Exit status 1 while the defect is there.
"""

import sys
import tempfile

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard


def gradient(model):
    model(torch.arange(8.0, dtype=torch.float64).view(2, 4)).square().sum().backward()
    grad = model.weight.grad
    return grad.full_tensor() if hasattr(grad, "full_tensor") else grad


def build():
    torch.manual_seed(0)
    return torch.nn.Linear(4, 4, bias=False, dtype=torch.float64)


def main():
    reference = gradient(build()) / 2
    with tempfile.TemporaryDirectory() as folder:
        torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)
        model = fully_shard(build(), mesh=init_device_mesh("cpu", (1,)))
        model.set_gradient_divide_factor(2.0)
        observed = gradient(model)
        torch.distributed.destroy_process_group()
    print(f"gradient with a factor of 2: reference {reference[0, 0]:.4f}, observed {observed[0, 0]:.4f}")
    return 0 if torch.allclose(observed, reference) else 1


if __name__ == "__main__":
    sys.exit(main())
