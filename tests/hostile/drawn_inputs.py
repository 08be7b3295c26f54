"""One drawn change of a right input of each kind: the folder, the command, what was changed, and the exit statuses that
are right."""
import glob
import json
import os
import random
import re
import zlib

import mutations
from good_inputs import LIMIT_S, SCENARIOS, read, write
from stated_inputs import STATED

DIGESTS = r'"digest": (\[[^]]*\]|[^,}]*)'  # in results.json
ANY = {0, 1, 2, 4}  # a verdict, bad input, or refused; never a failed world or an error of the program


class Draw:
    """One input: its folder, the command, what was changed, and the exit statuses that are right."""

    def __init__(self, good, folder, seed, number, kind):
        self.good, self.folder, self.kind = good, folder, kind
        self.rng = random.Random(f"{seed} {number}")
        self.said, self.allowed, self.may_change = [], set(ANY), []
        # One of each group is printed; one of those of a status; none of `never`.
        self.says, self.words_of_status, self.never = [], {}, []
        # Of the process: variables, (limit, value), and whether standard output is a pipe, full or closed.
        self.variables, self.limits, self.stdout, self.many = {}, [], "pipe", False
        self.limit_s = 60 if kind in STATED else LIMIT_S
        os.makedirs(folder)
        self.words = KINDS[kind](self)

    def copy(self, name):
        return self.good.copy(name, self.folder)

    def change(self, path, how):
        """Changes a file with a function of mutations.py; returns the bytes before and after."""
        before = read(path)
        after, said = how(self.rng, before)
        write(path, after)
        self.said.append(f"{os.path.relpath(path, self.folder)}: {said}")
        return before, after

    def equal(self, is_equal):
        """What was changed leaves the meaning, or changes what is judged by more than any allowance."""
        self.allowed = {0} if is_equal else ANY - {0}

    def out(self):
        return os.path.join(self.folder, "out")


def of_json(rng, raw):
    return mutations.json_changed(rng, json.loads(raw))


def scenario(draw):
    raw, said, harmless = mutations.yaml_changed(draw.rng, draw.rng.choice(SCENARIOS))
    path = write(os.path.join(draw.folder, "s.yaml"), raw)
    draw.said.append(said)
    command = draw.rng.choice(["lint", "lint", "lint", "list", "describe", "golden", "run"])
    # What a scenario computes is right whatever it says, as long as it says nothing of faults.
    draw.allowed = {0} if harmless else {0, 2, 4}
    return [command, path, *(["--backend", "emulated", "--out", draw.out()] if command == "run" else [])]


# Not rope_theta: heads of two elements have one frequency, theta to the power of 0.
MEANT_BY_CONFIG = {"vocab_size": None, "hidden_size": None, "intermediate_size": None, "num_hidden_layers": None,
                   "num_attention_heads": None, "num_key_value_heads": 4, "head_dim": 2, "rms_norm_eps": 1e-6,
                   "tie_word_embeddings": False, "attention_bias": False, "mlp_bias": False,
                   "hidden_act": "silu"}


def effective_config(config):
    given = {key: config.get(key) for key in MEANT_BY_CONFIG}
    return {key: otherwise if given[key] is None else given[key] for key, otherwise in MEANT_BY_CONFIG.items()}


def config_json(draw):
    case = draw.copy("case")
    before, after = draw.change(os.path.join(case, "config.json"), of_json)
    try:
        old, new = json.loads(before), mutations.parsed_json(after)
        if mutations.same(old, new):
            draw.equal(True)
        elif not isinstance(new, dict) or not mutations.same(effective_config(old), effective_config(new)):
            draw.equal(new.get("hidden_act") == "swish" if isinstance(new, dict) else False)
    except ValueError:
        draw.allowed = {2}
    return draw.rng.choice([["judge", case, os.path.join(case, "expected.safetensors")],
                            ["check", case, "--mesh", "tp=2"]])


def case_json(draw):
    case = draw.copy("case")
    before, after = draw.change(os.path.join(case, "case.json"), of_json)
    try:
        old, new = json.loads(before), mutations.parsed_json(after)
        if mutations.same(old, new):
            draw.equal(True)
        elif isinstance(new, dict) and isinstance(new.get("optimizer"), dict):
            meant = ("lr", "weight_decay", "steps", "max_norm")
            changed = [key for key in meant if key in new["optimizer"]
                       and not mutations.same(new["optimizer"][key], old["optimizer"][key])]
            if set(changed) & {"lr", "weight_decay", "steps"}:
                draw.equal(False)
    except ValueError:
        draw.allowed = {2}
    return draw.rng.choice([["judge", case, os.path.join(case, "expected.safetensors")],
                            ["check", case, "--mesh", "tp=2"]])


def canonical(found):
    """loss and step1.loss are two names of one tensor: [(name, tensor)]."""
    both = ("loss", "grad_norm")
    return [("step1." + name if name in both else name, tensor) for name, tensor in found.items()]


def judge_tensors(draw, before, after):
    """A file of results: it must hold every tensor, with its values."""
    old = dict(canonical(mutations.tensors(before)))
    try:
        new = canonical(mutations.tensors(after))
    except ValueError:
        draw.equal(False)
        return
    whole = {name for name, _ in new} == set(old)
    if not whole or any(mutations.differs(old[name], tensor) for name, tensor in new):
        draw.equal(False)
    elif sorted(map(repr, new)) == sorted(map(repr, canonical(mutations.tensors(before)))):
        draw.equal(True)


def result_file(draw):
    case = draw.copy("case")
    path = os.path.join(case, "expected.safetensors")
    judge_tensors(draw, *draw.change(path, mutations.safetensors_changed))
    return ["judge", case, path]


def expected_file(draw):
    case = draw.copy("case")
    before, after = draw.change(os.path.join(case, "expected.safetensors"), mutations.safetensors_changed)
    judge_tensors(draw, before, after)
    if draw.allowed == ANY - {0} and is_part(before, after):
        draw.allowed = {0}  # `check` says how many of how many tensors the file holds
    return ["check", case, "--mesh", "dp=2"]


def is_part(before, after):
    """Whether the file lacks tensors, and those that it holds are right."""
    try:
        old, new = mutations.tensors(before), mutations.tensors(after)
    except ValueError:
        return False
    return new and not any(name not in old or mutations.differs(old[name], new[name]) for name in new)


def weights(draw):
    """Each weight is in a step's parameters, which expected.safetensors has."""
    case = draw.copy("case")
    judge_tensors(draw, *draw.change(os.path.join(case, "model.safetensors"), mutations.safetensors_changed))
    return draw.rng.choice([["judge", case, os.path.join(case, "expected.safetensors")],
                            ["check", case, "--mesh", "tp=2"]])


def batch(draw):
    case = draw.copy("case")
    before, after = draw.change(os.path.join(case, "batch.safetensors"), mutations.safetensors_changed)
    try:
        if sorted(mutations.tensors(before).items()) == sorted(mutations.tensors(after).items()):
            draw.equal(True)
    except ValueError:
        draw.equal(False)
    return draw.rng.choice([["judge", case, os.path.join(case, "expected.safetensors")],
                            ["golden", case], ["check", case, "--mesh", "cp=2"]])


def recorded(draw):
    folder = draw.copy("recorded")
    which = os.path.join(folder, draw.rng.choice(["run", "run", "golden"]))
    name = draw.rng.choice(["run.json", "jsonl", "jsonl", "safetensors", "safetensors"])
    path = draw.rng.choice(sorted(glob.glob(os.path.join(which, "*" + name))))
    if name == "run.json":
        before, after = draw.change(path, of_json)
        try:
            if mutations.same(json.loads(before), mutations.parsed_json(after)):
                draw.equal(True)
        except ValueError:
            draw.equal(False)
    elif name == "safetensors":
        before, after = draw.change(path, mutations.safetensors_changed)
        judge_recorded_tensors(draw, before, after)
    else:
        judge_lines(draw, *draw.change(path, line_changed))
    return ["judge", os.path.join(folder, "run"), "--golden", os.path.join(folder, "golden")]


def judge_recorded_tensors(draw, before, after):
    try:
        old, new = mutations.tensors(before), mutations.tensors(after)
        if set(old) != set(new) or any(mutations.differs(old[key], new[key]) for key in old):
            draw.equal(False)
        elif old == new:
            draw.equal(True)
    except ValueError:
        draw.equal(False)


def line_changed(rng, raw):
    lines = raw.decode().splitlines()
    i = rng.randrange(len(lines))
    how = rng.choice(["json", "json", "json", "delete", "twice", "bytes"])
    if how == "bytes":
        return mutations.bytes_changed(rng, raw)
    said = how
    if how == "delete":
        del lines[i]
    elif how == "twice":
        lines.insert(i, lines[i])
    else:
        changed, said = mutations.object_changed(rng, json.loads(lines[i]))
        lines[i] = json.dumps(changed)
    return ("\n".join(lines) + "\n").encode("utf-8", "surrogatepass"), f"line {i + 1}: {said}"


def judge_lines(draw, before, after):
    """What a line says of a gradient or a parameter counts; a scalar is compared where both runs have it."""
    meant = ("key", "kind", "name", "step", "dtype", "shape", "global_shape")
    try:
        old = [json.loads(line) for line in before.splitlines()]
        new = [mutations.parsed_json(line) for line in after.splitlines()]
        judged = [{key: line.get(key) for key in meant} for line in old if line.get("kind") != "scalar"]
        ours = [{key: line.get(key) for key in meant} for line in new if line.get("kind") != "scalar"]
        if mutations.same(judged, ours):
            if mutations.same(old, new):
                draw.equal(True)
            return
        draw.equal(False)
    except (ValueError, AttributeError):
        draw.equal(False)


def logprobs(draw):
    folder = draw.copy("logprobs")
    path = os.path.join(folder, draw.rng.choice("ab"))
    before, after = draw.change(path, mutations.safetensors_changed)
    try:
        old, new = mutations.tensors(before), mutations.tensors(after)
        if sorted(old.items()) == sorted(new.items()):
            draw.allowed = {0, 2} if "metadata" in draw.said[0] else {0}
        elif "logprobs" not in new or mutations.differs(old["logprobs"], new["logprobs"]):
            draw.equal(False)
    except ValueError:
        draw.equal(False)
    return ["logprobs", os.path.join(folder, "a"), os.path.join(folder, "b")]


def results(draw):
    """results.json of a finished run."""
    folder = draw.copy("run")
    draw.copy("run.yaml")
    before, after = draw.change(os.path.join(folder, "results.json"), of_json)
    command = draw.rng.choice(["compare-runs", "compare-runs", "report", "rerun"])
    if command == "report":
        draw.may_change = ["run"]
        draw.allowed = {0, 2}
        return ["report", folder]
    if command == "rerun":
        draw.allowed = {0, 2}
        return ["run", "run.yaml", "--backend", "emulated", "--rerun-failed", folder, "--out", draw.out()]
    try:
        old, new = json.loads(before), mutations.parsed_json(after)
        if mutations.same(old, new):
            draw.equal(True)
        elif re.findall(DIGESTS, json.dumps(old)) != re.findall(DIGESTS, json.dumps(new)):
            draw.equal(False)
    except ValueError:
        draw.allowed = {2}
    return ["compare-runs", os.path.join(draw.good.folder, "run"), folder]


def strict(draw, change, statuses):
    """What one of our strict readers refuses is bad input; else these statuses are right."""
    draw.allowed = statuses
    try:
        mutations.parsed_json(change[1])
    except ValueError:
        draw.allowed = {2}


def timeline(draw):
    folder = draw.copy("run")
    strict(draw, draw.change(os.path.join(folder, "timeline.json"), of_json), {0, 2})
    draw.may_change = ["run"]
    return ["report", folder]


def index(draw):
    """Weights in a file that an index names."""
    case = draw.copy("case")
    os.rename(os.path.join(case, "model.safetensors"), os.path.join(case, "part.safetensors"))
    names = mutations.split(read(os.path.join(case, "part.safetensors")))[0]
    path = os.path.join(case, "model.safetensors.index.json")
    write(path, json.dumps({"metadata": {}, "weight_map": {name: "part.safetensors" for name in names}}))
    strict(draw, draw.change(path, of_json), {0, 2})
    return draw.rng.choice([["judge", case, os.path.join(case, "expected.safetensors")],
                            ["check", case, "--mesh", "tp=2"], ["golden", case]])


def plan(draw):
    case = draw.copy("case")
    path = write(os.path.join(draw.folder, "plan.json"),
                 json.dumps({"model.embed_tokens": "Replicate", "lm_head": "Replicate"}))
    strict(draw, draw.change(path, of_json), {0, 2, 4})
    return ["check", case, "--mesh", "tp=2", "--custom-plan", path]


def journal_changed(rng, raw):
    """A record is changed by someone who writes the right checksum, or a byte is changed without it."""
    if rng.random() < 0.4:
        return mutations.bytes_changed(rng, raw)
    lines = raw.splitlines()
    i = rng.randrange(len(lines))
    _, kind, number, text = lines[i].split(b" ", 3)
    try:
        changed, said = mutations.object_changed(rng, json.loads(text))
        text = json.dumps(changed).encode()
    except ValueError:
        text, said = mutations.bytes_changed(rng, text)
        text = text.replace(b"\n", b" ")
    rest = b" ".join([kind, number, text])
    lines[i] = b"%08x %s" % (zlib.crc32(rest), rest)
    return b"\n".join(lines) + b"\n", f"record {kind.decode()} {number.decode()}: {said}"


def journal(draw):
    folder = draw.copy("ended")
    draw.copy("ended.yaml")
    path = os.path.join(folder, "journal")
    head = json.loads(read(path).split(b"\n")[0].split(b" ", 3)[3])
    before = read(path).replace(json.dumps(head["directory"]).encode(), json.dumps(draw.folder).encode())
    lines = before.splitlines()
    rest = lines[0].split(b" ", 1)[1]
    write(path, b"\n".join([b"%08x %s" % (zlib.crc32(rest), rest), *lines[1:]]) + b"\n")
    draw.change(path, journal_changed)
    draw.may_change = ["ended", "runs"]
    if draw.rng.random() < 0.4:
        draw.allowed = {0, 2}
        return ["report", folder]
    draw.allowed = {0, 1, 2, 3, 4}
    return ["run", "--resume", folder]


FLAGS = {"run": ["--backend", "--filter", "--only", "--shard", "--shuffle", "--seed", "--rerun-failed", "--all",
                 "--jobs", "--time-budget", "--quiet", "--format", "--durations", "--no-skips", "--maxfail", "--dump",
                 "--resume"],
         "check": ["--mesh", "--ulysses", "--world-size", "--packed", "--dynamic-batching", "--precision", "--seed",
                   "--steps", "--data-parallel", "--replicate-size", "--custom-plan", "--sequence-parallel", "--fresh",
                   "--dump", "--save", "--device"],
         "judge": ["--golden", "--reference", "--allow-partial", "--no-unresolved", "--precision", "--mesh", "--dump"],
         "list": ["--backend", "--filter", "--keys", "--all"], "describe": ["--only", "--shard", "--seed"],
         "logprobs": ["--json"], "report": ["--all"], "compare-runs": [], "lint": ["--all"], "golden": ["--only", "--steps"]}
FLAG_VALUES = ["", "0", "-1", "1", "2", "nan", "inf", "1e99", "9223372036854775808", "é", "a=b", "dp=2", "tp=2,tp=2",
               "dp=0", "dp=99999999999", "tp=-2", "1/0", "0/1", "2/1", "float64", "float16", "gloo,emulated", "gloo,",
               "x" * 5000, "/", ".", "/dev/null", "/proc/self/mem", "no/such/folder", "--", "\n", "\x1b[31m", "nccl"]


def flags(draw):
    command = draw.rng.choice(list(FLAGS))
    case, run, _ = draw.copy("case"), draw.copy("run"), draw.copy("run.yaml")
    expected = os.path.join(case, "expected.safetensors")
    words = {"run": ["run.yaml", "--backend", "emulated", "--out", draw.out()], "check": [case],
             "judge": [case, expected], "list": ["run.yaml"], "describe": ["run.yaml"], "lint": ["run.yaml"],
             "logprobs": [expected, expected], "report": [run], "compare-runs": [run, run], "golden": [case]}[command]
    words = [command, *words]
    for _ in range(draw.rng.randint(1, 3)):
        flag = draw.rng.choice(FLAGS[command] + ["--help", "--version", "-x", "--", "-"])
        if draw.rng.random() < 0.25:
            flag = mutations.misspelt(draw.rng, flag)
        value = draw.rng.choice(FLAG_VALUES)
        words += draw.rng.choice([[flag], [flag, value], [f"{flag}={value}"], [value]])
    if draw.rng.random() < 0.15:
        words[0] = mutations.misspelt(draw.rng, command)
    draw.said.append("the command line")
    draw.may_change = ["run", "runs"]
    draw.allowed = ANY
    return words


KINDS = {"scenario": scenario, "config.json": config_json, "case.json": case_json, "weights": weights, "batch": batch,
         "result file": result_file, "expected file": expected_file, "recorded run": recorded, "logprobs": logprobs,
         "results.json": results, "timeline.json": timeline, "index": index, "plan": plan, "journal": journal,
         "flags": flags, **STATED}
