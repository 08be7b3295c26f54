"""Trains a small Megatron-core GPT with tensor, pipeline and data parallelism on the CPU, and records it.

    torchrun --nproc-per-node 1 train.py --out golden
    torchrun --nproc-per-node 4 train.py --out run --golden golden --tp 2
    shardproof judge run --golden golden

The five lines that shardproof needs are marked; optional ones record more.
"""

import argparse

import cuda_on_cpu
import shardproof                                                                              # shardproof
import torch
import torch.distributed as dist
from megatron.core import parallel_state, tensor_parallel
from megatron.core.distributed import DistributedDataParallel, DistributedDataParallelConfig, finalize_model_grads
from megatron.core.models.gpt import GPTModel
from megatron.core.models.gpt.gpt_layer_specs import get_gpt_layer_local_spec
from megatron.core.pipeline_parallel import get_forward_backward_func
from megatron.core.transformer import TransformerConfig
from megatron.core.transformer.transformer_block import TransformerBlockSubmodules, get_num_layers_to_build

VOCABULARY, LENGTH, ROWS, MICROBATCHES = 64, 12, 8, 2


class Norm(torch.nn.Module):
    """RMSNorm with the mark that sequence parallelism needs; Megatron's local one refuses it."""

    def __init__(self, config, hidden_size, eps=1e-5, **_):
        super().__init__()
        self.eps = eps
        self.weight = torch.nn.Parameter(torch.ones(hidden_size))
        self.weight.sequence_parallel = config.sequence_parallel

    def forward(self, x):
        return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + self.eps) * self.weight


def specification(config, chunk):
    """The layers of this stage, or of one of its chunks, with this file's norm."""
    layer = get_gpt_layer_local_spec(num_experts=config.num_moe_experts, moe_grouped_gemm=False, normalization="RMSNorm")
    layer.submodules.input_layernorm = layer.submodules.pre_mlp_layernorm = Norm
    return TransformerBlockSubmodules([layer] * get_num_layers_to_build(config, chunk), Norm)


def build(options, chunk=None):
    config = TransformerConfig(
        num_layers=options.layers, hidden_size=32, num_attention_heads=4, num_query_groups=2, ffn_hidden_size=48,
        tensor_model_parallel_size=options.tp, pipeline_model_parallel_size=options.pp,
        virtual_pipeline_model_parallel_size=options.vpp if options.vpp > 1 else None,
        expert_model_parallel_size=options.ep, expert_tensor_parallel_size=options.etp or options.tp,
        sequence_parallel=options.tp > 1, num_moe_experts=4 if options.experts else None, moe_router_topk=2,
        moe_token_dispatcher_type=options.dispatcher,
        use_cpu_initialization=True, params_dtype=torch.float64, pipeline_dtype=torch.float64,
        gated_linear_unit=True, activation_func=torch.nn.functional.silu, normalization="RMSNorm",
        add_bias_linear=False, hidden_dropout=0.0, attention_dropout=0.0, bias_dropout_fusion=False,
        bias_activation_fusion=False, masked_softmax_fusion=False, gradient_accumulation_fusion=False,
        batch_p2p_comm=False, apply_rope_fusion=False)
    model = GPTModel(config, specification(config, chunk), VOCABULARY, LENGTH, position_embedding_type="rope",
                     pre_process=parallel_state.is_pipeline_first_stage(ignore_virtual=False, vp_stage=chunk),
                     post_process=parallel_state.is_pipeline_last_stage(ignore_virtual=False, vp_stage=chunk),
                     share_embeddings_and_output_weights=False, vp_stage=chunk)
    settings = DistributedDataParallelConfig(grad_reduce_in_fp32=False, overlap_grad_reduce=False)
    return DistributedDataParallel(config, settings, model)


def global_batch(step):
    generator = torch.Generator().manual_seed(step)
    tokens = torch.randint(VOCABULARY, (ROWS, LENGTH + 1), generator=generator)
    return tokens[:, :-1], tokens[:, 1:]


def forward_step(batches, model):
    tokens, targets = next(batches)
    positions = torch.arange(LENGTH).expand_as(tokens)
    mask = torch.ones(1, 1, LENGTH, LENGTH, dtype=torch.bool).triu(1)
    losses = model(tokens, positions, mask, labels=targets)

    def loss_of(output):
        loss = output.mean()
        return loss, {"loss": loss.detach()}
    return losses, loss_of


def train(options):
    model = [build(options, chunk) for chunk in range(options.vpp)] if options.vpp > 1 else [build(options)]
    parameters = [parameter for chunk in model for parameter in chunk.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-2)
    if options.golden: shardproof.load(model, options.golden)                                  # shardproof
    run = get_forward_backward_func()
    model[0].config.finalize_model_grads_func = finalize_model_grads
    with shardproof.record(model, optimizer, out=options.out) as rec:                          # shardproof
        for step in range(options.steps):
            for chunk in model:
                chunk.zero_grad_buffer()
            tokens, targets = shardproof.batch(*global_batch(step))                            # shardproof
            size = ROWS // MICROBATCHES // parallel_state.get_data_parallel_world_size()
            iterators = [zip(tokens.split(size), targets.split(size)) for _ in model]
            losses = run(forward_step_func=forward_step, model=model, num_microbatches=MICROBATCHES,
                         data_iterator=iterators if options.vpp > 1 else iterators[0],
                         seq_length=LENGTH, micro_batch_size=size, forward_only=False)
            for parameter in parameters:
                parameter.grad = parameter.main_grad
            optimizer.step()
            for parameter in parameters:
                parameter.grad = None
            if losses:                                                                         # optional
                loss = sum(one["loss"] for one in losses) / MICROBATCHES                       # optional
                rec.scalar("loss", loss, mean_over=("dp", "ep"))                               # optional


def parse():
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", required=True)
    parser.add_argument("--golden", help="the folder of the one-rank run")
    parser.add_argument("--steps", type=int, default=2)
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--pp", type=int, default=1)
    parser.add_argument("--vpp", type=int, default=1, help="chunks of layers on each stage")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--ep", type=int, default=1, help="ranks over which experts are spread")
    parser.add_argument("--etp", type=int, help="ranks over which each expert is cut; those of tp if it is not given")
    parser.add_argument("--dispatcher", choices=("allgather", "alltoall"), default="allgather")
    parser.add_argument("--experts", action="store_true")
    return parser.parse_args()


def main():
    torch.set_num_threads(1)
    options = parse()
    dist.init_process_group("gloo")
    run(options)
    dist.destroy_process_group()


def run(options):
    """One rank, after init_process_group."""
    cuda_on_cpu.install()
    parallel_state.initialize_model_parallel(options.tp, options.pp, options.vpp if options.vpp > 1 else None,
                                             expert_model_parallel_size=options.ep,
                                             expert_tensor_parallel_size=options.etp)
    with cuda_on_cpu.OnCpu(), shardproof.float64():                                            # shardproof
        tensor_parallel.model_parallel_cuda_manual_seed(1)
        train(options)


if __name__ == "__main__":
    main()
