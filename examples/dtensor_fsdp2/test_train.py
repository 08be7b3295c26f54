"""Tests as a team writes them for its own sharded model: pytest test_train.py. docs/score.md says what they miss."""

import tempfile
from datetime import timedelta

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn
from torch.distributed.tensor import DTensor

import train

WORLD, TP = 4, 2


def on_rank(rank, folder, body):
    torch.set_num_threads(1)
    store = dist.FileStore(f"{folder}/store", WORLD)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=WORLD, timeout=timedelta(seconds=60))
    torch.manual_seed(0)
    body(rank)
    dist.destroy_process_group()


def run(body):
    with tempfile.TemporaryDirectory() as folder:
        mp.start_processes(on_rank, (folder, body), nprocs=WORLD, start_method="fork")


def build():
    """The model on this rank, and the same one whole."""
    config = train.Config()
    whole, sharded = train.Llama(config), train.Llama(config)
    sharded.load_state_dict(whole.state_dict())
    train.parallelize(sharded, TP)
    return config, whole, sharded


def rows_of(rank, tensor):
    """The rows of a global batch that the data-parallel rank has."""
    return tensor.chunk(WORLD // TP)[rank // TP]


def logits_equal(rank):
    config, whole, sharded = build()
    tokens, _ = train.global_batch(config, 0)
    torch.testing.assert_close(sharded(rows_of(rank, tokens)), whole(rows_of(rank, tokens)), rtol=1e-4, atol=1e-5)


def loss_falls(rank):
    config, _, sharded = build()
    optimizer = torch.optim.AdamW(sharded.parameters(), lr=1e-2)
    losses = []
    for _ in range(6):
        tokens, targets = (rows_of(rank, one) for one in train.global_batch(config, 0))
        loss = nn.functional.cross_entropy(sharded(tokens).flatten(0, 1), targets.flatten())
        loss.backward()
        norm = train.clip(sharded, train.MAX_NORM)
        assert norm.isfinite()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    assert losses[-1] < 0.8 * losses[0], losses


def parameters_are_sharded(rank):
    _, whole, sharded = build()
    for (name, parameter), full in zip(sharded.named_parameters(), whole.parameters()):
        assert isinstance(parameter, DTensor), name
        assert parameter.shape == full.shape, name
        torch.testing.assert_close(parameter.full_tensor(), full, msg=name)


def test_logits_equal_those_of_one_device():
    run(logits_equal)


def test_the_loss_falls():
    run(loss_falls)


def test_parameters_are_sharded():
    run(parameters_are_sharded)
