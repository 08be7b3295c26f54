"""Expert parallelism of transformers and torchtitan, recorded and judged against one rank: clean layouts, and faults planted
into the installed package (megatron_test.py has those of Megatron-core).

SHARDPROOF_PROGRAM is the program; without it, or without a framework in the version whose text the faults have, its tests are
skipped (README.md here).
"""

import argparse
import os
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "python"), str(Path(__file__).parent)]

import judging  # noqa: E402
import ranks  # noqa: E402
from planting import needs, plant  # noqa: E402
from programs import example  # noqa: E402

FAR = "of their size or more away from the reference"
EXPERTS_OF_TRANSFORMERS = "transformers.distributed.expert_parallel:AllToAllEP."
DISPATCHER_OF_TORCHTITAN = "torchtitan.models.common.token_dispatcher:AllToAllTokenDispatcher."
# name: (where, the text, what stands there with the fault, layout, pieces of the finding)
TRANSFORMERS = {
    # pytorch issue 160285, torchtitan PR 1551
    "experts are divided by the ranks of their own group":
        ("transformers.distributed.fsdp:apply_fully_sharded_data_parallelism",
         "set_gradient_divide_factor(float(distributed_config.dp_size))",
         "set_gradient_divide_factor(float(distributed_config.efsdp_size))", dict(world=4, ep=2),
         ["grad.model.layers.1.mlp.experts.", "2.00 x golden on all ranks", "2 is the size of efsdp and of ep"]),
    # Megatron-LM: weights that a plain collective gathered
    "weights of routes are detached":
        (EXPERTS_OF_TRANSFORMERS + "_combine_tokens", "state.top_k_weights.unsqueeze(-1)",
         "state.top_k_weights.detach().unsqueeze(-1)", dict(world=4, ep=2), ["grad.model.layers.1.mlp.gate.weight"]),
    # Megatron-LM 54d4b3ddbb
    "received rows go to other experts of the rank":
        (EXPERTS_OF_TRANSFORMERS + "_dispatch_tokens", "torch.arange(self.num_local_experts, device=hidden_states.device)",
         "torch.arange(self.num_local_experts - 1, -1, -1, device=hidden_states.device)", dict(world=4, ep=2),
         ["logprobs   [8, 16]   of step 1", "the gradients of all experts of model.layers.0.mlp, model.layers.1.mlp", FAR]),
    "rows come back in the order of experts":
        (EXPERTS_OF_TRANSFORMERS + "_combine_tokens", "token_outputs[state.order] = recv_out",
         "token_outputs[:] = recv_out", dict(world=4, tp=2, ep=2),
         ["logprobs   [8, 16]   of step 1", "the gradients of all experts of model.layers.0.mlp, model.layers.1.mlp", FAR]),
}
TORCHTITAN = {
    "weights of routes are detached":
        (DISPATCHER_OF_TORCHTITAN + "dispatch", ") = self._local_reorder(x_TD, topk_scores_TK, topk_expert_ids_TK)",
         ") = self._local_reorder(x_TD, topk_scores_TK.detach(), topk_expert_ids_TK)", dict(world=4, ep=2),
         ["grad.layers.1.moe.router.gate.weight", "no rank of this run recorded it"]),
}


def rank_main(_, name, options, fault):
    os.environ.setdefault("LOCAL_RANK", "0")
    train = example(name)
    if fault:
        plant(*fault)
    with train.shardproof.float64():
        train.train(options)


@judging.needs_program
class ExpertsTest(judging.SharedRunsTest):
    goldens = {}

    def record(self, name, golden, fault=None, world=1, **sizes):
        out = tempfile.mkdtemp(dir=self.folder) + "/run"
        options = argparse.Namespace(**dict(tp=1, ep=1, steps=1, experts=True, out=out, golden=golden) | sizes)
        ranks.run(world, rank_main, name, options, fault)
        return out

    def judged(self, name, sizes, fault=None):
        if name not in self.goldens:
            self.goldens[name] = self.record(name, None)
        run = self.record(name, self.goldens[name], fault, **sizes)
        judged = judging.judge(run, self.goldens[name])
        print(judged[1], flush=True)
        return judged

    def check_clean(self, name, *layouts):
        for sizes in layouts:
            with self.subTest(**sizes):
                self.expect(self.judged(name, sizes), 0, "ep=")

    def check_faults(self, name, faults):
        for title, (where, right, wrong, sizes, pieces) in faults.items():
            with self.subTest(title):
                self.expect(self.judged(name, sizes, (where, right, wrong)), 1, *pieces)

    @needs("transformers", "5.23.")
    def test_clean_layouts_of_transformers(self):
        self.check_clean("transformers_experts", dict(world=4, ep=2), dict(world=4, tp=2, ep=2))

    @needs("transformers", "5.23.")
    def test_faults_in_transformers(self):
        self.check_faults("transformers_experts", TRANSFORMERS)

    @needs("transformers", "5.23.")
    @needs("torch", "2.14.1")
    def test_fsdp_of_one_rank_divides_experts_twice(self):
        """Nothing is planted: FSDP2 has this bug in float64 and float16 (examples/upstream/torch_fsdp2_one_rank_factor.py)."""
        self.expect(self.judged("transformers_experts", dict(world=2, ep=2)), 1,
                    "grad.model.layers.1.mlp.experts.", "0.5 (1/2) x golden", "2 is the size of fsdp and of ep")

    @needs("torchtitan", "0.3.")
    def test_clean_layouts_of_torchtitan(self):
        self.check_clean("torchtitan", dict(world=4, ep=2), dict(world=4, tp=2, ep=2))

    @needs("torchtitan", "0.3.")
    def test_faults_in_torchtitan(self):
        self.check_faults("torchtitan", TORCHTITAN)


if __name__ == "__main__":
    unittest.main()
