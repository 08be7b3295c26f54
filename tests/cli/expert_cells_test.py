#!/usr/bin/env python3
"""Trains small models with experts on meshes of at most 16 ranks and compares them with one device in float64: every
legal (dp, cp, ulysses, tp, ep, etp) for Qwen3-MoE and all-to-all, and drawn ones for each other family and for
all-gather. Fewer than one case of a hundred may be refused for near scores of its routers.

  expert_cells_test.py PROGRAM [--all]    all cells, and 300 drawn ones each; default: a sample of a few seconds
"""
import itertools
import json
import math
import random
import unittest
from collections import Counter

import cells
import keys_in_use_test as keys_in_use
import yaml

SAMPLE, DRAWN, SEED = 5, 300, 36
MOST_RANKS = 16
LENGTHS = [6, 3, 5, 4, 6, 2, 5]
MARGIN = "so that roundings could decide"
SIZES = {"dp": "data_parallel_size", "cp": "context_parallel_size", "ulysses": "ulysses_size", "tp": "tensor_parallel_size",
         "ep": "expert_parallel_size", "etp": "expert_tensor_parallel_size"}


def forms():
    """{family: a small config of it}: the keys of all its rows in scenarios/ep/sizes.yaml."""
    found = {}
    for row in yaml.safe_load((keys_in_use.ROOT / "scenarios/ep/sizes.yaml").read_text())["matrix"]["case"]:
        found[row["model.family"]] = row["model.config"] | found.get(row["model.family"], {})
    return found


FORMS = forms()
EVERY_FAMILY = keys_in_use.expert_families(json.loads((keys_in_use.ROOT / "scenarios/schema.json").read_text()))
OF_EVERY_MESH = "qwen3_moe"


def config_of(family, ep, etp, tp, number):
    """Experts that ep and etp cut: their number, how many of them a token gets, and their width vary with the cell. Returns
    the config and the width of an MLP, which is that of the experts where they have none of their own."""
    config = dict(FORMS[family])
    experts = ep * (1 + number % 3) if ep > 2 else 2 * ep * (1 + number % 2)
    width = math.lcm(etp, tp) * (1 + number % 2)
    fewest = 1 if "norm_topk_prob" in config else 2  # the softmax of one chosen score is 1, and has no gradient
    chosen = min(experts, fewest + number % 3)
    if "n_group" in config:
        experts, chosen = math.lcm(experts, 4), 2
    varied = {"num_experts": experts, "num_local_experts": experts, "n_routed_experts": experts, "n_group": 2, "topk_group": 1,
              "num_experts_per_tok": chosen, "moe_intermediate_size": width, "shared_expert_intermediate_size": 3 * tp,
              "decoder_sparse_step": 1 + number % 2, "first_k_dense_replace": number % 2, "norm_topk_prob": number % 4 == 0}
    config |= {key: value for key, value in varied.items() if key in config}
    return config, tp * 3 if "moe_intermediate_size" in config else width


def case_of(family, dispatch, mesh, number):
    sizes = dict(zip(SIZES, mesh))
    config, width = config_of(family, sizes["ep"], sizes["etp"], sizes["tp"], number)
    heads = sizes["tp"] * sizes["ulysses"]
    parallel = {SIZES[axis]: size for axis, size in sizes.items()}
    parallel |= {"sequence_parallel": sizes["tp"] > 1, "experts": {"dispatch": dispatch},
                 "data_parallel": "fsdp" if number % 3 == 0 else "replicate"}
    samples = max(2, sizes["dp"])
    model = {"family": family, "vocab_size": 29, "hidden_size": 12, "intermediate_size": width, "num_hidden_layers": 2,
             "num_attention_heads": heads if heads > 2 else 2 * heads, "head_dim": 4, "config": config}
    return {"name": "_".join([family, dispatch] + [f"{axis}{size}" for axis, size in sizes.items()] + [str(number)]),
            "parallel": parallel, "model": model, "run": {"train_micro_batch_size": 1, "max_grad_norm": 0.4},
            "data": {"lengths": [LENGTHS[i % len(LENGTHS)] for i in range(samples)], "sequence_length": 6, "uneven": True}}


def meshes():
    """Every (dp, cp, ulysses, tp, ep, etp) of at most 16 ranks: ep times etp divides the ranks."""
    sizes = range(1, MOST_RANKS + 1)
    for dense in itertools.product(sizes, repeat=4):
        ranks = math.prod(dense)
        if ranks <= MOST_RANKS:
            yield from ((*dense, ep, etp) for ep in sizes for etp in sizes if ranks % (ep * etp) == 0)


class ExpertCells(unittest.TestCase):
    def check(self, cases):
        _, results, text = cells.run(cases, SEED)
        near = [result for result in results if result["verdict"] == "refused" and MARGIN in result["message"]]
        wrong = [result["name"] for result in results if result["verdict"] != "match" and result not in near]
        self.assertEqual(wrong, [], text)
        self.assertEqual(len(results), len(cases))
        self.assertLess(len(near), max(2, len(cases) / 100), text)
        self.assertLessEqual(max(result["world_size"] for result in results), MOST_RANKS)
        print(f"{self.id()}, seed {SEED}: {Counter(result['verdict'] for result in results)}")

    def test_every_mesh_matches_one_device(self):
        every = list(meshes())
        self.assertEqual(len(every), 2214)
        if not cells.ALL:
            every = random.Random(SEED).sample(every, 2 * SAMPLE)
        self.check([case_of(OF_EVERY_MESH, "all_to_all", mesh, number) for number, mesh in enumerate(every)])

    def test_every_family_has_a_small_config(self):
        self.assertEqual(sorted(EVERY_FAMILY), sorted(FORMS), "give each family a row in scenarios/ep/sizes.yaml")

    def test_drawn_meshes_of_each_other_family_and_of_all_gather_match_one_device(self):
        drawn = random.Random(SEED)
        several = [mesh for mesh in meshes() if mesh[-1] * mesh[-2] > 1]
        others = [(family, "all_to_all") for family in EVERY_FAMILY if family != OF_EVERY_MESH]
        for family, dispatch in [*others, (OF_EVERY_MESH, "all_gather")]:
            with self.subTest(family=family, dispatch=dispatch):
                some = drawn.sample(several, DRAWN if cells.ALL else SAMPLE)
                self.check([case_of(family, dispatch, mesh, number) for number, mesh in enumerate(some)])


if __name__ == "__main__":
    cells.main()
