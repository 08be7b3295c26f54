"""Writes docs/upstream.md from results.json here and the first lines of the scripts.

    python examples/upstream/page.py             # --check: exits with 1 where the page is another
    python examples/upstream/page.py --models FOLDER      # first takes the results of shardproof model --all --out FOLDER
    python examples/upstream/page.py --run SCRIPT..       # first runs scripts, with the packages of this Python
"""

import importlib.metadata
import json
import re
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
PAGE = HERE.parents[1] / "docs" / "upstream.md"
RESULTS = HERE / "results.json"
PACKAGES = {"transformers": ("torch", "transformers"), "torch": ("torch",), "deepspeed": ("torch", "deepspeed"),
            "megatron": ("torch", "megatron-core")}
MEANING = {"mismatch": "wrong, and nothing says so", "raises": "ends with an exception", "not built": "not built on one rank"}


def packages_of(script):
    """The packages that a script needs: its name begins with that of the last of them."""
    return PACKAGES[script.partition("_")[0]]


def version(package):
    return importlib.metadata.version(package).partition("+")[0]


def run(script):
    done = subprocess.run([sys.executable, "-B", HERE / script], text=True, capture_output=True, timeout=600, check=False)
    return {"versions": {name: version(name) for name in packages_of(script)}, "status": done.returncode,
            "said": [line[:200] for line in done.stdout.splitlines() if "reference" in line][:4]}


def models(folder):
    """The results of a folder, without times and whole texts."""
    found = []
    for line in (Path(folder) / "results.jsonl").read_text().splitlines():
        line = json.loads(line)
        versions = {name: text.partition("+")[0] for name, text in line["versions"].items()}
        detail = "" if line["verdict"] == "match" else line["detail"]
        found.append({"name": line["name"], "layout": line["layout"], "verdict": line["verdict"], "detail": detail,
                      "where": line.get("where", ""), "versions": versions})
    return sorted(found, key=lambda one: (one["name"], one["layout"]))


def page(results):
    lines = ["# Defects of released packages", "",
             "This page is written by `examples/upstream/page.py`. [model.md](model.md) describes the command that found them.", "",
             "## Reproductions", "",
             "Each script of `examples/upstream` needs its package alone, prints what it observes beside the reference of one rank,",
             "and ends with status 1 while the defect is there.", "",
             "| package | defect | script | seen |", "|---|---|---|---|"]
    for name in sorted(path.name for path in HERE.glob("*_*.py")):
        title = (HERE / name).read_text().split('"""')[1].splitlines()[0]
        one = results["scripts"].get(name)
        seen = f"status {one['status']} with {', '.join(' '.join(pair) for pair in one['versions'].items())}" if one else "not run"
        lines.append(f"| {packages_of(name)[-1]} | {title} | [{name[:-3]}](../examples/upstream/{name}) | {seen} |")
    lines += ["", "## Families of transformers", ""]
    groups = {}
    for one in results["models"]:
        groups.setdefault((", ".join(" ".join(pair) for pair in one["versions"].items()), one["layout"]), []).append(one)
    for (versions, layout), found in sorted(groups.items()):
        counts = {verdict: sum(one["verdict"] == verdict for one in found) for verdict in ("match", *MEANING)}
        lines += [f"### {layout if layout != '1' else 'One rank'}, {versions}", "",
                  ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count) + ".", ""]
        wrong = [one for one in found if one["verdict"] != "match"]
        if wrong:
            lines += ["| family | verdict | finding |", "|---|---|---|"]
        for one in sorted(wrong, key=lambda one: (list(MEANING).index(one["verdict"]), one["name"])):
            where = f"; the first wrong output is {one['where']}" if one["where"] else ""
            lines.append(f"| {one['name']} | {MEANING[one['verdict']]} | {cell(one['detail'] + where)} |")
        match = [one["name"] for one in found if one["verdict"] == "match"]
        lines += ["" if wrong else None, f"Match: {', '.join(match)}." if match else None, ""]
    return re.sub(r"\n{3,}", "\n\n", "\n".join(line for line in lines if line is not None)).rstrip() + "\n"


def cell(text):
    return f"`{text.replace('|', '/').replace('`', chr(39))}`"


def main(arguments):
    results = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"scripts": {}, "models": []}
    if arguments[:1] == ["--run"]:
        results["scripts"] |= {Path(name).name: run(Path(name).name) for name in arguments[1:]}
    elif arguments[:1] == ["--models"]:
        results["models"] = models(arguments[1])
    if arguments == ["--check"]:
        return 0 if PAGE.exists() and PAGE.read_text() == page(results) else 1
    RESULTS.write_text(json.dumps(results, indent=1) + "\n")
    PAGE.write_text(page(results))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
