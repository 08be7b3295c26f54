"""Reads and checks the files of a run's folder."""

import json
import math
from pathlib import Path

FORMAT = "shardproof-results/1"
CRITICAL_PATH = "critical path"
VERDICTS = ("match", "mismatch", "refused", "failed", "bad_input", "internal")


class BadRun(Exception):
    """What is wrong with the folder, and what to do."""


def number(value):
    """A float from a number or one of the texts "nan", "inf", "-inf"; NaN from anything else."""
    if isinstance(value, bool):
        return math.nan
    if isinstance(value, (int, float)):
        return float(value)
    return {"inf": math.inf, "-inf": -math.inf}.get(value, math.nan)


def _read_json(path):
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise BadRun(f"{path}: cannot be read ({error.strerror}); name a run's folder, for example "
                     "runs/latest") from error
    except ValueError as error:
        raise BadRun(f"{path}: not JSON ({error}); the run may not have ended: run it again") from error


def read_results(folder):
    """results.json as a dictionary; `cases`, `skipped`, `run` and `totals` are there."""
    path = Path(folder) / "results.json"
    results = _read_json(path)
    if not isinstance(results, dict) or results.get("format") != FORMAT:
        found = results.get("format") if isinstance(results, dict) else type(results).__name__
        raise BadRun(f"{path}: format {found!r} is not {FORMAT!r}; draw it with the shardproof that wrote it")
    for key, kind in (("cases", list), ("skipped", list), ("run", dict), ("totals", dict)):
        if not isinstance(results.get(key), kind):
            raise BadRun(f"{path}: {key!r} is missing; run it again")
    return results


def read_timelines(folder):
    """{number of the case: {rank: [(start_ms, duration_ms, kind, name)]}}; empty without timeline.json."""
    path = Path(folder) / "timeline.json"
    if not path.exists():
        return {}
    timelines = {}
    for event in _read_json(path).get("traceEvents", []):
        if event.get("ph") == "X":
            rank = (event.get("args") or {}).get("rank", event["tid"])
            lane = timelines.setdefault(event["pid"], {}).setdefault(rank, [])
            lane.append((event["ts"] / 1000, event["dur"] / 1000, event.get("cat", ""), event["name"]))
    return timelines


def parameters(case):
    """{name: (layout, global_shape)} as far as the run tells: from a rank's metrics, else from tensors."""
    for rank in case.get("ranks", []):
        told = (rank.get("metrics") or {}).get("parameters")
        if told:
            return {name: (entry.get("layout", ""), entry.get("global_shape", []))
                    for name, entry in told.items()}
    found = {}
    for tensor in case.get("tensors", []):
        name = tensor["name"]
        if name.startswith(("param.", "grad.")) and tensor.get("global_shape"):
            found.setdefault(name.split(".", 1)[1], (tensor.get("layout", ""), tensor["global_shape"]))
    return found
