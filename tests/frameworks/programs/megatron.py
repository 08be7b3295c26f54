"""Megatron-core's GPT of examples/megatron_core."""

import torch
from megatron.core.tensor_parallel import copy_to_tensor_model_parallel_region
from torch import nn

from . import example, with_options


train = example("megatron_core")


def run(options):
    train.run(options)


def experts(options):
    options.experts = True


def without_sequence_parallel(_):
    with_options(train, "TransformerConfig", sequence_parallel=False)


def frozen_linears(_):
    """The first linear layer of each MLP has frozen weights."""
    original = train.GPTModel

    def build(*given, **options):
        model = original(*given, **options)
        for name, parameter in model.named_parameters():
            if "linear_fc1" in name:
                parameter.requires_grad_(False)
                parameter.main_grad = None  # which the example reads of each parameter
        return model
    train.GPTModel = build


def gathered_logits(_):
    """Every rank has all logits and computes the loss by itself."""
    with_options(train, "GPTModel", parallel_output=False)

    def forward_step(batches, model):
        tokens, targets = next(batches)
        positions = torch.arange(train.LENGTH).expand_as(tokens)
        mask = torch.ones(1, 1, train.LENGTH, train.LENGTH, dtype=torch.bool).triu(1)
        logits = model(tokens, positions, mask)

        def loss_of(output):
            loss = nn.functional.cross_entropy(output.flatten(0, 1), targets.flatten())
            return loss, {"loss": loss.detach()}
        return logits, loss_of
    train.forward_step = forward_step


def norms_of_queries_and_keys(_):
    with_options(train, "TransformerConfig", qk_layernorm=True)
    original = train.get_gpt_layer_local_spec

    def specification(**options):
        layer = original(**options)
        attention = layer.submodules.self_attention.submodules
        attention.q_layernorm = attention.k_layernorm = train.Norm
        return layer
    train.get_gpt_layer_local_spec = specification


def balance_of_tokens(options):
    balance(options, "aux_loss")


def balance_of_sequences(options):
    balance(options, "seq_aux_loss")


def balance(options, kind):
    """Experts with a loss of balance, and gradients that are divided by the tokens of the batch at the end."""
    options.experts = True
    with_options(train, "TransformerConfig", calculate_per_token_loss=True, moe_aux_loss_coeff=0.1,
                 moe_router_load_balancing_type=kind)

    def forward_step(batches, model):
        tokens, targets = next(batches)
        positions = torch.arange(train.LENGTH).expand_as(tokens)
        mask = torch.ones(1, 1, train.LENGTH, train.LENGTH, dtype=torch.bool).triu(1)
        losses = model(tokens, positions, mask, labels=targets)

        def loss_of(output):
            return output.sum(), torch.tensor(output.numel(), dtype=torch.int), {"loss": output.detach().mean()}
        return losses, loss_of
    train.forward_step = forward_step


def strided_head(_):
    """The last layer computes on [B, S, H] in place of [S, B, H], as a fused one does; the sum of its input's gradient comes
    before the transposition."""
    original = train.GPTModel

    def build(*given, **options):
        model = original(*given, **options)
        head = model.output_layer

        def transposed(hidden, **_):
            hidden = copy_to_tensor_model_parallel_region(hidden, group=head.tp_group)
            logits = nn.functional.linear(hidden.transpose(0, 1).contiguous(), head.weight)
            return logits.transpose(0, 1).contiguous(), None
        head.forward = transposed
        return model
    train.GPTModel = build
