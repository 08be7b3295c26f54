#!/usr/bin/env python3
"""Lists the numbers written in src/ and golden/, and the cases below, at and above each that sizes are compared with.

A number counts if it is a named constant, at least 10 in size, or below 0.001. It is in one of three tables, so that a
new one is a finding:
    CROSSED     how values are computed depends on it: default scenarios must have a case below it, at it, and above it
    TESTED      scenarios cannot cross it, or it is a limit that is told: the file of tests that does, and words of it
    OTHERWISE   no size of a case is compared with it; the entry says what it is instead
Exit status 77: no PyYAML.

    constants_in_use_test.py    prints the cases of CROSSED, and the findings"""

import re
import sys

import keys_in_use_test as keys_in_use
import pairs_in_use_test as pairs_in_use  # ends with 77 where there is no PyYAML

ROOT = keys_in_use.ROOT
sys.path.insert(0, str(ROOT / "tests/mutants"))
from cpp_tokens import tokens_of  # noqa: E402

KEYS = dict(keys_in_use.leaves(pairs_in_use.SCHEMA))
TP, CP, DP, ULYSSES = (f"parallel.{axis}_size" for axis in
                       ("tensor_parallel", "context_parallel", "data_parallel", "ulysses"))
PP = "parallel.pipeline_parallel_size"


def value_in(case, key):
    return case[key][-1] if case[key] else KEYS.get(key)


def option(case, name, default):
    return (case["options"][-1] if case["options"] else {}).get(name, default)


def ranks_of(case, *axes):
    product = 1
    for axis in axes:
        product *= value_in(case, axis) or 1
    return product


def is_of_lanes(case):
    return value_in(case, "precision") in ("float32", "bfloat16")


def element(case):
    return 8 if value_in(case, "precision") == "float64" else 4


def is_sized(case):
    """Whether the case trains or scores a model whose sizes are in the scenario."""
    return value_in(case, "workload") in ("train", "logprobs") and not case["model.folder"] and not case["data.case"]


FUNCTIONS = {"vocab_parallel_logprob": (6, 36), "fused_logprob": (6, 36)}  # rows, vocab_size


def columns_of(case):
    """The counted columns of logits on the first and the last rank."""
    workload = value_in(case, "workload")
    if workload in FUNCTIONS:
        vocabulary = option(case, "vocab_size", FUNCTIONS[workload][1])
    elif is_sized(case):
        vocabulary = value_in(case, "model.vocab_size")
    else:
        return set()
    ranks = value_in(case, TP)
    columns = -(-vocabulary // ranks)
    return {columns, max(0, vocabulary - (ranks - 1) * columns)} - {0}


def rows_of(case):
    workload = value_in(case, "workload")
    if option(case, "block_rows", 0):
        return None
    return option(case, "rows", FUNCTIONS[workload][0]) if workload in FUNCTIONS else None


def columns_in_lanes(case, bound):
    if is_of_lanes(case):
        yield from ((columns, bound) for columns in columns_of(case))


def bytes_of_a_block(case, bound):
    rows = rows_of(case)
    if rows and value_in(case, "workload") == "vocab_parallel_logprob":
        yield from ((rows * columns * element(case), bound) for columns in columns_of(case))


def rows_of_a_fused_block(case, fewest):
    """Blocks are of rows_per_block(), or of the fewest rows where that is fewer."""
    rows = rows_of(case)
    if rows and value_in(case, "workload") == "fused_logprob":
        for columns in columns_of(case):
            if (2 << 20) // (columns * element(case)) <= fewest:
                yield rows, fewest


def width_in_lanes(case, bound):
    if value_in(case, "run.scoring.fused_norm") and is_of_lanes(case) and is_sized(case):
        yield value_in(case, "model.hidden_size"), bound


def width_of_doubles(case, bound):
    if value_in(case, "run.scoring.fused_norm") and not is_of_lanes(case) and is_sized(case):
        if value_in(case, "precision") == "float64":
            yield value_in(case, "model.hidden_size"), bound


def rows_of_queries(case):
    """(positions, positions that a block of queries would have by its bytes alone), where one rank has whole samples."""
    if not is_sized(case) or ranks_of(case, CP, DP, PP) > 1 or case["run.sequence_packing.enabled"]:
        return None
    if any(case[key] for key in ("run.train_micro_batch_size", "run.logprob_batch_size", "run.dynamic_batching.enabled")):
        return None
    lengths = value_in(case, "data.lengths") or []
    positions = value_in(case, "data.sequence_length") or max(lengths, default=16)
    samples = value_in(case, "data.batch_size") or len(lengths) or 4
    heads = value_in(case, "model.num_attention_heads") // ranks_of(case, TP, ULYSSES)
    return positions, samples * heads * positions * element(case)


def positions_in_a_block(case, limit):
    if rows := rows_of_queries(case):
        yield rows[0], max(32, limit // max(1, rows[1]))


def rows_by_bytes(case, fewest):
    if rows := rows_of_queries(case):
        yield (256 << 10) // max(1, rows[1]), fewest


def tokens_of_a_chunk(case, bound):
    """Positions of the longest sample that a rank of a ring has next to each other."""
    ranks = value_in(case, CP)
    if is_sized(case) and ranks > 1 and not case["run.sequence_packing.enabled"]:
        positions = value_in(case, "data.sequence_length") or max(value_in(case, "data.lengths") or [16])
        longest = max(value_in(case, "data.lengths") or [positions])
        chunks = ranks if value_in(case, "parallel.context_layout") == "contiguous" else 2 * ranks
        yield min(longest, positions // chunks), bound


def bytes_of_gradients(case, bound):
    """Of all parameters of a llama without biases, which copies of the model average."""
    plain = not any(case[key] for key in ("model.family", "model.attention_bias", "model.mlp_bias"))
    if is_sized(case) and plain and value_in(case, DP) not in (None, 1) and ranks_of(case, TP, PP) == 1:
        width, mlp, layers, vocabulary = (value_in(case, f"model.{key}") for key in (
            "hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size"))
        heads = value_in(case, "model.num_attention_heads")
        kv = value_in(case, "model.num_key_value_heads") or heads
        head = value_in(case, "model.head_dim") or width // heads
        layer = width * head * 2 * (heads + kv) + 3 * width * mlp + 2 * width
        matrices = 1 if value_in(case, "model.tie_word_embeddings") else 2
        if not case["parallel.data_parallel"]:
            yield element(case) * (matrices * vocabulary * width + layers * layer + width), bound


def positions_of_halves(case, parts):
    if is_sized(case) and value_in(case, "workload") == "train" and value_in(case, "precision") == "float16":
        yield value_in(case, "data.sequence_length") or max(value_in(case, "data.lengths") or [16]), parts


CROSSED = {
    ("src/logprob/row_loops.h", "kStretch"): columns_in_lanes,
    ("src/tensor/float_lanes.h", "kLanes"): columns_in_lanes,
    ("src/logprob/row_loops.h", "kStep"): columns_in_lanes,
    ("src/logprob/logit_rows.h", "kBlockBytes"): bytes_of_a_block,
    ("src/logprob/fused_logprob.cpp", "kFewestRows"): rows_of_a_fused_block,
    ("src/parallel/tp/norm_row_loops.h", "kStretch"): width_in_lanes,
    ("src/parallel/tp/add_rms_norm.cpp", "kApart"): width_of_doubles,
    ("src/model/attention.cpp", "kBytes"): positions_in_a_block,
    ("src/model/attention.cpp", "kFewest"): rows_by_bytes,
    ("src/parallel/cp/ring_attention.h", "tile_length"): tokens_of_a_chunk,
    ("src/parallel/data/replicate.cpp", "kBucketBytes"): bytes_of_gradients,
    ("golden/plain_model.cpp", "kMostParts"): positions_of_halves,
}
UNITS = {("src/logprob/row_loops.h", "kStep"): 8}  # the size of what the number counts: kLanes

TESTED = {
    ("src/logprob/row_loops.h", "87.0f"): ("unit/logprob/row_kernels_test.cpp", ["-86.99f", "-87.5f"]),
    ("src/logprob/logit_rows.cpp", "kLeastTemperature"): ("unit/logprob/row_kernels_test.cpp", ["1e-31, 1e-30, 1e-29"]),
    ("src/logprob/logit_rows.cpp", "kMostTemperature"): ("unit/logprob/row_kernels_test.cpp", ["1e29, 1e30, 1e31"]),
    ("src/policy/refit.cpp", "kAlignment"): ("unit/policy/refit_test.cpp", ["of_bytes(5)", "of_bytes(17)", "sizes(64)"]),
    ("src/policy/refit.h", "budget_bytes"): ("unit/policy/refit_test.cpp", ["sizes(63)", "sizes(64)", "sizes(1000)"]),
    ("src/random/rng_seeds.cpp", "kStride"): ("unit/random/rng_tracker_test.cpp", ["1234 + 1024 + 200 + 1"]),
    ("src/random/rng_seeds.cpp", "kExpertOffset"): ("unit/random/rng_tracker_test.cpp", ["1024 + 100 * 17 = 2718 + 6"]),
    ("src/random/rng_seeds.cpp", "kModelOffset"): ("unit/random/rng_tracker_test.cpp", ["1024 + 100 * 17 = 2718 + 6"]),
    ("src/base/seed.h", "kMaxGeneratorSeed"): ("unit/random/rng_tracker_test.cpp", ["most - 1024 - 2904", "most - 1024 - 2903"]),
    ("src/mesh/mesh.h", "kMaxWorldSize"): ("unit/mesh/mesh_test.cpp", ["world_size() == 65536", "dp=65537"]),
    ("src/base/stage_layout.cpp", "kLongest"): ("unit/parallel/pp/split_test.cpp", ["more than 100000 parts"]),
    ("src/tensor/safetensors_header.h", "kMaxSafetensorsDims"): ("unit/tensor/safetensors_test.cpp", ["more than 32 dims"]),
}

# {what it is: {file: names, or * for all of the file}}
OTHERWISE = {
    "a limit that is told, far from every size of a case": {
        "golden/parted_sums.h": "kLargestHalf", "src/base/expert_choices.h": "kLeastMargin",
        "src/base/read_text.cpp": "kMaxJsonDepth",
        "src/base/read_text.h": "kMaxJsonBytes", "src/model/config.cpp": "kMaxLayers kMaxExtraHeads",
        "src/model/config_fields.h": "kMaxSize",
        "src/model/seeded_batch.cpp": "kMaxTokens", "src/model/seeded_weights.cpp": "kMaxElements",
        "src/tensor/safetensors_header.h": "kMaxSafetensorsHeader"},
    "of messages": {
        "src/base/call.cpp": "kMaxListed", "src/base/description_length.h": "kFreeNumber kAsGood", "src/base/child_answer.cpp": "512", "src/base/failure.cpp": "kMaxMessageLine",
        "src/base/read_text.cpp": "kMaxReason", "src/base/shortage.cpp": "kMiB", "src/model/config.cpp": "kMaxConfigProblems",
        "src/model/config_fields.cpp": "*", "src/model/config_keys.cpp": "kMisspeltBy", "src/parallel/pp/tables.cpp": "kMost",
        "src/tensor/safetensors_header.cpp": "120"},
    "of a formula, or a guard of it against 0": {
        "golden/dense_routes.cpp": "weights", "golden/losses.cpp": "1e-9", "golden/own_draws.cpp": "2718", "golden/muon.cpp": "1e-7",
        "src/optim/muon.cpp": "kA kB kC kLeastNorm kSteps",
        "golden/kept_streams.cpp": "kPartsOffset kStageOffset", "golden/weight_terms.cpp": "16", "src/logprob/row_loops.h": "kRounding p power r",
        "src/model/moe/selection.cpp": "kLeastSum", "src/model/moe/side_losses.cpp": "scores",
        "src/base/stage_layout.cpp": "count", "src/train/grad_norm.cpp": "coefficient", "src/train/loss.cpp": "rounding"},
    "the default of a key or option, which scenarios give": {
        "golden/golden_main.cpp": "kFirstMembers", "src/base/training_choices.h": "*", "src/model/batch.h": "seq_len",
        "src/model/config.cpp": "1e-6 kv_rank nope q_rank query_pre_attn_scalar rope value", "src/model/config.h": "*",
        "src/model/config_rope.cpp": "attention_factor factor original_max_position_embeddings", "src/base/families.cpp": "*",
        "src/model/config_windows.cpp": "4096 from sliding_window", "src/base/families.h": "*",
        "src/parallel/hf/save_weights.h": "max_file_bytes"},
    "a share of a thread, whose rows are computed alone": {
        "src/logprob/row_softmax.cpp": "kRowsOfOneThread", "src/parallel/tp/add_rms_norm.cpp": "grain",
        "src/parallel/tp/add_rms_norm_kernel.cu": "kMostBlocks"},
    "the number of a rank, dim, tag, type or format, or how many there are": {
        "src/base/call.h": "11", "src/model/slot.cpp": "kMostInputs", "src/parallel/cp/ring_attention.cpp": "*",
        "src/parallel/hf/save_weights.cpp": "kWriter", "src/parallel/hf/scatter_weights.cpp": "kRoot",
        "src/parallel/reshard/held_tensor.cpp": "kCollector", "src/parallel/tp/plan.h": "14", "src/parallel/ulysses/style.cpp": "*",
        "src/policy/checkpoint.cpp": "kFormat", "src/policy/refit.cpp": "kRoot", "src/tensor/safetensors_reader.cpp": "kLengthBytes",
        "src/tensor/safetensors_writer.cpp": "0666", "src/tensor/tensor_view.h": "*"},
    "bits of a number, digest or character": {
        "golden/weight_terms.h": "kAllWays", "src/base/digest.h": "*", "src/base/seed.h": "*", "src/base/utf8.cpp": "*",
        "src/observe/draw_columns.h": "*",
        "src/tensor/float_lanes.h": "*", "src/tensor/narrow_float.h": "*", "src/tensor/safetensors_header.cpp": "0xff"},
    "of memory, whose contents do not change": {
        "golden/golden_main.cpp": "kKeptBytes kBesideBytes", "golden/written_out.cpp": "kMostBeside",
        "src/base/freed_memory.cpp": "*", "src/base/physical_memory.h": "*", "src/tensor/counting_allocator.cpp": "*",
        "src/logprob/logit_rows.cpp": "kHugePage 16", "src/logprob/row_loops.h": "kCacheLine"},
    "a value that a seeded batch has where nothing counts": {"src/model/seeded_batch.cpp": "1e300"},
    "a wait": {"src/comm/gloo_backend.h": "*", "src/comm/nccl_backend.h": "*"},
}


def number_of(token):
    text = token.replace("'", "").lower()
    if text.startswith("0x"):
        return float.fromhex(text) if "p" in text else float(int(text.rstrip("ul"), 16))
    return float(re.sub(r"(f|u?l*)$", "", text))


def numbers():
    """{(file, name): text of its value} of the numbers that count; the name is what they are assigned to, or their text."""
    found = {}
    for path in sorted(path for folder in ("src", "golden") for path in (ROOT / folder).rglob("*")):
        if path.suffix not in (".h", ".cpp", ".cu"):
            continue
        tokens = [token.text for token in tokens_of(path.read_text())]
        for at, text in enumerate(tokens):
            if not re.match(r"\.?\d", text):
                continue
            begin = max([i for i in range(at) if tokens[i] == ";"][-1:] + [at - 14])
            given = [i for i in range(begin, at) if tokens[i] == "=" and re.fullmatch(r"[A-Za-z_]\w*", tokens[i - 1])]
            name = tokens[given[-1] - 1] if given else text
            size = abs(number_of(text))
            if re.fullmatch(r"k[A-Z]\w*", name) or size >= 10 or 0 < size < 1e-3:
                end = next(i for i in range(at, len(tokens)) if tokens[i] in ";,)")
                value = " ".join(tokens[given[-1] + 1 if given else at:end])
                found.setdefault((str(path.relative_to(ROOT)), name), value)
    return found


def value_of(text):
    """Of a number, or of products and shifts of integers, as in int64_t{1} << 21."""
    plain = re.sub(r"\w+ \{ (\w+) \}", r"\1", text).replace("'", "")
    first, *rest = plain.split()
    value = int(first) if first.isdigit() else float(first)
    for sign, number in zip(rest[::2], rest[1::2]):
        if not number.isdigit():
            break
        value = value << int(number) if sign == "<<" else value * int(number)
    return value


def crossed(found):
    """{key of CROSSED: {"below", "at", "above": the first case of it}}"""
    places = {key: {} for key in CROSSED}
    for path, scenario in keys_in_use.default_scenarios():
        for case in pairs_in_use.cases(scenario, KEYS):
            if not set(case["expect.verdict"]) <= {"match"}:
                continue
            for key, measure in CROSSED.items():
                for size, bound in measure(case, value_of(found[key]) * UNITS.get(key, 1)) if key in found else ():
                    where = "at" if size == bound else "below" if size < bound else "above"
                    name = f"{path.relative_to(ROOT / 'scenarios').with_suffix('')} ({size} of {bound})"
                    places[key].setdefault(where, name)
    return places


def findings(found, places):
    otherwise = {(file, name) for files in OTHERWISE.values() for file, names in files.items() for name in names.split()}
    known = {*CROSSED, *TESTED, *otherwise}
    for key in found:
        if key not in known and (key[0], "*") not in known:
            yield (f"{key[0]}: {key[1]} is in no table of tests/cli/constants_in_use_test.py; if how values are computed "
                   "depends on it, add cases below, at and above it")
    for key in known:
        if key not in found and not (key[1] == "*" and any(one[0] == key[0] for one in found)):
            yield f"{key[0]}: {key[1]} is gone; take it out of tests/cli/constants_in_use_test.py"
    for key, cases in places.items():
        for where in {"below", "at", "above"} - set(cases):
            yield f"no default scenario has a case {where} {key[1]} of {key[0]}"
    for key, (file, words) in TESTED.items():
        text = (ROOT / "tests" / file).read_text()
        for word in [word for word in words if word not in text]:
            yield f"tests/{file} does not have '{word}', which is said to test {key[1]} of {key[0]}"


def main():
    found = numbers()
    places = crossed(found)
    for key, cases in places.items():
        print(f"{key[0]} {key[1]}")
        for where in ("below", "at", "above"):
            print(f"  {where:6} {cases.get(where, '-')}")
    bad = sorted(findings(found, places))
    print(f"{len(found)} numbers: {len(CROSSED)} crossed by cases, {len(TESTED)} by tests")
    print("\n".join(bad))
    return 1 if bad or not found else 0


if __name__ == "__main__":
    sys.exit(main())
