"""Trains a small transformer in the stages of torch.distributed.pipelining on the CPU, and records it.

    torchrun --nproc-per-node 1 train.py --out golden
    torchrun --nproc-per-node 2 train.py --out run --golden golden --schedule interleaved
    shardproof judge run --golden golden

The five lines that shardproof needs are marked; optional ones record more.
"""

import argparse

import shardproof                                                                              # shardproof
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.pipelining import PipelineStage, schedules

VOCABULARY, DIM, HEADS, LAYERS, LENGTH, ROWS, MICROBATCHES = 64, 32, 4, 8, 12, 8, 4
# The class of each schedule, and how many stages a rank has.
SCHEDULES = {"gpipe": (schedules.ScheduleGPipe, 1), "1f1b": (schedules.Schedule1F1B, 1),
             "interleaved": (schedules.ScheduleInterleaved1F1B, 2), "bfs": (schedules.ScheduleLoopedBFS, 2),
             "zb1p": (schedules.ScheduleInterleavedZeroBubble, 2)}
IN_A_V = ("zbv", "dualpipev")  # the first rank has the first and the last stage
if torch.__version__ >= "2.14":  # torch 2.11 begins them with messages of a rank to itself, which Gloo refuses
    SCHEDULES |= {"zbv": (schedules.ScheduleZBVZeroBubble, 2), "dualpipev": (schedules.ScheduleDualPipeV, 2)}


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.mlp_norm = nn.LayerNorm(DIM), nn.LayerNorm(DIM)
        self.qkv, self.out = nn.Linear(DIM, 3 * DIM), nn.Linear(DIM, DIM)
        self.up, self.down = nn.Linear(DIM, 2 * DIM), nn.Linear(2 * DIM, DIM)

    def forward(self, x):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(-2))
        return x + self.down(F.silu(self.up(self.mlp_norm(x))))


class Part(nn.Module):
    """The model, or a stage of it. Its names are those of the whole model: layers.5 is the sixth layer on every rank."""

    def __init__(self, stage=0, stages=1):
        super().__init__()
        count = LAYERS // stages
        if stage == 0:
            self.embedding = nn.Embedding(VOCABULARY, DIM)
        self.layers = nn.ModuleDict({str(i): Layer() for i in range(stage * count, (stage + 1) * count)})
        if stage == stages - 1:
            self.head = nn.Linear(DIM, VOCABULARY)

    def forward(self, x):
        if hasattr(self, "embedding"):
            x = self.embedding(x)
        for layer in self.layers.values():
            x = layer(x)
        return self.head(x) if hasattr(self, "head") else x


def loss_of(logits, targets):
    return F.cross_entropy(logits.flatten(0, -2), targets.flatten())


def global_batch(step):
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(VOCABULARY, (ROWS, LENGTH + 1), generator=generator)
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


class Pipeline:
    """The stages of this rank, and the schedule over all ranks."""

    def __init__(self, rank, ranks, schedule):
        kind, count = SCHEDULES[schedule]
        stages = ranks * count
        self.numbers = [rank, stages - 1 - rank] if schedule in IN_A_V else range(rank, stages, ranks)
        self.parts = [Part(number, stages) for number in self.numbers]
        made = [PipelineStage(part, number, stages, torch.device("cpu")) for part, number in zip(self.parts, self.numbers)]
        self.has_first, self.has_last = 0 in self.numbers, stages - 1 in self.numbers
        self._schedule = kind(made[0] if issubclass(kind, schedules.PipelineScheduleSingle) else made, MICROBATCHES,
                              loss_fn=loss_of)

    def step(self, tokens, targets):
        """The gradients of a step, and the loss on the rank of the last stage."""
        losses = []
        self._schedule.step(*[tokens] if self.has_first else [], target=targets if self.has_last else None,
                            losses=losses if self.has_last else None)
        return torch.stack(losses).mean() if losses else None


class Whole:
    """The model on one rank."""

    def __init__(self):
        self.parts = [Part()]

    def step(self, tokens, targets):
        loss = loss_of(self.parts[0](tokens), targets)
        loss.backward()
        return loss


def train(options):
    torch.manual_seed(0)
    rank, ranks = dist.get_rank(), dist.get_world_size()
    pipeline = Pipeline(rank, ranks, options.schedule) if ranks > 1 else Whole()
    parameters = [parameter for part in pipeline.parts for parameter in part.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    if options.golden: shardproof.load(pipeline.parts, options.golden, mesh={"pp": ranks})     # shardproof
    with shardproof.record(pipeline.parts, optimizer, out=options.out, mesh={"pp": ranks}, activations="*") as rec:  # shardproof
        for step in range(options.steps):
            tokens, targets = shardproof.batch(*global_batch(step))                            # shardproof
            loss = pipeline.step(tokens, targets)
            optimizer.step()
            optimizer.zero_grad()
            if loss is not None: rec.scalar("loss", loss)                                      # optional


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="the folder of the recorded run")
    parser.add_argument("--golden", help="the folder of the one-rank run, from whose start this run starts")
    parser.add_argument("--schedule", choices=SCHEDULES, default="1f1b")
    parser.add_argument("--steps", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    with shardproof.float64():                                                                 # shardproof
        train(options)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
