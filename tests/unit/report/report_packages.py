"""Finds the modules of reports/ and the packages that they need, or ends the test as skipped."""

import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
REPORTS = ROOT / "reports"
sys.path[:0] = [str(REPORTS), str(ROOT / "tests/support")]

try:
    import jinja2  # noqa: F401
    import matplotlib  # noqa: F401
except ImportError as missing:
    print(f"skipped: {missing} (./shardproof installs it)")
    sys.exit(77)
