#!/usr/bin/env python3
"""Holds docs/behaviours.md to what is there: each scenario and test that it names exists, each id stands once and has
one of them, and each id that a test or a scenario is tagged with stands in it."""

import re
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
ID = re.compile(r"\b(?:LP|SH|TP|RN|US|CP|MP|PW|PP|MR|EP|FM)-\d+\b")
TEXT = r'(?:"(?:[^"\\]|\\.)*"\s*)+'
TEST_CASE = re.compile(rf"TEST_CASE\(\s*({TEXT}),\s*({TEXT})\)")


def joined(literals):
    return "".join(re.findall(r'"((?:[^"\\]|\\.)*)"', literals))


def test_cases():
    """(name, (its folder, as a program is called after it, and its tags)) of every test; those of the program's commands
    are called after their file."""
    for path in sorted((ROOT / "tests/cli").glob("*_test.py")):
        for name in re.findall(r"def test_(\w+)\(", path.read_text()):
            yield name.replace("_", " "), ("cli_" + path.stem.removesuffix("_test"), "")
    for path in sorted((ROOT / "tests/unit").rglob("*.cpp")):
        folder = "_".join(path.relative_to(ROOT / "tests").parts[:-1])
        for name, tags in TEST_CASE.findall(path.read_text()):
            yield joined(name), (folder, joined(tags))


def problems(text, tests, scenarios, tagged):
    lines = {}
    for line in text.splitlines():
        if found := re.match(rf"\| ({ID.pattern}) \|", line):
            if found[1] in lines:
                yield f"{found[1]} stands twice"
            lines[found[1]] = line
    for one, line in lines.items():
        *_, of_scenarios, of_tests = [cell.strip() for cell in line.strip("|").split("|")]
        named = re.findall(r'`(\w+)` "([^"]+)"', of_tests)
        for program, name in named:
            if name not in tests:
                yield f'{one}: there is no test "{name}"'
            elif not tests[name][0].startswith(program):
                yield f'{one}: "{name}" is in {tests[name][0]}, not in {program}'
        files = re.findall(r"`([^`]+)`", of_scenarios)
        for file in files:
            if file not in scenarios:
                yield f"{one}: there is no scenarios/{file}.yaml"
        if not named and not files:
            yield f"{one} names neither a test nor a scenario"
    for one in sorted(tagged - set(lines)):
        yield f"{one} is a tag of a test or a scenario, but no line"


def main():
    tests = dict(test_cases())
    folder = ROOT / "scenarios"
    scenarios = {path.relative_to(folder).with_suffix("").as_posix(): path for path in folder.rglob("*.yaml")}
    tagged = {one for _, tags in tests.values() for one in ID.findall(tags)}
    tagged |= {one for path in scenarios.values() for line in path.read_text().splitlines()
               if line.startswith("tags:") for one in ID.findall(line)}
    found = list(problems((ROOT / "docs/behaviours.md").read_text(), tests, scenarios, tagged))
    print("\n".join(found) or f"{len(tagged)} behaviours, each with a test or a scenario")
    return 1 if found or not tagged else 0


if __name__ == "__main__":
    sys.exit(main())
