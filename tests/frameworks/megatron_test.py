"""Bugs that Megatron-core, or code around it, really had, planted into the installed package: each is run on the example's
GPT (examples/megatron_core), recorded, and judged against one rank. Clean layouts must match.

SHARDPROOF_PROGRAM is the program; without it, or without megatron-core, the tests are skipped (README.md here).
"""

import argparse
import importlib
import importlib.metadata
import importlib.util
import math
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "python"), str(ROOT / "examples" / "megatron_core")]

import judging  # noqa: E402
import ranks  # noqa: E402

INSTALLED = importlib.util.find_spec("megatron") is not None
if judging.PROGRAM and INSTALLED:
    import torch
    import train as example
    from megatron.core import parallel_state, tensor_parallel
    from megatron.core.distributed import param_and_grad_buffer as buffers
    from megatron.core.pipeline_parallel import schedules
    from megatron.core.transformer.moe import experts, token_dispatcher
    finalize = importlib.import_module("megatron.core.distributed.finalize_model_grads")  # a function hides the module


def replaces(owner, name):
    """Puts a function in the place of owner.name, which the function gets before its other arguments."""
    original = getattr(owner, name)

    def put(function):
        setattr(owner, name, lambda *given, **options: function(original, *given, **options))
        return function
    return put


# --- Settings that the golden has too.

def share_embeddings():
    replaces(example, "GPTModel")(lambda original, *given, **options: original(
        *given, **options | {"share_embeddings_and_output_weights": True}))


def smooth_labels():
    replaces(tensor_parallel, "vocab_parallel_cross_entropy")(
        lambda original, *given, **options: original(*given, **options, label_smoothing=0.1))


def without_sequence_parallel():
    replaces(example, "TransformerConfig")(lambda original, *given, **options: original(
        *given, **options | {"sequence_parallel": False}))


# --- Bugs.

def lose_marks(part_of_name):
    @replaces(example, "build")
    def build(original, *given):
        model = original(*given)
        for name, parameter in model.named_parameters():
            if part_of_name in name:
                parameter.sequence_parallel = False
        return model


def final_norm_loses_its_mark():
    lose_marks("final_layernorm")


def no_norm_has_its_mark():
    lose_marks("norm")


def finalize_twice():
    @replaces(example, "finalize_model_grads")
    def twice(original, model, *given, **options):
        original(model, *given, **options)
        finalize._allreduce_non_tensor_model_parallel_grads(model, model[0].config,
                                                            example.parallel_state.get_tensor_model_parallel_group())


def tied_embeddings_are_not_summed():
    finalize._allreduce_word_embedding_grads = lambda *given, **options: None


def only_the_last_microbatch():
    @replaces(example, "forward_step")
    def forward_step(original, batches, model):
        model.zero_grad_buffer()
        return original(batches, model)


def experts_gradients_have_a_factor():
    @replaces(buffers._ParamAndGradBucketGroup, "start_grad_sync")
    def start(original, group, **options):
        experts = [bucket for bucket in group.buckets
                   if any(not getattr(parameter, "allreduce", True) for parameter in bucket.params)]
        for bucket in experts:
            bucket.gradient_scaling_factor *= 2
        original(group, **options)
        for bucket in experts:
            bucket.gradient_scaling_factor /= 2


def is_second():
    """Whether this rank holds the second half of the experts."""
    return parallel_state.get_expert_model_parallel_rank() == 1


def local_experts(model):
    """{name: parameter} of all chunks."""
    return {name: one for chunk in model for name, one in chunk.named_parameters() if "local_experts" in name}


def after_finalizing(change):
    """change(parameters) of experts, by name, when all gradients are reduced."""
    @replaces(example, "finalize_model_grads")
    def finalized(original, model, *given, **options):
        original(model, *given, **options)
        change(local_experts(model))


def experts_of_one_rank_have_a_factor():
    def double(parameters):
        for one in parameters.values() if is_second() else ():
            one.main_grad *= 2
    after_finalizing(double)


def an_experts_gradient_is_zero():
    def zero(parameters):
        for name, one in parameters.items():
            if is_second() and "local_experts.1." in name:
                one.main_grad.zero_()
    after_finalizing(zero)


def after_loading(change):
    @replaces(example.shardproof, "load")
    def load(original, model, golden):
        original(model, golden)
        change({name: one.data for name, one in local_experts(model).items()})


def each_rank_takes_the_first_experts():
    def of_rank_0(parameters):
        for one in parameters.values():
            example.dist.broadcast(one, 0)
    after_loading(of_rank_0)


def experts_change_places():
    def swap(parameters):
        for name, one in parameters.items():
            if is_second() and "local_experts.0." in name:
                other = parameters[name.replace("experts.0.", "experts.1.")]
                one[:], other[:] = other.clone(), one.clone()
    after_loading(swap)


def rows_go_to_the_next_expert():
    @replaces(experts.SequentialMLP, "forward")
    def forward(original, self, *given):
        own = self.local_experts
        self._modules["local_experts"] = torch.nn.ModuleList(list(own)[::-1]) if is_second() else own
        try:
            return original(self, *given)
        finally:
            self._modules["local_experts"] = own


def the_last_expert_does_not_count():
    @replaces(experts.SequentialMLP, "forward")
    def forward(original, self, rows, counts, probs):
        output, bias = original(self, rows, counts, probs)
        kept = len(output) - int(counts[-1]) * is_second()
        return torch.cat([output[:kept], torch.zeros_like(output[kept:])]), bias


def received_rows_are_not_sorted():
    @replaces(token_dispatcher.MoEAlltoAllTokenDispatcher, "__init__")
    def build(original, self, *given, **options):
        original(self, *given, **options)
        self.sort_input_by_local_experts = self.sort_input_by_local_experts.sort().values


def gathered_weights_of_routes_are_detached():
    replaces(token_dispatcher, "gather_from_sequence_parallel_region")(lambda original, rows, *given, **options: original(
        rows.detach() if rows.is_floating_point() and rows.shape[-1] == 4 else rows, *given, **options))


def the_gradient_is_scaled_at_every_stage():
    replaces(schedules, "backward_step")(lambda original, inputs, outputs, gradient, *given: original(
        inputs, outputs, [one if one is None else one / example.MICROBATCHES for one in gradient]
        if isinstance(gradient, list) else gradient if gradient is None else gradient / example.MICROBATCHES, *given))


def labels_of_the_next_microbatch():
    _, targets = example.global_batch(0)
    labels = list(targets.split(example.ROWS // example.MICROBATCHES)[:example.MICROBATCHES])

    @replaces(example, "forward_step")
    def forward_step(original, batches, model):
        tokens, _ = next(batches)
        labels.append(labels.pop(0))
        return original(iter([(tokens, labels[0])]), model)


def the_gradients_of_one_chunk_are_added_twice():
    @replaces(example, "finalize_model_grads")
    def finalized(original, model, *given, **options):
        original(model, *given, **options)
        for one in model[1].parameters():
            one.main_grad *= 2


# name: (settings of both runs, bug, layout, pieces of the finding)
BUGS = {
    # Megatron-LM issue 1446, NeMo-RL 1487
    "the final norm loses its mark of sequence parallelism":
        ((), "final_norm_loses_its_mark", dict(tp=2), ["final_layernorm", "over tp is missing"]),
    "no norm has its mark":
        ((), "no_norm_has_its_mark", dict(tp=2), ["over tp is missing", "of step 1", "all with 'norm' in their name"]),
    # NeMo-RL PR 3660
    "gradients are finalized twice":
        ((), "finalize_twice", dict(tp=2), ["norm", "2.00 x golden", "2 is the size of tp"]),
    # Bridge issue 5380
    "tied embeddings are not summed over stages":
        (("share_embeddings",), "tied_embeddings_are_not_summed", dict(pp=2), ["embedding", "of step 1"]),
    # Automodel issue 3530, torchtitan PR 3575
    "only the last microbatch counts":
        ((), "only_the_last_microbatch", dict(tp=2),
         ["of step 1", "a part of the batch does not count, such as a microbatch", "grad.embedding.word_embeddings"]),
    # Megatron-LM 4f8974a400
    "experts' gradients have a factor":
        ((), "experts_gradients_have_a_factor", dict(ep=2), ["experts", "2.00 x golden"]),
    # Megatron-LM 4f8974a400: right only if etp is tp
    "experts' gradients have a factor where etp is not tp":
        ((), "experts_gradients_have_a_factor", dict(tp=2, ep=2, etp=1, world=2),
         ["grad.decoder.layers.1.mlp.experts", "2.00 x golden", "2 is the size of tp and of ep"]),
    # ColossalAI 9b9b76bdc
    "the experts of one rank have a factor":
        ((), "experts_of_one_rank_have_a_factor", dict(ep=2),
         ["grad.decoder.layers.1.mlp.experts", "2.00 x golden on rank 1 only (ep 1)", "experts 2, 3 of 4 are wrong"]),
    # Megatron-LM eef48ef31c
    "an expert's gradient is zero":
        ((), "an_experts_gradient_is_zero", dict(ep=2),
         ["grad.decoder.layers.1.mlp.experts", "every element is 0 on rank 1 only (ep 1)", "expert 3 of 4 is wrong"]),
    # slime PR 1799
    "each rank takes the first experts":
        ((), "each_rank_takes_the_first_experts", dict(ep=2),
         ["mlp.experts", "at the start", "expert 2 holds the golden's expert 0, expert 3 holds the golden's expert 1",
          "the number of an expert among those of its rank was taken"]),
    # Megatron-Bridge PR 5376, of experts
    "experts change places":
        ((), "experts_change_places", dict(ep=2),
         ["mlp.experts", "at the start", "expert 2 holds the golden's expert 3, expert 3 holds the golden's expert 2"]),
    # Megatron-LM 54d4b3ddbb
    "received rows are not sorted by expert":
        ((), "received_rows_are_not_sorted", dict(ep=2, dispatcher="alltoall"),
         ["loss   of step 1", "the gradients of all experts of", "on the rows of other tokens"]),
    "rows go to the next expert of a rank":
        ((), "rows_go_to_the_next_expert", dict(ep=2),
         ["loss   of step 1", "the gradients of experts 2, 3 of", "on rank 1 only (ep 1)", "compute with other weights"]),
    # ColossalAI PR 6063, of one expert
    "the last expert does not count":
        ((), "the_last_expert_does_not_count", dict(ep=2),
         ["loss   of step 1", "the gradients of expert 3 of", "are zero on rank 1 only (ep 1)"]),
    # Megatron-LM rt-gather-detached: the router learns from side losses alone
    "gathered weights of routes are detached":
        ((), "gathered_weights_of_routes_are_detached", dict(ep=2), ["grad.decoder.layers.1.mlp.router.weight", "is 0"]),
    # DeepSpeed PR 8154
    "the gradient is scaled at every stage":
        ((), "the_gradient_is_scaled_at_every_stage", dict(pp=2),
         ["grad.decoder.layers.0.", "0.5 (1/2) x golden on rank 0", "of step 1"]),
    # DeepSpeed issue 5729
    "labels of the next microbatch":
        ((), "labels_of_the_next_microbatch", dict(pp=2), ["loss   of step 1"]),
    # DeepSpeed PR 5605, of a chunk
    "the gradients of one chunk are added twice":
        ((), "the_gradients_of_one_chunk_are_added_twice", dict(pp=2, vpp=2, layers=4),
         ["2.00 x golden", "of step 1"]),
    "tied embeddings are not summed over stages of chunks":
        (("share_embeddings",), "tied_embeddings_are_not_summed", dict(pp=2, vpp=2, layers=4),
         ["grad.embedding.word_embeddings", "over pp"]),
    # Megatron-LM issues 7464 and 737: live in the installed version, nothing is planted
    "label smoothing under tensor parallelism":
        (("smooth_labels",), "", dict(tp=2), ["loss   of step 1", "the ranks of tp do not agree", "its own part of a tensor"]),
}


def rank_main(_, settings, bug, options):
    for name in (*settings, bug):
        if name:
            globals()[name]()
    example.run(options)


@unittest.skipUnless(judging.PROGRAM and INSTALLED, "SHARDPROOF_PROGRAM is not set, or megatron-core is not installed")
class MegatronTest(judging.SharedRunsTest):
    goldens = {}

    def record(self, out, golden, settings, bug, **sizes):
        """`sizes` has the number of ranks where the experts' axes lie over others."""
        common = dict(tp=1, pp=1, vpp=1, ep=1, etp=None, dispatcher="allgather", layers=2,
                      experts="ep" in sizes or "etp" in sizes or "experts" in out, steps=1, out=out, golden=golden)
        options = argparse.Namespace(**common | {name: size for name, size in sizes.items() if name not in ("dp", "world")})
        world_size = sizes.get("world") or math.prod(sizes.get(name, 1) for name in ("dp", "tp", "pp", "ep"))
        ranks.run(world_size, rank_main, settings, bug, options)

    def golden(self, settings, experts, layers=2):
        key = (settings, experts, layers)
        if key not in self.goldens:
            self.goldens[key] = f"{self.folder}/golden{len(self.goldens)}{'experts' if experts else ''}"
            self.record(self.goldens[key], None, settings, "", layers=layers)
        return self.goldens[key]

    def judged(self, settings, bug, sizes):
        golden = self.golden(settings, "ep" in sizes or "etp" in sizes, sizes.get("layers", 2))
        out = tempfile.mkdtemp(dir=self.folder) + "/run"
        self.record(out, golden, settings, bug, **sizes)
        judged = judging.judge(out, golden)
        print(judged[1])
        return judged

    def test_clean_layouts_match(self):
        """tp has sequence parallelism."""
        for sizes in (dict(tp=2), dict(tp=2, dp=2), dict(pp=2), dict(pp=2, tp=2), dict(pp=2, vpp=2, layers=4), dict(ep=2),
                      dict(ep=2, tp=2), dict(ep=2, dispatcher="alltoall"), dict(tp=2, ep=2, etp=1, world=2),
                      dict(tp=2, ep=4, etp=1, world=4, dispatcher="alltoall"), dict(ep=2, etp=2, world=4)):
            with self.subTest(**sizes):
                self.expect(self.judged((), "", sizes), 0)

    def test_experts_that_etp_alone_cuts(self):
        """Before 0.19.0 Megatron-core sums their gradients over dp, whose ranks hold other columns (its PR 5916)."""
        status, text = self.judged((), "", dict(etp=2, world=2))
        if tuple(map(int, importlib.metadata.version("megatron-core").split(".")[:2])) >= (0, 19):
            return self.assertEqual(status, 0, text)
        self.assertEqual(status, 1, text)
        self.assertRegex(text, r"tensor +grad\.decoder\.layers\.\d\.mlp\.experts")
        self.assertIn("the sum goes over dp, which cuts the tensor", text)

    def test_tp_without_sequence_parallelism_matches(self):
        self.expect(self.judged(("without_sequence_parallel",), "", dict(tp=2)), 0)

    def test_tied_embeddings_match(self):
        for sizes in (dict(pp=2), dict(pp=2, vpp=2, layers=4)):
            with self.subTest(**sizes):
                self.expect(self.judged(("share_embeddings",), "", sizes), 0)

    def test_bugs_are_found(self):
        for name, (settings, bug, sizes, pieces) in BUGS.items():
            with self.subTest(name):
                self.expect(self.judged(settings, bug, sizes), 1, *pieces)


if __name__ == "__main__":
    unittest.main()
