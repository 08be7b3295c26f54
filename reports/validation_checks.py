"""Where a validation.json refutes itself: what `shardproof validate` never writes, so that the file was changed."""

import run_data

OK, FOUND, NOTHING = "ok", "findings", "nothing"
STATUS_OF = {"bad_input": 2, "died": 3, "hung": 3, "threw": 3, "slow": 3, "clock": 3, "values": 1, "digest": 1}
INTERRUPTED = 130


def contradictions(validation):
    """Sentences: where the file refutes itself."""
    yield from _of_exit_status(validation)
    yield from _of_stages(validation)
    yield from _of_training(validation)
    yield from _of_hosts(validation)
    yield from _of_findings(validation)
    yield from _of_times(validation)


def plural(number, what):
    return f"{number} {what}{'' if number == 1 else 's'}"


def _of_exit_status(validation):
    """The exit status follows from the kinds of the findings: 2 before 3 before 1."""
    said, found = validation["exit_status"], validation["findings"]
    interrupted = validation.get("interrupted", False)
    if interrupted != (said == INTERRUPTED):
        yield f"the exit status is {said}, but the run was {'' if interrupted else 'not '}interrupted"
    if interrupted or said == INTERRUPTED:
        return
    unknown = sorted({one["kind"] for one in found} - STATUS_OF.keys())
    if unknown:
        yield f"there is no finding of kind {unknown[0][:40]!r}"
        return
    statuses = {STATUS_OF[one["kind"]] for one in found}
    right = next((status for status in (2, 3, 1) if status in statuses), 0)
    if said != right:
        makes = "makes" if len(found) == 1 else "make"
        what = f"{plural(len(found), 'finding')} {makes} it {right}" if found else "there are no findings"
        yield f"the exit status is {said}, but {what}"


def _place(entry):
    return entry["stage"], entry.get("round", 0)


def _of_stages(validation):
    """A stage's verdict and count against its findings. Of equal findings of several rounds the first is listed, so a
    later round may count ones that are listed before it."""
    stages, listed = {}, {}
    for one in validation["findings"]:
        listed.setdefault(one["stage"], []).append(one.get("round", 0))
    for stage in validation["stages"]:
        (name, number), counted, verdict = _place(stage), stage.get("findings", 0), stage["verdict"]
        here = f"stage {name} of round {number}"
        if (name, number) in stages:
            yield f"{here} is there twice"
        stages[name, number] = stage
        rounds = listed.get(name, [])
        own, until = rounds.count(number), sum(one <= number for one in rounds)
        if verdict not in (OK, FOUND, NOTHING):
            yield f"the verdict of {here} is {verdict[:40]!r}, which is not {OK}, {FOUND} or {NOTHING}"
        elif verdict == NOTHING and stage.get("checks", 0) > 0:
            yield f"the verdict of {here} is {NOTHING}, but it says that it made {plural(stage['checks'], 'check')}"
        elif (verdict == FOUND) != (counted > 0):
            yield f"the verdict of {here} is {verdict}, but it says that it has {plural(counted, 'finding')}"
        if not own <= counted <= until:
            there = own if counted < own else until
            yield f"{here} says that it has {plural(counted, 'finding')}, but {there} {'is' if there == 1 else 'are'} listed"
        if stage.get("without") and not validation["findings"]:
            yield f"{here} went on without {stage['without'][0]}, but there are no findings"
    for place in dict.fromkeys(map(_place, validation["findings"])):
        if place not in stages:
            yield f"there is a finding of stage {place[0]} of round {place[1]}, which is not among the stages"


def _of_training(validation):
    rounds = [one.get("round", 0) for one in validation["findings"] if one["stage"] == "training"]
    for run in validation.get("training", []):
        number, matches = run.get("round", 0), run.get("matches", True)
        here = f"{run['case']} of round {number}, shift {run.get('shift', 0)},"
        if matches == bool(run.get("finding")):
            yield f"{here} {'matches, but has' if matches else 'does not match, but has not'} what is wrong with it"
        # An interrupted run has no findings of the stage in which it ended.
        if not matches and not validation.get("interrupted") and not any(one <= number for one in rounds):
            yield f"{here} does not match, but there is no finding of training"


def _of_hosts(validation):
    """All ranks are on one host each; whatever names a host or a rank names one of these."""
    hosts, size = validation["hosts"], validation["world_size"]
    names = [one["name"] for one in hosts]
    ranks = [rank for one in hosts for rank in one["ranks"]]
    if len(set(names)) < len(names):
        yield "two hosts have the same name"
    if len(ranks) != size:
        yield f"world_size is {size}, but the hosts have {plural(len(ranks), 'rank')}"
    elif sorted(ranks) != list(range(size)):
        yield f"the ranks of the hosts are not 0 to {size - 1}, each on one host"
    if not all(one["ranks"] for one in hosts):
        yield "a host has no ranks"
    facts = validation.get("environment", {}).get("hosts")
    if facts is not None and [(one["name"], one.get("ranks")) for one in facts] != [
            (one["name"], one["ranks"]) for one in hosts]:
        yield "environment has other hosts or ranks than hosts"
    for stage in validation["stages"]:
        for name in stage.get("without", []):
            if name not in names:
                yield f"stage {stage['stage']} went on without {name}, which is not a host of the run"


def _is_link(link, names):
    parts = link.split(" - ")  # which may be in a name
    return any({" - ".join(parts[:i]), " - ".join(parts[i:])} <= names for i in range(1, len(parts)))


def _of_findings(validation):
    host_of = {rank: one["name"] for one in validation["hosts"] for rank in one["ranks"]}
    names = {one["name"] for one in validation["hosts"]}
    for found in validation["findings"]:
        here, accused = f"a finding of {found['stage']}", found.get("hosts", [])
        for name in accused:
            if name not in names:
                yield f"{here} names {name}, which is not a host of the run"
        for rank in found.get("ranks", []):
            if rank not in host_of:
                yield f"{here} names rank {rank}, which is on no host"
            elif accused and host_of[rank] not in accused:
                yield f"{here} names rank {rank}, which is on {host_of[rank]} and not on {', '.join(accused)}"
        if found.get("link") and not _is_link(found["link"], names):
            yield f"{here} names the link {found['link']}, which is not between two hosts"


def _durations(validation):
    """(what, number) that no run has below zero."""
    yield "seconds", validation.get("seconds", 0)
    yield "slow_factor", validation.get("slow_factor", 0)
    for stage in validation["stages"]:
        yield f"seconds of stage {stage['stage']}", stage.get("seconds", 0)
    for one in validation.get("environment", {}).get("hosts", []):
        yield f"clock_uncertainty_s of {one['name']}", one.get("clock_uncertainty_s", 0)
    times = validation.get("times", {})
    for name in ("in_host", "between_hosts"):
        for key in ("latency_us", "gb_per_s"):
            yield f"times.{name}.{key}", times.get(name, {}).get(key, 0)
    yield "times.compute_median_ms", times.get("compute_median_ms", 0)
    for rank, value in enumerate(times.get("compute_ms", [])):
        yield f"times.compute_ms of rank {rank}", value
    for pair in times.get("pairs", []):
        for key in ("latency_us", "gb_per_s", "latency_factor", "bandwidth_factor"):
            yield f"{key} of ranks {pair.get('a')} and {pair.get('b')}", pair.get(key, 0)


def _of_times(validation):
    for what, value in _durations(validation):
        if run_data.number(value) < 0:
            yield f"{what} is {value}, which is negative"
    times, size = validation.get("times", {}), validation["world_size"]
    if "compute_ms" in times and len(times["compute_ms"]) != size:
        yield f"times.compute_ms has {len(times['compute_ms'])} ranks, and world_size is {size}"
    for pair in times.get("pairs", []):
        if not pair.get("a", 0) < size or not pair.get("b", 0) < size:
            yield f"times.pairs has ranks {pair.get('a')} and {pair.get('b')}, and world_size is {size}"
