"""A small model of torch's DTensor and FSDP2, whose layers a row chooses. Tensor-parallel layers go from DTensors to tensors
and back, as torchtitan's and others' do."""

import shardproof
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.nn import functional as F


VOCABULARY, WIDTH, LENGTH, ROWS = 48, 16, 8, 8


class Mlp(nn.Module):
    """Cut by columns, then by rows, over tp."""

    def __init__(self, mesh):
        super().__init__()
        self.mesh = mesh
        self.up = nn.Parameter(distribute_tensor(torch.randn(3 * WIDTH, WIDTH) / 4, mesh, [Shard(0)]))
        self.down = nn.Parameter(distribute_tensor(torch.randn(WIDTH, 3 * WIDTH) / 4, mesh, [Shard(1)]))

    def part(self, x):
        """This rank's addend of the output."""
        x = DTensor.from_local(x, self.mesh, [Replicate()]).to_local(grad_placements=[Partial()])
        return torch.tanh(F.linear(x, self.up.to_local()))

    def forward(self, x):
        addend = F.linear(self.part(x), self.down.to_local())
        return DTensor.from_local(addend, self.mesh, [Partial()]).redistribute(placements=[Replicate()]).to_local()


class Sum(torch.autograd.Function):
    """Sums over tp. Each rank goes on with the whole sum, so that its gradient is whole too."""

    @staticmethod
    def forward(ctx, x, group):
        x = x.clone()
        dist.all_reduce(x, group=group)
        return x

    @staticmethod
    def backward(ctx, grad):
        return grad, None


class MlpOfDTensors(Mlp):
    """The second layer is DTensor's own, its sum is not."""

    def forward(self, x):
        h = DTensor.from_local(self.part(x), self.mesh, [Shard(-1)])
        return Sum.apply(F.linear(h, self.down).to_local(), self.mesh.get_group())


class ClampedMlp(Mlp):
    """DTensor clamps the output, by another limit in each layer."""

    def __init__(self, mesh):
        super().__init__(mesh)
        self.limit = 0.2 + 0.1 * len(layers_made)
        layers_made.append(self)

    def forward(self, x):
        addend = DTensor.from_local(F.linear(self.part(x), self.down.to_local()), self.mesh, [Partial()])
        return addend.clamp(-self.limit, self.limit).redistribute(placements=[Replicate()]).to_local()


layers_made = []


class Experts(nn.Module):
    """The experts of each part of the mesh compute on the tokens of all ranks. The first number of a token chooses."""

    def __init__(self, mesh):
        super().__init__()
        self.mesh = mesh
        self.weight = nn.Parameter(distribute_tensor(torch.randn(2, WIDTH, WIDTH) / 4, mesh, [Shard(0)]))

    def forward(self, x):
        x = DTensor.from_local(x, self.mesh, [Shard(0)])
        x = x.redistribute(placements=[Replicate()]).to_local(grad_placements=[Partial()])
        weight = self.weight.to_local()
        first = self.mesh.get_local_rank() * len(weight)
        chosen = (x[..., :1] > 0).long()
        y = sum(torch.tanh(x @ one) * (chosen == first + i) for i, one in enumerate(weight))
        return DTensor.from_local(y, self.mesh, [Partial()]).redistribute(placements=[Shard(0)]).to_local()


class Model(nn.Module):
    def __init__(self, layer, mesh):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.layers = nn.ModuleList(layer(mesh) for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = x + layer(x)
        return self.head(x)


def dtensor_linears(options):
    options.layer = MlpOfDTensors


def clamped(options):
    options.layer = ClampedMlp


def experts(options):
    options.layer = Experts


def build(options):
    torch.manual_seed(0)
    layer = getattr(options, "layer", Mlp)
    mesh = init_device_mesh("cpu", (1, options.ep, options.tp), mesh_dim_names=("fsdp", "ep", "tp"))
    model = Model(layer, mesh["ep" if layer is Experts else "tp"])
    if layer is Experts:
        for one in model.layers:
            fully_shard(one, mesh=mesh["fsdp"])
            one.set_gradient_divide_factor(options.ep)  # each rank's loss is a mean over its own rows
        return fully_shard(model, mesh=mesh["ep"])
    return model


def run(options):
    with shardproof.float64():
        model = build(options)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=False)
        if options.golden:
            shardproof.load(model, options.golden)
        with shardproof.record(model, optimizer, out=options.out) as rec:
            tokens = torch.randint(VOCABULARY, (ROWS, LENGTH + 1), generator=torch.Generator().manual_seed(0))
            tokens, targets = shardproof.batch(tokens[:, :-1], tokens[:, 1:], axes=("ep",))
            loss = F.cross_entropy(model(tokens).flatten(0, 1), targets.flatten())
            loss.backward()
            optimizer.step()
            rec.scalar("loss", loss, mean_over=("ep",))
