"""Trains a small model with DeepSpeed ZeRO on the CPU, and records it.

    torchrun --nproc-per-node 1 train.py --out golden
    torchrun --nproc-per-node 2 train.py --out run --golden golden --stage 3

    shardproof judge run --golden golden

deepspeed_on_cpu.py changes four things of DeepSpeed. The five lines that shardproof needs are marked; optional ones record
more.
"""

import argparse
import os

import deepspeed_on_cpu
import shardproof                                                                              # shardproof
import torch
import torch.distributed as dist
from torch import nn

VOCABULARY, WIDTH, LENGTH, ROWS = 64, 16, 8, 8


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up = nn.Linear(WIDTH, 3 * WIDTH)
        self.down = nn.Linear(3 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(VOCABULARY, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def global_batch(step):
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(VOCABULARY, (ROWS, LENGTH + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def on_cpu(rank, world_size, stage):
    deepspeed_on_cpu.switch_on(deepspeed_on_cpu.cpu_device, rank, world_size)
    deepspeed_on_cpu.switch_on(deepspeed_on_cpu.no_shared_memory)
    if stage == 1:
        deepspeed_on_cpu.switch_on(deepspeed_on_cpu.float64_gradients)
    if stage == 3:
        deepspeed_on_cpu.switch_on(deepspeed_on_cpu.float64_parts)


def train(options):
    import deepspeed
    torch.manual_seed(0)
    model = Model()
    config = {"train_micro_batch_size_per_gpu": ROWS // dist.get_world_size(), "gradient_clipping": 1.0,
              "zero_optimization": {"stage": options.stage}}
    engine, optimizer, _, _ = deepspeed.initialize(
        model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2), config=config)
    if options.golden: shardproof.load(engine, options.golden)                                 # shardproof
    with shardproof.record(engine, optimizer, out=options.out) as rec:                         # shardproof
        for step in range(options.steps):
            tokens, targets = shardproof.batch(*global_batch(step))                            # shardproof
            loss = nn.functional.cross_entropy(engine(tokens).flatten(0, 1), targets.flatten())
            engine.backward(loss)
            engine.step()
            rec.scalar("loss", loss, mean_over=("dp",))                                        # optional


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="the folder of the recorded run")
    parser.add_argument("--golden", help="the folder of the one-rank run, from whose start this run starts")
    parser.add_argument("--stage", type=int, default=2)
    parser.add_argument("--steps", type=int, default=2)
    options = parser.parse_args()
    torch.set_num_threads(1)
    on_cpu(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), options.stage)
    dist.init_process_group("gloo")
    with shardproof.float64():                                                                 # shardproof
        train(options)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
