"""Draws random, untuned training cases in lower precisions as scenario files."""

import json
import random

FAMILIES = ("llama", "qwen2", "qwen3", "gemma3")
PRECISIONS = ("float32", "bfloat16", "float16")
# The axes of a mesh: data parallel, context parallel, Ulysses, tensor parallel, at most eight ranks.
DRAWN_MESHES = [(dp, cp, ulysses, tp) for dp in (1, 2, 3, 4) for cp in (1, 2) for ulysses in (1, 2)
          for tp in (1, 2, 4) if 2 <= dp * cp * ulysses * tp <= 8]


def model_of(rng, tp, ulysses):
    heads = rng.choice([4, 8])
    model = {"family": rng.choice(FAMILIES), "vocab_size": rng.choice([61, 80, 97, 128]),
             "hidden_size": rng.choice([32, 48, 64]), "intermediate_size": rng.choice([40, 64, 96]),
             "num_attention_heads": heads, "num_key_value_heads": rng.choice([heads, heads // 2]),
             "num_hidden_layers": rng.choice([1, 2, 3])}
    if heads % (tp * ulysses) or model["num_key_value_heads"] % (tp * ulysses):
        model["num_attention_heads"] = model["num_key_value_heads"] = 8
    if model["family"] == "gemma3":
        model.update(sliding_window=rng.choice([4, 8]), sliding_window_pattern=2)
    elif rng.random() < 0.3:
        model["tie_word_embeddings"] = True
    return model


def run_of(rng, precision, loss):
    optimizer = rng.choice(["AdamW", "SGD"])
    rate = 10 ** rng.uniform(-5, -2.7) if optimizer == "AdamW" else 10 ** rng.uniform(-3, -1)
    kwargs = {"lr": round(rate, 7), "weight_decay": rng.choice([0.0, 0.01, 0.1])}
    if optimizer == "SGD":
        kwargs["momentum"] = rng.choice([0.0, 0.9])
    run = {"steps": rng.randint(1, 5), "max_grad_norm": rng.choice([0.5, 1.0, 1.0, None]),
           "optimizer": {"name": optimizer, "kwargs": kwargs},
           "loss": {"kind": loss, "normalization": rng.choice(["token", "sequence"])}}
    if precision == "float16":
        run["loss_scale"] = {"init_scale": float(rng.choice([16, 128, 1024])), "growth_interval": rng.choice([2, 2000])}
    if rng.random() < 0.3:
        run["train_micro_batch_size"] = 1 if loss != "preference" else 2
    elif rng.random() < 0.3 and loss != "preference":
        run["sequence_packing"] = {"enabled": True}
    return run


def parallel_of(rng, mesh):
    dp, cp, ulysses, tp = mesh
    parallel = {"data_parallel_size": dp, "context_parallel_size": cp, "ulysses_size": ulysses,
                "tensor_parallel_size": tp}
    if tp > 1 and rng.random() < 0.6:
        parallel["sequence_parallel"] = True
    kinds = ["replicate", "fsdp"] + (["hybrid"] if dp % 2 == 0 else [])
    parallel["data_parallel"] = rng.choice(kinds)
    if parallel["data_parallel"] == "hybrid":
        parallel["replicate_size"] = 2
    if rng.random() < 0.3:
        parallel["activation_checkpointing"] = rng.choice(["mlp", "layer"])
    return parallel


def draw_case(seed, precisions=PRECISIONS):
    """A scenario as a dict; equal seeds give equal scenarios."""
    rng = random.Random(seed)
    precision, mesh = rng.choice(precisions), rng.choice(DRAWN_MESHES)
    loss = rng.choice(["nll", "clipped_pg", "preference"])
    samples = mesh[0] * rng.choice([2, 2, 4])
    longest = rng.choice([12, 16, 24])
    lengths = [rng.randint(3, longest) for _ in range(samples)]
    return {"name": f"random/{seed}", "workload": "train", "precision": precision, "seed": rng.randint(1, 10**6),
            "model": model_of(rng, mesh[3], mesh[2]), "parallel": parallel_of(rng, mesh),
            "data": {"lengths": lengths, "sequence_length": longest},
            "run": run_of(rng, precision, loss), "world": {"deadline_s": 1200},  # on a loaded machine too
            "tags": ["random"]}


def write_cases(folder, seeds, precisions=PRECISIONS):
    """Writes one file per case; JSON is YAML."""
    for seed in seeds:
        text = json.dumps(draw_case(seed, precisions), indent=1)
        (folder / f"random_{seed:05d}.yaml").write_text(text + "\n")
