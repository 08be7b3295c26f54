"""torchtitan's llama3 of examples/torchtitan, with the loss that goes through the last layer in chunks of the sequence."""

from . import example

train = example("torchtitan")
CHUNKS = 4


def run(options):
    import torch
    from torchtitan.components.loss import ChunkedLossWrapper
    shardproof = train.shardproof
    with shardproof.float64():
        torch.manual_seed(0)
        model = train.build(options)
        loss_of = ChunkedLossWrapper(ChunkedLossWrapper.Config(num_chunks=CHUNKS))
        loss_of.set_lm_head(model.lm_head)
        model._skip_lm_head = True
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        if options.golden:
            shardproof.load(model, options.golden)
        with shardproof.record(model, optimizer, out=options.out) as rec:
            tokens, targets = shardproof.batch(*train.global_batch(0))
            loss, _ = loss_of(model(tokens), targets, torch.tensor(train.ROWS * train.LENGTH))
            loss.backward()
            optimizer.step()
            rec.scalar("loss", loss, sum_over=("fsdp",))
