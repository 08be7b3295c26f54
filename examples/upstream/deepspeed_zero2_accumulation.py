"""ZeRO-2: of the gradients of accumulated micro-batches only the last one's count.

deepspeed 0.17.6 to 0.18.2 (0.17.5 and 0.18.3 are right), one rank on the CPU. Each micro-batch puts its gradients
in the place of those before, where ZeRO-1 adds them before it reduces. Exit status 1 while it is there.
"""

import os
import sys

import torch

os.environ |= {"DS_ACCELERATOR": "cpu", "RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1",
               "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": os.environ.get("MASTER_PORT", "29527")}
import deepspeed  # noqa: E402

MICRO_BATCHES, RATE = 3, 0.1


def inputs_of(index):
    return torch.randn(2, 4, generator=torch.Generator().manual_seed(index))


def build():
    torch.manual_seed(0)
    return torch.nn.Linear(4, 3, bias=False)


def trained(stage):
    model = build()
    config = {"train_micro_batch_size_per_gpu": 2, "gradient_accumulation_steps": MICRO_BATCHES,
              "zero_optimization": {"stage": stage}, "zero_allow_untested_optimizer": True}
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    engine = deepspeed.initialize(model=model, optimizer=optimizer, config=config)[0]
    for index in range(MICRO_BATCHES):
        engine.backward(engine(inputs_of(index)).square().sum())
        engine.step()
    return engine.module.weight.detach()


def plain(indices):
    model = build()
    for index in indices:
        (model(inputs_of(index)).square().sum() / MICRO_BATCHES).backward()
    return (model.weight - RATE * model.weight.grad).detach()


def main():
    reference, last = plain(range(MICRO_BATCHES)), plain([MICRO_BATCHES - 1])
    right = True
    for stage in (1, 2):
        observed = trained(stage)
        is_right = torch.allclose(observed, reference, rtol=1e-4, atol=1e-6)
        what = "" if is_right else ", the step of the last micro-batch alone" if torch.allclose(observed, last, 1e-4, 1e-6) else ""
        print(f"ZeRO-{stage}: reference {reference[0, 0]:.6f}, observed {observed[0, 0]:.6f}{what}")
        right = right and is_right
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
