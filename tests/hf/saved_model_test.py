#!/usr/bin/env python3
"""Models that sharded runs saved, read by Hugging Face transformers.

    python3 tests/hf/saved_model_test.py PROGRAM

For each family: two steps on a mesh that cuts everything, `check --save`. Then
  - the saved tensors are, to the bit, the parameters that the run dumped;
  - transformers loads the folder without a missing or unexpected tensor;
  - its logprobs, all in float64, are those of our golden on the same folder.
Skipped (exit status 77) where transformers is not installed: golden/hf/requirements.txt.
"""
import importlib.util
import json
import pathlib
import shutil
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[2]
AGREEMENT = 1e-11  # of the largest logprob
MESHES = {  # a case of golden/hf: the mesh that saves it, and the largest file
    "llama_tied_gqa_padding_row": ("dp=2,tp=2", 5 << 30),
    "qwen2_tied_window_of_last_layer": ("cp=2,tp=2", 40000),
    "qwen3_head_dim_bias": ("tp=4", 40000),
    "gemma3_window_pattern": ("dp=3,tp=2", 5 << 30),
    "gemma3_untied_layer_types": ("dp=2,cp=2,tp=2", 40000),
    "gemma3_images": ("tp=4", 5 << 30),
    "mixtral": ("dp=2,cp=2", 20000),
    "qwen3_moe_dense_layer": ("dp=2", 5 << 30),
    "qwen2_moe_shared_expert": ("dp=2,ep=2", 20000),
    "deepseek_v3": ("dp=2,cp=2", 20000),
    "gpt_oss": ("dp=2,cp=2,ep=2,etp=2", 20000),
}


try:
    import torch
    import transformers
    from safetensors.torch import load_file
except ImportError as missing:
    print(f"skipped: transformers cannot be imported ({missing}); golden/hf/requirements.txt says what it takes")
    sys.exit(77)


def load_maker():
    """golden/hf/make.py: how transformers is made to compute in float64, and logprobs."""
    spec = importlib.util.spec_from_file_location("make", ROOT / "golden/hf/make.py")
    module = importlib.util.module_from_spec(spec)
    sys.modules["make"] = module
    spec.loader.exec_module(module)
    return module


def run(*command):
    done = subprocess.run([str(part) for part in command], cwd=ROOT, text=True, capture_output=True)
    assert done.returncode == 0, f"{command}: status {done.returncode}\n{done.stdout}{done.stderr}"


def all_tensors(folder):
    tensors = {}
    for path in sorted(folder.glob("*.safetensors")):
        if path.name.startswith("model"):
            tensors |= load_file(path)
    return tensors


def check_case(program, maker, name, mesh, largest, scratch):
    case = ROOT / "golden/hf" / name
    folder, dump, golden = scratch / name, scratch / f"{name}.dump", scratch / f"{name}.golden"
    run(program, "check", case, "--mesh", mesh, "--data-parallel", "fsdp", "--backend", "emulated", "--steps", 2,
        "--save", folder, "--save-file-bytes", largest, "--dump", dump)
    saved, trained = all_tensors(folder), load_file(dump)
    prefix = "step2.param."
    assert {prefix + key for key in saved} == {key for key in trained if key.startswith(prefix)}
    for key, value in saved.items():
        assert torch.equal(value, trained[prefix + key]), f"{name}: {key} is not what was trained"
    assert (folder / "model.safetensors.index.json").exists() == (largest < 5 << 30)

    for file in ("batch.safetensors", "case.json"):
        shutil.copy(case / file, folder)
    run(program, "golden", folder, "--dump", golden)
    config = json.loads((folder / "config.json").read_text())
    kept = maker.Case(name, 0, config, {}, {}, [])
    cls = maker.model_class(kept)
    report = cls.from_pretrained(folder, dtype=torch.float64, output_loading_info=True)[1]
    assert not any(report[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), report
    model = maker.load_model(kept, folder)
    with torch.no_grad(), maker.true_float64():
        theirs = maker.logprobs_of(model, load_file(folder / "batch.safetensors"))
    ours = load_file(golden)["logprobs"]
    worst = ((ours - theirs).abs().max() / ours.abs().max()).item()
    assert worst <= AGREEMENT, f"{name}: logprobs differ by {worst:.1e} of the largest"
    print(f"{name} saved from {mesh}: {len(saved)} tensors, logprobs differ by {worst:.1e}")


def main():
    program = pathlib.Path(sys.argv[1]).resolve()
    transformers.utils.logging.disable_progress_bar()
    torch.set_num_threads(1)
    maker = load_maker()
    with tempfile.TemporaryDirectory() as scratch:
        for name, (mesh, largest) in MESHES.items():
            check_case(program, maker, name, mesh, largest, pathlib.Path(scratch))


if __name__ == "__main__":
    main()
