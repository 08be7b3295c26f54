#!/usr/bin/env python3
"""Lists the values that the default scenarios give to each key of a scenario file.

Prints the table, and fails for a key that has only its default in all scenarios: a bug in its effect would pass.
NOT_IN_USE lists the keys that are known to be unset; it may only shrink. Exit status 77: no PyYAML.

    keys_in_use_test.py --write PROGRAM   writes scenarios/schema.json and the table of scenarios/README.md anew"""

import collections
import json
import pathlib
import re
import subprocess
import sys

try:
    import yaml
except ImportError:
    print("skipped: python3 has no yaml module")
    sys.exit(77)

ROOT = pathlib.Path(__file__).parents[2]
MANY = 6  # values that a line shows

NOT_IN_USE = {
    "judged": "nothing is compared then",
    "run.optimizer.kwargs.amsgrad": "only false is accepted",
    "run.optimizer.kwargs.capturable": "only false is accepted",
    "run.optimizer.kwargs.differentiable": "only false is accepted",
    "run.optimizer.kwargs.maximize": "only false is accepted",
    "world.compute_cost.factor": "of measured time, which differs in every run",
    "world.deadline_s": "a case that reaches it takes as long",
    "world.device": "cuda alone would skip the case where there is no GPU",
}


def leaves(schema, path=""):
    """{key: its default}, in the order of the schema."""
    for name, child in schema.get("properties", {}).items():
        key = f"{path}.{name}" if path else name
        for variant in [child, *child.get("oneOf", []), *child.get("anyOf", [])]:
            if "properties" in variant:
                yield from leaves(variant, key)
                break
            if "properties" in variant.get("items", {}) and isinstance(variant["items"], dict):
                yield from leaves(variant["items"], key + "[]")
                break
        else:
            yield key, child.get("default")


def expert_families(schema):
    """The families of models with experts: those in which model.config has an effect."""
    ways = schema["properties"]["model"]["properties"]["config"]["x-needs"]
    return [way["model.family"] for way in ways]


def settings(block, keys, path=""):
    """(key, value) of all settings of a block of a scenario, with records and nested blocks flattened."""
    for name, value in block.items():
        key = f"{path}.{name}" if path else str(name)
        if key in keys:
            yield key, value
        elif isinstance(value, dict):
            yield from settings(value, keys, key)
        if any(one.startswith(key + "[]") for one in keys):
            for record in value if isinstance(value, list) else [value]:
                if isinstance(record, dict):
                    yield from settings(record, keys, key + "[]")


def of_matrix(matrix, keys):
    for label, values in matrix.items():
        for value in values:
            if isinstance(value, dict) and label not in keys:
                yield from settings({k: v for k, v in value.items() if k != "name"}, keys)
            else:
                yield from settings({label: value}, keys)


def default_scenarios():
    for path in sorted((ROOT / "scenarios").rglob("*.yaml")):
        scenario = yaml.safe_load(path.read_text())
        if not {"slow", "manual"} & set(scenario.get("tags", [])):
            yield path, scenario


def values_in_use(keys):
    used = collections.defaultdict(dict)  # {key: {value: first file}}
    for path, scenario in default_scenarios():
        plain = {k: v for k, v in scenario.items() if k not in ("matrix", "skip")}
        found = [*settings(plain, keys), *of_matrix(scenario.get("matrix") or {}, keys)]
        for key, value in found:
            if json.dumps(value) != json.dumps(keys[key]):
                used[key].setdefault(json.dumps(value, default=str), str(path.relative_to(ROOT / "scenarios")))
    return used


def write_tables(program):
    def printed(*arguments):
        return subprocess.run([program, *arguments], capture_output=True, text=True, check=True).stdout

    (ROOT / "scenarios/schema.json").write_text(printed("schema"))
    page = ROOT / "scenarios/README.md"
    head, _, tail = re.split(r"(?ms)(?<=^```\n)(name .*?)(?=^```$)", page.read_text())
    page.write_text(head + printed("list", "--keys") + tail)


def main():
    if sys.argv[1:2] == ["--write"]:
        write_tables(sys.argv[2])
        return 0
    keys = {key: default for key, default in leaves(json.loads((ROOT / "scenarios/schema.json").read_text()))
            if key.split(".")[0] not in ("matrix", "skip")}
    used = values_in_use(keys)
    unset = [key for key in keys if key not in used]
    for key in keys:
        shown = list(used[key].items())[:MANY]
        more = f" and {len(used[key]) - MANY} more" if len(used[key]) > MANY else ""
        print(f"{key:42} " + ", ".join(f"{value[:40]} ({file})" for value, file in shown) + more)
    bad = [f"no default scenario sets {key} to anything but {json.dumps(keys[key])}"
           for key in unset if key not in NOT_IN_USE]
    bad += [f"{key} is set: take it out of NOT_IN_USE" for key in NOT_IN_USE if key not in unset]
    print(f"{len(keys)} keys, {len(unset)} of them not in use")
    print("\n".join(bad))
    return 1 if bad or not keys else 0


if __name__ == "__main__":
    sys.exit(main())
