#!/usr/bin/env python3
"""Checks the pairs of option values that no default scenario combines against a ledger, which may only
shrink but for the pairs of a new option.

    pairs_in_use_test.py [PROGRAM]              the table, and the test; PROGRAM must refuse the ledger's refused pairs
    pairs_in_use_test.py --shrink               removes pairs from the ledger that a scenario combines
    pairs_in_use_test.py --new TEXT PROGRAM     runs a small case of each unknown pair whose line contains TEXT, and
                                                writes it into the ledger: for the values of a new option
    pairs_in_use_test.py --try TEXT PROGRAM     runs a small case of each pair of the ledger whose line contains TEXT

The schema determines the options. They are workload, precision and world.backend, and the keys of the blocks model,
parallel, data and run that have an enum (each of its values), a boolean (the value that is not the default), a text
with a default (each value in use), a null (set, or null if that is not the default), the sizes of axes (more than 1),
and numbers of run whose default 0 or 1 means off (another number). Other numbers choose an amount, not a behavior, and
the keys under kwargs belong to an optimizer or a scheduler.

A value counts if it has an effect (x-needs of the schema) in a case that is expected to match. Options
with x-not-paired are left out. Two values that cannot have an effect together are not a pair. The ledger,
pairs_not_combined.yaml, has the pairs that the program refuses, and those that no default scenario combines. Exit status
77: no PyYAML."""

import collections
import functools
import itertools
import json
import pathlib
import re
import subprocess
import sys
import tempfile

import keys_in_use_test as keys_in_use  # ends with 77 where there is no PyYAML
import yaml

SCHEMA = json.loads((keys_in_use.ROOT / "scenarios/schema.json").read_text())
LEDGER = pathlib.Path(__file__).with_name("pairs_not_combined.yaml")
BLOCKS = ("model", "parallel", "data", "run")
ALONE = ("workload", "precision", "world.backend")
# Values that are not part of a pair: most keys of models are not those of families with experts (scenarios/ep, `fuzz`).
NO_VALUE = {pair for way in SCHEMA["properties"]["model"]["properties"]["config"]["x-needs"] for pair in way.items()}
WORKLOADS = {"train", "logprobs", "policy"}
MORE = "more"  # a number that is not off
GIVEN = "given"  # set, where null is possible

def is_number(schema):
    return schema.get("type") in ("integer", "number")


def value_of(schema, given):
    """The value that counts for an option when a case sets `given`; None when that means off."""
    if is_number(schema):
        return MORE if given not in (None, 1, schema.get("default")) else None
    if isinstance(given, str):
        return given.split(".")[-1] if given.startswith("torch.") else given if given not in ("", "none") else None
    if isinstance(given, bool):
        return str(given).lower() if given != schema.get("default", False) else None
    if schema.get("default") is not None:
        return "null" if given is None else None
    return GIVEN if given is not None else None


def is_option(key, schema):
    block = key.split(".")[0]
    if block not in BLOCKS and key not in ALONE:
        return False
    if ".kwargs." in key or key in keys_in_use.NOT_IN_USE or ("x-not-paired" in schema and key not in ALONE):
        return False
    if schema.get("type") == "integer":
        return block == "parallel"
    if schema.get("type") == "number":
        return block == "run" and schema.get("default") in (0, 1)
    texts = schema.get("type") == "string" and "default" in schema
    return texts or "enum" in schema or schema.get("type") == "boolean" or {"type": "null"} in schema.get("anyOf", [])


def rows(block, path=""):
    """(key, its schema) of each key below `block`."""
    for name, child in block.get("properties", {}).items():
        key = f"{path}.{name}" if path else name
        if "properties" in child:
            yield from rows(child, key)
        elif "properties" in child.get("items", {}):
            yield from rows(child["items"], key + "[]")
        else:
            yield key, child


ROWS = dict(rows(SCHEMA))


def options():
    """{key: its schema} of the keys in this table."""
    return {key: child for key, child in ROWS.items() if is_option(key, child)}


def flattened(blocks, keys):
    """{key: all its values} of blocks; later blocks replace the settings of earlier ones."""
    case = collections.defaultdict(list)
    for block in blocks:
        own = collections.defaultdict(list)
        for key, value in keys_in_use.settings(block, keys):
            own[key].append(value)
        lists = {key.split("[]")[0] + "[]" for key in own if "[]" in key}
        for key in [key for key in case if any(key.startswith(one) for one in lists)]:
            del case[key]
        case.update(own)
    return case


def cases(scenario, keys):
    """The settings of each case of a scenario, without skipped cases."""
    matrix = scenario.get("matrix") or {}
    rules = scenario.get("skip") or []
    for row in itertools.product(*matrix.values()):
        blocks = [{k: v for k, v in scenario.items() if k not in ("matrix", "skip")}]
        for label, value in zip(matrix, row):
            of_label = isinstance(value, dict) and label not in keys
            blocks.append({k: v for k, v in value.items() if k != "name"} if of_label else {label: value})
        case = flattened(blocks, keys)
        if not any(skips(rule, case) for rule in (rules if isinstance(rules, list) else [rules])):
            yield case


def skips(rule, case):
    when = rule.get("when", {}) if isinstance(rule, dict) else {}
    return all(set(case[key]) & set(value if isinstance(value, list) else [value]) for key, value in when.items())


@functools.cache
def needs_of(key):
    """The settings of which one set must be in effect for the key to have an effect; none: it always has one."""
    def counted(value):
        return str(value).lower() if isinstance(value, bool) else MORE if str(value).startswith(">") else value

    return [{one: counted(value) for one, value in way.items()} for way in ROWS.get(key, {}).get("x-needs", [])]


def in_effect(case, table):
    """The values, as (key, value), that have an effect in this case."""
    there = set()
    for key, schema in table.items():
        given = case[key] or ([schema["default"]] if "default" in schema else [])
        there |= {(key, value_of(schema, one)) for one in given}
    if not case["world.backend"]:
        there |= {("world.backend", one) for one in ("emulated", "gloo")}  # nccl is for machines with GPUs
    there = {(key, value) for key, value in there if value is not None} - NO_VALUE
    while True:
        kept = {(key, value) for key, value in there
                if not needs_of(key) or any(set(way.items()) <= there for way in needs_of(key))}
        if kept == there:
            return there
        there = kept


def combined(table):
    """The pairs of values that some case combines, and the values in use."""
    keys = dict(keys_in_use.leaves(SCHEMA))
    pairs, values = set(), set()
    for _, scenario in keys_in_use.default_scenarios():
        for case in cases(scenario, keys):
            if set(case["expect.verdict"]) <= {"match"} and set(case["workload"]) <= WORKLOADS:
                found = in_effect(case, table)
                values |= found
                pairs.update(itertools.combinations(sorted(found), 2))
    return pairs, values


def values_of(key, schema, used):
    """The values that count for an option, in use or not."""
    if "enum" in schema:
        found = {value_of(schema, one) for one in schema["enum"] if not isinstance(one, bool)}
    elif schema.get("type") == "boolean":
        found = {value_of(schema, not schema.get("default", False))}
    else:
        found = {value for one, value in used if one == key}
    return {(key, value) for value in found if value not in (None, "nccl")}


def brought_about(values, settled=frozenset()):
    """The smallest sets of values that give all of these an effect; none when they exclude each other."""
    for key, value in sorted(values - settled):
        if "[]" not in key and any(one == key for one, other in settled if other != value):
            return
        rest, settled_now = values - {(key, value)}, settled | {(key, value)}
        for way in needs_of(key) or [{}]:
            yield from brought_about(rest | set(way.items()) | settled_now, settled_now)
        return
    yield settled


# The value in a small case of an option that is only MORE, GIVEN or null.
CHOSEN_VALUES = {
    "parallel.data_parallel_size": 4,
    "parallel.replicate_size": 2,
    "parallel.custom_parallel_plan": {"model.embed_tokens": "Replicate", "lm_head": "Replicate"},
    "model.rope_scaling": {"rope_type": "linear", "factor": 2.0},
    "model.sliding_window": 3,
    "model.pad_token_id": 5,
    "run.noise_std": 0.01,
    "run.temperature": 1.5,
    "run.max_grad_norm": None,
}
BASE = {
    "model": {"vocab_size": 48, "hidden_size": 24, "intermediate_size": 32, "num_attention_heads": 4,
              "num_hidden_layers": 2},
    "data": {"lengths": [9, 4, 7, 11, 2, 8, 5, 3], "sequence_length": 12},
}
KWARGS = {"ConstantLR": {"factor": 0.5}, "LinearLR": {"start_factor": 0.5, "total_iters": 2},
          "CosineAnnealingLR": {"T_max": 3}, "LambdaLR": {"lr_lambda": [1, 0.5, 0.25]}}
STAGES = ["train", "score", "reference", "offload", "refit", "draw", "export", "save", "load"]


def small_case(values):
    """A row of a matrix in which these values have their effects."""
    row, stages = {}, {}
    for key, value in sorted(values):
        given = CHOSEN_VALUES.get(key, {MORE: 2, "true": True, "false": False}.get(value, value))
        if key == "run.stages[].do":
            stages.setdefault(value, {"do": value})
        elif key.startswith("run.stages[]."):
            do = needs_of(key)[0]["run.stages[].do"]
            stages.setdefault(do, {"do": do})[key.partition("[].")[2]] = given
        elif key == "run.scheduler[].name":
            row.setdefault("run.scheduler", []).append({"name": given, "kwargs": KWARGS[given]})
        else:
            row[key] = given
    if len(row.get("run.scheduler", [])) > 1:
        row["run.scheduler"].append({"milestones": [1]})
    if stages.get("load"):
        stages.setdefault("save", {"do": "save"})
    if "refit" in stages:
        row["run.refit.tensor_parallel_size"] = 2
    if row.get("workload") == "policy":
        last = [{"do": "train"}] if "load" in stages or not stages else []
        row["run.stages"] = [stages[do] for do in STAGES if do in stages] + last
    return row


def how_it_ends(program, values):
    """(exit status, output) of a small case in which these have their effects."""
    row = {"name": "pair", **small_case(values)}
    with tempfile.TemporaryDirectory() as folder:
        case = pathlib.Path(folder, "pair.yaml")
        case.write_text(json.dumps({**BASE, "matrix": {"pair": [row]}}))
        run = subprocess.run([program, "run", str(case), "--backend", dict(values).get("world.backend", "emulated"),
                              "--out", folder + "/run"], capture_output=True, text=True, check=False)
        return run.returncode, (run.stderr + run.stdout).split("\n\n")[0].replace(folder + "/", "")


def not_refused(program, pairs):
    """The pairs of which the program takes a small case; all are cases of one scenario, each in a line of its own."""
    rows = [(pair, {"name": str(number), "world.backend": "emulated", **small_case(values)})
            for number, (pair, values) in enumerate((pair, values) for pair in pairs
                                                    for values in brought_about(frozenset(pair)))]
    with tempfile.TemporaryDirectory() as folder:
        case, results = pathlib.Path(folder, "pair.yaml"), pathlib.Path(folder, "run/results.json")
        while not results.exists():
            lines = ",\n".join(json.dumps(row) for _, row in rows)
            case.write_text(f'{json.dumps(BASE)[:-1]}, "matrix": {{"pair": [\n{lines}]}}}}')
            run = subprocess.run([program, "run", str(case), "--out", folder + "/run"],
                                 capture_output=True, text=True, check=False)
            bad = {int(line) - 2 for line in re.findall(r"pair\.yaml:(\d+):", run.stderr)}
            kept = [row for number, row in enumerate(rows) if number not in bad]
            if not results.exists() and len(kept) in (0, len(rows)):
                raise RuntimeError(run.stderr)
            rows = rows if results.exists() else kept
        cases = json.loads(results.read_text())["cases"]
    taken = {case["name"].split("/")[-1] for case in cases if case["verdict"] not in ("refused", "bad_input")}
    return {pair for pair, row in rows if f"pair[{row['name']}]" in taken}


def line_of(pair):
    return " and ".join(f"{key}={value}" for key, value in pair)


def possible_pairs(values):
    for pair in itertools.combinations(values, 2):
        if next(brought_about(frozenset(pair)), None):
            yield pair


def findings(missing, ledger):
    """The errors of the ledger, and the pairs that must be removed from it."""
    lines = {line_of(pair) for pair in missing}
    known = set(ledger["not_combined"]) | set(ledger["refused"])
    stale = sorted(known - lines)
    bad = [f"{line}: no default scenario combines them; add a case that does" for line in sorted(lines - known)]
    return bad + [f"{line}: combined, or no pair any more; take it out with --shrink" for line in stale], stale


def write_ledger(parts):
    head = "".join(line for line in LEDGER.read_text().splitlines(True) if line.startswith("#"))
    LEDGER.write_text(head + yaml.safe_dump(parts, width=200, sort_keys=False))


def shrink(ledger, stale):
    write_ledger({part: [line for line in lines if line not in stale] for part, lines in ledger.items()})


def add_new(ledger, missing, text, program):
    """Returns the pairs of whose values a small case runs, but not as expected: these are not written."""
    known, wrong = set(ledger["not_combined"]) | set(ledger["refused"]), []
    for pair in missing:
        line = line_of(pair)
        if line in known or text not in line:
            continue
        ends = [how_it_ends(program, values) for values in brought_about(frozenset(pair))]
        if all(status in (2, 4) for status, _ in ends):
            ledger["refused"].append(line)
        elif any(status == 0 for status, _ in ends):
            ledger["not_combined"].append(line)
        else:
            wrong.append(f"{line}\n{ends[0][1]}")
    write_ledger({part: sorted(lines) for part, lines in ledger.items()})
    return wrong


def main(arguments):
    table = options()
    pairs, used = combined(table)
    values = sorted(set(used).union(*(values_of(key, schema, used) for key, schema in table.items())))
    possible = list(possible_pairs(values))
    missing = [pair for pair in possible if pair not in pairs]
    ledger = yaml.safe_load(LEDGER.read_text())
    bad, stale = findings(missing, ledger)
    if arguments[:1] == ["--try"]:
        for pair in missing:
            if arguments[1] in line_of(pair):
                _, said = how_it_ends(arguments[2], next(brought_about(frozenset(pair))))
                print(f"{line_of(pair)}\n{said}", flush=True)
        return 0
    if arguments[:1] == ["--new"]:
        wrong = add_new(ledger, missing, arguments[1], arguments[2])
        print("\n".join(wrong))
        return 1 if wrong else 0
    if arguments == ["--shrink"]:
        shrink(ledger, stale)
        return 0
    if arguments:
        refused = [pair for pair in missing if line_of(pair) in ledger["refused"]]
        bad += [f"{line_of(pair)}: the program does not refuse them; put them under not_combined"
                for pair in sorted(not_refused(arguments[0], refused))]
    alone = collections.Counter(value for pair in missing for value in pair)
    for value in values:
        print(f"{'='.join(value):50} {alone[value]:3} values that no default scenario combines it with")
    print(f"{len(values)} values, {len(possible)} pairs, {len(possible) - len(missing)} of them combined, "
          f"{len(ledger['refused'])} refused, {len(ledger['not_combined'])} in the ledger")
    print("\n".join(bad))
    return 1 if bad or not pairs else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
