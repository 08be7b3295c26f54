"""What a rank does of a test: setup, call and teardown, and what came of them."""

import contextlib
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

from .error import Error
from .pytest_layout import Layout

RANK_LAYOUT = pytest.StashKey()  # the layout that runs


def run_on_rank(item, case) -> dict:
    """Sets up, calls and tears down the test on this rank, and returns the outcome."""
    from .global_batch import current
    release_capture(item.config)
    item.config.stash[RANK_LAYOUT] = case.layout
    current.axes = list(case.layout.sizes.items())
    with kept_warnings() as warned:
        result = phase(item, "setup")
        if result["outcome"] == "passed":
            result = phase(item, "call")
        torn_down = phase(item, "teardown", nextitem=None)  # where a fixture may close its recorder
    if result["outcome"] != "passed":
        return result | {"logs": torn_down["logs"], "warnings": warned}
    ending = left_open(case.layout) if torn_down["outcome"] == "passed" else {}
    return torn_down | {"warnings": warned} | ending


@contextlib.contextmanager
def kept_warnings() -> Iterator[list]:
    """The warnings of this rank, which it also prints: (text, names of the category and its bases, file, line)."""
    found: list = []
    with warnings.catch_warnings():
        show = warnings.showwarning

        def keep(message, category, filename, lineno, *rest):
            names = [(base.__module__, base.__name__) for base in category.__mro__]
            found.append((str(message), names, filename, lineno))
            show(message, category, filename, lineno, *rest)

        warnings.showwarning = keep
        yield found


def left_open(layout: Layout) -> dict:
    """The failure of a test that has ended and left a recorder open; {} without one."""
    try:
        layout.check_closed()
    except Error as error:
        return {"outcome": "failed", "line": str(error), "place": __file__, "text": str(error)}
    return {}


def phase(item, when: str, **arguments) -> dict:
    """The outcome of one phase of a test, and what it logged up to the end of the phase."""
    hook = getattr(item.ihook, f"pytest_runtest_{when}")
    call = pytest.CallInfo.from_call(lambda: hook(item=item, **arguments), when=when)
    report = item.ihook.pytest_runtest_makereport(item=item, call=call)
    logs = [text for title, text in report.sections if title.startswith("Captured log")]
    result = {"outcome": "passed", "logs": logs}
    if call.excinfo is None:
        if when == "call":  # fails the report of a test whose subtests failed
            item.ihook.pytest_report_teststatus(report=report, config=item.config)
        text = str(report.longrepr or "the report of this phase is a failure")
        # A hook made it a failure. Whether a test should have failed is said by the process that started the ranks.
        if report.outcome == "failed" and not text.startswith("[XPASS"):
            result |= {"outcome": "failed", "line": text.splitlines()[0], "place": str(item.path), "text": text}
        return result
    for outcome in ("skip", "xfail"):
        if isinstance(call.excinfo.value, getattr(pytest, outcome).Exception):
            return result | {"outcome": outcome, "line": str(call.excinfo.value)}
    return result | {"outcome": "failed", "line": call.excinfo.exconly(tryshort=True).splitlines()[0],
                     "place": place_of(item, call.excinfo), "text": str(item.repr_failure(call.excinfo))}


def place_of(item, excinfo) -> str:
    """The innermost line of the test's own file."""
    calls = [call for call in excinfo.traceback if Path(call.path) == item.path] or excinfo.traceback
    return f"{calls[-1].path}:{calls[-1].lineno + 1}"


def release_capture(config) -> None:
    """The files into which pytest captures are those of its own process; a rank's output has files of its own."""
    capture = config.pluginmanager.getplugin("capturemanager")
    if capture is not None:
        config.pluginmanager.unregister(capture)
