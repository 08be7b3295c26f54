#!/usr/bin/env python3
"""Holds the option table (sim/case/*_rows.cpp) to the structs of a case: each data member is named in one row.

  option_rows_test.py [ROOT]
"""

import re
import sys
from pathlib import Path

HEADERS = ("src/base/training_choices.h", "sim/case/case_spec.h", "sim/case/world_spec.h")
# Members of the training's structs that follow from other options of a case.
FOLLOW = {"BatchingOptions::micro_batch_size", "LossScaleOptions::enabled"}
STRUCT = re.compile(r"^struct (\w+)(?: : (\w+))? \{\n(.*?)^\};", re.MULTILINE | re.DOTALL)
FUNCTION = re.compile(r"[^;{}]*\([^;{}]*\) const \{[^}]*\}")
# "double start_factor = 1.0 / 3, end_factor = 1.0" without its type: a name before each comma, = or end.
NAME = re.compile(r"(?:^|, )(\w+)(?= =|,|$)")
# A function that returns rows, and the struct that it names.
ROWS = re.compile(r"^(?:const )?OptionRows<(\w+)>&? \w+\([^)]*\) \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"(?:\b(?:row|member)<(?=&Spec::\w+>)|lifted\(\w+, )&Spec::(\w+)")


def members(root):
    """{struct: its data members}"""
    found = {}
    for header in HEADERS:
        text = re.sub(r"//.*", "", (root / header).read_text(encoding="utf-8"))
        for struct, base, body in STRUCT.findall(text):
            lines = [" ".join(line.split()) for line in FUNCTION.sub("", body).split(";")]
            names = [name for line in lines for name in NAME.findall(re.sub(r"^\S+ ", "", line))]
            own = [name for name in names if f"{struct}::{name}" not in FOLLOW]
            found[struct] = found.get(base, []) + own
    bases = {"LossOptions", "OptimizerOptions", "BatchingOptions"}  # whose rows are those of a case's struct
    return {struct: fields for struct, fields in found.items() if struct not in bases}


def rows(root):
    """{struct: the members that its rows name}"""
    found = {}
    for path in sorted((root / "sim/case").glob("*_rows.cpp")):
        for struct, body in ROWS.findall(path.read_text(encoding="utf-8")):
            found.setdefault(struct, []).extend(NAMED.findall(body))
    return found


def problems(root):
    declared, named = members(root), rows(root)
    for struct, fields in declared.items():
        for field in fields:
            count = named.get(struct, []).count(field)
            if count != 1:
                yield f"{struct}::{field} is named in {count} rows of sim/case/*_rows.cpp; write one"


def main():
    root = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[2]
    found = list(problems(root))
    count = sum(len(fields) for fields in members(root).values())
    print("\n".join(found))
    print(f"{count} members of {len(members(root))} structs")
    return 1 if found or count < 100 else 0


if __name__ == "__main__":
    sys.exit(main())
