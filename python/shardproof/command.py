"""The command `shardproof` of the Python package, and python -m shardproof: score and model are part of the package, the other
commands those of a program, which replaces this process."""

import importlib
import os
import sys
from importlib.util import find_spec
from pathlib import Path

from . import program

COMMANDS = ("score", "model")


def main(words=None):
    words = sys.argv[1:] if words is None else words
    if words[:1] and words[0] in COMMANDS:
        try:
            command = importlib.import_module(f"shardproof.{words[0]}.command")
        except ModuleNotFoundError as error:
            print(f"shardproof: {words[0]} needs the module {error.name}; install it for {sys.executable}", file=sys.stderr)
            return 2
        return command.main(words[1:])
    if find_spec("shardproof_program"):  # the wheel of ./shardproof package has all commands
        return importlib.import_module("shardproof_program").main()
    found = program.light()
    if found is None:
        print(f"shardproof: {program.missing()}.", file=sys.stderr)
        return 2
    # `report` starts python3, which is to be the one that has matplotlib.
    os.environ["PATH"] = f"{Path(sys.executable).parent}:{os.environ.get('PATH', os.defpath)}"
    os.execv(found, ["shardproof", *words])
