"""Trains a small Llama with tensor parallelism and FSDP2 of torch on the CPU or on GPUs, and records it.

    torchrun --nproc-per-node 1 train.py --out golden
    torchrun --nproc-per-node 4 train.py --out run --golden golden --tp 2
    shardproof judge run --golden golden

The five lines that shardproof needs are marked; optional ones record more.
"""

import argparse
import os
from dataclasses import dataclass

import shardproof                                                                              # shardproof
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

MAX_NORM = 1.0


@dataclass
class Config:
    vocabulary: int = 96
    dim: int = 32
    hidden: int = 48
    layers: int = 2
    heads: int = 4
    kv_heads: int = 2
    length: int = 16
    rows: int = 8


class RMSNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        y = x.float()
        return (y * torch.rsqrt(y.square().mean(-1, keepdim=True) + 1e-6)).to(x.dtype) * self.weight


def rotate(x, cos, sin):
    """Rotary position embedding of x [B, H, S, D]."""
    low, high = x.chunk(2, -1)
    return x * cos + torch.cat([-high, low], -1) * sin


class Attention(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.head_dim = config.dim // config.heads
        self.q_proj = nn.Linear(config.dim, config.heads * self.head_dim, bias=False)
        self.k_proj = nn.Linear(config.dim, config.kv_heads * self.head_dim, bias=False)
        self.v_proj = nn.Linear(config.dim, config.kv_heads * self.head_dim, bias=False)
        self.o_proj = nn.Linear(config.heads * self.head_dim, config.dim, bias=False)

    def forward(self, x, cos, sin):
        # The number of heads is that of this rank: the projections are cut by columns.
        q, k, v = (projection(x).unflatten(-1, (-1, self.head_dim)).transpose(1, 2)
                   for projection in (self.q_proj, self.k_proj, self.v_proj))
        out = F.scaled_dot_product_attention(rotate(q, cos, sin), rotate(k, cos, sin), v, is_causal=True,
                                             enable_gqa=True)
        return self.o_proj(out.transpose(1, 2).flatten(-2))


class Mlp(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate_proj = nn.Linear(config.dim, config.hidden, bias=False)
        self.up_proj = nn.Linear(config.dim, config.hidden, bias=False)
        self.down_proj = nn.Linear(config.hidden, config.dim, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.input_layernorm = RMSNorm(config.dim)
        self.self_attn = Attention(config)
        self.post_attention_layernorm = RMSNorm(config.dim)
        self.mlp = Mlp(config)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed_tokens = nn.Embedding(config.vocabulary, config.dim)
        self.layers = nn.ModuleList(Layer(config) for _ in range(config.layers))
        self.norm = RMSNorm(config.dim)
        self.lm_head = nn.Linear(config.dim, config.vocabulary, bias=False)
        half = config.dim // config.heads // 2
        angles = torch.outer(torch.arange(config.length), 10000.0 ** (-torch.arange(half, dtype=torch.float32) / half))
        self.register_buffer("cos", torch.cat([angles, angles], -1).cos())
        self.register_buffer("sin", torch.cat([angles, angles], -1).sin())

    def forward(self, tokens):
        x = self.embed_tokens(tokens)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return self.lm_head(self.norm(x))


TENSOR_PARALLEL = {
    "self_attn.q_proj": ColwiseParallel(), "self_attn.k_proj": ColwiseParallel(), "self_attn.v_proj": ColwiseParallel(),
    "self_attn.o_proj": RowwiseParallel(),
    "mlp.gate_proj": ColwiseParallel(), "mlp.up_proj": ColwiseParallel(), "mlp.down_proj": RowwiseParallel(),
}


def parallelize(model, tp, device="cpu"):
    """Cuts the layers over tp, and everything over dp."""
    mesh = init_device_mesh(device, (dist.get_world_size() // tp, tp), mesh_dim_names=("dp", "tp"))
    for layer in model.layers:
        if tp > 1:
            parallelize_module(layer, mesh["tp"], TENSOR_PARALLEL)
        fully_shard(layer, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])


def clip(model, max_norm):
    """Clips by the norm of all parameters. torch's clip_grad_norm_ does not take tensors of two meshes at once."""
    squares = [parameter.grad.square().sum().full_tensor() for parameter in model.parameters()]
    norm = torch.stack(squares).sum().sqrt()
    for parameter in model.parameters():
        parameter.grad.mul_(torch.clamp(max_norm / (norm + 1e-6), max=1.0))
    return norm


def global_batch(config, step):
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(config.vocabulary, (config.rows, config.length + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def train(options):
    config = Config()
    torch.manual_seed(0)
    model = Llama(config)
    model.to(options.device)
    parallelize(model, options.tp, options.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    if options.golden: shardproof.load(model, options.golden)                                  # shardproof
    with shardproof.record(model, optimizer, out=options.out) as rec:                          # shardproof
        for step in range(options.steps):
            tokens, targets = shardproof.batch(*global_batch(config, step))                    # shardproof
            tokens, targets = tokens.to(options.device), targets.to(options.device)
            logprobs = torch.log_softmax(model(tokens), -1).gather(-1, targets[..., None])[..., 0]
            loss = -logprobs.mean()
            loss.backward()
            rec.gradients()                                                                    # optional
            norm = clip(model, MAX_NORM)
            optimizer.step()
            optimizer.zero_grad()
            rec.scalar("loss", loss, mean_over=("dp",))                                        # optional
            rec.scalar("grad_norm", norm)                                                      # optional
            rec.logprobs(logprobs)                                                             # optional
            if dist.get_rank() == 0:
                print(f"step {step + 1}: loss {loss.item():.6f} of rank 0, norm {norm.item():.6f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", required=True, help="the folder of the recorded run")
    parser.add_argument("--golden", help="the folder of the one-rank run, from whose start this run starts")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--steps", type=int, default=3)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args()
    torch.set_num_threads(1)
    if options.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]) % torch.cuda.device_count())
    dist.init_process_group("nccl" if options.device == "cuda" else "gloo")
    with shardproof.float64():                                                                 # shardproof
        train(options)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
