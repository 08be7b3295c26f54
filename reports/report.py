"""Draws a run's folder as one HTML page: report.py RUN writes RUN/report.html."""

import argparse
import math
import sys
from pathlib import Path

try:
    import jinja2
    import error_budget
    import error_heatmap
    import guilty_tensor
    import mesh_picture
    import pictures
    import tensor_file
    import timeline_picture
    import token_picture
except ImportError as error:
    sys.exit(f"shardproof report: {error}; call it as ./shardproof report RUN, which installs what it needs")
import run_data

DRAWN_CASES = 12  # besides those that did not end as expected


def most_interesting(cases, everything):
    """Numbers of the cases that get pictures: all unexpected ones, then the nearest to their allowance."""
    unexpected = [i for i, case in enumerate(cases) if not case["as_expected"]]
    def nearness(i):
        ratio = run_data.number(cases[i].get("worst_ratio"))
        return -math.inf if math.isnan(ratio) else ratio
    others = sorted((i for i, case in enumerate(cases) if case["as_expected"] and case.get("tensors")),
                    key=lambda i: -nearness(i))
    return set(unexpected) | set(others if everything else others[:DRAWN_CASES])


def pictures_of(case, lanes):
    """[(heading, explanation, image source)] of one case."""
    drawn = [
        ("Error by tensor and rank",
         "Share of its allowance that each tensor used, in the order of the single-device run; red is over "
         "it. An error starts at the first red row; its columns are the ranks that have it.",
         error_heatmap.draw(case)),
        ("Mesh and who holds what",
         "Each rank in its place, then one parameter of each layout; numbers are the ranks that hold a "
         "piece, several numbers hold equal copies.",
         mesh_picture.draw(case, run_data.parameters(case))),
        ("Who holds which token", token_picture.explain(case), token_picture.draw(case)),
        ("Time", timeline_picture.explain(case), timeline_picture.draw(lanes)),
    ]
    return [entry for entry in drawn if entry[2]]


def guilty_of(case, folder):
    """The tensor that failed first, drawn from the case's file in the run's folder; None when none did."""
    arrays = {}
    for name in case.get("files", []) if folder else []:
        if name.endswith(".safetensors") and not Path(name).is_absolute() and ".." not in Path(name).parts:
            arrays.update(tensor_file.read(Path(folder) / name))
    return guilty_tensor.view(case, arrays)


def flat(figures, path=""):
    """[(name, value)] of nested maps: {"kept_bytes": {"before": 1}} -> "kept bytes before"."""
    if not isinstance(figures, dict):
        return [(path, figures)]
    return [entry for name, value in figures.items() for entry in flat(value, f"{path} {name}".strip())]


def measured(case):
    """[(what, [(ranks, value)])]: the figures of a workload, ranks of one value together."""
    found = {}
    for rank in case.get("ranks", []):
        for name, value in flat((rank.get("metrics") or {}).get("figures") or {}):
            found.setdefault(name.replace("_", " "), {}).setdefault(str(value), []).append(rank["rank"])
    return [(name, [(ranks, value) for value, ranks in values.items()]) for name, values in found.items()]


def warnings_of(case):
    """[(sentence, ranks)]"""
    found = {}
    for rank in case.get("ranks", []):
        for sentence in rank.get("warnings", []):
            found.setdefault(sentence, []).append(rank["rank"])
    return list(found.items())


def place_of(case):
    """Its number in the run, by which its timeline is found; cases before it may not have been run."""
    place = str(case.get("id", "")).partition("-")[0]
    return int(place) if place.isdigit() else -1


def case_view(number, case, lanes, with_pictures, folder=None):
    ratio = run_data.number(case.get("worst_ratio"))
    shown = len(error_heatmap.chosen_tensors(case.get("tensors", [])))
    return {
        **case,
        "number": number,
        "ratio": ratio if case.get("tensors_compared") else None,
        "bar": 100 if math.isnan(ratio) else min(100, 100 * ratio),
        "pictures": pictures_of(case, lanes) if with_pictures else [],
        "guilty": guilty_of(case, folder) if with_pictures else None,
        "tensors_shown": shown,
        "tensor_count": len(case.get("tensors", [])),
        "measured": measured(case),
        "warnings": warnings_of(case),
        "odd_ranks": [rank for rank in case.get("ranks", [])
                      if rank.get("ending") != "finished" or rank.get("findings")],
    }


def summary_of(results):
    totals = results["totals"]
    tiles = [(verdict, totals.get(verdict, 0)) for verdict in run_data.VERDICTS if totals.get(verdict)]
    unexpected = totals.get("unexpected", 0)
    not_run = len(results.get("not_run", []))
    if not_run:
        headline = f"{len(results['cases'])} of {len(results['cases']) + not_run} cases were run"
        if unexpected:
            headline += f", {unexpected} did not end as expected"
    elif results["run"].get("interrupted"):
        headline = "Interrupted"
    elif not results["cases"]:
        headline = "No case was run"
    elif unexpected == 0:
        headline = "Every case ended as expected"
    else:
        headline = f"{unexpected} of {len(results['cases'])} cases did not end as expected"
    return {"tiles": tiles, "headline": headline, "good": unexpected == 0 and not not_run and bool(results["cases"])}


def render(results, timelines, everything=False, folder=None):
    """The page as text; `folder` holds the tensors of failed cases."""
    drawn = most_interesting(results["cases"], everything)
    cases = [case_view(i, case, timelines.get(place_of(case), {}), i in drawn, folder)
             for i, case in enumerate(results["cases"])]
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(Path(__file__).parent), autoescape=True,
        undefined=jinja2.ChainableUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["share"] = pictures.share
    page = environment.get_template("page.html")
    return page.render(run=results["run"], summary=summary_of(results), skipped=results["skipped"], cases=cases,
                       unexpected=[case for case in cases if not case["as_expected"]],
                       not_drawn=[case for case in cases if case["number"] not in drawn],
                       budget=error_budget.draw(results["cases"]), colors=pictures.VERDICT_COLORS,
                       budget_limit=error_budget.MOST_CASES)


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="shardproof report", description=__doc__)
    parser.add_argument("run", help="a run's folder, for example runs/latest")
    parser.add_argument("--all", action="store_true", help="pictures of every case, however many")
    parser.add_argument("--out", help="file to write; default: RUN/report.html")
    options = parser.parse_args(arguments)
    out = Path(options.out) if options.out else Path(options.run) / "report.html"
    try:
        page = render(run_data.read_results(options.run), run_data.read_timelines(options.run), options.all,
                      options.run)
        out.write_text(page, encoding="utf-8")
    except run_data.BadRun as error:
        print(f"shardproof report: {error}", file=sys.stderr)
        return 2
    except OSError as error:
        print(f"shardproof report: cannot write {out}: {error.strerror}; name a file with --out",
              file=sys.stderr)
        return 2
    print(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
