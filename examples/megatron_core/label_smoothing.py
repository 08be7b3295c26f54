"""Reproduces Megatron-LM issue 7464: label smoothing takes the part of the vocabulary of a rank of tp for all of it.

    torchrun --nproc-per-node 1 label_smoothing.py --out golden
    torchrun --nproc-per-node 2 label_smoothing.py --out run --golden golden
    shardproof judge run --golden golden

With --smoothing 0 the runs match.
"""

import argparse

import cuda_on_cpu
import shardproof
import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.transformer import MegatronModule, TransformerConfig

VOCABULARY, WIDTH, TOKENS = 64, 16, 24


class Model(MegatronModule):
    def __init__(self, config):
        super().__init__(config)
        options = dict(init_method=torch.nn.init.normal_, config=config)
        self.embed = tensor_parallel.VocabParallelEmbedding(VOCABULARY, WIDTH, **options)
        self.head = tensor_parallel.ColumnParallelLinear(WIDTH, VOCABULARY, bias=False, **options)

    def forward(self, tokens):
        return self.head(torch.tanh(self.embed(tokens)))[0]


def train(options):
    tensor_parallel.model_parallel_cuda_manual_seed(1)
    model = Model(TransformerConfig(num_layers=1, hidden_size=WIDTH, num_attention_heads=2, use_cpu_initialization=True,
                                    tensor_model_parallel_size=dist.get_world_size(), params_dtype=torch.float64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if options.golden: shardproof.load(model, options.golden)
    with shardproof.record(model, optimizer, out=options.out) as rec:
        tokens, targets = torch.arange(2 * TOKENS).reshape(2, TOKENS, 1) % VOCABULARY
        losses = tensor_parallel.vocab_parallel_cross_entropy(model(tokens), targets, options.smoothing)
        losses.mean().backward()
        optimizer.step()
        rec.scalar("loss", losses.mean())


def main():
    parser = argparse.ArgumentParser()
    for name, default in (("--out", "run"), ("--golden", ""), ("--smoothing", 0.1)):
        parser.add_argument(name, type=type(default), default=default)
    options = parser.parse_args()
    dist.init_process_group("gloo")
    cuda_on_cpu.install()
    parallel_state.initialize_model_parallel(dist.get_world_size())
    with cuda_on_cpu.OnCpu(), shardproof.float64():
        train(options)


if __name__ == "__main__":
    main()
