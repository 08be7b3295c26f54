"""Attention under Ulysses, with the functions of verl's utils/ulysses.py: the ranks have parts of the sequence, and for
the attention parts of the heads. Its aggregation of losses has data-parallel ranks instead. verl itself imports Ray and
more, so that single files and functions are loaded."""

import ast
import importlib.util
import sys
from pathlib import Path
from typing import Optional

import shardproof
import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F


FOLDER = Path(importlib.util.find_spec("verl").origin).parent
VOCABULARY, HEADS, KV_HEADS, SIZE, LENGTH, ROWS = 48, 4, 2, 6, 8, 4


def load_ulysses():
    spec = importlib.util.spec_from_file_location("verl_ulysses", FOLDER / "utils" / "ulysses.py")
    sys.modules["verl_ulysses"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def load_function(name, folder, file, **names):
    """A module with one function of a file that imports more than is installed."""
    path = FOLDER / folder / file
    tree = ast.parse(path.read_text())
    tree.body = [one for one in tree.body if isinstance(one, ast.FunctionDef) and one.name == name]
    sys.modules[f"verl_{name}"] = module = type(sys)(f"verl_{name}")
    vars(module).update(names, torch=torch, Optional=Optional, __file__=str(path))
    exec(compile(tree, str(path), "exec"), vars(module))
    return module


ulysses = load_ulysses()
repeat = load_function("repeat_kv", "models/transformers", "monkey_patch.py")
masked = load_function("masked_sum", "utils", "torch_functional.py")
aggregation = load_function("agg_loss", "trainer/ppo", "core_algos.py", verl_F=masked)


def all_to_all(output, given, group=None, async_op=False):
    """The form that takes lists, which Gloo lacks."""
    received = torch.empty((len(output), *output[0].shape), dtype=output[0].dtype)
    dist.all_to_all_single(received, torch.stack(given), group=group)
    for one, part in zip(output, received):
        one.copy_(part)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, HEADS * SIZE)
        self.q = nn.Linear(HEADS * SIZE, HEADS * SIZE, bias=False)
        self.k = nn.Linear(HEADS * SIZE, KV_HEADS * SIZE, bias=False)
        self.v = nn.Linear(HEADS * SIZE, KV_HEADS * SIZE, bias=False)
        self.out = nn.Linear(HEADS * SIZE, HEADS * SIZE, bias=False)
        self.head = nn.Linear(HEADS * SIZE, VOCABULARY, bias=False)

    def attention(self, x):
        q, k, v = (part(x).unflatten(-1, (-1, SIZE)) for part in (self.q, self.k, self.v))
        copies = max(ulysses.get_ulysses_sequence_parallel_world_size() // KV_HEADS, 1)
        k, v = repeat.repeat_kv(k, copies), repeat.repeat_kv(v, copies)
        q, k, v = (ulysses.gather_seq_scatter_heads(one, seq_dim=1, head_dim=2).transpose(1, 2) for one in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True).transpose(1, 2)
        return self.out(ulysses.gather_heads_scatter_seq(y, head_dim=2, seq_dim=1).flatten(2))

    def forward(self, tokens):
        x = self.embed(tokens)
        return self.head(x + self.attention(x))


def mean_of_sums(options):
    options.aggregation = "seq-mean-token-sum-norm"


def mean_of_means(options):
    options.aggregation = "seq-mean-token-mean"


def loss_of(model, options):
    """Of this rank's part of the sequence, or, aggregated as for an actor, of its rows."""
    world_size = dist.get_world_size()
    tokens = torch.randint(VOCABULARY, (ROWS, LENGTH + 1), generator=torch.Generator().manual_seed(0))
    tokens, targets = (one.chunk(world_size, 0 if hasattr(options, "aggregation") else 1)[dist.get_rank()]
                       for one in (tokens[:, :-1], tokens[:, 1:]))
    losses = F.cross_entropy(model(tokens).transpose(1, 2), targets, reduction="none")
    if hasattr(options, "aggregation"):
        return aggregation.agg_loss(losses, torch.ones_like(losses), options.aggregation, dp_size=world_size,
                                    global_batch_size=ROWS)
    return ulysses.gather_outputs_and_unpad(losses, gather_dim=1).mean()


def run(options):
    dist.all_to_all = all_to_all
    world_size = dist.get_world_size()
    axis = "dp" if hasattr(options, "aggregation") else "sp"
    if world_size > 1 and axis == "sp":
        ulysses.set_ulysses_sequence_parallel_group(dist.group.WORLD)
    with shardproof.float64():
        torch.manual_seed(0)
        model = Model()
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        if options.golden:
            shardproof.load(model, options.golden)
        with shardproof.record(model, optimizer, out=options.out, mesh={axis: world_size}) as rec:
            loss = loss_of(model, options)
            loss.backward()
            for parameter in model.parameters():  # as FSDP does
                dist.all_reduce(parameter.grad)
                parameter.grad /= world_size
            optimizer.step()
            rec.scalar("loss", loss, mean_over=("dp",))
