"""A small model of which each test knows every full parameter."""

import torch
from torch import nn


class Block(nn.Module):
    def __init__(self, width, hidden):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, hidden, bias=False)
        self.down = nn.Linear(hidden, width, bias=False)

    def forward(self, x):
        return x + self.down(torch.tanh(self.up(self.norm(x))))


class Model(nn.Module):
    """[B, S] tokens to [B, S, V] logits."""

    def __init__(self, vocabulary=12, width=8, hidden=12, layers=2):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.layers = nn.ModuleList(Block(width, hidden) for _ in range(layers))
        self.head = nn.Linear(width, vocabulary, bias=False)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def full_values(model):
    """Known values for each parameter: element i of the n-th parameter in [0, 1) is a fixed function of (n, i)."""
    return {name: (torch.arange(p.numel(), dtype=torch.float64).reshape(p.shape) * 0.37 + n * 0.11).sin() * 0.5
            for n, (name, p) in enumerate(model.named_parameters())}


def build():
    """The model in float64 with its known values."""
    model = Model().double()
    values = full_values(model)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(values[name])
    return model


def halves(model):
    """The parameters of the head and embedding, and the others."""
    ends = [model.embed.weight, model.head.weight]
    return ends, [one for one in model.parameters() if all(one is not end for end in ends)]


def global_batch(step, rows=4, length=5, vocabulary=12):
    tokens = (torch.arange(rows * (length + 1)) * 7 + step * 5).reshape(rows, length + 1) % vocabulary
    return tokens[:, :-1], tokens[:, 1:]


def logprobs_of(logits, targets):
    return torch.log_softmax(logits, -1).gather(-1, targets[..., None])[..., 0]


def backward(model, step, scale=1):
    """Adds the gradients of the loss of a global batch to those that are there, and returns the loss."""
    tokens, targets = global_batch(step)
    loss = -scale * logprobs_of(model(tokens), targets).mean()
    loss.backward()
    return loss
