"""Reads the files of a run's folder, and holds what they say against the schema and against each other."""

import itertools
import json
import math
import posixpath
import re
from collections import Counter
from pathlib import Path

FORMAT = "shardproof-results/1"
CRITICAL_PATH = "critical path"
PHASES = ("forward", "recompute", "backward", "step")  # of a step, in the order of computation
VERDICTS = ("match", "mismatch", "refused", "failed", "bad_input", "internal")
SHOWN = (*VERDICTS, "not_judged")
STATUSES = (130, 5, 2, 3, 1, 4, "not run", 0)  # which of several exit statuses counts, as docs/running.md has it
MOST_RANKS, MOST_POSITIONS, LARGEST_INTEGER = 1 << 16, 1 << 16, 1 << 64
OWN_FILE = re.compile(r"(logs|replay|tensors)(/[^/\\:.][^/\\:]*)+")


class BadRun(Exception):
    """What is wrong with the folder, and what to do."""


def number(value):
    """A float from a number or one of the texts "nan", "inf", "-inf"; NaN from anything else."""
    if isinstance(value, bool):
        return math.nan
    if isinstance(value, (int, float)):
        return float(value)
    return {"inf": math.inf, "-inf": -math.inf}.get(value, math.nan)


# The kinds of values in results.json, as reports/README.md has them.
def text(value):
    return isinstance(value, str)


def flag(value):
    return isinstance(value, bool)


def integer(value):
    return isinstance(value, int) and not isinstance(value, bool) and abs(value) < LARGEST_INTEGER


def count(value):
    return integer(value) and value >= 0


def size(value):
    return integer(value) and 1 <= value <= MOST_RANKS


def real(value):
    return isinstance(value, float) or integer(value) or value in ("nan", "inf", "-inf")


def share(value):
    return value is None or real(value)


def verdict(value):
    return value in VERDICTS


def stretch(value):
    """Tokens [sample, first position, count] of `tokens_held`."""
    return isinstance(value, list) and len(value) == 3 and all(
        integer(part) and -1 <= part <= MOST_POSITIONS for part in value)


def shard(value):
    """[i, n] of `--shard i/n`."""
    return isinstance(value, list) and len(value) == 2 and all(map(integer, value)) and 1 <= value[0] <= value[1]


def axes(value):
    """An axis of a mesh, several as one ("dp+cp"), or a block of those ("dp%2")."""
    return text(value) and re.fullmatch(r"[^%/]+((%|//)\d+)?", value) is not None


def anything(value):
    return True


class Map:
    """An object with any keys."""

    def __init__(self, of):
        self.of = of


class Object:
    """An object with these fields and others; a name that ends in "!" is required."""

    def __init__(self, fields):
        self.fields = [(name.removesuffix("!"), shape) for name, shape in fields.items()]
        self.required = [name.removesuffix("!") for name in fields if name.endswith("!")]


KINDS = {text: "a text", flag: "true or false", integer: "an integer", count: "a count", real: "a number",
         size: f"a size from 1 to {MOST_RANKS}", share: "a number or null", verdict: "a verdict", axes: "an axis",
         stretch: "[sample, first position, count]", shard: "[share, number of shares]"}
ROW = Object({"rank": count, "bad_count": count, "count": count, "microbatch": count, "worst_ratio": real,
              "worst_global_index": [integer], "golden_value": real, "actual_value": real, "allowance": real,
              "global_shape": [count], "local_shape": [count], "layout": text, "problem": text, "partial": flag,
              "partial_axes": [axes]})
TENSOR = Object({"name!": text, "phase": text, "step": count, "ok": flag, "outcome": text, "global_shape": [count],
                 "layout": text, "order": integer, "worst_ratio": real, "ratio": [share], "wrong": [ROW]})
TOKENS = Object({"rows": [[stretch]], "held": [[stretch]]})
ROUTES = Object({"layers": Map(Object({"rows": [count], "margins": [real]})), "dropped": [count]})
METRICS = Object({"figures": Map(anything), "tokens_held": [TOKENS], "routes": ROUTES,
                  "parameters": Map(Object({"layout": text, "global_shape": [count]}))})
RANK = Object({"rank!": count, "coordinates": Map(count), "ending": text, "message": text, "last_call": text,
               "log": text, "printed": text, "findings": [text], "warnings": [text], "metrics": METRICS})
PARTS_OF_TIME = Object({"compute_us": real, "waiting_us": real, "exposed_us": real, "communication_us": real})
VIRTUAL_TIME = Object({"total_us": real, "ranks": [PARTS_OF_TIME],
                       "critical_path_shares": [Object({"what!": text, "duration_us!": real})]})
MESH = Object({"axes": [Object({"name!": text, "size!": size})], "text": text,
               "parts": [Object({"name!": text, "stride!": size, "size!": size})]})
DIVERGENCE = Object({"tensor": text, "phase": text, "step": count, "ranks": [count], "pattern": text, "likely": text,
                     "collectives": [text], "last_good": text, "worst": ROW})
UNRESOLVED = Object({"tensor!": text, "step": count, "reason": text})
NOT_JUDGED = Object({"tensor!": text, "elements": count})
ELEMENTS = Object({"demanded": count, "judged": count, "excused": Map(count)})
CASE = Object({
    "id": text, "name!": text, "file": text, "line": integer, "verdict!": verdict, "judged": flag, "kind": text, "as_expected!": flag,
    "unexpected": text, "message": text, "text": text, "workload": text, "precision": text, "backend": text,
    "device": text, "sequence_parallel": flag, "world_size": size, "mesh": MESH, "seconds": real,
    "expected": Object({"verdict": text, "kind": text}), "may_be_refused": flag, "tensors_compared": count,
    "sample_rows": count, "reference": text, "rests_on": Object({"trains": flag, "gradients": count}), "worst_ratio": real,
    "worst_tensor": text, "unresolved": [UNRESOLVED], "not_judged": [NOT_JUDGED], "elements": ELEMENTS, "replay": text, "replay_file": text, "files": [text],
    "ranks": [RANK], "tensors": [TENSOR], "virtual_time": VIRTUAL_TIME, "divergence": DIVERGENCE})
LEFT_OUT = Object({"name!": text, "file": text, "backend": text, "reason": text})
RUN = Object({"command": text, "version": text, "program": text, "directory": text, "selection": text, "started": text, "seconds": real, "interrupted": flag,
              "exit_status": integer, "shard": shard, "environment": Map(text)})
RESULTS = Object({"format!": text, "totals!": Map(integer), "skipped!": [LEFT_OUT], "not_run": [LEFT_OUT],
                  "cases!": [CASE], "run!": RUN})


def _differs(value, what):
    return "", f"is {json.dumps(value)[:40]}, which is not {what}"


def _fault_of_parts(parts, name):
    """The first fault of [(key, value, shape)], with the key before its path."""
    for key, value, shape in parts:
        if found := fault(value, shape):
            return name.format(key) + found[0], found[1]
    return None


def fault(value, shape):
    """Where a value differs from its shape, as (path, what); None when it does not. A null of an object counts as a
    field that is not there, and is removed."""
    if callable(shape):
        return None if shape(value) else _differs(value, KINDS[shape])
    if isinstance(shape, list):
        if not isinstance(value, list):
            return _differs(value, "a list")
        if callable(shape[0]) and all(map(shape[0], value)):
            return None
        return _fault_of_parts(((i, item, shape[0]) for i, item in enumerate(value)), "[{}]")
    if not isinstance(value, dict):
        return _differs(value, "an object")
    if None in value.values():
        for name in [name for name, inner in value.items() if inner is None]:
            del value[name]
    if isinstance(shape, Map):
        return _fault_of_parts(((name, inner, shape.of) for name, inner in value.items()), ".{}")
    for name in shape.required:
        if name not in value:
            return f".{name}", "is missing"
    return _fault_of_parts(((name, value[name], inner) for name, inner in shape.fields if name in value), ".{}")


def _without_repeats(pairs):
    """An object; a key that stands in it twice would hide one of its values."""
    found = {}
    for key, value in pairs:
        if key in found:
            raise ValueError(f"the key {key[:40]!r} stands twice in one object")
        found[key] = value
    return found


def _read_json(path):
    if path.exists() and not path.is_file():  # a pipe would wait for its other end
        raise BadRun(f"{path}: is not a regular file; name a run's folder, for example runs/latest")
    try:
        return json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_without_repeats)
    except OSError as error:
        raise BadRun(f"{path}: cannot be read ({error.strerror}); name a run's folder, for example "
                     "runs/latest") from error
    except (ValueError, RecursionError) as error:
        raise BadRun(f"{path}: not JSON ({error}); the run may not have ended: run it again") from error


def _check(path, value, shape):
    if found := fault(value, shape):
        raise BadRun(f"{path}: {found[0].lstrip('.') or 'it'} {found[1]}; the file was changed or is incomplete: run "
                     "it again")


def read_checked(path, form, shape):
    """A file of this format as a dictionary of this shape."""
    results = _read_json(path)
    if not isinstance(results, dict) or results.get("format") != form:
        found = results.get("format") if isinstance(results, dict) else type(results).__name__
        raise BadRun(f"{path}: format {str(found)[:40]!r} is not {form!r}; draw it with the shardproof that wrote it")
    _check(path, results, shape)
    return results


def read_results(folder):
    """results.json as a dictionary of the shape RESULTS."""
    return read_checked(Path(folder) / "results.json", FORMAT, RESULTS)


def case_key(case, directory=""):
    """What is one case, however its path was written in the command. A recorded run is named by its path."""
    def plain(path):
        path = posixpath.normpath(path) if path else ""
        return posixpath.relpath(path, directory) if path.startswith("/") and directory.startswith("/") else path
    file, name = plain(case.get("file", "")), plain(case["name"])
    return name if file and posixpath.dirname(file) == name else case["name"], file, case.get("backend", "")


def _key_of(results):
    """case_key of the cases of a run."""
    directory = results["run"].get("directory", "")
    return lambda case: case_key(case, directory)


def _one_of_each(runs):
    """The cases of all runs, each with the number of its run. No case may be in two of them."""
    cases, seen = [], {}
    for number, (folder, results) in enumerate(runs.items()):
        key_of = _key_of(results)
        for case in results["cases"]:
            other = seen.setdefault(key_of(case), folder)
            if other != folder:
                raise BadRun(f"{other} and {folder} both have the case {case['name']}; name runs that share no case, such as "
                             "those of --shard 1/2 and 2/2")
            cases.append({**case, "run": number})
    return cases, set(seen)


def _require_shares_of_one_run(runs):
    """Shares i/n of other cases are not those that are missing."""
    first = {}
    for folder, results in runs.items():
        run = results["run"]
        if "shard" not in run or not run.get("selection"):
            continue
        other, selection = first.setdefault(run["shard"][1], (folder, run["selection"]))
        if selection != run["selection"]:
            raise BadRun(f"{other} and {folder} are shares of {run['shard'][1]} of different cases; name the shares of one command, "
                         "or draw each run alone")


def _place_of_status(results):
    """Where a run's exit status stands in STATUSES; one that is not there comes before all."""
    status = results["run"]["exit_status"]
    if status == 2 and results.get("not_run") and all(case["verdict"] != "bad_input" for case in results["cases"]):
        status = "not run"
    return STATUSES.index(status) if status in STATUSES else -1


def merged(runs):
    """{folder: results} of runs that share no case, such as those of --shard, as the results of one run."""
    _require_shares_of_one_run(runs)
    cases, finished = _one_of_each(runs)
    def left_out(name):
        entries = {_key_of(results)(entry): entry for results in runs.values() for entry in results.get(name, [])}
        return [entry for key, entry in entries.items() if key not in finished]
    of = [results["run"] for results in runs.values()]
    def texts(found, name):
        return "; ".join(dict.fromkeys(one[name] for one in found if one.get(name)))
    environments = [run.get("environment", {}) for run in of]
    run = {"command": texts(of, "command"), "version": texts(of, "version"), "program": texts(of, "program"),
           "environment": {name: texts(environments, name) for name in dict.fromkeys(itertools.chain(*environments))},
           "started": min(run.get("started", "") for run in of), "seconds": max(number(run.get("seconds", 0)) for run in of),
           "interrupted": any(run.get("interrupted") for run in of),
           "shards": [run["shard"] for run in of if "shard" in run]}
    if all("exit_status" in run for run in of):
        run["exit_status"] = min(runs.values(), key=_place_of_status)["run"]["exit_status"]
    results = {"format": FORMAT, "run": run, "skipped": left_out("skipped"), "not_run": left_out("not_run"), "cases": cases}
    return results | {"totals": totals_of(results)}


def shares_of(run):
    """{n: the numbers of its shares} of several runs as one, of which some are those of --shard i/n."""
    found = {}
    for share_number, shares in run.get("shards", ()):
        found.setdefault(shares, set()).add(share_number)
    return {shares: sorted(numbers) for shares, numbers in sorted(found.items())}


def shown_verdict(case):
    """A case with judged: false that ended as it should was compared with nothing."""
    return "not_judged" if case["verdict"] == "match" and not case.get("judged", True) else case["verdict"]


def totals_of(results):
    """What `totals` must say."""
    cases = results["cases"]
    verdicts = Counter(shown_verdict(case) for case in cases)
    return {"cases": len(cases), **{name: verdicts[name] for name in SHOWN}, "skipped": len(results["skipped"]),
            "not_run": len(results.get("not_run", [])),
            "unexpected": sum(not case["as_expected"] for case in cases)}


def own_file(path):
    """A link to one of the run's own files, or nothing: whatever else a text is, it does not become a link."""
    return path if path and OWN_FILE.fullmatch(path) else ""


def _span(event):
    """(rank, (start_ms, duration_ms, kind, name)) of an event."""
    rank = event.get("args", {}).get("rank", event["tid"])
    start, duration = float(event["ts"]) / 1000, float(event["dur"]) / 1000
    name, kind = event["name"], event.get("cat", "")
    if not (integer(rank) and text(name) and text(kind) and 0 <= start < math.inf and 0 <= duration < math.inf):
        raise ValueError(f"an event has rank {rank!r}, start {start} ms and duration {duration} ms")
    return rank, (start, duration, kind, name)


def read_timelines(folder, wanted=None):
    """{number of the case: {rank: [(start_ms, duration_ms, kind, name)]}} of the cases in `wanted`, of all without it;
    empty without timeline.json."""
    path = Path(folder) / "timeline.json"
    if not path.exists():
        return {}
    timelines = {}
    try:
        for event in _read_json(path)["traceEvents"]:
            if event["ph"] == "X" and (wanted is None or event["pid"] in wanted):
                rank, span = _span(event)
                timelines.setdefault(event["pid"], {}).setdefault(rank, []).append(span)
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        raise BadRun(f"{path}: no timeline of a run ({type(error).__name__}: {error}); remove the file, or run it "
                     "again") from error
    return timelines


def in_order(case):
    """The tensors of a case in the order in which they are judged: what the golden lacks comes last."""
    def place(tensor):
        phase, order = tensor.get("phase"), tensor.get("order", 0)
        return order < 0, tensor.get("step", 0), PHASES.index(phase) if phase in PHASES else len(PHASES), order
    return sorted(case.get("tensors", []), key=place)


def entry_of_finding(case):
    """The entry of the first divergent tensor in the case's table, or None."""
    found = case.get("divergence") or {}
    for tensor in case.get("tensors", []):
        if (tensor.get("name"), tensor.get("phase"), tensor.get("step")) == (
                found.get("tensor"), found.get("phase"), found.get("step")):
            return tensor
    return None


def parameters(case):
    """{name: (layout, global_shape)} as far as the run tells: from a rank's metrics, else from tensors."""
    for rank in case.get("ranks", []):
        told = rank.get("metrics", {}).get("parameters")
        if told:
            return {name: (entry.get("layout", ""), entry.get("global_shape", []))
                    for name, entry in told.items()}
    found = {}
    for tensor in case.get("tensors", []):
        name = tensor["name"]
        if name.startswith(("param.", "grad.")) and tensor.get("global_shape"):
            found.setdefault(name.split(".", 1)[1], (tensor.get("layout", ""), tensor["global_shape"]))
    return found
