#!/usr/bin/env python3
"""Makes the cases in this folder: small models of each family run by Hugging Face transformers.

    python3 -m venv build/hf-venv
    build/hf-venv/bin/pip install -r golden/hf/requirements.txt
    build/hf-venv/bin/python golden/hf/make.py            # writes every case folder anew
    build/hf-venv/bin/python golden/hf/make.py --check    # compares with what is stored

The truth is *true* float64. transformers casts rotary tables, norms and softmax to float32 even in
a float64 model, so while it builds and runs the model every name by which it asks for float32 means
float64 (`float32_means_float64`), and a dispatch mode raises when any operation touches a float32
tensor (`NoFloat32`). Losses, logprobs and masks are written here from their definitions; AdamW, SGD
and clipping are PyTorch's own. Each model is read back from its folder, so that transformers' own
reader sees the same config.json and weights as ours.

The cases with "rope_theta" at the top of config.json (llama_tied_gqa_padding_row,
llama_rope_llama3_v4, llama_rope_linear_sgd) also pass --check under transformers 4.57.1.

gemma3_images is a model that reads images too, run on text alone; its answers are those of the text
part, under the names of Gemma3ForCausalLM.
"""
import argparse
import contextlib
import dataclasses
import json
import math
import pathlib
import sys

import torch
import transformers
from safetensors.torch import load_file, save_file
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig
from transformers.utils import logging

HERE = pathlib.Path(__file__).resolve().parent
MAX_SHARD_TENSORS = 9  # of a sharded case: more tensors go to the next file


@dataclasses.dataclass
class Case:
    name: str
    seed: int
    config: dict
    loss: dict
    optimizer: dict
    lengths: list
    dropped: list = dataclasses.field(default_factory=list)
    dtype: torch.dtype = torch.float32  # of the stored weights
    norm_dtype: torch.dtype = None  # of the stored norms, where it is another
    sharded: bool = False
    unaligned: bool = False  # no stored tensor begins at a multiple of its elements' size
    as_saved: bool = False  # stored under the names that transformers itself writes


def config(**changes):
    base = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 72,
            "hidden_size": 32, "intermediate_size": 40, "num_hidden_layers": 2,
            "num_attention_heads": 4, "num_key_value_heads": 4, "hidden_act": "silu",
            "max_position_embeddings": 64, "rms_norm_eps": 1e-5, "tie_word_embeddings": False,
            "attention_bias": False, "mlp_bias": False}
    return base | changes


def qwen(number, **changes):
    """Qwen2 or Qwen3, whose configs have no options for biases of the MLP."""
    base = config(architectures=[f"Qwen{number}ForCausalLM"], model_type=f"qwen{number}",
                  num_key_value_heads=2, rope_theta=500.0)
    del base["mlp_bias"], base["attention_bias"]
    return base | changes


def gemma(**changes):
    base = config(architectures=["Gemma3ForCausalLM"], model_type="gemma3_text",
                  num_hidden_layers=3, num_key_value_heads=2, head_dim=12,
                  hidden_activation="gelu_pytorch_tanh", query_pre_attn_scalar=20,
                  sliding_window=4)
    for key in ("mlp_bias", "hidden_act", "tie_word_embeddings"):
        del base[key]
    return base | changes


def gemma_with_images():
    text = gemma(vocab_size=76, rope_theta=200.0, rope_local_base_freq=20.0,
                 rope_scaling={"rope_type": "linear", "factor": 2.0}, sliding_window_pattern=3)
    del text["architectures"]
    vision = {"model_type": "siglip_vision_model", "hidden_size": 8, "intermediate_size": 8,
              "num_hidden_layers": 1, "num_attention_heads": 1, "image_size": 8, "patch_size": 4,
              "vision_use_head": False}
    return {"architectures": ["Gemma3ForConditionalGeneration"], "model_type": "gemma3",
            "text_config": text, "vision_config": vision, "mm_tokens_per_image": 4,
            "boi_token_index": 72, "eoi_token_index": 73, "image_token_index": 74}


def experts(kind, **changes):
    """Mixtral, Qwen2-MoE, Qwen3-MoE or GPT-OSS, small."""
    base = config(architectures=[f"{kind}ForCausalLM"], vocab_size=40, hidden_size=16, intermediate_size=12,
                  num_key_value_heads=2, rope_theta=500.0)
    del base["mlp_bias"], base["attention_bias"]
    return base | changes


def deepseek(**changes):
    """DeepSeek-V3, small."""
    base = experts("DeepseekV3", model_type="deepseek_v3", num_key_value_heads=4, n_routed_experts=8, n_group=4,
                   topk_group=2, num_experts_per_tok=4, moe_intermediate_size=6, n_shared_experts=1,
                   first_k_dense_replace=1, routed_scaling_factor=1.7, q_lora_rank=10, kv_lora_rank=7,
                   qk_nope_head_dim=5, qk_rope_head_dim=4, v_head_dim=6)
    return base | changes


ADAMW = {"kind": "AdamW", "lr": 1e-3, "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0.01,
         "max_norm": 0.1, "steps": 3}
SGD = {"kind": "SGD", "lr": 0.1, "weight_decay": 0.0, "max_norm": 0.1, "steps": 3}
NLL = {"kind": "nll"}
CLIPPED = {"kind": "clipped_pg", "eps": 0.2, "beta": 0.01}
YARN = {"rope_type": "yarn", "factor": 4.0, "beta_fast": 2.0, "beta_slow": 0.2, "truncate": False,
        "original_max_position_embeddings": 16}
LLAMA3 = {"factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
          "original_max_position_embeddings": 48}

CASES = [
    Case("llama_untied", 1, config(rope_parameters={"rope_type": "default", "rope_theta": 500.0}),
         NLL, ADAMW, [12, 1, 7]),
    Case("llama_tied_gqa_padding_row", 2,
         config(tie_word_embeddings=True, num_key_value_heads=2, pad_token_id=3, rope_theta=10000.0,
                rope_scaling=None), NLL, ADAMW, [5, 12, 9]),
    Case("llama_bias", 3, config(attention_bias=True, mlp_bias=True, num_key_value_heads=1,
                                 rope_parameters={"rope_type": "default", "rope_theta": 10000.0}),
         CLIPPED, ADAMW, [12, 12, 4]),
    Case("llama_rope_llama3", 4,
         config(head_dim=16, num_attention_heads=3, num_key_value_heads=1, hidden_size=30,
                original_max_position_embeddings=LLAMA3["original_max_position_embeddings"],
                rope_parameters={"rope_type": "llama3", "rope_theta": 100.0, "factor": 8.0,
                                 "low_freq_factor": 1.0, "high_freq_factor": 4.0}),
         CLIPPED, ADAMW, [12, 2, 11]),
    Case("llama_rope_llama3_v4", 5,
         config(num_key_value_heads=2, rope_theta=100.0,
                rope_scaling={"rope_type": "llama3"} | LLAMA3),
         NLL, ADAMW, [3, 12, 8], dropped=[2]),
    Case("llama_rope_linear_sgd", 6,
         config(rope_theta=1000.0, rope_scaling={"type": "linear", "factor": 4.0}, pad_token_id=5),
         NLL, SGD, [12, 6, 10]),
    Case("llama_sharded_bfloat16", 7,
         config(vocab_size=96, num_key_value_heads=2, tie_word_embeddings=True,
                rope_parameters={"rope_type": "linear", "rope_theta": 1000.0, "factor": 2.0}),
         CLIPPED, ADAMW, [10, 12, 11], dropped=[0], dtype=torch.bfloat16, sharded=True),
    Case("qwen2_tied_window_of_last_layer", 8,
         qwen(2, tie_word_embeddings=True, use_sliding_window=True, sliding_window=4,
              max_window_layers=1), NLL, ADAMW, [12, 1, 7]),
    Case("qwen2_head_dim", 9, qwen(2, head_dim=6, num_key_value_heads=1, pad_token_id=4),
         CLIPPED, ADAMW, [5, 12, 9]),
    Case("qwen3_head_dim_bias", 10,
         qwen(3, head_dim=14, attention_bias=True, use_sliding_window=False, sliding_window=3,
              rope_theta=None, rope_parameters={"rope_type": "default", "rope_theta": 90.0}),
         NLL, ADAMW, [12, 12, 4]),
    Case("qwen3_tied_layer_types_sgd", 11,
         qwen(3, head_dim=10, tie_word_embeddings=True, use_sliding_window=True, sliding_window=3,
              layer_types=["sliding_attention", "full_attention"]),
         CLIPPED, SGD, [11, 12, 2], dropped=[2]),
    Case("gemma3_window_pattern", 12,
         gemma(rope_theta=200.0, rope_local_base_freq=20.0, sliding_window_pattern=2,
               rope_scaling={"rope_type": "linear", "factor": 4.0}), NLL, ADAMW, [12, 1, 9]),
    Case("gemma3_untied_layer_types", 13,
         gemma(tie_word_embeddings=False, attention_bias=True, pad_token_id=None,
               num_key_value_heads=1,
               layer_types=["full_attention", "sliding_attention", "sliding_attention"],
               rope_parameters={
                   "full_attention": {"rope_type": "llama3", "rope_theta": 300.0} | LLAMA3,
                   "sliding_attention": {"rope_type": "default", "rope_theta": 30.0}}),
         CLIPPED, ADAMW, [7, 12, 3]),
    Case("gemma3_images", 14, gemma_with_images(), NLL, ADAMW, [10, 12, 6]),
    Case("llama_float16_float64_unaligned", 15,
         config(num_key_value_heads=2, rope_parameters={"rope_type": "default", "rope_theta": 500.0}),
         NLL, ADAMW, [8, 12, 3], dtype=torch.float16, norm_dtype=torch.float64, unaligned=True),
    Case("mixtral", 16,
         experts("Mixtral", model_type="mixtral", num_local_experts=5, num_experts_per_tok=2),
         NLL, ADAMW, [12, 5, 9], as_saved=True),
    Case("qwen3_moe_dense_layer", 17,
         experts("Qwen3Moe", model_type="qwen3_moe", num_hidden_layers=3, num_experts=6, num_experts_per_tok=3,
                 moe_intermediate_size=8, norm_topk_prob=True, mlp_only_layers=[1], head_dim=6),
         CLIPPED, ADAMW, [11, 12, 2], dropped=[2]),
    Case("qwen3_moe_steps", 18,
         experts("Qwen3Moe", model_type="qwen3_moe", num_hidden_layers=3, num_experts=4, num_experts_per_tok=1,
                 moe_intermediate_size=7, norm_topk_prob=False, decoder_sparse_step=2, head_dim=4,
                 tie_word_embeddings=True), NLL, SGD, [12, 1, 7], as_saved=True),
    Case("qwen2_moe_shared_expert", 19,
         experts("Qwen2Moe", model_type="qwen2_moe", num_hidden_layers=3, num_experts=6, num_experts_per_tok=3,
                 moe_intermediate_size=8, shared_expert_intermediate_size=10, norm_topk_prob=False, mlp_only_layers=[1],
                 num_attention_heads=4, head_dim=6), CLIPPED, ADAMW, [11, 12, 2], dropped=[2], as_saved=True),
    Case("qwen2_moe_steps", 20,
         experts("Qwen2Moe", model_type="qwen2_moe", num_experts=4, num_experts_per_tok=2, moe_intermediate_size=6,
                 shared_expert_intermediate_size=14, norm_topk_prob=True, decoder_sparse_step=2, qkv_bias=False,
                 tie_word_embeddings=True), NLL, SGD, [12, 1, 7]),
    Case("gpt_oss", 21,
         experts("GptOss", model_type="gpt_oss", num_local_experts=6, num_experts_per_tok=3, head_dim=6,
                 intermediate_size=16, sliding_window=4, swiglu_limit=0.8,
                 rope_theta=None, rope_parameters=YARN | {"rope_theta": 500.0}),
         CLIPPED, ADAMW, [11, 12, 2], dropped=[2]),
    Case("gpt_oss_v4", 22,
         experts("GptOss", model_type="gpt_oss", num_hidden_layers=3, num_local_experts=4, num_experts_per_tok=2,
                 head_dim=4, sliding_window=3, layer_types=["full_attention", "sliding_attention", "sliding_attention"],
                 attention_bias=False, tie_word_embeddings=True, rope_scaling=YARN | {"beta_fast": 4.0, "truncate": True}),
         NLL, SGD, [12, 1, 7], as_saved=True),
    Case("deepseek_v3", 23,
         deepseek(num_hidden_layers=3, first_k_dense_replace=1,
                  rope_theta=None, rope_parameters=YARN | {"rope_theta": 500.0, "truncate": True, "mscale": 1.0,
                                                           "mscale_all_dim": 0.7}),
         CLIPPED, ADAMW, [11, 12, 2], dropped=[2], as_saved=True),
    Case("deepseek_v3_without_q_lora", 24,
         deepseek(q_lora_rank=None, n_routed_experts=4, n_group=1, topk_group=1, num_experts_per_tok=2,
                  n_shared_experts=2, norm_topk_prob=False, v_head_dim=10, rope_interleave=False,
                  first_k_dense_replace=0, tie_word_embeddings=True, rope_scaling=None), NLL, SGD, [12, 1, 7]),
]


def text_of(case):
    return case.config.get("text_config", case.config)


def reads_images(case):
    return "text_config" in case.config


def is_gemma(case):
    return case.config["model_type"].startswith("gemma3")


def pad_token(case):
    return text_of(case).get("pad_token_id", 0 if is_gemma(case) else None)


def model_class(case):
    return getattr(transformers, case.config["architectures"][0])


def text_name(name):
    """As the decoder alone calls its parameter; None for what sees images."""
    if name.startswith("model.language_model."):
        return "model." + name.removeprefix("model.language_model.")
    return None if name.startswith(("model.vision_tower", "model.multi_modal")) else name


# --- float64, all of it --------------------------------------------------------------------------
@contextlib.contextmanager
def float32_means_float64():
    """Within it torch.float32, torch.float and .float() mean float64, whoever asks."""
    kept = torch.float32, torch.float, torch.Tensor.float, torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    torch.float32 = torch.float = torch.float64
    torch.Tensor.float = torch.Tensor.double
    try:
        yield
    finally:
        torch.float32, torch.float, torch.Tensor.float = kept[:3]
        torch.set_default_dtype(kept[3])


class NoFloat32(TorchDispatchMode):
    """Raises when an operation reads or makes a float32 tensor (or one narrower)."""

    narrow = {torch.float32, torch.float16, torch.bfloat16}

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        result = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, result)):
            if isinstance(leaf, torch.Tensor) and leaf.dtype in self.narrow:
                raise AssertionError(f"{func} touches a {leaf.dtype} tensor")
        return result


@contextlib.contextmanager
def true_float64():
    with float32_means_float64(), NoFloat32():
        yield


# --- what a case is made from --------------------------------------------------------------------
def seeded(case, name):
    return torch.Generator().manual_seed(case.seed * 1000 + sum(name.encode()) % 997)


def selection_biases(model):
    return [(name, bias) for name, bias in model.named_buffers() if name.endswith("e_score_correction_bias")]


def draw_weights(case):
    """Every element different, norms around 1, biases around 0, attention far from uniform."""
    c = AutoConfig.for_model(**case.config)
    weights = {}
    norm_center = 0 if is_gemma(case) else 1
    model = model_class(case)(c)
    for name, like in [*model.named_parameters(), *selection_biases(model)]:
        normal = torch.randn(like.shape, generator=seeded(case, name), dtype=torch.float64)
        if name.endswith("norm.weight"):
            value = norm_center + 0.2 * normal
        elif name.endswith((".bias", "correction_bias")):
            value = 0.2 * normal
        else:
            value = 1.5 * normal / math.sqrt(like.shape[-1])
        dtype = case.norm_dtype if name.endswith("norm.weight") and case.norm_dtype else case.dtype
        weights[name] = value.to(dtype).contiguous()
    return weights


def draw_batch(case):
    size, seq_len, vocab = len(case.lengths), max(case.lengths), text_of(case)["vocab_size"]
    vocab -= 4 * reads_images(case)  # the last ids stand for images
    shape = (size, seq_len)
    ids = torch.cat([torch.randperm(vocab, generator=seeded(case, "ids")) for _ in range(4)])
    batch = {
        "input_ids": ids[: size * seq_len].view(shape).clone(),
        "input_lengths": torch.tensor(case.lengths),
        "token_mask": (torch.rand(shape, generator=seeded(case, "mask")) < 0.8).to(torch.float64),
        "sample_mask": torch.ones(size, dtype=torch.float64),
    }
    pad = pad_token(case)
    if pad is not None:  # the id counts as a token like any other where the lengths say so
        batch["input_ids"][:, 2] = pad
        for row, length in enumerate(case.lengths):
            batch["input_ids"][row, length:] = pad
    batch["sample_mask"][case.dropped] = 0
    return batch


def add_policy(case, folder, batch):
    """Old logprobs near the model's own, as in training: some ratios are clipped, some not."""
    model = load_model(case, folder)
    with torch.no_grad(), true_float64():
        now = logprobs_of(model, batch)
    spread = torch.linspace(-0.5, 0.5, now.numel(), dtype=torch.float64)
    for name in ("prev_logprobs", "reference_logprobs"):
        shuffled = spread[torch.randperm(now.numel(), generator=seeded(case, name))]
        batch[name] = now + shuffled.view(now.shape)
    batch["advantages"] = torch.randn(now.shape, generator=seeded(case, "advantages"),
                                      dtype=torch.float64)
    off = (now - batch["prev_logprobs"]).exp().sub(1).abs()[mask_of(batch) > 0]
    clipped = (off > case.loss["eps"]).sum()
    assert 2 < clipped < off.numel() - 2, f"{clipped} of {off.numel()} ratios are out of range"


def write_inputs(case, folder):
    folder.mkdir(parents=True, exist_ok=True)
    for old in folder.iterdir():
        old.unlink()
    (folder / "config.json").write_text(json.dumps(case.config, indent=1) + "\n")
    spec = {"loss": case.loss, "optimizer": case.optimizer}
    (folder / "case.json").write_text(json.dumps(spec, indent=1) + "\n")
    write_weights(case, folder)
    batch = draw_batch(case)
    if case.loss["kind"] == "clipped_pg":
        add_policy(case, folder, batch)
    save_file(batch, folder / "batch.safetensors")


def write_weights(case, folder):
    weights = draw_weights(case)
    if reads_images(case) or case.as_saved:
        model = model_class(case)(AutoConfig.from_pretrained(folder))
        model.load_state_dict(weights, strict=False)
        kept = (folder / "config.json").read_bytes()
        model.save_pretrained(folder)
        (folder / "config.json").write_bytes(kept)
        (folder / "generation_config.json").unlink(missing_ok=True)
        return
    if not case.sharded:
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        if case.unaligned:
            take_padding_off(folder / "model.safetensors")
        return
    names = list(weights)
    shards = [names[i:i + MAX_SHARD_TENSORS] for i in range(0, len(names), MAX_SHARD_TENSORS)]
    index = {"metadata": {}, "weight_map": {}}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        save_file({name: weights[name] for name in shard}, folder / file, metadata={"format": "pt"})
        index["weight_map"] |= {name: file for name in shard}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index, indent=1) + "\n")


def take_padding_off(path):
    """Makes the header of an odd length: the spaces at its end are there for alignment alone."""
    content = path.read_bytes()
    data = 8 + int.from_bytes(content[:8], "little")
    header = content[8:data].rstrip(b" ")
    header += b" " * (1 - len(header) % 2)
    path.write_bytes(len(header).to_bytes(8, "little") + header + content[data:])


# --- the truth -----------------------------------------------------------------------------------
def load_model(case, folder):
    """The model as transformers reads it, rebuilt so that its buffers too start as float64."""
    read = model_class(case).from_pretrained(folder, dtype=torch.float64)
    settings = AutoConfig.from_pretrained(folder)
    for part in (settings, *(getattr(settings, key, None) for key in ("text_config", "vision_config"))):
        if part is not None:
            part._attn_implementation = part._experts_implementation = "eager"
            part.dtype = torch.float64
    with true_float64():
        model = model_class(case)(settings)
        model.load_state_dict(read.state_dict())
        model.train(not reads_images(case))  # else it asks which tokens are images; nothing drops out
    if settings.tie_word_embeddings:
        assert model.get_output_embeddings().weight is model.get_input_embeddings().weight
    return model


def logprobs_of(model, batch):
    ids, lengths = batch["input_ids"], batch["input_lengths"]
    inside = torch.arange(ids.shape[1])[None, :] < lengths[:, None]
    logits = model(input_ids=ids, attention_mask=inside.long(), use_cache=False).logits
    picked = logits[:, :-1].log_softmax(-1).gather(-1, ids[:, 1:, None])[..., 0]
    logprobs = torch.cat([torch.zeros_like(picked[:, :1]), picked], 1)
    return torch.where(inside, logprobs, 0.0)


def mask_of(batch):
    position = torch.arange(batch["input_ids"].shape[1])[None, :]
    counted = (position > 0) & (position < batch["input_lengths"][:, None])
    return batch["token_mask"] * batch["sample_mask"][:, None] * counted


def loss_of(case, logprobs, batch):
    mask = mask_of(batch)
    total = mask.sum()
    if case.loss["kind"] == "nll":
        return -(logprobs * mask).sum() / total
    eps, beta = case.loss["eps"], case.loss["beta"]
    ratio = torch.exp(logprobs - batch["prev_logprobs"])
    advantages = batch["advantages"]
    gain = torch.maximum(-advantages * ratio, -advantages * ratio.clamp(1 - eps, 1 + eps))
    d = batch["reference_logprobs"] - logprobs
    return (mask * (gain + beta * (torch.exp(d) - d - 1))).sum() / total


def optimizer_of(case, model):
    o = case.optimizer
    if o["kind"] == "SGD":
        return torch.optim.SGD(model.parameters(), lr=o["lr"], weight_decay=o["weight_decay"],
                               foreach=False)
    return torch.optim.AdamW(model.parameters(), lr=o["lr"], betas=tuple(o["betas"]), eps=o["eps"],
                             weight_decay=o["weight_decay"], foreach=False)


def text_parameters(model):
    named = ((text_name(name), parameter) for name, parameter in model.named_parameters())
    return [(name, parameter) for name, parameter in named if name is not None]


def truth(case, folder):
    model = load_model(case, folder)
    batch = load_file(folder / "batch.safetensors")
    expected = {}
    with true_float64():
        optimizer = optimizer_of(case, model)
        for step in range(1, case.optimizer["steps"] + 1):
            optimizer.zero_grad()
            logprobs = logprobs_of(model, batch)
            loss = loss_of(case, logprobs, batch)
            loss.backward()
            if step == 1:
                expected["logprobs"] = logprobs.detach().clone()
                expected["loss"] = loss.detach().clone()
                for name, parameter in text_parameters(model):
                    expected[f"grad.{name}"] = parameter.grad.clone()
            norm = torch.nn.utils.clip_grad_norm_(model.parameters(), case.optimizer["max_norm"],
                                                  foreach=False)
            assert norm > case.optimizer["max_norm"], f"{case.name}: step {step} clips nothing"
            if step == 1:
                expected["grad_norm"] = norm.clone()
            expected[f"step{step}.loss"] = loss.detach().clone()
            expected[f"step{step}.grad_norm"] = norm.clone()
            optimizer.step()
        for name, parameter in text_parameters(model):
            expected[f"step{step}.param.{name}"] = parameter.detach().clone()
        for name, bias in selection_biases(model):
            expected[f"step{step}.param.{name}"] = bias.clone()
    pad = pad_token(case)
    tied = text_of(case).get("tie_word_embeddings", is_gemma(case))
    if pad is not None and not tied:
        assert expected["grad.model.embed_tokens.weight"][pad].abs().max() == 0
    return expected


def worst_difference(stored, fresh):
    """The largest difference of any tensor, as a share of that tensor's scale."""
    assert stored.keys() == fresh.keys(), stored.keys() ^ fresh.keys()
    worst = 0.0
    for name, value in stored.items():
        scale = value.abs().max().item() or 1.0
        worst = max(worst, (value - fresh[name]).abs().max().item() / scale)
    return worst


def self_check(case, folder):
    """Without the redirection the guard must trip: else it guards nothing."""
    model = model_class(case).from_pretrained(folder, dtype=torch.float64,
                                              attn_implementation="eager")
    try:
        with NoFloat32():
            logprobs_of(model, load_file(folder / "batch.safetensors"))
    except AssertionError:
        return
    raise SystemExit("transformers ran without float32 unasked: the redirection may be outdated")


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with the stored answers")
    parser.add_argument("names", nargs="*", help="cases (default: all)")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    logging.disable_progress_bar()
    failed = False
    for case in CASES:
        if arguments.names and case.name not in arguments.names:
            continue
        folder = HERE / case.name
        if not arguments.check:
            write_inputs(case, folder)
        self_check(case, folder)
        expected = truth(case, folder)
        if arguments.check:
            difference = worst_difference(load_file(folder / "expected.safetensors"), expected)
            failed |= not difference <= 1e-13
            print(f"{case.name}: differs by {difference:.1e} of the scale")
        else:
            save_file(expected, folder / "expected.safetensors")
            print(f"{case.name}: loss {expected['loss'].item():.6f}, "
                  f"grad_norm {expected['grad_norm'].item():.6f}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
