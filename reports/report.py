"""Draws the folder of a run or of a validation as one HTML page: report.py RUN writes RUN/report.html. Several runs that
share no case, such as those of --shard, make one page, report.html in the current folder."""

import argparse
import gc
import io
import itertools
import math
import os
import sys
from collections import Counter
from pathlib import Path

try:
    import case_view
    import error_budget
    import pictures
    import validation_page
    from templates import template
except ImportError as error:
    print(f"shardproof report: {error}; install what it needs: {sys.executable} -m pip install matplotlib jinja2, or call it as "
          "./shardproof report RUN, which installs it", file=sys.stderr)
    sys.exit(2)
import run_checks
import run_data

DRAWN_CASES = 12         # besides those that did not end as expected
SHOWN_FAILURES = 60      # in full; the others are in the tables
PICTURE_BYTES = 600_000  # of all cases together
TABLE_ROWS = 60          # of the tables of warnings, skips and the like
LISTED_SHARES = 8        # of those that are missing
NOT_A_RUN = (ArithmeticError, AttributeError, LookupError, MemoryError, RecursionError, TypeError, ValueError)


def most_interesting(cases, everything):
    """Numbers of the cases that get pictures: all unexpected ones, then the nearest to their allowance."""
    unexpected = [i for i, case in enumerate(cases) if not case["as_expected"]]
    def nearness(i):
        ratio = run_data.number(cases[i].get("worst_ratio"))
        return -math.inf if math.isnan(ratio) else ratio
    others = sorted((i for i, case in enumerate(cases) if case["as_expected"] and case.get("tensors")),
                    key=lambda i: -nearness(i))
    return unexpected[:None if everything else SHOWN_FAILURES] + (others if everything else others[:DRAWN_CASES])


def draw_pictures(views, drawn, timelines, folders, most_bytes):
    """Gives the cases in `drawn` their pictures, in this order, until the page has enough of them. The page shows the
    unexpected cases before the others, and both in the run's order: of equal pictures it has the first there, and the
    later cases name that case."""
    used, seen = 0, set()
    for case in (views[number] for number in drawn):
        run = case.get("run", 0)
        case["guilty"] = case_view.guilty_of(case, folders[run] if folders else None, with_pictures=used < most_bytes)
        if used >= most_bytes:
            case["left_out"] = True
            continue
        used += sum(len(picture.svg) for picture in (case["guilty"] or {}).get("pictures", []))
        for section in case_view.sections(case, timelines.get((run, case_view.place_of(case)), {})):
            used += 0 if section.content() in seen else section.size()
            seen.add(section.content())
            case["pictures"].append((section, None))
    first_with = {}
    for case in sorted((views[number] for number in drawn), key=lambda case: (case["as_expected"], case["number"])):
        for i, (section, _) in enumerate(case["pictures"]):
            first = first_with.setdefault(section.content(), case)
            case["pictures"][i] = (section, None if first is case else first)


def case_rows(views, shown):
    """The table of all cases: [[anchor, verdict, as expected, name, mesh, precision, backend, tensors, unresolved,
    share of the allowance, seconds, has a section, why, replay]], the last two of failures without a section."""
    rows = []
    for case in views:
        has_section = case["number"] in shown
        more = [] if has_section or case["as_expected"] else [case["why"], case.get("replay", "")]
        seconds = run_data.number(case.get("seconds"))
        sequence_parallel = " +SP" if case.get("sequence_parallel") else ""
        rows.append([case["anchor"], run_data.SHOWN.index(case["shown"]), int(case["as_expected"]), case["name"],
                     case.get("mesh", {}).get("text", "") + sequence_parallel, case.get("precision", ""),
                     case.get("backend", ""), case.get("tensors_compared", 0), len(case.get("unresolved", [])),
                     "" if math.isnan(case["ratio"]) else pictures.share(case["ratio"]),
                     round(seconds, 2) if math.isfinite(seconds) else 0, int(has_section), *more])
    return rows


def unresolved_tensors(cases):
    """[(tensor, cases with their steps, a reason)], the most frequent first."""
    found = {}
    for case in cases:
        for one in case.get("unresolved", []):
            entry = found.setdefault(one["tensor"], ({}, one.get("reason", "")))
            entry[0].setdefault((case["name"], case.get("backend", "")), []).append(one.get("step", 0))
    return sorted(((tensor, of_cases, reason) for tensor, (of_cases, reason) in found.items()),
                  key=lambda row: -len(row[1]))


def warned(views):
    """[(sentence, [(case, backend, ranks)])]"""
    found = {}
    for case in views:
        for sentence, ranks in case["warnings"]:
            found.setdefault(sentence, []).append((case["name"], case.get("backend", ""), ranks))
    return list(found.items())


def programs_text(run):
    """A sentence where several runs as one are of different programs."""
    for what, names in (("versions of shardproof", run.get("version", "")), ("programs", run.get("program", ""))):
        if "shards" in run and "; " in names:
            return [f"The runs are of different {what}: {names}."]
    return []


def limits_of_matches(cases):
    """Sentences: what the matches of this run do not claim."""
    compared = [case for case in cases if run_data.shown_verdict(case) in ("match", "mismatch")]
    counts = lambda key: sorted(Counter(case[key] for case in compared if case.get(key)).items())
    for reference, many in counts("reference"):
        yield (f"{many} of {len(cases)} cases were judged against {reference}, not against one device: an error that "
               "both layouts make is not seen.")
    many = sum(case["verdict"] == "match" and case.get("rests_on", {}).get("trains", False) and
               case["rests_on"].get("gradients") == 0 for case in compared)
    if many:
        yield f"{many} of {len(cases)} cases trained without a gradient to judge, as where every step was skipped."
    for rows, many in counts("sample_rows"):
        yield (f"{many} of {len(cases)} cases were judged on {rows} row{'' if rows == 1 else 's'} of each tensor: an error "
               "outside of them is not seen.")


def share_text(run):
    """"share 1 of 3 of the cases", of one run with --shard, which has a page of its own."""
    number, shares = run.get("shard") or (1, 1)
    return f"share {number} of {shares} of the cases" if shares > 1 else ""


def missing_shares(run):
    """"shares 3, 5 of 6 are missing", of several runs with --shard that are not all of its shares."""
    texts = []
    for shares, numbers in run_data.shares_of(run).items():
        count = shares - len(numbers)
        if count:
            absent = (number for number in itertools.count(1) if number not in numbers)
            listed = ", ".join(str(number) for number in itertools.islice(absent, min(count, LISTED_SHARES)))
            more = f" and {count - LISTED_SHARES} more" if count > LISTED_SHARES else ""
            texts.append(f"share {listed} of {shares} is missing" if count == 1 else f"shares {listed}{more} of {shares} are missing")
    return "; ".join(texts)


def all_refused(results):
    """Whether a run with --relations compared nothing: each of its changed cases was refused."""
    cases = results["cases"]
    return results["run"].get("exit_status", 0) == 2 and bool(cases) and all(
        case["verdict"] == "refused" and case.get("may_be_refused") for case in cases)


def status_text(results):
    """Of a run without unexpected cases: ", but the run's exit status is 1: .."; empty with 0."""
    status = results["run"].get("exit_status", 0)
    if status == 0:
        return ""
    unresolved = sum(bool(case.get("unresolved")) for case in results["cases"])
    why = ""
    if status == 1 and unresolved:
        why = f": {unresolved} of {len(results['cases'])} cases left tensors unresolved"
    elif status == 2 and results["skipped"] and all(case["verdict"] != "bad_input" for case in results["cases"]):
        many = len(results["skipped"])
        why = f": {many} case{' was' if many == 1 else 's were'} skipped"
    return f", but the run's exit status is {status}{why}"


def headline_of(results, missing):
    """How the run ended; `missing` are the shares that are not there, or ""."""
    totals = run_data.totals_of(results)
    unexpected, cases, not_run, not_judged = (totals[name] for name in ("unexpected", "cases", "not_run", "not_judged"))
    unjudged = f", {not_judged} of {cases} {'was' if not_judged == 1 else 'were'} not judged" if not_judged else ""
    if not_run:
        headline = f"{cases} of {cases + not_run} cases were run"
        if unexpected:
            headline += f", {unexpected} did not end as expected"
        headline += unjudged
    elif results["run"].get("interrupted"):
        headline = "Interrupted"
    elif not cases:
        headline = "No case was run"
    elif unexpected:
        headline = f"{unexpected} of {cases} cases did not end as expected{unjudged}"
    else:
        if all_refused(results):
            headline = "Every changed case was refused: nothing was compared, and the run's exit status is 2"
        elif not_judged == cases:
            headline = "No case was judged" + status_text(results)
        else:
            headline = f"Every case{' of the others' if missing else ''} ended as expected{unjudged}{status_text(results)}"
        return f"Incomplete: {missing}. {headline}" if missing else headline
    return f"{headline}; {missing}" if missing else headline


def summary_of(results):
    totals = run_data.totals_of(results)
    tiles = [(verdict, totals[verdict]) for verdict in run_data.SHOWN if totals[verdict]]
    missing, share = missing_shares(results["run"]), share_text(results["run"])
    headline = headline_of(results, missing) + (f" ({share})" if share else "")
    good = (totals["unexpected"] == 0 and not totals["not_run"] and totals["not_judged"] < totals["cases"] and not missing and
            results["run"].get("exit_status", 0) == 0 and not run_checks.differences(results))
    limits = [*programs_text(results["run"]), *limits_of_matches(results["cases"])]
    return {"tiles": tiles, "headline": headline, "good": good, "limits": limits}


def timelines_of(cases, folders):
    """{(run, place in it): what read_timelines has} of these cases."""
    found = {}
    for run, folder in enumerate(folders):
        wanted = {case_view.place_of(case) for case in cases if case.get("run", 0) == run}
        if wanted:
            found |= {(run, place): lanes for place, lanes in run_data.read_timelines(folder, wanted).items()}
    return found


def render(results, folders=(), everything=False, page_folder=None):
    """The page as text; each run's folder holds its timelines, and the tensors of failed cases. Links lead from the folder
    of the page, without one from the run's own."""
    anchors = case_view.anchors(results["cases"])
    bases = [os.path.join(os.path.relpath(folder, page_folder or folder), "").removeprefix("./") for folder in folders] or [""]
    views = [{**case_view.view(number, case, bases[case.get("run", 0)]), "anchor": anchors[number],
              "shown": run_data.shown_verdict(case)}
             for number, case in enumerate(results["cases"])]
    drawn = most_interesting(views, everything)
    timelines = timelines_of([views[number] for number in drawn], folders)
    draw_pictures(views, drawn, timelines, folders, math.inf if everything else PICTURE_BYTES)
    unexpected = [case for case in views if not case["as_expected"]]
    with_section = [views[number] for number in drawn if views[number]["as_expected"] and views[number]["pictures"]]
    shown = unexpected[:None if everything else SHOWN_FAILURES]
    return template("page.html", share=pictures.share).render(
        run=results["run"], summary=summary_of(results), differences=run_checks.differences(results), cases=views,
        unexpected=unexpected, shown=shown, drawn=sorted(with_section, key=lambda case: case["number"]),
        rows=case_rows(views, {case["number"] for case in shown + with_section}), verdicts=run_data.SHOWN,
        skipped=results["skipped"], not_run=results.get("not_run", []), budget=error_budget.draw(results["cases"]),
        budget_limit=error_budget.MOST_CASES, colors=pictures.VERDICT_COLORS, table_rows=TABLE_ROWS,
        worlds=len({case.get("backend") for case in views}), measured=[case for case in views if case["measured"]], warned=warned(views),
        unresolved=unresolved_tensors(views), judged=sum(bool(case.get("tensors") or case.get("digests")) for case in views))


def replace_file(out, page):
    """A file in place of what is there: a link is replaced, not the file that it leads to. A pipe or device stays."""
    if out.exists() and not out.is_file():
        raise run_data.BadRun(f"{out} is not a regular file; name a file with --out, or remove it")
    alone = out.exists() and not out.is_symlink() and out.stat().st_nlink == 1
    with open(out, "rb") if alone else io.BytesIO() as there:
        begin = there.read(4096)
    if begin and b"<title>shardproof" not in begin:
        raise run_data.BadRun(f"{out} is no page of shardproof, and would be replaced; name another file with --out")
    part = out.with_name(out.name + ".part")
    part.unlink(missing_ok=True)
    part.write_text(page, encoding="utf-8", errors="replace")
    part.replace(out)


def write_validation(options, out):
    """As write_page, of what `shardproof validate` has written."""
    validation = validation_page.read(options.runs[0])
    try:
        page = validation_page.render(validation)
    except NOT_A_RUN as error:
        raise run_data.BadRun(f"{options.runs[0]}: the fields of validation.json do not fit together "
                              f"({type(error).__name__}: {error}); run it again") from error
    replace_file(out, page)
    print(out)
    for sentence in validation_page.contradictions(validation):
        print(f"shardproof report: {options.runs[0]}/validation.json: {sentence}; the file was changed after the run: run it "
              "again", file=sys.stderr)
        return 2
    return 0


def write_page(options, out):
    """0, or 2 when the page had to say that the run's results contradict themselves, or that shares are missing."""
    gc.disable()  # millions of objects, and all of them stay
    runs = {run: run_data.read_results(run) for run in options.runs}
    results = run_data.merged(runs) if len(runs) > 1 else runs[options.runs[0]]
    gc.freeze()
    gc.enable()
    try:
        page = render(results, options.runs, options.all, out.parent)
    except NOT_A_RUN as error:
        raise run_data.BadRun(f"{', '.join(options.runs)}: the fields of its cases do not fit together ({type(error).__name__}: "
                              f"{error}); the files were changed or are incomplete: run it again") from error
    replace_file(out, page)
    print(out)
    for run, found in ((run, run_checks.differences(one)) for run, one in runs.items()):
        if found:
            more = f", and {len(found) - 1} more contradictions" if len(found) > 1 else ""
            print(f"shardproof report: {run}/results.json: {found[0]}{more}; the file was changed after the run: run it again",
                  file=sys.stderr)
            return 2
    if missing := missing_shares(results["run"]):
        print(f"shardproof report: {missing}; name the folders of all shares", file=sys.stderr)
        return 2
    return 0


def main(arguments=None):
    parser = argparse.ArgumentParser(prog="shardproof report", description=__doc__)
    parser.add_argument("runs", nargs="+", metavar="run", help="a run's folder, for example runs/latest")
    parser.add_argument("--all", action="store_true", help="pictures of every case, however many")
    parser.add_argument("--out", help="file to write; default: RUN/report.html, of several runs report.html")
    options = parser.parse_args(arguments)
    out = Path(options.out) if options.out else Path(options.runs[0] if len(options.runs) == 1 else ".") / "report.html"
    try:
        validations = [run for run in options.runs if validation_page.is_here(run)]
        if validations and len(options.runs) > 1:
            raise run_data.BadRun(f"{validations[0]} is a validation, which has a page of its own; name it alone")
        return (write_validation if validations else write_page)(options, out)
    except run_data.BadRun as error:
        print("shardproof report: " + " ".join(str(error).split()), file=sys.stderr)
    except OSError as error:
        print(f"shardproof report: cannot write {out}: {error.strerror}; name a file with --out", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(main())
