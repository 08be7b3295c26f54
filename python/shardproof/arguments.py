"""Values on the command lines of this package."""

import os
from argparse import ArgumentTypeError
from pathlib import Path


def seconds(text: str) -> float:
    return within(text, 1e-9, 1e9, "seconds")


def percent(text: str) -> float:
    return within(text, 0, 100, "percent")


def within(text: str, least: float, most: float, what: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = float("nan")
    if not least <= value <= most:
        raise ArgumentTypeError(f"{text!r} is not a number of {what}; give one from {least:g} to {most:g}")
    return value


def at_least_1(text: str) -> int:
    if not (text.isdecimal() and int(text)):
        raise ArgumentTypeError(f"{text!r} is not a whole number above 0; give 1 or more")
    return int(text)


def why_not_written(path: Path | None) -> str:
    """What keeps a file from being written, and what to do, before anything is run for it; empty if nothing does."""
    if path is None:
        return ""
    if not path.parent.is_dir():
        return f"{path} cannot be written, because there is no folder {path.parent}; make it, or name another file"
    if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
        return f"{path} cannot be written; name another file"
    return ""
