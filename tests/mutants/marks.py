"""How well a finding names the bug that was planted: against the row's own expectation."""

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase


@dataclass
class Marks:
    caught: bool
    tensor: bool = False
    ranks: bool = False
    pattern: bool = False


def _right_tensor(expect, finding):
    verdict = expect.get("verdict", "mismatch" if "tensor" in expect else "failed")
    if not re.fullmatch(str(verdict), finding["verdict"]):
        return False
    if "tensor" not in expect:  # a failed world: the kind of the failure
        return bool(re.fullmatch(str(expect.get("kind", ".*")), finding.get("kind", "")))
    divergence = finding.get("divergence") or {}
    # Two names where two cases of one file find it, of which either may be the first to end.
    return any(fnmatchcase(divergence.get("tensor", ""), name) for name in expect["tensor"].split(" or "))


def _expected_ranks(expected, finding):
    ranks = finding["ranks"]
    if expected == "all":
        return [rank["rank"] for rank in ranks]
    if isinstance(expected, list):
        return expected
    match = re.fullmatch(r"(\w+)(=|!=)(\d+)", expected)  # "tp!=0"
    if not match:
        raise ValueError(f"ranks: '{expected}' is neither all, any, a list, nor such as tp!=0")
    axis, relation, number = match.groups()
    return [rank["rank"] for rank in ranks
            if (rank["coordinates"].get(axis, 0) == int(number)) == (relation == "=")]


def _right_ranks(expect, finding):
    expected = expect.get("ranks", "all")
    if "tensor" not in expect or expected == "any":
        return True
    divergence = finding.get("divergence") or {}
    return divergence.get("ranks") == _expected_ranks(expected, finding)


def _right_pattern(expect, finding):
    divergence = finding.get("divergence") or {}
    if "message" in expect:
        return bool(re.search(str(expect["message"]), finding.get("message", "")))
    pattern = str(expect.get("pattern", "none" if "tensor" in expect else "any"))
    if pattern == "any":
        return True
    if pattern == "none":  # no simple algebra: claiming a cause would be wrong
        return not divergence.get("likely")
    said = f"{divergence.get('pattern', '')} {divergence.get('likely', '')}"
    return bool(re.search(pattern, said))


def marks_of(row, finding):
    if finding is None:
        return Marks(caught=False)
    marks = Marks(caught=True, tensor=_right_tensor(row.expect, finding))
    marks.ranks = marks.tensor and _right_ranks(row.expect, finding)
    marks.pattern = marks.tensor and _right_pattern(row.expect, finding)
    return marks


def said_of(finding):
    """The finding in one line."""
    if finding is None:
        return ""
    divergence = finding.get("divergence")
    if not divergence:
        what = f"{finding['verdict']} ({finding.get('kind', '')}): {finding.get('message', '')}"
    else:
        what = (f"{divergence['tensor']} of step {divergence['step']} on ranks {divergence['ranks']}: "
                f"{divergence['pattern']}; {divergence['likely']}")
    return " ".join(f"{finding.get('name', '')}: {what}".split())
