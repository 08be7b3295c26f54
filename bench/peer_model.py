"""The Llama of the Python peers (peer_forked.py, peer_fsdp2.py): plain PyTorch modules, drawn from a seed, and
the plan that cuts them over tp with DTensor."""

import socket

import torch
import torch.nn.functional as F
from torch import nn
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.parallel import (ColwiseParallel, PrepareModuleInput, RowwiseParallel,
                                               SequenceParallel, parallelize_module)

# hidden, layers, heads, kv heads, FFN, vocabulary, batch, length
MODELS = {"small": (128, 4, 8, 4, 384, 1024, 4, 128),
          "large": (1024, 8, 16, 8, 2816, 8192, 2, 256)}
SEED = 7


class Sizes:
    def __init__(self, name):
        (self.hidden, self.layers, self.heads, self.kv_heads, self.ffn, self.vocab, self.batch,
         self.length) = MODELS[name]
        self.head_dim = self.hidden // self.heads


class Attention(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        kv = sizes.kv_heads * sizes.head_dim
        self.head_dim = sizes.head_dim
        self.q_proj = nn.Linear(sizes.hidden, sizes.hidden, bias=False)
        self.k_proj = nn.Linear(sizes.hidden, kv, bias=False)
        self.v_proj = nn.Linear(sizes.hidden, kv, bias=False)
        self.o_proj = nn.Linear(sizes.hidden, sizes.hidden, bias=False)

    def forward(self, x, cos, sin):
        batch, length = x.shape[:2]
        q, k, v = (projection(x).view(batch, length, -1, self.head_dim).transpose(1, 2)
                   for projection in (self.q_proj, self.k_proj, self.v_proj))
        group = q.shape[1] // k.shape[1]
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        out = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.o_proj(out.transpose(1, 2).reshape(batch, length, -1))


class Mlp(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.gate_proj = nn.Linear(sizes.hidden, sizes.ffn, bias=False)
        self.up_proj = nn.Linear(sizes.hidden, sizes.ffn, bias=False)
        self.down_proj = nn.Linear(sizes.ffn, sizes.hidden, bias=False)

    def forward(self, x):
        return self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.input_layernorm = nn.RMSNorm(sizes.hidden, eps=1e-6)
        self.self_attn = Attention(sizes)
        self.post_attention_layernorm = nn.RMSNorm(sizes.hidden, eps=1e-6)
        self.mlp = Mlp(sizes)

    def forward(self, x, cos, sin):
        x = x + self.self_attn(self.input_layernorm(x), cos, sin)
        return x + self.mlp(self.post_attention_layernorm(x))


class Llama(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.embed_tokens = nn.Embedding(sizes.vocab, sizes.hidden)
        self.layers = nn.ModuleList(Layer(sizes) for _ in range(sizes.layers))
        self.norm = nn.RMSNorm(sizes.hidden, eps=1e-6)
        self.lm_head = nn.Linear(sizes.hidden, sizes.vocab, bias=False)
        angle = torch.arange(sizes.length, dtype=torch.float64)[:, None] * 10000.0 ** (
            -torch.arange(0, sizes.head_dim, 2, dtype=torch.float64) / sizes.head_dim)
        self.cos, self.sin = angle.cos(), angle.sin()  # of no unit: FSDP2 leaves them alone

    def forward(self, ids):
        x = self.embed_tokens(ids)
        for layer in self.layers:
            x = layer(x, self.cos, self.sin)
        return self.lm_head(self.norm(x))


def rotate(x, cos, sin):
    low, high = x.chunk(2, -1)
    return torch.cat([low * cos - high * sin, high * cos + low * sin], -1)


def seeded_model(sizes, dtype=torch.float32, spread=0.02):
    """The same numbers on every rank, rounded to `dtype`; norms around 1."""
    torch.manual_seed(SEED)
    model = Llama(sizes).to(dtype)
    model.cos, model.sin = model.cos.to(dtype), model.sin.to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape) * spread
            parameter.copy_(noise + 1 if parameter.dim() == 1 else noise)
    return model


def batch_of(sizes, dp_rank, dp):
    """Token ids of this dp rank, and what each position is to predict (-100: nothing)."""
    ids = torch.randint(sizes.vocab, (sizes.batch, sizes.length),
                        generator=torch.Generator().manual_seed(SEED))
    targets = F.pad(ids[:, 1:], (0, 1), value=-100)
    return ids.chunk(dp)[dp_rank], targets.chunk(dp)[dp_rank]


def summed_loss(model, sizes, ids, targets):
    logits = model(ids).flatten(0, 1)
    summed = F.cross_entropy(logits, targets.flatten(), reduction="sum")
    return summed / (sizes.batch * (sizes.length - 1))


def shard_over_tp(model, mesh, sequence_parallel):
    """Llama's plan; with sequence parallelism what lies between the blocks is cut along the sequence."""
    between = Shard(1) if sequence_parallel else Replicate()
    plan = {"embed_tokens": RowwiseParallel(input_layouts=Replicate(), output_layouts=between),
            "lm_head": ColwiseParallel(input_layouts=between, output_layouts=Shard(-1),
                                       use_local_output=False)}
    for name in ("q_proj", "k_proj", "v_proj"):
        plan[f"layers.*.self_attn.{name}"] = ColwiseParallel()
    for name in ("gate_proj", "up_proj"):
        plan[f"layers.*.mlp.{name}"] = ColwiseParallel()
    for name in ("self_attn.o_proj", "mlp.down_proj"):
        plan[f"layers.*.{name}"] = RowwiseParallel(output_layouts=between)
    if sequence_parallel:
        for name in ("norm", "layers.*.input_layernorm", "layers.*.post_attention_layernorm"):
            plan[name] = SequenceParallel()
        plan["layers.*.self_attn"] = PrepareModuleInput(
            input_layouts=(Shard(1), None, None), desired_input_layouts=(Replicate(), None, None))
        plan["layers.*.mlp"] = PrepareModuleInput(
            input_layouts=(Shard(1),), desired_input_layouts=(Replicate(),))
    parallelize_module(model, mesh, plan, src_data_rank=None)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]
