"""A tiny model of a family: sizes by rules that keep which defaults are equal and which is larger, each layer type once."""

import inspect
import re

import torch

from ..error import Error
from .families import Family

VOCABULARY, LONGEST = 96, 64
MOST_LAYERS = 8
# Sizes of one kind: the distinct defaults, from small to large, become the given numbers. So equal defaults stay equal,
# and those that differ stay different. The first kind whose pattern fits a name has it.
KINDS = (
    (r"(num_hidden_layers|num_layers|depth|num_layers_per_stack)", ()),
    (r"(vocab_size|.*vocab_size_per_layer_input|unpadded_vocab_size)", (VOCABULARY,)),
    (r"(max_position_embeddings|original_max_position_embeddings|model_max_length|max_window_layers)", (LONGEST,)),
    (r"(.*num_attention_heads|num_heads|.*num_key_value_heads|linear_num_.*heads|.*_n_heads|num_sliding_attention_heads|"
     r"mamba_num_heads)", (2, 4, 8, 16)),
    (r"(.*head_dim|v_head_dim|mamba_d_head|d_rel)", (16, 32, 48, 64)),
    (r"(.*lora_rank|.*_rank|hc_lowrank)", (8, 16, 24)),
    (r"(num_experts|n_routed_experts|num_local_experts|moe_num_experts)", (4,)),
    (r"zero_expert_num", (2,)),
    (r"(num_experts_per_tok|num_experts_per_token|moe_topk|moe_k|moe_top_k)", (2,)),
    (r"(n_group|num_expert_group|o_groups|n_groups|mamba_n_groups)", (1, 2)),
    (r"topk_group", (1,)),
    (r"(hidden_size|moe_hidden_size|out_hidden_size|projector_hidden_size|embedding_dim|prediction_head_size)", (64, 96, 128)),
    (r"(.*intermediate_size.*|.*ffn_hidden_size|share_expert_dim)", (24, 40, 48, 56)),
    (r"(sliding_window|attention_chunk_size|sliding_window_size|keep_window_size|rel_extent|.*chunk_size|block_size)", (8,)),
    (r"(index_topk|index_topk_blocks)", (4,)),
    (r"index_block_size", (4,)),
    (r"(first_k_dense_replace|num_dense_layers|moe_layer_start_index)", (1,)),
    (r"(hidden_size_per_layer_input|ple_embed_dim|codebook_size|ssm_state_size|mamba_d_state|position_embedding_size)", (16, 32)),
)
LAYERS = {"num_hidden_layers", "num_layers", "depth", "num_layers_per_stack"}
# Where the default is None, and the code needs a number.
IF_NONE = {"num_experts_per_tok": 2, "n_routed_experts": 4, "num_key_value_heads": 4, "sliding_window": 8,
           "first_k_dense_replace": 1, "n_shared_experts": 1, "head_dim": 16, "num_experts": 4, "top_k_experts": 2,
           "moe_intermediate_size": 24, "topk_group": 1, "n_group": 1}
# What the rules do not find, by model type.
OVERRIDES: dict[str, dict] = {
    "cohere_compass_text": {"layer_types": ["sliding_attention", "full_attention"], "rope_parameters": {
        kind: {"rope_type": "default", "rope_theta": 10000.0} for kind in ("sliding_attention", "full_attention")}},
    "deepseek_ocr2_text": {"mlp_layer_types": ["dense", "sparse"]},
    "ernie4_5_vl_moe_text": {"moe_intermediate_size": [24, 24], "rope_parameters": {
        "rope_type": "default", "rope_theta": 10000.0, "mrope_section": [3, 3, 2]}},
    # Two layers share the keys of the two before. The first takes a statistic over all columns of its activations.
    "gemma3n_text": {"num_hidden_layers": 4, "layer_types": ["sliding_attention", "full_attention"] * 2,
                     "num_kv_shared_layers": 2, "activation_sparsity_pattern": [0.5, 0.0, 0.0, 0.0],
                     "intermediate_size": [40] * 4},
    "glm5_next_text": {"index_kpool": 2},
    "granitemoehybrid": {"mamba_n_heads": 8, "mamba_d_head": 16, "mamba_n_groups": 1},
    "hunyuan_v1_moe": {"num_experts": 4, "moe_topk": 2},  # one expert cannot be cut
    "jamba": {"num_hidden_layers": 4, "attn_layer_period": 4, "attn_layer_offset": 2, "mamba_dt_rank": 8},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"], "num_dense_layers": 1},
    "dots3_note_text": {"shared_experts_intermediate_size": 40, "per_layer_config": {
        "02": {"num_attention_heads": 8, "num_key_value_heads": 8, "kv_lora_rank": 16, "qk_nope_head_dim": 32}}},
    "qwen4_exp_text": {"ngram_vocab_size_base": 64, "split_ngram_parts": 4, "heads_per_ngram": 2,
                       "make_ngram_vocab_size_divisible_by": 8, "indexer_n_heads": 2, "indexer_kv_heads": 1,
                       "indexer_head_dim": 32, "indexer_budget": 8, "indexer_compress_ratio": 4},
    "t5gemma2_text": {"dropout_rate": 0.0},
    "phi4_multimodal": {
        "vision_config": {"hidden_size": 64, "intermediate_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4,
                          "image_size": 56, "crop_size": 56},
        "audio_config": {"hidden_size": 64, "intermediate_size": 48, "num_blocks": 2, "num_attention_heads": 4,
                         "ext_pw_out_channel": 64, "depthwise_separable_out_channel": 64, "nemo_conv_channels": 64}},
}


def config_of(family: Family):
    """The tiny configuration."""
    default = family.config(**(family.given or {}))
    values = sizes(default.to_dict(), "mrope_section" in inspect.getsource(inspect.getmodule(family.model)))
    values |= layers(default)
    values |= OVERRIDES.get(family.config.model_type, {})
    given = {name: value for name, value in (family.given or {}).items() if name not in ("architectures", "model_type")}
    return family.config(**(given | values))


def sizes(default: dict, has_sections: bool = False) -> dict:
    """The small sizes of a configuration's integers, by kind."""
    found: dict[str, int] = {}
    groups: dict[int, dict[str, int]] = {}
    for name, value in default.items():
        if isinstance(value, int) and not isinstance(value, bool) and value > 0:
            kind = next((index for index, (pattern, _) in enumerate(KINDS) if re.fullmatch(pattern, name)), None)
            if kind is not None and KINDS[kind][1]:
                groups.setdefault(kind, {})[name] = value
    for kind, members in groups.items():
        small = KINDS[kind][1]
        distinct = sorted(set(members.values()))
        if len(distinct) == 1 and len(small) > 1 and "heads" in KINDS[kind][0]:
            small = small[1:]
        for name, value in members.items():
            found[name] = min(value, small[min(distinct.index(value), len(small) - 1)])
    heads, width, head = (found.get(name) for name in ("num_attention_heads", "hidden_size", "head_dim"))
    if heads and width and head:
        is_equal = default["num_attention_heads"] * default["head_dim"] == default["hidden_size"]
        if is_equal:
            found["hidden_size"] = heads * head
    found |= {name: value for name, value in IF_NONE.items() if default.get(name, 0) is None}
    found |= token_ids(default) | rope(default, found, has_sections)
    return found


def rope(default: dict, found: dict, has_sections: bool) -> dict:
    """Sections of rotary angles (of time, height and width) that fill half of the small head."""
    parameters = default.get("rope_parameters") or {}
    if "mrope_section" not in parameters and (not has_sections or "rope_theta" not in parameters):
        return {}
    head = found.get("head_dim") or found["hidden_size"] // found["num_attention_heads"]
    half = int(head * parameters.get("partial_rotary_factor", 1.0)) // 2
    old = parameters.get("mrope_section", (2, 3, 3))
    new = [max(1, half * one // sum(old)) for one in old]
    new[-1] += half - sum(new)
    return {"rope_parameters": parameters | {"mrope_section": new}}


def token_ids(default: dict) -> dict:
    """Ids of special tokens, each its own, at the end of the small vocabulary. That of padding is 0."""
    found: dict = {}
    names = [name for name, value in default.items() if re.fullmatch(r".*_(token_id|token_index|bos_id|eos_id)", name)]
    for place, name in enumerate(names):
        found[name] = VOCABULARY - 1 - place if isinstance(default[name], int) else default[name]
    if isinstance(default.get("pad_token_id"), int):
        found["pad_token_id"] = 0
    if isinstance(default.get("eos_token_id"), list):
        found["eos_token_id"] = VOCABULARY - 1
    return found


def layers(default) -> dict:
    """The number of layers, and the lists of their types, so that each type of layer comes once."""
    values = default.to_dict()
    counts = [name for name in LAYERS if isinstance(values.get(name), int)]
    if not counts:
        return {}
    total = values[counts[0]]
    lists = {name: value for name, value in values.items()
             if isinstance(value, list) and len(value) == total and value and not isinstance(value[0], dict)}
    kept: list[int] = []
    for index in range(total):
        if all(index_of(lists, index) != index_of(lists, other) for other in kept):
            kept.append(index)
    kept = kept[:MOST_LAYERS]
    while len(kept) < 2:
        kept.append(kept[-1] if kept else 0)
    found: dict = {name: [value[index] for index in kept] for name, value in lists.items()}
    return found | dict.fromkeys(counts, len(kept))


def index_of(lists: dict, index: int) -> tuple:
    """What sets a layer apart: the words and flags of the lists. Numbers, such as a rate for each layer, do not."""
    return tuple(value[index] for value in lists.values() if isinstance(value[index], (str, bool)))


def build(family: Family, config) -> torch.nn.Module:
    """The model on one rank, with weights that are large enough for a mistake to show."""
    config._attn_implementation = "eager"
    try:
        model = family.model(config)
    except Exception as error:
        raise Error(f"{family.model.__name__} is not built from a tiny {family.config.__name__}: "
                    f"{type(error).__name__}: {error}", "Add sizes that fit to OVERRIDES") from error
    fill(model)
    return model


def fill(model: torch.nn.Module) -> None:
    """Matrices are drawn so that outputs keep the size of inputs. Vectors (norms, biases, rates) move by a fifth."""
    generator = torch.Generator().manual_seed(1)
    embeddings = {id(one.weight) for one in model.modules() if isinstance(one, torch.nn.Embedding)}
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=parameter.dtype)
            if parameter.ndim < 2:
                parameter.add_(0.2 * noise)
            else:
                parameter.copy_(noise if id(parameter) in embeddings else noise * parameter.shape[-1] ** -0.5)
        for name, buffer in model.named_buffers():
            if buffer.is_floating_point() and "bias" in name:
                buffer.add_(0.1 * torch.randn(buffer.shape, generator=generator, dtype=buffer.dtype))
