"""FSDP2: gradients of two parameters of equal size are mixed when the ranks use different ones.

torch 2.14.1, pytorch issue 158719. A group reduces the gradients that a rank has, in their order. Where rank 0 used
`first` and rank 1 used `second`, the sizes fit, and the gradient of one is averaged with that of the other. Exit
status 1 while it is there.
"""

import sys
import tempfile

import torch
from torch import nn
from torch.distributed.fsdp import fully_shard


class Choice(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.first, self.second = nn.Linear(4, 4, bias=False), nn.Linear(4, 4, bias=False)

    def forward(self, inputs, index):
        return (self.first, self.second)[index](inputs)


def inputs_of(rank):
    return torch.randn(2, 4, generator=torch.Generator().manual_seed(rank))


def rank(index, folder):
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=index, world_size=2)
    model = fully_shard(Choice())
    model(inputs_of(index), index).square().sum().backward()
    grads = {name: None if one.grad is None else one.grad.to_local() for name, one in model.named_parameters()}
    torch.save(grads, f"{folder}/{index}.pt")
    torch.distributed.barrier()


def main():
    model = Choice()
    for index in (0, 1):
        (model(inputs_of(index), index).square().sum() / 2).backward()
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(rank, (folder,), 2, start_method="spawn")
        ranks = [torch.load(f"{folder}/{index}.pt") for index in (0, 1)]
    right = []
    for name, parameter in model.named_parameters():
        for index, reference in enumerate(parameter.grad.chunk(2)):
            observed = ranks[index][name]
            right.append(observed is not None and torch.allclose(observed, reference))
            print(f"{name} on rank {index}: reference {reference[0, 0]:.4f}, observed", observed if observed is None else
                  f"{observed[0, 0]:.4f}")
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(main())
