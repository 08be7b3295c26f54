"""Bugs that Megatron-core, or code around it, really had, planted into the installed package: each is run on the example's
GPT (examples/megatron_core), recorded, and judged against one rank. Clean layouts must match.

SHARDPROOF_PROGRAM is the program; without it, or without megatron-core, the tests are skipped (README.md here).
"""

import argparse
import importlib
import importlib.util
import math
import os
import subprocess
import sys
import tempfile
import unittest
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "python"), str(ROOT / "examples" / "megatron_core")]

import ranks  # noqa: E402

PROGRAM = os.environ.get("SHARDPROOF_PROGRAM")
INSTALLED = importlib.util.find_spec("megatron") is not None
if PROGRAM and INSTALLED:
    import train as example
    from megatron.core import tensor_parallel
    from megatron.core.distributed import param_and_grad_buffer as buffers
    finalize = importlib.import_module("megatron.core.distributed.finalize_model_grads")  # a function hides the module


def wrapped(owner, name, make):
    """Replaces owner.name by make(the original)."""
    setattr(owner, name, make(getattr(owner, name)))


# --- Settings that the golden has too.

def share_embeddings():
    wrapped(example, "GPTModel", lambda original: lambda *given, **options: original(
        *given, **options | {"share_embeddings_and_output_weights": True}))


def smooth_labels():
    wrapped(tensor_parallel, "vocab_parallel_cross_entropy",
            lambda original: lambda *given, **options: original(*given, **options, label_smoothing=0.1))


def without_sequence_parallel():
    wrapped(example, "TransformerConfig", lambda original: lambda *given, **options: original(
        *given, **options | {"sequence_parallel": False}))


# --- Bugs.

def final_norm_loses_its_mark():
    def make(original):
        def build(*given):
            model = original(*given)
            for name, parameter in model.named_parameters():
                if "final_layernorm" in name:
                    parameter.sequence_parallel = False
            return model
        return build
    wrapped(example, "build", make)


def no_norm_has_its_mark():
    def make(original):
        def build(*given):
            model = original(*given)
            for name, parameter in model.named_parameters():
                if "norm" in name:
                    parameter.sequence_parallel = False
            return model
        return build
    wrapped(example, "build", make)


def finalize_twice():
    def make(original):
        def twice(model, *given, **options):
            original(model, *given, **options)
            finalize._allreduce_non_tensor_model_parallel_grads(model, model[0].config,
                                                                example.parallel_state.get_tensor_model_parallel_group())
        return twice
    wrapped(example, "finalize_model_grads", make)


def tied_embeddings_are_not_summed():
    finalize._allreduce_word_embedding_grads = lambda *given, **options: None


def only_the_last_microbatch():
    def make(original):
        def forward_step(batches, model):
            model.zero_grad_buffer()
            return original(batches, model)
        return forward_step
    wrapped(example, "forward_step", make)


def experts_gradients_have_a_factor():
    def make(original):
        def start(group, **options):
            experts = [bucket for bucket in group.buckets
                       if any(not getattr(parameter, "allreduce", True) for parameter in bucket.params)]
            for bucket in experts:
                bucket.gradient_scaling_factor *= 2
            original(group, **options)
            for bucket in experts:
                bucket.gradient_scaling_factor /= 2
        return start
    wrapped(buffers._ParamAndGradBucketGroup, "start_grad_sync", make)


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
    # Megatron-LM issues 7464 and 737: live in the installed version, nothing is planted
    "label smoothing under tensor parallelism":
        (("smooth_labels",), "", dict(tp=2), ["loss   of step 1", "the ranks of tp do not agree", "its own part of a tensor"]),
}


def rank_main(_, settings, bug, options):
    for name in (*settings, bug):
        if name:
            globals()[name]()
    example.run(options)


@unittest.skipUnless(PROGRAM and INSTALLED, "SHARDPROOF_PROGRAM is not set, or megatron-core is not installed")
class MegatronTest(unittest.TestCase):
    goldens = {}

    @classmethod
    def setUpClass(cls):
        cls.scratch = cls.enterClassContext(tempfile.TemporaryDirectory())

    def record(self, out, golden, settings, bug, **sizes):
        common = dict(tp=1, pp=1, vpp=1, ep=1, layers=2, experts="ep" in sizes or "experts" in out, steps=1, out=out,
                      golden=golden)
        options = argparse.Namespace(**common | {name: size for name, size in sizes.items() if name != "dp"})
        world_size = math.prod(size for name, size in sizes.items() if name not in ("vpp", "layers"))
        ranks.run(world_size, rank_main, settings, bug, options)

    def golden(self, settings, experts, layers=2):
        key = (settings, experts, layers)
        if key not in self.goldens:
            self.goldens[key] = f"{self.scratch}/golden{len(self.goldens)}{'experts' if experts else ''}"
            self.record(self.goldens[key], None, settings, "", layers=layers)
        return self.goldens[key]

    def judged(self, settings, bug, sizes):
        golden = self.golden(settings, "ep" in sizes, sizes.get("layers", 2))
        out = tempfile.mkdtemp(dir=self.scratch) + "/run"
        self.record(out, golden, settings, bug, **sizes)
        done = subprocess.run([PROGRAM, "judge", out, "--golden", golden], text=True, capture_output=True, timeout=120,
                              check=False)
        print(done.stdout)
        return done.returncode, done.stdout + done.stderr

    def test_clean_layouts_match(self):
        """tp has sequence parallelism."""
        for sizes in (dict(tp=2), dict(tp=2, dp=2), dict(pp=2), dict(pp=2, tp=2), dict(pp=2, vpp=2, layers=4), dict(ep=2),
                      dict(ep=2, tp=2)):
            with self.subTest(**sizes):
                status, text = self.judged((), "", sizes)
                self.assertEqual(status, 0, text)

    def test_tp_without_sequence_parallelism_matches(self):
        status, text = self.judged(("without_sequence_parallel",), "", dict(tp=2))
        self.assertEqual(status, 0, text)

    def test_tied_embeddings_match(self):
        status, text = self.judged(("share_embeddings",), "", dict(pp=2))
        self.assertEqual(status, 0, text)

    def test_bugs_are_found(self):
        for name, (settings, bug, sizes, pieces) in BUGS.items():
            with self.subTest(name):
                status, text = self.judged(settings, bug, sizes)
                self.assertEqual(status, 1, text)
                for piece in pieces:
                    self.assertIn(piece, text)


if __name__ == "__main__":
    unittest.main()
