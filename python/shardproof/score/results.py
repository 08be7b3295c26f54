"""A plugin of pytest that notes which tests ran and how they ended, and that leaves out those which a fault cannot reach."""

import json
import os
import tempfile
from pathlib import Path

import pytest

from .planting import FOLDER, TESTS


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config, items) -> None:
    chosen = os.environ.get(TESTS)
    if not chosen:
        return
    wanted = set(json.loads(Path(chosen).read_text()))
    left_out = [item for item in items if item.nodeid not in wanted]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item.nodeid in wanted]


def note(**line) -> None:
    if "file" not in state or state["pid"] != os.getpid():
        number, name = tempfile.mkstemp(suffix=".results", dir=os.environ[FOLDER])
        state.update(file=os.fdopen(number, "w", buffering=1), pid=os.getpid(), name=name)
    state["file"].write(json.dumps(line) + "\n")


state: dict = {}


def pytest_runtest_logstart(nodeid) -> None:
    note(test=nodeid, outcome="started")


def pytest_runtest_logreport(report) -> None:
    if report.when == "call" or not report.passed:
        note(test=report.nodeid, outcome=report.outcome)
