"""What the page says and draws of one case."""

import itertools
import math
import re
from pathlib import Path

import error_heatmap
import guilty_tensor
import mesh_picture
import route_picture
import run_data
import tensor_file
import timeline_picture
import token_picture
from pictures import Section

LONGEST_TEXT = 6000   # of a finding, as on the terminal
LONGEST_PRINTED = 2000
LINE_OF_FINDING = re.compile(r"  (\w+) {2,}(.*)")


def cut(text, longest=LONGEST_TEXT):
    """The text, or its start and how much is left out."""
    if len(text) <= longest:
        return text
    return f"{text[:longest]} ... ({len(text) - longest} more characters are in results.json)"


def finding(case):
    """[(heading, lines)] of the finding as the terminal shows it; without its headline, its cause and the replay
    command, which the page shows elsewhere."""
    rows = []
    lines = cut(case.get("text") or case.get("message", "")).splitlines()
    for line in lines[1:] if len(lines) > 1 else lines:
        if start := LINE_OF_FINDING.fullmatch(line):
            rows.append((start[1], [start[2]]))
        elif rows:
            rows[-1][1].append(line.strip())
        else:
            rows.append(("", [line.strip()]))
    return [(heading, said) for heading, said in rows
            if heading != "replay" and " ".join(" ".join(said).split()) != why(case)]


def _listed(ranks, most=8):
    return ", ".join(map(str, ranks[:most])) + (" .." if len(ranks) > most else "")


def where(case):
    """(the tensor or the ranks that went wrong first, when and on which ranks)"""
    found = case.get("divergence", {})
    if found.get("tensor"):
        step = f"step {found['step']}" if "step" in found else ""
        ranks = f"rank {_listed(found['ranks'])}" if found.get("ranks") else ""
        return found["tensor"], ", ".join(part for part in (found.get("phase"), step, ranks) if part)
    odd = [rank for rank in case.get("ranks", []) if rank.get("ending", "finished") not in ("finished", "aborted")]
    return "rank " + _listed([rank["rank"] for rank in odd]) if odd else "", ""


def why(case):
    """The cause in one sentence, as far as the run knows it."""
    found = case.get("divergence", {})
    sentence = found.get("likely") or found.get("pattern") or case.get("message") or case.get("unexpected") or ""
    sentence = " ".join(sentence.split())
    return sentence if len(sentence) <= 300 else sentence[:300] + " ..."


def grouped_ranks(ranks, base=""):
    """Ranks that say the same, together: [{ranks, ending, message, findings, printed, last_call, logs}]. `base` leads from
    the page to the run's folder."""
    groups = {}
    for rank in ranks:
        said = (rank.get("ending", ""), cut(rank.get("message", ""), 600),
                tuple(cut(finding, 600) for finding in rank.get("findings", [])[:4]),
                rank.get("printed", "")[-LONGEST_PRINTED:], rank.get("last_call", ""))
        groups.setdefault(said, []).append(rank)
    def log_of(rank):
        log = run_data.own_file(rank.get("log", ""))
        return log and base + log
    return [{"ranks": [(rank["rank"], log_of(rank)) for rank in members], "ending": ending,
             "message": message, "findings": findings, "printed": printed, "last_call": last_call}
            for (ending, message, findings, printed, last_call), members in groups.items()]


def flat(figures, path=""):
    """[(name, value)] of nested maps: {"kept_bytes": {"before": 1}} -> "kept bytes before"."""
    if not isinstance(figures, dict):
        return [(path, figures)]
    return [entry for name, value in figures.items() for entry in flat(value, f"{path} {name}".strip())]


def measured(case):
    """[(what, [(ranks, value)])]: the figures of a workload, ranks of one value together."""
    found = {}
    for rank in case.get("ranks", []):
        for name, value in flat(rank.get("metrics", {}).get("figures", {})):
            found.setdefault(name.replace("_", " "), {}).setdefault(str(value)[:40], []).append(rank["rank"])
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
    return int(place) if place.isdecimal() else -1


def anchors(cases):
    """The id of each case in the page. It follows from the case's name in junit.xml ("NAME (BACKEND)") alone, except
    that of equal ids the later ones end in "-2", "-3" .."""
    found = {}
    for case in cases:
        anchor = "case-" + re.sub(r"[^A-Za-z0-9._]+", "-", f"{case['name']} {case.get('backend', '')}").strip("-")
        others = (f"{anchor}-{count}" for count in itertools.count(2))
        found[anchor if anchor not in found else next(other for other in others if other not in found)] = case
    return list(found)


def sections(case, lanes):
    """[Section] of the pictures of one case."""
    tensors = case.get("tensors", [])
    text = "Share of its allowance that each tensor used on each rank, in the order of the single-device run."
    if finding := run_data.entry_of_finding(case):
        who = "each rank is within its allowance" if finding.get("ok", True) else "the ranks in red have it"
        text += f" The error starts at {finding['name']}, the marked row; {who}."
    elif missing := case.get("divergence", {}).get("tensor"):
        text += f" The finding, {missing}, has no row: no rank has reported it."
    elif any(not tensor.get("ok", True) for tensor in tensors):
        text += " An error starts at the first tensor in red; its columns are the ranks that have it."
    count, wrong = error_heatmap.left_out(case)
    if count:
        near = f"the finding with {error_heatmap.NEIGHBORS} before and after it, and " if finding else ""
        text += (f" Shown are {len(tensors) - count} of {len(tensors)} tensors: {near}those that used most of it. "
                 f"{count} are left out, {wrong or 'none'} of them wrong.")
    time, key = timeline_picture.draw(lanes, timeline_picture.bubble(case))
    drawn = [
        Section("Error by tensor and rank", text, error_heatmap.draw(case), error_heatmap.key()),
        Section("Mesh and who holds what", "Each rank in its place, then one parameter of each layout; numbers are the "
                "ranks that hold a piece, several numbers hold equal copies.",
                mesh_picture.draw(case, run_data.parameters(case))),
        Section("Who holds which token", token_picture.explain(case), token_picture.draw(case)),
        Section("Experts and their rows", route_picture.explain(case), route_picture.draw(case)),
        Section("Time", timeline_picture.explain(case), time, key),
    ]
    return [section for section in drawn if section.pictures]


def guilty_of(case, folder, with_pictures=True):
    """The tensor that failed first, drawn from the case's file in the run's folder; None when none did."""
    arrays = {}
    for name in case.get("files", []) if folder and with_pictures else []:
        if name.endswith(".safetensors") and run_data.own_file(name):
            arrays.update(tensor_file.read(Path(folder) / name))
    return guilty_tensor.view(case, arrays)


def view(number, case, base=""):
    """The fields of a case and what follows from them; pictures come later. `base` as in grouped_ranks."""
    ratio = run_data.number(case.get("worst_ratio"))
    tensor, at = where(case)
    ranks = case.get("ranks", [])
    return {
        **case, "number": number, "pictures": [], "guilty": None, "left_out": False, "finding": finding(case),
        "ratio": ratio if case.get("tensors_compared") else math.nan, "tensor": tensor, "at": at, "why": why(case),
        "measured": measured(case), "warnings": warnings_of(case), "groups": grouped_ranks(ranks, base),
        "odd_groups": grouped_ranks(ranks, base) if any(rank.get("ending", "finished") != "finished" or rank.get("findings")
                                                  for rank in ranks) else [],
        "links": [base + name for name in [case.get("replay_file", ""), *case.get("files", [])] if run_data.own_file(name)],
    }
