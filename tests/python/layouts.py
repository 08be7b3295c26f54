"""One small model over every small layout, by hand and by DTensor, in any precision: what clean_runs.py and noise_test.py
train. Sizes, data, start and optimizer are drawn from a seed."""

import dataclasses
import random

import models
import ranks  # noqa: F401 (it finds the package)
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import shardproof

# kind of layout, dp, tp; "hand sp" also cuts the sequence between the layers over tp
LAYOUTS = (("hand", 2, 1), ("hand", 1, 2), ("hand sp", 1, 2), ("hand sp", 2, 2), ("dtensor", 1, 2), ("fsdp2", 2, 1),
           ("fsdp2", 2, 2))
ONE = ("hand", 1, 1)
PLAN = {"up": ColwiseParallel(), "down": RowwiseParallel()}
DECLARED = {"*.up.weight": shardproof.Shard(0, "tp"), "*.down.weight": shardproof.Shard(1, "tp"),
            "*": shardproof.Replicate()}


@dataclasses.dataclass
class Draw:
    """What a seed gives."""

    seed: int
    dtype: torch.dtype

    def __post_init__(self):
        draw = random.Random(self.seed)
        self.vocabulary = draw.choice((11, 24, 64))
        self.width = draw.choice((8, 16, 32))
        self.hidden = draw.choice((8, 24, 48))
        self.layers = draw.choice((1, 2, 3))
        self.rows, self.length = draw.choice((2, 4, 8)), draw.choice((4, 8, 16))
        self.steps = draw.choice((1, 2, 3))
        self.adam = draw.random() < 0.7
        self.from_float64 = draw.random() < 0.5  # the golden is computed in float64, from a start in `dtype`

    def model(self, hidden=None):
        torch.manual_seed(self.seed)
        built = models.Model(self.vocabulary, self.width, hidden or self.hidden, self.layers)
        return built.to(self.dtype)

    def batch(self, step):
        drawn = torch.Generator().manual_seed(1000 * self.seed + step)
        tokens = torch.randint(self.vocabulary, (self.rows, self.length + 1), generator=drawn)
        return tokens[:, :-1], tokens[:, 1:]

    def optimizer(self, parameters):
        return torch.optim.AdamW(parameters, lr=1e-2) if self.adam else torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


class Collective(torch.autograd.Function):
    """Applies `forward` to a tensor, and `backward` to its gradient."""

    @staticmethod
    def forward(ctx, x, forward, backward):
        ctx.then = backward
        return forward(x)

    @staticmethod
    def backward(ctx, gradient):
        return ctx.then(gradient), None, None


class Tensors:
    """The collectives of the hand-written layouts, over one axis of the mesh."""

    def __init__(self, group, size, rank):
        self.group, self.size, self.rank = group, size, rank

    def same(self, x):
        return x.clone()

    def sum(self, x):
        total = x.contiguous().clone()
        dist.all_reduce(total, group=self.group)
        return total

    def part(self, x):
        return x.chunk(self.size, 1)[self.rank].clone()

    def sum_part(self, x):
        return self.part(self.sum(x))

    def join(self, x):
        parts = [torch.empty_like(x, memory_format=torch.contiguous_format) for _ in range(self.size)]
        dist.all_gather(parts, x.contiguous(), group=self.group)
        return torch.cat(parts, 1)


class HandBlock(nn.Module):
    """models.Block whose hidden dim is cut over tp, by hand."""

    def __init__(self, block, tp, sequence):
        super().__init__()
        self.norm, self.up, self.down = block.norm, block.up, block.down
        self.enter, self.leave = ((tp.join, tp.sum_part), (tp.sum_part, tp.join)) if sequence else \
            ((tp.same, tp.sum), (tp.sum, tp.same))

    def forward(self, x):
        inner = Collective.apply(self.norm(x), *self.enter)
        return x + Collective.apply(self.down(torch.tanh(self.up(inner))), *self.leave)


class HandModel(nn.Module):
    def __init__(self, model, tp, sequence):
        super().__init__()
        self.embed, self.head = model.embed, model.head
        self.layers = nn.ModuleList(HandBlock(block, tp, sequence) for block in model.layers)
        self.tp, self.sequence = tp, sequence

    def forward(self, tokens):
        x = self.embed(tokens)
        if self.sequence:
            x = Collective.apply(x, self.tp.part, self.tp.join)
        for layer in self.layers:
            x = layer(x)
        if self.sequence:
            x = Collective.apply(x, self.tp.join, self.tp.part)
        return self.head(x)


def local(tensor):
    return getattr(tensor, "_local_tensor", tensor)


def shard(model, mesh, by_tp=True, by_fsdp=True):
    """The model over the axes tp and dp of the mesh, its layers by tensor parallelism and all of it by FSDP2."""
    for layer in model.layers:
        if by_tp:
            parallelize_module(layer, mesh["tp"], PLAN)
        if by_fsdp:
            fully_shard(layer, mesh=mesh["dp"])
    return fully_shard(model, mesh=mesh["dp"]) if by_fsdp else model


def build(draw, layout, mesh):
    """The model, its options of record and load, and what reduces the gradients after the backward."""
    kind, dp_size, tp_size = layout
    if kind in ("dtensor", "fsdp2"):
        return shard(draw.model(), mesh, tp_size > 1, kind == "fsdp2"), {"mesh": mesh}, lambda: None
    dp, tp = (Tensors(mesh.get_group(axis), size, mesh.get_local_rank(axis))
              for axis, size in (("dp", dp_size), ("tp", tp_size)))
    sequence = kind == "hand sp"
    model = HandModel(draw.model(draw.hidden // tp_size), tp, sequence)

    def reduce():
        for name, parameter in model.named_parameters():
            if sequence and "norm" in name:
                parameter.grad.copy_(tp.sum(parameter.grad))
            if dp_size > 1:
                parameter.grad.copy_(dp.sum(parameter.grad) / dp_size)
    return model, {"mesh": mesh, "layouts": DECLARED}, reduce


def train(rank, draw, layout, out, golden=None, noise=None, bug=None, hashes=(), prepare=None):
    """Records the steps. `bug(model, dp, tp)` is called after each backward and reduction, `prepare` at the start."""
    mesh = init_device_mesh("cpu", layout[1:], mesh_dim_names=("dp", "tp"))
    model, options, reduce = build(draw, layout, mesh)
    if golden is None and draw.from_float64:
        model.double()
    optimizer = draw.optimizer(model.parameters())
    if golden:
        shardproof.load(model, golden, **options)
    if prepare:
        prepare(model, mesh.get_local_rank("dp"), mesh.get_local_rank("tp"))
    with shardproof.record(model, optimizer, out=out, noise=noise, hashes=hashes, **options) as rec:
        for step in range(draw.steps):
            tokens, targets = shardproof.batch(*draw.batch(step))
            logprobs = models.logprobs_of(model(tokens), targets)
            loss = -logprobs.mean()
            loss.backward()
            reduce()
            if bug:
                bug(model, mesh.get_local_rank("dp"), mesh.get_local_rank("tp"))
            optimizer.step()
            optimizer.zero_grad()
            rec.logprobs(logprobs)
            rec.scalar("loss", loss, mean_over=("dp",))


def golden_run(run, draw, out, repeats=16):
    """Records the golden, and below float64 its repeats. `run(world_size, function, *arguments)` runs ranks."""
    run(1, train_and_repeat, draw, out, repeats if draw.dtype != torch.float64 else 0)


def train_and_repeat(rank, draw, out, repeats):
    train(rank, draw, ONE, out)
    for number in range(1, repeats + 1):
        train(rank, draw, ONE, out, out, number)
