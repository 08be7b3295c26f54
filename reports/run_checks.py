"""Where a results.json refutes itself: what no run writes, so that the file was changed."""

from collections import Counter

import run_data


def differences(results):
    """Sentences: where the file contradicts itself; empty when it was written by a run and not changed."""
    found = []
    for name, counted in run_data.totals_of(results).items():
        said = results["totals"].get(name, 0)
        if said != counted:
            found.append(f"totals.{name} is {said}, but its list has {counted}")
    directory = results["run"].get("directory", "")
    for key, many in Counter(run_data.case_key(case, directory) for case in results["cases"]).items():
        if many > 1:
            found.append(f"the case {key[0]} is there {many} times")
    for case in results["cases"]:
        found += [f"{case['name']}: {sentence}" for sentence in _of_case(case)]
    return found + list(_of_exit_status(results))


def _of_exit_status(results):
    """1, 3 and 4 come from unexpected cases, 1 also from unresolved tensors, and 0 from neither."""
    status, unexpected = results["run"].get("exit_status"), run_data.totals_of(results)["unexpected"]
    if status == 0 and unexpected:
        yield f"the exit status is 0, but {unexpected} cases did not end as expected"
    unresolved = status == 1 and any(case.get("unresolved") for case in results["cases"])
    if status in (1, 3, 4) and not unexpected and not unresolved:
        yield f"the exit status is {status}, but every case ended as expected"


def _of_case(case):
    expected = case.get("expected", {})
    if case["verdict"] == "refused" and case.get("may_be_refused"):
        return
    if case["as_expected"] and expected.get("verdict", case["verdict"]) != case["verdict"]:
        yield f"it is called expected, but expected is {expected['verdict']} and its verdict is {case['verdict']}"
    elif case["as_expected"] and (expected.get("kind") or case.get("kind", "")) != case.get("kind", ""):
        yield f"it is called expected, but expected is {expected['kind']} and it is {case.get('kind') or 'none'}"
    if case["verdict"] == "match":
        yield from (f"it is called a match, but {fact}" for fact in _against_match(case))


def _is_within(ratio):
    """Whether so much of an allowance is at most all of it; null: there was nothing."""
    return ratio is None or run_data.number(ratio) <= 1


def _against_match(case):
    """What a match does not have."""
    for tensor in case.get("tensors", []):
        ratios = [tensor.get("worst_ratio", 0), *tensor.get("ratio", [])]
        if not tensor.get("ok", True) or tensor.get("outcome") == "mismatch" or not all(map(_is_within, ratios)):
            yield f"its tensor {tensor['name']} is wrong"
            break
    if not _is_within(case.get("worst_ratio")):
        yield f"its worst_ratio is {case['worst_ratio']}"
    if case.get("divergence"):
        yield f"it diverges at {case['divergence'].get('tensor', 'a tensor')}"
    for one in case.get("not_judged", [])[:1]:
        yield f"{one.get('elements', 'some')} elements of {one['tensor']} were not judged"
    elements = case.get("elements", {})
    demanded, found = elements.get("demanded", 0), elements.get("judged", 0) + sum(elements.get("excused", {}).values())
    if demanded != found:
        yield f"{demanded} elements had to be judged, and {found} were judged or excused"
    for rank in case.get("ranks", []):
        if rank.get("ending", "finished") != "finished":
            yield f"its rank {rank['rank']} ended as {rank['ending'] or 'nothing'}"
            break
