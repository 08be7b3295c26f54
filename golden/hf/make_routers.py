#!/usr/bin/env python3
"""Routers and experts of Hugging Face transformers in true float64: ids, weights, losses, gradients.

    python3 golden/hf/make_routers.py            # writes routers.safetensors anew
    python3 golden/hf/make_routers.py --check    # compares with what is stored

tests/unit/model/moe/hf_router_test.cpp compares both the rules of src/model/moe and the golden's with the
stored answers. Not needed to build or run shardproof; --check is skipped (exit status 77) where transformers is not installed.

    <case>.logits, .bias    what the router's product gave; the selection bias, where there is one
    <case>.ids              the chosen experts of each token, ascending
    <case>.weights, .grad   their weights in this order, and the gradient that enters there
    <case>.grad_logits      its gradient
    balancing.<name>        the pooled loss of three layers, of the tokens that the mask counts
    experts.<name>          the sum of experts y, of which one gets no token; grad enters there
"""
import argparse
import pathlib
import sys

try:
    import torch
    from safetensors.torch import load_file, save_file
    from transformers.models.deepseek_v2 import modeling_deepseek_v2 as deepseek_v2
    from transformers.models.deepseek_v3 import modeling_deepseek_v3 as deepseek_v3
    from transformers.models.gpt_oss import modeling_gpt_oss as gpt_oss
    from transformers.models.mixtral import modeling_mixtral as mixtral
    from transformers.models.qwen3_moe import modeling_qwen3_moe as qwen3_moe
except ImportError as missing:
    print(f"skipped: transformers cannot be imported ({missing}); requirements.txt says what it takes")
    sys.exit(77)

from make import true_float64

HERE = pathlib.Path(__file__).resolve().parent
FILE = HERE / "routers.safetensors"
TOKENS, HIDDEN = 40, 7


def draw(generator, *shape):
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def router_of(module, name, **settings):
    config = type("Settings", (), settings | {"hidden_size": HIDDEN})
    return getattr(module, name)(config)


def answers(case, router, generator, bias=None):
    """The product of the router gives the leaf of the gradients, so that the gradient is that of the logits."""
    with torch.no_grad():
        for parameter in router.parameters():
            parameter.copy_(draw(generator, *parameter.shape))
        if bias is not None:
            router.e_score_correction_bias.copy_(bias)
    kept = {}

    plain = torch.nn.functional.linear

    def product(*inputs):
        kept["logits"] = plain(*inputs).detach().requires_grad_()
        return kept["logits"]

    torch.nn.functional.linear = product
    try:
        _, weights, ids = router(draw(generator, TOKENS, HIDDEN))
    finally:
        torch.nn.functional.linear = plain
    order = ids.argsort(-1)
    weights, ids = weights.gather(-1, order), ids.gather(-1, order)
    grad = draw(generator, *weights.shape)
    weights.backward(grad)
    found = {"logits": kept["logits"].detach(), "ids": ids, "weights": weights.detach(), "grad": grad,
             "grad_logits": kept["logits"].grad}
    if bias is not None:
        found["bias"] = bias
    return {f"{case}.{name}": value.contiguous() for name, value in found.items()}


def balancing(generator, num_experts, chosen, layers):
    """load_balancing_loss_func pools layers; padding rows come last in each of four samples."""
    mask = (torch.arange(10)[None, :] < torch.tensor([[10], [3], [7], [1]])).to(torch.float64)
    logits = [draw(generator, 40, num_experts).requires_grad_() for _ in range(layers)]
    loss = mixtral.load_balancing_loss_func(tuple(logits), num_experts, chosen, mask)
    loss.backward()
    found = {"mask": mask.reshape(-1), "loss": loss.detach()}
    for i, leaf in enumerate(logits):
        found |= {f"logits.{i}": leaf.detach(), f"grad_logits.{i}": leaf.grad}
    return {f"balancing.{name}": value.contiguous() for name, value in found.items()}


def experts(generator):
    settings = {"num_local_experts": 5, "hidden_size": 6, "intermediate_size": 4, "hidden_act": "silu",
                "_experts_implementation": "eager"}
    module = mixtral.MixtralExperts(type("Settings", (), settings)())
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(draw(generator, *parameter.shape))
    x = draw(generator, 15, 6).requires_grad_()
    wanted = draw(generator, 15, 5)
    wanted[:, 3] -= 100
    ids = wanted.topk(2, -1)[1].sort(-1)[0]
    weights = draw(generator, 15, 2).requires_grad_()
    y = module(x, ids, weights)
    grad = draw(generator, 15, 6)
    y.backward(grad)
    found = {"ids": ids, "y": y.detach(), "grad": grad}
    for name, leaf in {"x": x, "weights": weights, "gate_up": module.gate_up_proj, "down": module.down_proj}.items():
        found |= {name: leaf.detach(), f"grad_{name}": leaf.grad}
    return {f"experts.{name}": value.contiguous() for name, value in found.items()}


def all_answers():
    generator = torch.Generator().manual_seed(30)
    found = answers("mixtral", router_of(mixtral, "MixtralTopKRouter", num_local_experts=6, num_experts_per_tok=2),
                    generator)
    for norm in (False, True):
        router = router_of(qwen3_moe, "Qwen3MoeTopKRouter", num_experts=9, num_experts_per_tok=4, norm_topk_prob=norm)
        found |= answers(f"qwen3_moe.{'norm' if norm else 'plain'}", router, generator)
    router = router_of(gpt_oss, "GptOssTopKRouter", num_local_experts=8, num_experts_per_tok=3)
    found |= answers("gpt_oss", router, generator)
    for norm in (False, True):
        router = router_of(deepseek_v3, "DeepseekV3TopkRouter", num_local_experts=12, num_experts_per_tok=4,
                           routed_scaling_factor=2.5, n_group=4, topk_group=2, norm_topk_prob=norm)
        found |= answers(f"deepseek_v3.{'norm' if norm else 'plain'}", router, generator, draw(generator, 12) / 4)
    router = router_of(deepseek_v2, "DeepseekV2TopkRouter", num_experts=12, num_local_experts=12, n_routed_experts=12,
                       num_experts_per_tok=3, routed_scaling_factor=1.5, n_group=3, num_group=3, topk_group=2,
                       topk_method="group_limited_greedy", norm_topk_prob=False)
    found |= answers("deepseek_v2", router, generator)
    return found | balancing(generator, num_experts=6, chosen=2, layers=3) | experts(generator)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with what is stored, write nothing")
    torch.set_num_threads(1)
    with true_float64():
        fresh = all_answers()
    if not parser.parse_args().check:
        save_file(fresh, FILE)
        return 0
    stored = load_file(FILE)
    wrong = sorted(stored.keys() ^ fresh.keys())
    wrong += [name for name in stored.keys() & fresh.keys()
              if not torch.allclose(stored[name].double(), fresh[name].double(), rtol=0, atol=1e-13)]
    print("\n".join(f"differs: {name}" for name in wrong) or f"{len(stored)} tensors are as stored")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
