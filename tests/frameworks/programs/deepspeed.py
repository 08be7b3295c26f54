"""The small model of examples/deepspeed with an offloaded optimizer, and two microbatches whose end the program declares."""

import torch
import torch.distributed as dist
from torch import nn

from . import example

train = example("deepspeed")
MICROBATCHES = 2
CONFIG = {"train_micro_batch_size_per_gpu": 1, "zero_force_ds_cpu_optimizer": False,
          "zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu", "pin_memory": False}}}


def run(options):
    import deepspeed
    shardproof = train.shardproof
    train.on_cpu(dist.get_rank(), dist.get_world_size(), 1)  # ZeRO 2 with an offloaded optimizer accumulates as ZeRO 1
    with shardproof.float64():
        torch.manual_seed(0)
        model = train.Model()
        engine, optimizer, _, _ = deepspeed.initialize(
            model=model, optimizer=torch.optim.AdamW(model.parameters(), lr=1e-2), config=CONFIG)
        if options.golden:
            shardproof.load(engine, options.golden)
        with shardproof.record(engine, optimizer, out=options.out) as rec:
            tokens, targets = shardproof.batch(*train.global_batch(0))
            losses = []
            for i, (inputs, labels) in enumerate(zip(tokens.chunk(MICROBATCHES), targets.chunk(MICROBATCHES))):
                engine.set_gradient_accumulation_boundary(i == MICROBATCHES - 1)
                losses.append(nn.functional.cross_entropy(engine(inputs).flatten(0, 1), labels.flatten()) / MICROBATCHES)
                engine.backward(losses[-1])
            engine.step()
            rec.scalar("loss", sum(losses), mean_over=("dp",))
