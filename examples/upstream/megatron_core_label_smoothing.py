"""Label smoothing under tensor parallelism takes a rank's part of the vocabulary for all of it.

megatron-core 0.19.2, tp 2 on the CPU; Megatron-LM issues 7464 and 737. The mean of the log-probabilities is that of the rank's
own columns, and so is the size of the vocabulary, so that the ranks do not agree on the loss. Exit status 1 while it is there.
"""

import sys
import tempfile

import torch
from megatron.core import parallel_state
from megatron.core.tensor_parallel import vocab_parallel_cross_entropy

TOKENS, VOCABULARY, SMOOTHING = 5, 12, 0.1


def given():
    generator = torch.Generator().manual_seed(0)
    logits = 3 * torch.randn(TOKENS, 1, VOCABULARY, generator=generator, dtype=torch.float64)
    return logits, torch.randint(VOCABULARY, (TOKENS, 1), generator=generator)


def rank(index, folder):
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=index, world_size=2)
    parallel_state.initialize_model_parallel(2)
    logits, targets = given()
    own = logits.chunk(2, -1)[index].clone().requires_grad_()
    losses = vocab_parallel_cross_entropy(own, targets, SMOOTHING)
    losses.sum().backward()
    torch.save((losses.detach(), own.grad), f"{folder}/{index}.pt")
    torch.distributed.barrier()


def main():
    logits, targets = given()
    logits.requires_grad_()
    smoothing = SMOOTHING * VOCABULARY / (VOCABULARY - 1)  # as Megatron defines it
    logprobs = torch.log_softmax(logits, -1)
    picked = logprobs.gather(-1, targets[..., None])[..., 0]
    reference = -(1 - smoothing) * picked - smoothing * logprobs.mean(-1)
    reference.sum().backward()
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(rank, (folder,), 2, start_method="spawn")
        ranks = [torch.load(f"{folder}/{index}.pt") for index in (0, 1)]
    right = True
    for index, (losses, gradient) in enumerate(ranks):
        part = logits.grad.chunk(2, -1)[index]
        print(f"rank {index}: loss of the first token: reference {reference[0, 0].item():.6f}, observed {losses[0, 0]:.6f}; "
              f"its gradient differs by {float((gradient - part).abs().max()):.3f}")
        right = right and all(torch.allclose(one.double(), other, rtol=1e-4, atol=1e-5)  # it computes in float32
                              for one, other in ((losses, reference.detach()), (gradient, part)))
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
