"""The gate that every row runs: the default scenarios on the emulated world, then the cases of golden/hf.
A row of code that only processes run has a few scenarios over Gloo before them. The gate stops at the first case
that does not end as its scenario expects. A row of code that golden and ranks share has the relations of one scenario
instead of all these."""

import json
import shutil
import subprocess
from pathlib import Path

from scratch import PLACE, ROOT

LIMIT_S = 900
# Every collective, and sums in each precision.
OVER_GLOO = ["smoke/llama", "fsdp/meshes", "cp/layouts_rotations", "train/precisions", "policy/life_cycle"]


def _finding(folder):
    """The first unexpected case of a run's folder, in the order of the selection; None: none."""
    results = json.loads((folder / "results.json").read_text())
    return next((case for case in results["cases"] if not case["as_expected"]), None)


def _run(program, words, out, scratch, limit_s=LIMIT_S):
    shutil.rmtree(out, ignore_errors=True)
    out.parent.mkdir(parents=True, exist_ok=True)
    with open(f"{out}.log", "w", encoding="utf-8") as log:
        try:
            status = subprocess.run([str(program), *words, "--out", str(out)], cwd=scratch.tree, stdout=log,
                                    stderr=subprocess.STDOUT, timeout=limit_s,
                                    pass_fds=(scratch.lock.fileno(),)).returncode
        except subprocess.TimeoutExpired:
            return {"verdict": "endless", "message": f"the gate did not end within {limit_s} s"}
    if (out / "results.json").is_file():
        finding = _finding(out)
        if finding or status == 0:
            return finding
    tail = Path(f"{out}.log").read_text(encoding="utf-8", errors="replace").splitlines()[-3:]
    return {"verdict": "broken", "message": f"exit status {status}: " + " ".join(tail)}


def _first_words(scenario, tree):
    """What the row names: a scenario file, a folder of them, or golden/hf."""
    name = scenario.split("[")[0]
    for path in (f"scenarios/{name}.yaml", f"scenarios/{name.split('/')[0]}"):
        if name and (tree / path).exists():
            return path
    return ""


def _named_case(program, row, path, scratch):
    """The words that select the case that the row names; none where it names a file, or several cases."""
    if "[" not in row.scenario:
        return []
    words = [path, "--only", row.scenario]
    listed = subprocess.run([str(program), "list", *words, "--backend", row.backend], cwd=scratch.tree,
                            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return words if listed.returncode == 0 and listed.stdout.strip() else []


def _of_scenarios(program, words, out, scratch, jobs, backend="emulated", limit_s=LIMIT_S):
    words = ["run", *words, "--backend", backend, "--maxfail", "1", "--jobs", jobs]
    return _run(program, words, out, scratch, limit_s)


def _of_golden_hf(program, runs, name, scratch):
    for case in sorted((ROOT / "golden" / "hf").glob("*/case.json")):
        words = ["check", str(case.parent), "--mesh", "dp=1"]
        finding = _run(program, words, runs / f"{name}.{case.parent.name}", scratch)
        if finding:
            return finding
    return None


def _folders(tree):
    # Without faults/: they plant faults of their own, at a call and rank that a bug or a control moves.
    return sorted(str(path.relative_to(tree)) for path in (tree / "scenarios").iterdir()
                  if path.is_dir() and path.name != "faults")


def shuffled_scenarios(scratch, name, folders, jobs):
    """The first finding of these folders of scenarios (none: of all) in an order that has nothing to do with a change."""
    words = [f"scenarios/{folder}" for folder in folders] or _folders(scratch.tree)
    return _of_scenarios(scratch.program, [*words, "--shuffle", "1"], scratch.place / "runs" / name, scratch, jobs,
                         limit_s=4 * LIMIT_S)


def shuffled_gate(scratch, name, jobs):
    """The finding of the whole gate, those over Gloo included, or None."""
    files = [f"scenarios/{file}.yaml" for file in OVER_GLOO]
    runs = scratch.place / "runs"
    return (shuffled_scenarios(scratch, name, [], jobs) or
            _of_golden_hf(scratch.program, runs, name, scratch) or
            _of_scenarios(scratch.program, files, runs / name, scratch, jobs, "gloo"))


def run_gate(program, row, scratch):
    """The finding as results.json writes a case (reports/README.md), or None when all was silent.

    The gate is the same for every row; what the row names only comes first, as that is the quickest way to a
    finding, and the finding the same however many scenarios there are beside it.
    """
    runs, tree = PLACE / "runs", scratch.tree
    if row.relations:
        words = [_first_words(row.scenario, tree), "--relations"]
        return _of_scenarios(program, words, runs / row.id, scratch, "1")
    folders = _folders(tree)
    # The first of several cases at a time is not always the same. A control should have none.
    jobs = "2" if row.control else "1"
    steps = [lambda: _of_scenarios(program, folders, runs / row.id, scratch, jobs),
             lambda: _of_golden_hf(program, runs, row.id, scratch)]
    first = _first_words(row.scenario, tree)
    if row.scenario.startswith("golden/hf"):
        steps.reverse()
    elif first:
        case = _named_case(program, row, first, scratch)
        steps = [*([lambda: _of_scenarios(program, case, runs / row.id, scratch, jobs, row.backend)] if case else []),
                 lambda: _of_scenarios(program, [first], runs / row.id, scratch, jobs, row.backend), *steps]
    if row.backend == "gloo":
        files = [f"scenarios/{name}.yaml" for name in OVER_GLOO]
        steps.insert(len(steps) - 2, lambda: _of_scenarios(program, files, runs / row.id, scratch, jobs, "gloo"))
    for step in steps:
        finding = step()
        if finding:
            return finding
    return None
