"""What clean_layouts.py trains: the examples of the frameworks and the hand-written model of tests/python, each with its
layouts and with what a seed changes: sizes, options of the framework and of the optimizer. A run of a layout and its golden
have the same."""

import os
from dataclasses import dataclass

os.environ["DS_ACCELERATOR"] = "cpu"  # which DeepSpeed reads when it is imported

import layouts  # noqa: E402
import programs  # noqa: E402
import ranks  # noqa: E402, F401 (it finds the package)
import shardproof  # noqa: E402
import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402

DTYPES = (torch.float64, torch.float32, torch.bfloat16)


@dataclass(frozen=True)
class Example:
    """The layouts of an example whose golden is the same."""

    name: str
    package: str
    prepare: object  # (train, options, draw): changes the module of the example by what is drawn
    run: object      # (train, options), after it; several times in one process
    layouts: tuple   # sizes of axes, and options that the golden has not
    options: tuple = ()
    dtypes: tuple = DTYPES


def replace(owner, name, **given):
    """Functions of a module with other options, and its constants."""
    programs.with_options(owner, name, **given)


def constants(train, **given):
    for name, value in given.items():
        assert hasattr(train, name)
        setattr(train, name, value)


def draw_optimizer(draw, kinds):
    """The optimizer that all examples make with torch.optim.AdamW(parameters, lr=..)."""
    kind, made = draw.choice(kinds), torch.optim.AdamW.__init__
    rate, decay = draw.choice((1e-3, 1e-2)), draw.choice((0.0, 0.01, 0.1))

    class Sgd(torch.optim.SGD):
        def __init__(self, parameters, lr):
            super().__init__(parameters, lr=10 * rate, momentum=0.9, nesterov=decay > 0)

    def adamw(self, parameters, lr):
        made(self, parameters, lr=rate, weight_decay=decay)
    if kind == "sgd":
        torch.optim.AdamW = Sgd
    else:
        torch.optim.AdamW.__init__ = adamw


# --- Megatron-core.

def megatron(train, options, draw):
    hidden, layers = draw.choice((16, 32, 64)), options.layers
    constants(train, VOCABULARY=draw.choice((32, 64, 128)), LENGTH=draw.choice((8, 12, 16)), ROWS=draw.choice((8, 16)),
              MICROBATCHES=draw.choice((2, 4)))
    if draw.random() < 0.4:
        programs_of_megatron(train).norms_of_queries_and_keys(options)
    gated = draw.random() < 0.6
    replace(train, "TransformerConfig", hidden_size=hidden, ffn_hidden_size=draw.choice((32, 48, 96)), num_layers=layers,
            num_query_groups=draw.choice((2, 4)), add_qkv_bias=draw.random() < 0.5, gated_linear_unit=gated,
            activation_func=torch.nn.functional.silu if gated else torch.nn.functional.gelu,
            params_dtype=options.dtype, pipeline_dtype=options.dtype,
            sequence_parallel=options.tp > 1 and options.sequence_parallel)
    replace(train, "GPTModel", share_embeddings_and_output_weights=draw.random() < 0.4)
    replace(train, "DistributedDataParallelConfig", overlap_grad_reduce=draw.random() < 0.3,
            average_in_collective=draw.random() < 0.3, bucket_size=draw.choice((None, 2000, 20000)))


def programs_of_megatron(train):
    """The settings of the planted bugs' program, for the module that runs here."""
    from programs import megatron as settings
    settings.train = train
    return settings


def run_megatron(train, options):
    train.run(options)
    train.parallel_state.destroy_model_parallel()


# --- torch, transformers and torchtitan.

def in_float64(train, options):
    with shardproof.float64():
        train.train(options)


def dtensor_fsdp2(train, options, draw):
    config, fully_shard, rotate = train.Config, train.fully_shard, train.rotate
    given = dict(vocabulary=draw.choice((64, 96)), dim=draw.choice((16, 32, 64)), hidden=draw.choice((32, 48)),
                 layers=draw.choice((1, 2, 3)), kv_heads=draw.choice((2, 4)), length=draw.choice((8, 16)),
                 rows=draw.choice((4, 8)))
    train.Config = lambda: config(**given)
    train.rotate = lambda x, cos, sin: rotate(x, cos, sin).to(x.dtype)  # of float32 angles, below it
    reshards = draw.random() < 0.5
    train.fully_shard = lambda module, **more: fully_shard(module, reshard_after_forward=reshards, **more)
    constants(train, MAX_NORM=draw.choice((0.05, 1.0, 100.0)))


def transformers_tp(train, options, draw):
    constants(train, ROWS=draw.choice((4, 8)))
    replace(train, "LlamaConfig", hidden_size=draw.choice((16, 32, 64)), intermediate_size=draw.choice((32, 48)),
            num_hidden_layers=draw.choice((1, 2, 3)), num_key_value_heads=draw.choice((2, 4)),
            tie_word_embeddings=draw.random() < 0.4, attention_bias=draw.random() < 0.4, mlp_bias=draw.random() < 0.4,
            attn_implementation=draw.choice(("eager", "sdpa")))


def torchtitan(train, options, draw):
    constants(train, ROWS=draw.choice((4, 8)), LENGTH=draw.choice((8, 16, 32)), LAYERS=draw.choice((1, 2, 3)),
              VOCABULARY=draw.choice((512, 2048)))


# --- DeepSpeed.

def deepspeed(train, options, draw):
    import deepspeed as package
    on_cpu = train.deepspeed_on_cpu
    on_cpu.switch_on(on_cpu.cpu_device, dist.get_rank(), dist.get_world_size())
    on_cpu.switch_on(on_cpu.no_shared_memory)
    if options.dtype == torch.float64:
        on_cpu.switch_on(on_cpu.float64_gradients)
        on_cpu.switch_on(on_cpu.float64_parts)
    constants(train, VOCABULARY=draw.choice((40, 64)), WIDTH=draw.choice((8, 16, 32)), LENGTH=draw.choice((4, 8)),
              ROWS=draw.choice((4, 8, 16)))
    norm, initialize = draw.choice((0.05, 1.0, 0.0)), package.initialize
    reduction = draw.choice(("overlap_comm", "reduce_scatter", ""))
    if reduction != "reduce_scatter":  # with which float64 is refused, and not needed
        on_cpu.switch_on(on_cpu.float64_communication)
    more = dict(overlap_comm=reduction == "overlap_comm", reduce_scatter=reduction == "reduce_scatter",
                contiguous_gradients=draw.random() < 0.5, reduce_bucket_size=draw.choice((500, 5000, 500000)),
                allgather_bucket_size=draw.choice((500, 500000)))
    if options.stage == 3:  # drawn last, as the golden has another stage
        more["stage3_param_persistence_threshold"] = draw.choice((0, 100, 100000))

    def initialized(*, config, **given):
        zero = config["zero_optimization"] | more
        return initialize(config=config | dict(gradient_clipping=norm, zero_optimization=zero), **given)
    package.initialize = initialized


# --- Written by hand.

def hand_written(train, options, draw):
    pass  # the draw of layouts.py


def run_hand_written(train, options):
    drawn = train.Draw(options.seed, options.run_dtype)
    train.train(dist.get_rank(), drawn, (options.kind, options.dp, options.tp), options.out, options.golden, options.noise)


EXAMPLES = (
    Example("megatron_core", "megatron", megatron, run_megatron,
            (dict(tp=2), dict(tp=2, sequence_parallel=False), dict(dp=2), dict(dp=2, tp=2), dict(pp=2), dict(pp=2, tp=2))),
    Example("megatron_core", "megatron", megatron, run_megatron, (dict(pp=2, vpp=2), dict(dp=2, pp=2)), (("layers", 4),)),
    Example("megatron_core", "megatron", megatron, run_megatron, (dict(ep=2), dict(ep=2, tp=2), dict(tp=2)),
            (("experts", True),)),
    Example("dtensor_fsdp2", "torch", dtensor_fsdp2, in_float64, (dict(tp=2), dict(dp=2), dict(dp=2, tp=2), dict(dp=4))),
    Example("transformers_tp", "transformers", transformers_tp, in_float64, (dict(tp=2), dict(dp=2), dict(dp=2, tp=2))),
    Example("deepspeed", "deepspeed", deepspeed, in_float64, (dict(dp=2, stage=1), dict(dp=2, stage=2), dict(dp=2, stage=3)),
            dtypes=(torch.float64,)),
    Example("torchtitan", "torchtitan", torchtitan, in_float64, (dict(tp=2), dict(dp=2), dict(dp=2, tp=2)),
            dtypes=(torch.float64,)),
    Example("hand_written", "torch", hand_written, run_hand_written,
            tuple(dict(kind=kind, dp=dp, tp=tp) for kind, dp, tp in layouts.LAYOUTS)),
)
