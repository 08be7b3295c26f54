"""A second opinion on `shardproof model` at tp 2: it shares the tiny models with it, and neither recorder nor judge.

    python tests/frameworks/model_witness.py FOLDER 20      # FOLDER: that of shardproof model --all --out FOLDER

Draws families from the results, and compares loss and gradients of two ranks with one in plain code. Exits with 1 where the two
disagree: a match here and a mismatch there, or the reverse. A family that raises there is left out.
"""

import json
import random
import sys
import tempfile
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))

import torch  # noqa: E402
import torch.distributed as dist  # noqa: E402
from shardproof import float64  # noqa: E402
from shardproof.model import families, recipe, tiny  # noqa: E402


def answers(model):
    tokens = torch.randint(2, 30, (4, 9), generator=torch.Generator().manual_seed(5))
    out = model(input_ids=tokens, use_cache=False)
    out = out.logits if "logits" in out else out.last_hidden_state
    loss = (out * torch.linspace(-1, 1, out.numel()).sin().view_as(out)).mean()
    loss.backward()
    return {"loss": loss.detach()} | {name: whole(one.grad) for name, one in model.named_parameters() if one.grad is not None}


def whole(tensor):
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def rank(index, name, checkpoint, store):
    torch.set_num_threads(1)
    recipe.patch_transformers(True)
    from transformers.distributed.configuration_utils import DistributedConfig
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=index, world_size=2)
    with float64():
        found = answers(families.find(name).model.from_pretrained(
            checkpoint, dtype=torch.float64, attn_implementation="eager", distributed_config=DistributedConfig(tp_size=2)))
    torch.save(found, f"{checkpoint}/rank{index}.pt")


def is_right(name, folder):
    family = families.find(name)
    with float64():
        config = tiny.config_of(family)
        recipe.without_dropout(config)
        tiny.build(family, config).save_pretrained(folder)
        golden = answers(family.model.from_pretrained(folder, dtype=torch.float64, attn_implementation="eager"))
    torch.multiprocessing.start_processes(rank, (name, folder, f"{folder}/store"), 2, start_method="spawn")
    both = [torch.load(f"{folder}/rank{index}.pt") for index in (0, 1)]
    return all(name in found and torch.allclose(found[name], golden[name], rtol=1e-7, atol=1e-9)
               for found in both for name in golden)


def main(folder, count):
    lines = [json.loads(line) for line in (Path(folder) / "results.jsonl").read_text().splitlines()]
    lines = [line for line in lines if line["layout"] == "tp2" and (line["verdict"] == "match" or line["text"][:8] == "MISMATCH")]
    recipe.patch_transformers(True)
    wrong = 0
    for line in random.Random(0).sample(lines, min(count, len(lines))):
        with tempfile.TemporaryDirectory() as scratch:
            found = is_right(line["name"], scratch)
        agrees = found == (line["text"][:8] != "MISMATCH")
        wrong += not agrees
        print(f"{line['name']:<22} {'same' if found else 'differs':<8} there {line['verdict']:<9} {'' if agrees else 'DISAGREE'}",
              flush=True)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1], int(sys.argv[2])))
