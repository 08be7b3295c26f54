"""transformers' Llama of examples/transformers_tp. The loss is the model's own, of all tokens that count on all ranks."""

import os
import tempfile

import torch
import torch.distributed as dist
from transformers import Trainer, TrainingArguments

from . import example


train = example("transformers_tp")
shardproof = train.shardproof


def uneven_rows(options):
    """The data-parallel ranks have other numbers of tokens that count."""
    options.uneven = True


def by_trainer(options):
    """The Trainer counts the tokens and scales the loss."""
    options.by_trainer = True


def by_trainer_with_smooth_labels(options):
    options.by_trainer, options.smoothing = True, 0.1


def incomplete_accumulation(options):
    """The Trainer has two of the four microbatches that it accumulates elsewhere, and a model that does not count tokens."""
    options.by_trainer = options.incomplete = True


def trainer_of(model, options, **more):
    os.environ.update(RANK=str(dist.get_rank()), LOCAL_RANK=str(dist.get_rank()), WORLD_SIZE=str(dist.get_world_size()),
                      MASTER_ADDR="127.0.0.1", MASTER_PORT="29512")
    with tempfile.TemporaryDirectory() as folder:
        trainer = Trainer(model, TrainingArguments(folder, use_cpu=True, report_to=[], disable_tqdm=True, **more))
    model._get_name = lambda: "LlamaForCausalLM"  # which FSDP2 has renamed
    model._tp_size = options.tp  # of which the Trainer would make an FSDP of its own
    return trainer


def accumulated(model, options, tokens, labels):
    """The loss of microbatches, with their gradients."""
    trainer = trainer_of(model, options, gradient_accumulation_steps=4)
    trainer.model_accepts_loss_kwargs = False
    trainer.current_gradient_accumulation_steps = 2
    trainer.optimizer = None
    tokens, labels = shardproof.batch(tokens, labels)
    batches = zip(tokens.chunk(2), labels.chunk(2))
    return sum(trainer.training_step(model, dict(input_ids=t, labels=l, use_cache=False)) for t, l in batches)


def loss_of(model, options, tokens, labels):
    """The loss of which FSDP2 takes the mean over the data-parallel ranks."""
    count = (labels[:, 1:] != -100).sum()
    tokens, labels = shardproof.batch(tokens, labels)
    if not getattr(options, "by_trainer", False):
        loss = model(input_ids=tokens, labels=labels, num_items_in_batch=count, use_cache=False).loss
        return loss * dist.get_world_size() / options.tp
    batch = dict(input_ids=tokens, labels=labels, use_cache=False)
    trainer = trainer_of(model, options, label_smoothing_factor=getattr(options, "smoothing", 0.0))
    count = trainer._get_num_items_in_batch([batch], tokens.device)
    return trainer.compute_loss(model, batch, num_items_in_batch=count)


def run(options):
    with shardproof.float64():
        model = train.build(options.tp)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        if options.golden:
            shardproof.load(model, options.golden)
        with shardproof.record(model, optimizer, out=options.out) as rec:
            tokens, _ = train.global_batch(0)
            labels = tokens.clone()
            if getattr(options, "uneven", False):
                labels[:3, 4:] = -100
            if getattr(options, "incomplete", False):
                loss = accumulated(model, options, tokens, labels)
            else:
                loss = loss_of(model, options, tokens, labels)
                loss.backward()
            optimizer.step()
            rec.scalar("loss", loss, mean_over=("dp",))
