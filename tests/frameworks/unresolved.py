"""How much of a clean run of an example the judge leaves unresolved: no more than it did when the counts were made."""

import clean_runs

# Tensors by example and dtype: of its first layout in clean_examples.py with seed 1, and in float64 of all its clean runs. A
# count that rises says that the judge decides less than it did: look for the cause. An example or dtype without a count was
# not installed where the counts were made.
UNRESOLVED = {
    "dtensor_fsdp2": {"float64": 0, "float32": 1, "bfloat16": 30},
    "hand_written": {"float64": 0, "float32": 0, "bfloat16": 16},
    "megatron_core": {"float64": 0, "float32": 3, "bfloat16": 32},
    "megatron_core_layers": {"float64": 0, "float32": 0, "bfloat16": 79},
    "megatron_core_experts": {"float64": 0, "float32": 0, "bfloat16": 81},
    "muon_resume": {"float64": 0},
    "torch_pipelining": {"float64": 0},
}


def check(test, name, text, dtype="float64"):
    """Fails if the judge's text of a match leaves more unresolved than the example did. Says if it leaves less."""
    unresolved = clean_runs.UNRESOLVED.search(text)
    found, known = int(unresolved[1]) if unresolved else 0, UNRESOLVED.get(name, {}).get(dtype)
    if known is None:
        return print(f"skipped: {name} in {dtype} has no count of unresolved tensors; here it has {found}", flush=True)
    test.assertLessEqual(found, known, f"tensors of {name} in {dtype} that are unresolved; they were {known}\n{text}")
    if found < known:
        print(f"{name} in {dtype} leaves {found} tensors unresolved; lower its count of {known}", flush=True)
