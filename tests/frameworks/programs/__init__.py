"""The programs of rows.py: those in examples/, or small ones of the framework's own parts. Each module has run(options)
on one rank, and the settings that a row needs in both of its runs: functions that change the program or its options."""

import importlib.util
import sys
from pathlib import Path

EXAMPLES = Path(__file__).resolve().parents[3] / "examples"


def example(name, script="train"):
    """The module of an example's script."""
    sys.path.insert(0, str(EXAMPLES / name))
    spec = importlib.util.spec_from_file_location(f"{script}_{name}", EXAMPLES / name / f"{script}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    sys.path.pop(0)
    return module


def with_options(owner, name, **more):
    """Replaces owner.name by the same with other options."""
    original = getattr(owner, name)
    setattr(owner, name, lambda *given, **options: original(*given, **options | more))
