"""What became of a model on a layout, as a line, as JSON, as JUnit XML, and as a page."""

import dataclasses
import html
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from xml.sax.saxutils import escape, quoteattr

VERDICTS = ("match", "mismatch", "raises", "not built")
FILE = "results.jsonl"
# What the judge advises where a program draws its weights. Here one rank and the layout load the same files.
OTHER_START = "the runs start from different weights; shardproof.load(model, golden) copies the golden's"
OTHER_LOAD = "the ranks load other weights than one rank from the same files"
UNRESOLVED = re.compile(r"MATCH, (\d+) of (\d+) not judged")


@dataclass
class Result:
    """One model on one layout."""

    name: str
    layout: str
    verdict: str = "match"
    detail: str = ""             # one line: the first wrong tensor and its pattern, or the exception
    where: str = ""              # of a wrong forward pass, the first module whose output is wrong
    text: str = ""               # the judge's whole finding, or the traceback
    seconds: float = 0.0
    peak_mib: int = 0
    parameters: int = 0
    plan: dict = field(default_factory=dict)
    save_error: str = ""
    saved: dict | None = None    # what differs after saving on the layout and loading on one rank

    def take(self, facts: dict) -> None:
        """What rank 0 found beside the recorded run."""
        self.parameters = facts.get("parameters", 0)
        self.plan = facts.get("plan", {})
        self.saved = facts.get("saved")
        self.save_error = facts.get("save_error", "")
        if facts.get("built") and not self.saved:
            self.saved = facts["built"]

    def judged(self, status: int, text: str) -> None:
        """The judge's answer. Weights that are wrong after saving and loading are a mismatch of their own."""
        text = text.replace(OTHER_START, OTHER_LOAD)
        self.text = text
        if status == 1:
            self.verdict, self.detail = "mismatch", finding(text)
        elif status != 0:
            self.verdict, self.detail = "raises", f"the judge ended with status {status}: {text.strip().splitlines()[-1]}"
        elif unresolved := UNRESOLVED.search(text):
            self.detail = f"{unresolved[1]} of {unresolved[2]} tensors not judged"
        if self.saved and self.verdict == "match":
            self.verdict = "mismatch"
            self.detail = (f"saved and loaded again, {self.saved['count']} of {self.saved['of']} weights differ, first "
                           f"{self.saved['tensor']}: {self.saved['pattern']}")

        if self.save_error and self.verdict == "match":
            self.verdict, self.detail = "raises", f"save (what was compared is right): {self.save_error}"
        elif self.save_error:
            self.detail += f"; and saving raises {self.save_error}"

    def is_of_forward_pass(self) -> bool:
        """Whether the first wrong tensor is computed by the forward pass, so that a module's output may be wrong before it."""
        return self.verdict == "mismatch" and self.detail.startswith(("inference", "logprobs", "loss"))

    def line(self) -> str:
        words = [self.detail] if self.detail else []
        if self.where:
            words.append(f"the first wrong output is {self.where}")
        if self.plan:
            used = sum(rule["count"] > 0 for rule in self.plan["rules"].values())
            words.append(f"{used} of {len(self.plan['rules'])} rules of the plan fit, "
                         f"{len(self.plan['whole'])} kinds of parameters stay whole")
        words.append(f"{self.seconds:.1f} s, {self.peak_mib} MiB")
        return f"{self.name:<22} {self.layout:<8} {self.verdict:<9} {'; '.join(words)}"


def finding(text: str) -> str:
    """The first wrong tensor, what its error looks like, and the likely cause."""
    parts = []
    for key in ("tensor", "pattern", "likely"):
        found = re.search(rf"^  {key} +(.*)$", text, re.MULTILINE)
        if found:
            parts.append(re.sub(r" {2,}", " ", found[1]).strip())
    return "; ".join(parts) or next(iter(text.strip().splitlines()), "")


def summary(found: list[Result]) -> str:
    counts = {verdict: sum(one.verdict == verdict for one in found) for verdict in VERDICTS}
    return ", ".join(f"{count} {verdict}" for verdict, count in counts.items() if count)


def add(folder: Path, result: Result, versions: dict) -> None:
    with open(folder / FILE, "a") as file:
        file.write(json.dumps(dataclasses.asdict(result) | {"versions": versions}) + "\n")


def read(folder: Path, versions: dict) -> list[Result]:
    """What an earlier call with the same packages found. A line that was cut off is run again."""
    found = []
    for line in (folder / FILE).read_text().splitlines() if (folder / FILE).exists() else ():
        try:
            fields = json.loads(line)
        except json.JSONDecodeError:
            continue
        if isinstance(fields, dict) and fields.pop("versions", None) == versions:
            found.append(Result(**fields))
    return found


def write_json(path: Path, found: list[Result], versions: dict) -> None:
    path.write_text(json.dumps({"versions": versions, "results": [dataclasses.asdict(one) for one in found]}, indent=1) + "\n")


def write_junit(path: Path, found: list[Result]) -> None:
    lines = [f'<testsuite name="shardproof model" tests="{len(found)}" '
             f'failures="{sum(one.verdict in ("mismatch", "raises") for one in found)}" '
             f'skipped="{sum(one.verdict == "not built" for one in found)}">']
    for one in found:
        lines.append(f"<testcase classname={attribute(one.name)} name={quoteattr(one.layout)} time=\"{one.seconds:.2f}\">")
        if one.verdict == "not built":
            lines.append(f"<skipped message={attribute(one.detail)}/>")
        elif one.verdict != "match":
            message = attribute(f"{one.verdict}: {one.detail}")
            lines.append(f"<failure message={message}>{escape(printable(one.text))}</failure>")
        lines.append("</testcase>")
    path.write_text("\n".join(['<?xml version="1.0" encoding="UTF-8"?>', *lines, "</testsuite>"]) + "\n")


def attribute(text: str) -> str:
    return quoteattr(printable(text))


def printable(text: str) -> str:
    return re.sub(r"[^\n\t\x20-\x7e\xa0-\ud7ff]", "?", text)


def write_page(folder: Path, found: list[Result], versions: dict) -> None:
    rows = []
    for one in sorted(found, key=lambda one: (VERDICTS.index(one.verdict) if one.verdict != "match" else 9, one.name)):
        more = f"<details><summary>{html.escape(one.detail)}</summary><pre>{html.escape(one.text)}</pre></details>" \
            if one.verdict != "match" else html.escape(one.detail)
        rows.append(f"<tr><td>{html.escape(one.name)}<td>{one.layout}<td>{one.verdict}<td>{more}"
                    f"<td>{html.escape(rules(one))}<td>{one.seconds:.1f} s<td>{one.peak_mib} MiB")
    packages = ", ".join(f"{name} {version}" for name, version in versions.items())
    page = ("<!doctype html><meta charset=utf-8><title>shardproof model</title><style>body{font:14px sans-serif}"
            "td{vertical-align:top;padding:2px 8px}</style>"
            f"<h1>Tiny models on layouts</h1><p>{html.escape(packages)}: {summary(found)}</p>"
            "<table><tr><th>model<th>layout<th>verdict<th>finding<th>rules of the plan<th>time<th>memory"
            + "\n".join(rows) + "</table>\n")
    (folder / "index.html").write_text(page)


def rules(one: Result) -> str:
    """Each rule with the number of places that it fits, and the parameters that stay whole."""
    if not one.plan:
        return ""
    text = ", ".join(f"{rule} ({value['style']}): {value['count']}" for rule, value in one.plan["rules"].items())
    return f"{text}. Whole: {', '.join(one.plan['whole']) or 'none'}"
