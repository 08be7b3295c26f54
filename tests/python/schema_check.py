"""Holds a value against the keywords of JSON Schema that run.schema.json uses. The jsonschema package is not needed."""

import json
import re
from pathlib import Path

SCHEMA = Path(__file__).resolve().parents[2] / "python/shardproof/run.schema.json"
OF_RUNS = json.loads(SCHEMA.read_text())["$defs"]  # header, piece, hash, end

TYPES = {"object": dict, "array": list, "string": str, "integer": int, "number": (int, float), "null": type(None)}
KNOWN = {"type", "required", "additionalProperties", "properties", "items", "oneOf", "const", "enum", "pattern",
         "minimum", "minLength", "minItems", "maxItems"}


def problems(value, schema, path="$"):
    """What is wrong with a value, as a list of sentences."""
    unknown = set(schema) - KNOWN
    if unknown:
        raise ValueError(f"schema_check does not know {sorted(unknown)}")
    found = []
    if "type" in schema and (not isinstance(value, TYPES[schema["type"]]) or isinstance(value, bool)):
        return [f"{path} is {value!r}, not of type {schema['type']}"]
    if "const" in schema and value != schema["const"] or "enum" in schema and value not in schema["enum"]:
        found.append(f"{path} is {value!r}, which the schema does not list")
    if "pattern" in schema and not re.search(schema["pattern"], value):
        found.append(f"{path} is {value!r}, which {schema['pattern']} does not match")
    if "minimum" in schema and value < schema["minimum"]:
        found.append(f"{path} is {value}, below {schema['minimum']}")
    if isinstance(value, (str, list)):
        least = schema.get("minLength", schema.get("minItems", 0))
        if not least <= len(value) <= schema.get("maxItems", len(value)):
            found.append(f"{path} has {len(value)} items")
    if isinstance(value, list) and "items" in schema:
        found += [one for n, item in enumerate(value) for one in problems(item, schema["items"], f"{path}[{n}]")]
    if isinstance(value, dict):
        found += problems_of_object(value, schema, path)
    if "oneOf" in schema:
        fits = sum(not problems(value, one, path) for one in schema["oneOf"])
        if fits != 1:
            found.append(f"{path} fits {fits} of the alternatives")
    return found


def problems_of_object(value, schema, path):
    found = [f"{path} has no {name}" for name in schema.get("required", ()) if name not in value]
    others = schema.get("additionalProperties", True)
    for name, item in value.items():
        inner = schema.get("properties", {}).get(name, others)
        if inner is False:
            found.append(f"{path}.{name} is not in the schema")
        elif inner is not True:
            found += problems(item, inner, f"{path}.{name}")
    return found
