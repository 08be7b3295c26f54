#!/usr/bin/env python3
"""Holds the pages to the program: each option that a page writes after a command, in a block of code or within a line,
is one that the command has.

Usage: page_options_test.py PROGRAM [unittest arguments]
"""
import pathlib
import re
import sys

import cli_test

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "tidy"))
from pages_test import PAGES  # noqa: E402

BLOCK = re.compile(r"^( *)```.*?\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`([^`]+)`")
OPTION = re.compile(r"(?<![\w-])--[a-z][\w-]*")
GOES_ON = re.compile(r"\\\n|\n {8,}(?=\[--)")  # in the next line
CALLS = (re.compile(r"(?:^|[\s/'(])(?:shardproof|shardproof-bin|own_layer_wrong) ([a-z-]+)\b(.*)"),
         re.compile(r"(?:^|[\s(])([\w./-]+\.py)\b(.*)"), re.compile(r"^([a-z-]+) (.*)"))
# What reads the options of the commands that are Python; those of the script alone.
READERS = {"score": "python/shardproof/score/command.py", "model": "python/shardproof/model/command.py",
           "mutants": "tests/mutants/run.py"}
OF_THE_SCRIPT = {"build": {"--yes", "--torch"}, "package": {"--out"}}
PLUGIN = "python/shardproof/pytest_plugin.py"
# Options of torchrun, srun, pip and Megatron that a page names alone.
OF_OTHERS = {"--export", "--log-dir", "--no-deps", "--recompute-modules"}


def lines_of_code(text):
    """The lines of the blocks, joined where one goes on in the next, and what stands between backticks in the text."""
    found = [line for _, block in BLOCK.findall(text) for line in GOES_ON.sub(" ", block).splitlines()]
    return found + [" ".join(code.split()) for code in INLINE.findall(BLOCK.sub("", text))]


def command_of(line, commands):
    """The command or script that a line calls, and its words after that: "" where it calls none. Without the program's
    name a line begins with the command."""
    for call in CALLS:
        for name, words in call.findall(line):
            if name in commands or name.endswith(".py"):
                return name, re.split(r" -- | && |; | #", words)[0]
    return "", line if line.startswith("--") else ""


def options_in(scripts):
    """Those that they write down, and those made of the names before f"--{name}"."""
    found = set()
    for text in (path.read_text(encoding="utf-8") for path in scripts):
        made = re.findall(r'"([a-z][\w-]*)"', text[:text.index('f"--{')]) if 'f"--{' in text else []
        found |= {*re.findall(r"[\"' (](--[a-z][\w-]*)", text), *("--" + name for name in made)}
    return found


class PageOptions(cli_test.CommandTest):
    def commands(self):
        """{command: its options}; "" has those that a page may name alone."""
        found = {name: set(OPTION.findall(words)) for name, words in
                 re.findall(r'^    ([\w-]+)\) words="(.*)" ;;$', self.call("completion"), re.MULTILINE)}
        self.assertGreater(len(found), 15)
        found |= {name: options_in([ROOT / path]) | {"--help"} for name, path in READERS.items()} | OF_THE_SCRIPT
        found[""] = set().union(OF_OTHERS, options_in([ROOT / PLUGIN]), *found.values())
        return found

    def test_each_option_of_a_page_is_one_of_its_command(self):
        commands, seen = self.commands(), set()
        for page in sorted({page for pattern in PAGES for page in ROOT.glob(pattern)}):
            lines = [(line, *command_of(line, commands)) for line in lines_of_code(page.read_text(encoding="utf-8"))]
            scripts = {name: [path for path in (ROOT / name, page.parent / name, *ROOT.glob("tests/*/" + name))
                              if path.is_file()] for _, name, _ in lines if name.endswith(".py")}
            beside = set(page.parent.glob("*.py")) if page.parent != ROOT else set()
            alone = commands[""] | options_in(beside.union(*scripts.values()))
            for line, name, words in lines:
                there = commands[name] if name in commands else options_in(scripts[name] or beside)
                for option in OPTION.findall(words):
                    seen.add((name, option))
                    with self.subTest(page=str(page.relative_to(ROOT)), line=line):
                        self.assertIn(option, there if name else alone)
        self.assertGreater(len(seen), 100)

    def test_what_calls_a_command(self):
        commands = {"run": {"--out"}, "score": {"--max"}}
        for line, found in (("$ shardproof run --out a", ("run", " --out a")),
                            ("./shardproof run x   # with --ranks", ("run", " x  ")),
                            ("A=1 srun -n 4 build/release/shardproof-bin run s --only x", ("run", " s --only x")),
                            ("run --out a", ("run", "--out a")), ("--out a", ("", "--out a")),
                            ("shardproof score --max 1 -- pytest -q --x", ("score", " --max 1")),
                            ("torchrun --nproc-per-node 4 train.py --tp 2", ("train.py", " --tp 2")),
                            ("cmake --build build", ("", "")), ("sh './shardproof run --out a'", ("run", " --out a'"))):
            self.assertEqual(command_of(line, commands), found)


if __name__ == "__main__":
    cli_test.main()
