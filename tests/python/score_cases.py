"""A suite that score_test.py scores: one test compares numbers, the other one shapes alone. Runs under pytest, or as a
script that ends with a status other than 0 when a test fails."""

import sys

import forks
import torch
import torch.distributed as dist


def total_of(values):
    dist.all_reduce(values)
    return values


def mean_of(model, rows):
    out = model(rows)
    dist.all_reduce(out)
    return out / dist.get_world_size()


def on_rank(rank):
    torch.manual_seed(0)
    dist.new_group([0, 1], group_desc="mesh_tp")
    values = [total_of(torch.tensor([rank + 1.0, 5.0]) * (step + 1)).tolist() for step in range(2)]
    with torch.no_grad():
        shape = list(mean_of(torch.nn.Linear(3, 2), torch.ones(4, 3)).shape)
    return values, shape


def test_numbers():
    for values, _ in forks.run(2, on_rank):
        assert values == [[3.0, 10.0], [6.0, 20.0]]


def test_shapes():
    for _, shape in forks.run(2, on_rank):
        assert shape == [4, 2]


if __name__ == "__main__":
    for test in (test_numbers, test_shapes):
        try:
            test()
        except AssertionError as error:
            print(error)
            sys.exit(1)
