"""The page of a folder that `shardproof validate` has written: who is at fault, and what was checked."""

import itertools
import re
from pathlib import Path

import host_matrix
import run_data
from run_data import Map, Object, anything, count, flag, integer, real, text
from templates import template
from validation_checks import contradictions, plural

FORMAT = "shardproof-validation/1"
FILE = "validation.json"
MOST_ROWS = 60  # of a table; validation.json has all
CAUSES = {"values": "wrong values", "digest": "other bits than equal hosts", "slow": "too slow", "clock": "a clock is off",
          "died": "died", "hung": "hung", "threw": "threw", "bad_input": "bad input"}
FINDING = Object({"stage!": text, "kind!": text, "round": count, "hosts": [text], "ranks": [integer], "link": text,
                  "pattern": text, "message!": text})
STAGE = Object({"stage!": text, "round": count, "verdict!": text, "seconds": real, "checks": count, "elements": count,
                "findings": count, "without": [text], "note": text})
ODD = Object({"fact!": text, "value": text, "usual": text})
HOST = Object({"name!": text, "ranks": [count], "facts": Map(text), "odd": [ODD], "clock_offset_s": real,
               "clock_uncertainty_s": real})
MEDIANS = Object({"pairs": count, "latency_us": real, "gb_per_s": real})
PAIR = Object({"a": count, "b": count, "latency_us": real, "gb_per_s": real, "latency_factor": real,
               "bandwidth_factor": real})
TIMES = Object({"in_host": MEDIANS, "between_hosts": MEDIANS, "compute_ms": [real], "compute_median_ms": real,
                "pairs": [PAIR]})
TRAINED = Object({"case!": text, "round": count, "shift": count, "matches": flag, "finding": text})
VALIDATION = Object({
    "format!": text, "command": text, "version": text, "started": text, "seconds": real, "suite": text, "backend": text,
    "device": text, "world_size!": count, "slow_factor": real, "interrupted": flag, "exit_status!": count,
    "hosts!": [Object({"name!": text, "ranks!": [count]})], "stages!": [STAGE], "findings!": [FINDING],
    "environment": Object({"hosts": [HOST]}), "times": TIMES, "training": [TRAINED], "left_out": anything})
run_data.KINDS[anything] = "anything"


def is_here(folder):
    return (Path(folder) / FILE).is_file() and not (Path(folder) / "results.json").exists()


def call(name):
    """"host2", and of a name that does not say it "host vm"."""
    return name if name.startswith("host") else f"host {name}"


def plain(message, hosts):
    """A sentence of the run without the "host" that a host's name says, too: "host host2 spoils data"."""
    for host in hosts:
        message = re.sub(rf"\bhost {re.escape(host['name'])}(?!\w)", lambda _, name=host["name"]: call(name), message)
    return message


def place_of(finding):
    """"host2, ranks 4, 5": who is at fault, as far as the run could tell."""
    if finding.get("link"):
        return f"link {finding['link']}"
    hosts = ", ".join(map(call, finding.get("hosts", [])))
    ranks = ", ".join(str(rank) for rank in finding.get("ranks", []))
    several = "s" if len(finding.get("ranks", [])) > 1 else ""
    return (hosts or "no host") + (f", rank{several} {ranks}" if ranks else "")


def headline_of(validation):
    found = validation["findings"]
    if validation.get("interrupted"):
        return "Interrupted" + (f", {plural(len(found), 'finding')} so far" if found else "")
    if not found:
        return "No findings"
    first = found[0]
    more = f", and {len(found) - 1} more" if len(found) > 1 else ""
    return f"{place_of(first)}: {CAUSES.get(first['kind'], first['kind'])}{more}"


def clocks(validation):
    """[(host, offset in s, uncertainty in s)]"""
    return [(host["name"], run_data.number(host.get("clock_offset_s")), run_data.number(host.get("clock_uncertainty_s")))
            for host in validation.get("environment", {}).get("hosts", []) if "clock_offset_s" in host]


def facts_of(validation):
    """[(hosts, facts)], hosts of equal facts together; hosts without facts are left out."""
    found = {}
    for host in validation.get("environment", {}).get("hosts", []):
        if host.get("facts"):
            found.setdefault(tuple(host["facts"].items()), []).append(host["name"])
    return [(names, dict(facts)) for facts, names in found.items()]


def about_pictures(validation, left_out):
    """What the pictures show, and what they do not."""
    times = validation.get("times") or {}
    measured = sum(times.get(where, {}).get("pairs", 0) for where in ("in_host", "between_hosts"))
    listed = len(times.get("pairs", []))
    sentences = ["Findings accuse those whose names are red."] if validation["findings"] else []
    if listed < measured:
        sentences.append(f"Of {measured} measured pairs of ranks the file lists the {listed} slowest: the others are faster.")
    return " ".join([*sentences, left_out]).strip()


def read(folder):
    """validation.json as a dictionary of the shape VALIDATION."""
    return run_data.read_checked(Path(folder) / FILE, FORMAT, VALIDATION)


def render(validation):
    drawn, left_out = host_matrix.draw(validation)
    summary = {"headline": headline_of(validation),
               "good": not validation["findings"] and not validation.get("interrupted")}
    return template("validation.html", place=place_of, plain=plain).render(
        run=validation, summary=summary, differences=list(contradictions(validation)), causes=CAUSES, colors={},
        hosts=validation["hosts"], clocks=clocks(validation), most=MOST_ROWS,
        odd=[(host["name"], odd) for host in validation.get("environment", {}).get("hosts", [])
             for odd in host.get("odd", [])],
        facts=facts_of(validation), pictures=drawn, about_pictures=about_pictures(validation, left_out),
        accused=host_matrix.accused(validation), at_links=host_matrix.at_accused_links(validation),
        training=[(run, len(list(equal))) for run, equal in itertools.groupby(validation.get("training", []))],
        times=validation.get("times") or {})
