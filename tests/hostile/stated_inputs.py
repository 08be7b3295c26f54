"""Bad command lines, machines and files whose outcome is stated before they run: the exit statuses that are right, and
for each group of words one that must be printed. Each function takes a Draw and returns the command."""
import functools
import json
import os
import resource
import socket
import struct
import subprocess

import case_maker
import logprobs_test
from good_inputs import LIMIT_S, environment, read, write

ONE = "t/drawn[one]"
FAILING = """
name: t/failing
workload: train
model: {vocab_size: 24, hidden_size: 16, intermediate_size: 24, num_hidden_layers: 1, num_attention_heads: 4}
data: {lengths: [5, 3]}
parallel: {tensor_parallel_size: 2}
faults: [{kind: drop, rank: 1, op: all_reduce, at_call: 0}]
"""
PLAIN = FAILING.replace("failing", "plain").replace("faults: [{kind: drop, rank: 1, op: all_reduce, at_call: 0}]\n", "")
NEEDS_VALUE = ["is empty", "needs a value", "needs text", "requires a value", "is an option", "a value is missing"]
CHOICES = {"--backend", "--device", "--format", "--precision", "--workload", "--data-parallel", "--discarded-outputs",
           "--context-layout", "--context-rotation", "--schedules", "--shard", "--mesh"}
TEXTS = {"run": ["--backend", "--filter", "--only", "--shard", "--rerun-failed", "--device", "--out", "--schedules",
                 "--format", "--dump", "--resume"],
         "list": ["--backend", "--filter", "--only", "--shard", "--rerun-failed"],
         "describe": ["--backend", "--filter", "--only", "--shard", "--rerun-failed"],
         "calls": ["--only", "--label", "--format"],
         "fuzz": ["--precision", "--workload", "--corpus", "--out", "--backend", "--device"],
         "shrink": ["--only", "--out", "--backend", "--device"], "validate": ["--backend", "--device", "--out"],
         "check": ["--precision", "--mesh", "--backend", "--device", "--data-parallel", "--discarded-outputs",
                   "--context-layout", "--context-rotation", "--custom-plan", "--dump", "--save", "--out"],
         "judge": ["--precision", "--golden"], "golden": ["--precision", "--only", "--dump"],
         "rank": ["--backend", "--filter", "--only", "--shard", "--rerun-failed", "--device", "--out", "--format"],
         "logprobs": ["--json"]}
INTEGERS = {"run": ["--shuffle", "--seed", "--jobs", "--sample-rows", "--schedules", "--durations", "--maxfail"],
            "list": ["--shuffle", "--seed"], "describe": ["--seed"], "fuzz": ["--count", "--seed", "--jobs", "--maxfail"],
            "validate": ["--ranks"], "judge": ["--seed", "--steps"], "golden": ["--seed", "--steps"],
            "check": ["--seed", "--steps", "--ulysses", "--world-size", "--sample-rows", "--save-file-bytes",
                      "--replicate-size", "--microbatch", "--dynamic-batching"],
            "rank": ["--seed", "--jobs", "--maxfail"]}
NUMBERS = {"run": ["--time-budget"], "fuzz": ["--minutes"], "shrink": ["--deadline"],
           "validate": ["--minutes", "--slow"], "check": ["--deadline"], "judge": ["--deadline"],
           "golden": ["--deadline"], "rank": ["--time-budget"]}
NO_NUMBER = ["nan", "NaN", "-nan", "+nan", "nan(1)", "inf", "-inf", "Infinity", "-1", "1e400", "99999999999999999999999", "many", "1x",
             "1,5", "½", " ", "--", "1 2", "0x", "1e", "."]
WHERE = {"fifo": ["pipe", "FIFO", "regular file"], "folder": ["folder", "directory", "regular file", "no scenario"],
         "device": ["device", "regular file"], "socket": ["socket", "regular file"],
         "link to nowhere": ["link", "nowhere"], "link to itself": ["link", "symbolic"]}
REFUSED = ["the same command reads", "would be replaced", "would be overwritten", "--force", "other files", "name another",
           "name an empty folder", "another file"]


def base(draw, command):
    """A right command line of each command, which ends soon."""
    out = draw.out()
    if command in {"check", "judge", "golden"}:
        case = draw.copy("case")
        return [command, case, *{"check": ["--mesh", "tp=2"], "golden": [],
                                 "judge": [os.path.join(case, "expected.safetensors")]}[command]]
    if command == "logprobs":
        folder = draw.copy("logprobs")
        return [command, os.path.join(folder, "a"), os.path.join(folder, "b")]
    if command in {"report", "compare-runs"}:
        run = draw.copy("run")
        return [command, run] if command == "report" else [command, run, run]
    if command == "fuzz":
        return [command, "--count", "1", "--out", out]
    if command == "validate":
        return [command, "--ranks", "2", "--backend", "emulated", "--out", out]
    path = write(os.path.join(draw.folder, "s.yaml"), FAILING if command == "shrink" else PLAIN)
    return [command, path, *{"run": ["--backend", "emulated", "--out", out], "rank": ["--backend", "emulated"],
                             "shrink": ["--deadline", "1", "--out", out + ".yaml"]}.get(command, [])]


def without(words, option):
    at = words.index(option) if option in words else len(words)
    return words[:at] + words[at + 2:]


def with_option(draw, words, option, value):
    """The command line with this value instead of its own, as two words or as one."""
    words = without(words, option)
    if option == "--minutes":
        words = without(words, "--count")
    if option == "--resume":
        words = words[:1]
    draw.said.append(f"{words[0]} {option} {value!r}")
    return words + draw.rng.choice([[option, value], [f"{option}={value}"]])


def expect(draw, statuses, *groups):
    draw.allowed, draw.says = set(statuses), [[one] if isinstance(one, str) else one for one in groups]


def pairs(table):
    return [(command, option) for command, options in table.items() for option in options]


def empty_value(draw):
    command, option = draw.rng.choice(pairs(TEXTS))
    expect(draw, {2}, option, NEEDS_VALUE + (["is unknown", "is not"] if option in CHOICES else []))
    return with_option(draw, base(draw, command), option, "")


def empty_place(draw):
    """A shell variable that is not set, where a file is named."""
    command = draw.rng.choice(["run", "list", "lint", "describe", "calls", "shrink", "check", "judge", "golden", "logprobs",
                               "compare-runs", "report", "validate", "rank"])
    words = base(draw, command)
    places = [1, 2] if command in {"judge", "logprobs", "compare-runs"} else [1]
    if command == "validate":
        words[1:1] = [""]
    words[draw.rng.choice(places)] = ""
    draw.said.append(f"{command} of a name that is empty")
    expect(draw, {2}, ["empty", "needs a value"])
    return words


def option_as_value(draw):
    command, option = draw.rng.choice([one for one in pairs(TEXTS) if one[1] not in {"--filter", "--label"}])
    words = base(draw, command)
    words = without(words, option)
    words = words[:1] if option == "--resume" else words
    taken = draw.rng.choice({"run": ["--force", "--all", "-q"], "check": ["--force", "--fresh"]}.get(command, ["--help"]))
    if taken == "--help":
        taken = draw.rng.choice([one for one in TEXTS[command] if one != option] or ["--json"])
    draw.said.append(f"{option} takes {taken} as its value")
    expect(draw, {2}, option, NEEDS_VALUE + ["equires", "is unknown", "is not"])
    return words + [option, taken]


def no_number(draw):
    command, option = draw.rng.choice(pairs(INTEGERS) + 3 * pairs(NUMBERS))
    values = NO_NUMBER + (["1.5"] if (command, option) in pairs(INTEGERS) else [])
    if option == "--shuffle":
        values.remove("-1")
    expect(draw, {2}, option.strip("-"))
    return with_option(draw, base(draw, command), option, draw.rng.choice(values))


def name_of(draw, path):
    """Another name of a file."""
    how = draw.rng.choice(["absolute", "relative", "roundabout", "link", "hard link", "link to its folder"])
    draw.said.append(f"named as {how}")
    if how == "relative":
        return os.path.relpath(path, draw.folder)
    if how == "roundabout":
        return os.path.join(os.path.dirname(path), ".", "..", os.path.basename(os.path.dirname(path)),
                            os.path.basename(path))
    other = os.path.join(draw.folder, "other name")
    if how == "link":
        os.symlink(path, other)
    elif how == "hard link" and os.path.isfile(path):
        os.link(path, other)
    elif how == "link to its folder":
        os.symlink(os.path.dirname(path), other)
        other = os.path.join(other, os.path.basename(path))
    else:
        return path
    return other


def output_is_input(draw):
    rng = draw.rng
    command = rng.choice(["logprobs", "logprobs folders", "shrink", "golden", "golden scenario", "check", "check plan",
                          "save", "run", "rerun"])
    words = base(draw, command.split()[0] if command not in {"save", "rerun"} else {"save": "check", "rerun": "run"}[command])
    case, force = os.path.join(draw.folder, "case"), rng.choice([[], ["--force"]])
    files = ["config.json", "model.safetensors", "batch.safetensors", "case.json"]
    if command == "logprobs":
        option, path, force = "--json", words[rng.choice([1, 2])], []
    elif command == "logprobs folders":
        for name in ("A", "B"):
            for file in ("one.safetensors", "two.safetensors"):
                write(os.path.join(draw.folder, name, file), read(words[1]))
        words[1:] = [os.path.join(draw.folder, "A"), os.path.join(draw.folder, "B")]
        option, path, force = "--json", os.path.join(rng.choice(words[1:]), "two.safetensors"), []
    elif command == "shrink":
        option, path, force, words = "--out", words[1], [], words[:-2]
    elif command == "golden scenario":
        words[1] = write(os.path.join(draw.folder, "s.yaml"), PLAIN)
        option, path = "--dump", words[1]
    elif command == "check plan":
        path = write(os.path.join(draw.folder, "plan.json"), '{"lm_head": "Replicate"}')
        option, words = "--dump", words + ["--custom-plan", path]
    elif command == "save":
        option, path = "--save", case
    elif command == "run":
        option, path = "--dump", words[1]
    elif command == "rerun":
        run = draw.copy("other")
        os.remove(words[1])
        words[1:2] = [draw.copy("other.yaml"), "--only", ONE, "--rerun-failed", run]
        option, path = "--dump", os.path.join(run, "results.json")
    else:
        option, path = "--dump", os.path.join(case, rng.choice(files))
    draw.said.append(f"{option} is {os.path.basename(path)}, which {command} reads")
    expect(draw, {2}, REFUSED + (["no case", "nothing is left"] if command == "rerun" else []))
    return words + force + [option, name_of(draw, path)]


def output_is_other(draw):
    """What is there already, and is nothing that the command has made."""
    command, option = draw.rng.choice([("logprobs", "--json"), ("logprobs", "--json"), ("shrink", "--out"), ("shrink", "--out"),
                                       ("golden", "--dump"), ("run", "--dump"), ("check", "--dump"), ("run", "--out"),
                                       ("check", "--save"), ("check", "--out"), ("fuzz", "--out"), ("validate", "--out")])
    words = base(draw, command)
    words = without(words, option)
    notes = os.path.join(draw.folder, "there", "notes.txt")
    write(notes, "what took a week\n")
    is_file = option in {"--json", "--dump"} or command == "shrink" or draw.rng.random() < 0.4
    if is_file:
        name = draw.rng.choice(["notes.txt", "mine.json", "mine.yaml"])
        path = write(os.path.join(draw.folder, "there", name), '{"mine": 1}\n' if name != "notes.txt" else read(notes))
    else:
        path = os.path.dirname(notes)
    draw.said.append(f"{command} {option} is there")
    expect(draw, {2}, REFUSED + ["name a folder"])
    return words + [option, name_of(draw, path)]


def output_is_no_file(draw):
    command, option = draw.rng.choice([("logprobs", "--json"), ("shrink", "--out"), ("golden", "--dump"), ("check", "--dump"),
                                       ("run", "--dump"), ("run", "--out"), ("check", "--save"), ("fuzz", "--out"),
                                       ("validate", "--out")])
    words = base(draw, command)
    words = without(words, option)
    path, how = os.path.join(draw.folder, "there"), draw.rng.choice(["fifo", "device", "socket", "no folder", "link to itself"])
    if how == "no folder":
        write(path, "what took a week\n")
        path = os.path.join(path, "x.safetensors")
    else:
        make_special(how, path)
    draw.said.append(f"{command} {option} is a {how}")
    expect(draw, {2}, "there", ["folder", "pipe", "device", "socket", "regular", "link", "cannot"])
    return words + [option, path]


def output_folder_holds(draw):
    """In the output folder lies what a name of the output stands for already: a pipe, or a link to somebody's file."""
    command = draw.rng.choice(["run", "run", "run", "check", "save", "fuzz", "validate", "report"])
    words = base(draw, "check" if command == "save" else command)
    names = ["results.json", "junit.xml", "timeline.json", "journal", "logs", "replay"]
    names = {"validate": ["validation.json", "junit.xml"], "report": ["report.html"],
             "save": ["config.json", "model.safetensors"]}.get(command, names)
    out = words[1] if command == "report" else draw.out()
    os.makedirs(out, exist_ok=True)
    words += {"check": ["--out", out], "save": ["--save", out]}.get(command, [])
    words += ["--force"] if command in {"run", "check", "save"} and draw.rng.random() < 0.6 else []
    notes = write(os.path.join(draw.folder, "notes"), "what took a week\n")
    path, how = os.path.join(out, draw.rng.choice(names)), draw.rng.choice(["fifo", "folder", "socket", "link", "hard link"])
    if how == "link":
        os.symlink(notes, path)
    elif how == "hard link":
        os.link(notes, path)
    else:
        make_special(how, path)
    if command == "report":
        draw.may_change = ["run"]
    draw.said.append(f"{command}: {os.path.basename(path)} of the output folder is a {how}")
    expect(draw, {0, 2})
    return words


def outputs_collide(draw):
    """Two outputs of one command are one file, of which one would be lost."""
    command, option, inside = draw.rng.choice([("run", "--out", "results.json"), ("run", "--out", "junit.xml"),
                                               ("check", "--out", "results.json"), ("check", "--save", "model.safetensors"),
                                               ("check", "--save", "config.json")])
    words, out = base(draw, command), os.path.join(draw.folder, "out")
    os.mkdir(out)
    if command == "check":
        words += [option, out]
    dump = draw.rng.choice([os.path.join(out, inside), os.path.join("out", inside), os.path.join(out, "..", "out", inside)])
    draw.said.append(f"{command} {option} and --dump both write {inside}")
    expect(draw, {2}, "--dump")
    return words + ["--dump", dump] + draw.rng.choice([[], ["--force"]])


def compared_with_itself(draw):
    """One file or folder in both places, by another name of it too."""
    command = draw.rng.choice(["logprobs", "recorded run", "answers"])
    if command == "logprobs":
        words, first, second = base(draw, command), 1, 2
    elif command == "recorded run":
        run = os.path.join(draw.copy("recorded"), "run")
        words, first, second = ["judge", run, "--golden", run], 1, 3
    else:
        words = base(draw, "judge") + ["--golden", ""]
        first, second = 2, 4
    other = os.path.join(draw.folder, "the_same")
    os.symlink(words[first], other)
    words[second] = draw.rng.choice([words[first], other, os.path.relpath(words[first], draw.folder)])
    draw.said.append(f"{command} is compared with itself")
    expect(draw, {2}, "are the same, and what is compared with itself is equal whatever it holds")
    return words


def dash(draw):
    """A dash is standard output by custom, and no file."""
    command, option = draw.rng.choice([("run", "--out"), ("run", "--dump"), ("check", "--dump"), ("check", "--save"),
                                       ("check", "--out"), ("golden", "--dump"), ("shrink", "--out"), ("fuzz", "--out"),
                                       ("validate", "--out")])
    words = without(base(draw, command), option) + [option, "-"]
    draw.said.append(f"{command} {option} -")
    expect(draw, {2}, f"{option} -: this option does not write to standard output")
    return words


def make_special(how, path):
    if how == "fifo":
        os.mkfifo(path)
    elif how == "folder":
        os.mkdir(path)
    elif how == "device":
        os.symlink("/dev/full", path)
    elif how == "socket":
        folder = os.open(os.path.dirname(path), os.O_RDONLY)  # a socket's name has at most 107 bytes
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
        os.close(folder)
    else:
        os.symlink("nowhere" if how == "link to nowhere" else os.path.basename(path), path)


def special_input(draw):
    rng = draw.rng
    command = rng.choice(["check", "check", "judge", "golden", "run", "list", "lint", "describe", "calls", "shrink", "plan",
                          "index", "validate", "recorded", "recorded", "logprobs", "results", "report", "rerun", "resume"])
    how = rng.choice(list(WHERE))
    if command in {"check", "judge", "golden"}:
        words = base(draw, command)
        files = ["config.json", "model.safetensors", "batch.safetensors", "case.json"]
        files += [] if command == "golden" else ["expected.safetensors"]
        path = os.path.join(words[1], rng.choice(files))
    elif command in {"run", "list", "lint", "describe", "calls", "shrink"}:
        words = base(draw, command)
        path = words[1]
    elif command == "plan":
        path = write(os.path.join(draw.folder, "plan.json"), "{}")
        words = base(draw, "check") + ["--custom-plan", path]
    elif command == "index":
        words = base(draw, "golden")
        path = os.path.join(words[1], "model.safetensors.index.json")
        os.remove(os.path.join(words[1], "model.safetensors"))
        write(path, "{}")
    elif command == "validate":
        path = write(os.path.join(draw.folder, "suite.yaml"), "")
        words = base(draw, command)
        words[1:1] = [path]
    elif command == "recorded":
        folder = draw.copy("recorded")
        words = ["judge", os.path.join(folder, "run"), "--golden", os.path.join(folder, "golden")]
        where = rng.choice(["run", "golden"])
        path = os.path.join(folder, where, rng.choice(["run.json", "rank0.jsonl", "rank0.safetensors"]))
    elif command == "logprobs":
        words = base(draw, command)
        path = words[rng.choice([1, 2])]
    elif command == "resume":
        path = os.path.join(draw.copy("ended"), "journal")
        words = ["run", "--resume", os.path.dirname(path)]
    else:
        path = os.path.join(draw.copy("run"), "results.json")
        words = {"results": ["compare-runs", os.path.dirname(path), os.path.join(draw.good.folder, "run")],
                 "report": ["report", os.path.dirname(path)],
                 "rerun": base(draw, "run") + ["--rerun-failed", os.path.dirname(path)]}[command]
    os.remove(path)
    make_special(how, path)
    draw.said.append(f"{os.path.relpath(path, draw.folder)} is a {how}")
    more = ["holds no", "no file"] if command == "logprobs" and how == "folder" else []
    if how.startswith("link") and "case" not in os.path.dirname(path):
        more = ["no file", "holds no", "there is no", "does not exist", "cannot be", "No such file"]  # which is as true
    name = [os.path.basename(path), *(["ended"] if command == "resume" else [])]
    expect(draw, {2}, name, WHERE[how] + more)
    return words


def damaged_cache(draw):
    """A golden that cannot be read is computed anew."""
    words = base(draw, draw.rng.choice(["check", "judge"]))
    cache = os.path.join(draw.folder, "cache")
    draw.variables["XDG_CACHE_HOME"] = cache
    subprocess.run([draw.good.program, *words], cwd=draw.folder, check=True, timeout=LIMIT_S, stdin=subprocess.DEVNULL,
                   env=dict(environment(draw.folder), XDG_CACHE_HOME=cache), stdout=subprocess.DEVNULL)
    folder = os.path.join(cache, "shardproof", "golden")
    how = draw.rng.choice([*WHERE, "empty", "cut off"])
    ending = draw.rng.choice(["golden", "key"])
    for path in (os.path.join(folder, name) for name in os.listdir(folder) if name.endswith(ending)):
        before = read(path)
        os.remove(path)
        if how in WHERE:
            make_special(how, path)
        else:
            write(path, b"" if how == "empty" else before[:len(before) // 2])
    draw.said.append(f"each .{ending} of the cache is a {how}" if how in WHERE else f"each .{ending} of the cache is {how}")
    expect(draw, {0})
    return words


def standard_output(draw):
    command = draw.rng.choice(["list", "keys", "schema", "run", "lint", "describe", "calls", "golden", "check", "judge",
                               "logprobs", "compare-runs", "version", "doctor", "completion", "--help", "--version",
                               "run --help", "validate", "fuzz", "jsonl"])
    draw.stdout = draw.rng.choice(["full", "closed"])
    draw.said.append(f"standard output is {draw.stdout}")
    expect(draw, {2}, "standard output")
    if command in {"schema", "version", "doctor", "completion", "--help", "--version", "run --help"}:
        return command.split()
    if command == "lint":  # of a right file: this would be the only word
        return ["lint", write(os.path.join(draw.folder, "s.yaml"), PLAIN)]
    return base(draw, {"keys": "list", "jsonl": "run"}.get(command, command)) + {
        "keys": ["--keys"], "jsonl": ["--format", "jsonl"]}.get(command, [])


def limits(draw):
    rng = draw.rng
    command = rng.choice(["run", "gloo", "check", "check gloo", "golden", "dump", "save", "json", "validate", "many",
                          "list", "judge", "shrink", "fuzz"])
    # A limit on processes does not bind root: then the cores do.
    few = "200" if os.geteuid() else str(129 * len(os.sched_getaffinity(0)))
    words = {"gloo": lambda: base(draw, "run")[:2] + ["--backend", "gloo", "--out", draw.out()],
             "check gloo": lambda: base(draw, "check") + ["--backend", "gloo"],
             "dump": lambda: base(draw, "golden") + ["--dump", draw.out()],
             "save": lambda: base(draw, "check") + ["--save", draw.out()],
             "json": lambda: base(draw, "logprobs") + ["--json", draw.out()],
             "many": lambda: ["validate", "--ranks", rng.choice([few, "5000", "65536"]), "--out", draw.out()]
             }.get(command, functools.partial(base, draw, command))()
    kind, values = rng.choice([(resource.RLIMIT_NOFILE, [4, 8, 12, 16, 20]), (resource.RLIMIT_NPROC, [1, 5, 20]),
                               (resource.RLIMIT_FSIZE, [0, 1, 100, 4096])])
    if command == "many":
        kind, values = resource.RLIMIT_NPROC, [60]
    draw.limits = [(kind, rng.choice(values))]
    name = {resource.RLIMIT_NOFILE: "-n", resource.RLIMIT_NPROC: "-u", resource.RLIMIT_FSIZE: "-f"}[kind]
    draw.said.append(f"ulimit {name} {draw.limits[0][1]} (-f in bytes)")
    if not (command == "list" or (command, name) in {("golden", "-f"), ("judge", "-f"), ("check", "-f")}):
        draw.never = ["FINDING"]
    draw.allowed, draw.words_of_status = {0, 2}, {2: ["open files", "ulimit", "limit", "File too large", "processes",
                                                      "threads", "too large", "cannot be written", "would share"]}
    return words


NO_TOKEN = ["no token", "counts no", "no counted", "counts nothing", "shows nothing"]


def no_token(draw):
    how = draw.rng.choice(["probability", "dropped", "lengths", "tokens", "samples", "lengths of a case"])
    if how in {"tokens", "samples", "lengths of a case"}:
        words = base(draw, "check")
        made, (rows, width) = case_maker.batch(), (case_maker.BATCH, case_maker.SEQ)
        name, count, kind, value = {"tokens": ("token_mask", rows * width, "d", 0), "samples": ("sample_mask", rows, "d", 0),
                                    "lengths of a case": ("input_lengths", rows, "q", 1)}[how]
        made[name] = (*made[name][:2], struct.pack(f"<{count}{kind}", *count * [value]))
        write(os.path.join(words[1], "batch.safetensors"), case_maker.safetensors(made))
        os.remove(os.path.join(words[1], "expected.safetensors"))
    else:
        data = {"probability": "{lengths: [5, 3], token_mask_probability: 0}", "lengths": "{lengths: [1, 1]}",
                "dropped": "{lengths: [5, 3], dropped_samples: [0, 1]}"}[how]
        fault = draw.rng.choice([PLAIN, FAILING, PLAIN + "run: {loss: {kind: clipped_pg}}\n", PLAIN + "precision: bfloat16\n"])
        words = base(draw, "run")
        words[1] = write(os.path.join(draw.folder, "s.yaml"), fault.replace("{lengths: [5, 3]}", data))
    draw.said.append(f"no token counts: {how}")
    # A planted fault is found where no token is needed to see it.
    faulty = words[0] == "run" and b"faults" in read(words[1])
    expect(draw, {1, 2} if faulty else {2}, [*NO_TOKEN, "MISMATCH"] if faulty else NO_TOKEN)
    return words


def logprobs_of_nothing(draw):
    rows, width = 8, 16
    how = draw.rng.choice(["zeros", "mask", "lengths", "one column", "positive", "B is 0", "no row", "no column"])
    values = [[0.0] + [-draw.rng.uniform(0.1, 9) for _ in range(width - 1)] for _ in range(rows)]
    other = [list(row) for row in values]
    more = {}
    if how == "zeros":
        values = other = [[0.0] * width] * rows
    elif how == "mask":
        more = {"mask": ("int64", [[0] * width] * rows)}
    elif how == "lengths":
        more = {"lengths": ("int64", [draw.rng.choice([0, 1])] * rows)}
    elif how == "one column":
        values = other = [[0.0]] * rows
    elif how == "positive":
        other = [[0.0] + [5.0] * (width - 1)] * rows
    elif how == "B is 0":
        other = [[0.0] * width] * rows
    paths = []
    for name, content in (("a", values), ("b", other)):
        paths.append(os.path.join(draw.folder, name))
        logprobs_test.write_file(paths[-1], {"logprobs": ("float64", content), **more})
        if how in {"no row", "no column"}:
            shape = [0, width] if how == "no row" else [rows, 0]
            write(paths[-1], case_maker.safetensors({"logprobs": ("F64", shape, b"")}))
    draw.said.append(f"logprobs: {how}")
    if how in {"positive", "B is 0"}:
        expect(draw, {1, 2}, ["positive"] if how == "positive" else ["0 everywhere", "unscored", "not scored", "0 in each"])
        draw.never = ["temperature", "divided by"]
    else:
        expect(draw, {2}, ["no token", "no scored token", "nothing to compare", "empty", "no logprob", "at least", "no row", "none of the"])
    return ["logprobs", *(paths if draw.rng.random() < 0.7 or how in {"positive", "B is 0"} else paths[::-1])]


RUN_JSON = [("batch", [{"rows": -4, "parts": 0}, {"rows": 4, "parts": 0}, {"rows": -4, "parts": 2}, {"rows": 4},
                       {"rows": 4, "parts": 2, "more": 1}, [4, 2], 4, {"rows": 4.5, "parts": 2}, {"rows": "4", "parts": 2},
                       {"rows": 5, "parts": 2}]),
            ("coordinates", [[], [[0]], [[0], [5]], [[0], [0]], [[-1], [0]], [[0, 0], [1, 0]], "x", {"0": 1}, [["0"], ["1"]],
                             [[0.5], [1]], [0, 1], [[0], [1], [2]]]),
            ("lr", [[-0.01], ["x"], 0.01, [0.01, 0.01, 0.01], [None], [1e400]]),
            ("rows", [3, 0, -1, "x", 1.5, [3]]), ("noise", [3, 0, -1, "x", 1.5]),
            ("world_size", [0, -1, 3, "2", 2.5, 2**40]), ("steps", [0, -1, 2, "1", 1.5, 10**9]),
            ("mesh", [[], {}, [{"axis": "tp", "size": 3}], [{"axis": "tp", "size": 0}], [{"axis": "", "size": 2}],
                      [{"axis": "tp"}], [{"axis": "tp", "size": 2, "x": 1}],
                      [{"axis": "tp", "size": 1}, {"axis": "tp", "size": 2}], "tp"]),
            ("precision", ["float8", "", 64, None]), ("only", ["x", 1, [1], {}]), ("version", [0, -1, 99, "1", 1.5, None]),
            ("format", ["x", "", 1]), ("made_by", [[], "x", {"torch": 2}]), ("lifted", ["x", [1], {}]),
            ("optimizer", [[], "x", {"type": "AdamW"}, {"lr": [0.01]}]), ("betas", [[0.9], [0.9, 0.9, 0.9], 0.9, ["x", 0.9],
                                                                                 [-1, 0.9], [0.9, 1.5]]),
            ("unknown_key", [1])]


def run_json(draw):
    folder = draw.copy("recorded")
    which = draw.rng.choice(["run", "run", "golden"])
    key, values = draw.rng.choice(RUN_JSON)
    if which == "golden":  # that has one rank
        key, values = draw.rng.choice([one for one in RUN_JSON if one[0] not in {"coordinates", "rows", "noise", "mesh"}])
        values = [value for value in values if (key, value) != ("batch", {"rows": 5, "parts": 2})]
    value = draw.rng.choice(values)
    path = os.path.join(folder, which, "run.json")
    content = json.loads(read(path))
    (content["optimizer"] if key in {"lr", "betas"} else content)[key] = value
    if key == "batch":
        content["version"] = 3
    write(path, json.dumps(content))
    draw.said.append(f"{which}/run.json: {key} is {value!r}")
    expect(draw, {2}, [key, "rank2.jsonl"] if key == "world_size" else [key, "records no step", "run.json"])
    return ["judge", os.path.join(folder, "run"), "--golden", os.path.join(folder, "golden")]


def addend_axis(draw):
    """A piece that is an addend over an axis that the mesh lacks."""
    folder = draw.copy("recorded")
    path = os.path.join(folder, "run", f"rank{draw.rng.choice([0, 1])}.jsonl")
    lines = [json.loads(line) for line in read(path).splitlines()]
    at = draw.rng.choice([i for i, line in enumerate(lines) if line.get("kind") == "grad"])
    axes = draw.rng.choice([["zz"], [], "tp", ["tp", "tp"], ["tp", "zz"], [1], None])
    lines[at]["partial"] = {"axes": axes, "op": "sum"}
    write(path, "".join(json.dumps(line) + "\n" for line in lines))
    draw.said.append(f"line {at + 1} is an addend over {axes!r}")
    expect(draw, {2}, ["zz", "axes", "axis", "partial"])
    return ["judge", os.path.join(folder, "run"), "--golden", os.path.join(folder, "golden")]


def journal_head(draw):
    folder = draw.copy("ended")
    path = os.path.join(folder, "journal")
    raw = read(path)
    first = raw.index(b"\n")
    at = draw.rng.randrange(20, first - 2)
    how = draw.rng.choice(["byte", "cut", "gone", "text", "zeros"])
    write(path, {"byte": raw[:at] + bytes([raw[at] ^ 1]) + raw[at + 1:], "cut": raw[:at], "gone": raw[first + 1:],
                 "text": b"hello\n", "zeros": bytes(len(raw))}[how])
    draw.said.append(f"the journal's head: {how}")
    expect(draw, {2}, "journal", ["damaged", "first line", "no finished", "empty", "not a journal", "holds no", "head"])
    draw.never = ["write valid JSON", "not JSON"]
    return draw.rng.choice([["run", "--resume", folder], ["report", folder]])


def shard(draw):
    form = draw.rng.choice(["0/1", "2/1", "1/0", "a/b", "1", "1/2/3", "-1/2", "1/-2", "1.5/2", "1/2 ", "1/", "/2", "1/2x", "1//2",
                            "0/0", "9223372036854775808/9223372036854775809", "1/99999999", "1/1000001", "٣/٤", "1/2\n",
                            "1\\2", "1:2", "6/6", "1000000/1000000", "4/5"])
    words = base(draw, draw.rng.choice(["run", "list"]))
    draw.said.append(f"--shard {form!r}")
    if form in {"6/6", "1000000/1000000", "4/5"}:  # of fewer cases: nothing is left to do
        expect(draw, {0}, "share " + form.replace("/", " of "))
    else:
        expect(draw, {2}, "--shard", ["at most", "1000000"] if form in {"1/99999999", "1/1000001"} else ["I/N", "at most"])
        draw.never = ["is no shard; write I/N with 1 <= I <= N,"] if form == "1/99999999" else []
    return words + ["--backend", "emulated", "--shard", form] if words[0] == "list" else words + ["--shard", form]


def launcher(draw):
    rng = draw.rng
    right = {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1", "LOCAL_WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1",
             "MASTER_PORT": "29513", "SHARDPROOF_SECRET": 32 * "ab"}
    name, value = rng.choice([("MASTER_ADDR", "no.such.host.invalid"), ("MASTER_ADDR", "256.1.1.1"), ("MASTER_ADDR", "a b"),
                              ("MASTER_ADDR", ""), ("MASTER_ADDR", "x" * 300), ("MASTER_PORT", "0"), ("MASTER_PORT", "99999"),
                              ("MASTER_PORT", "-1"), ("MASTER_PORT", "http"), ("MASTER_PORT", ""), ("RANK", "2"),
                              ("RANK", "-1"), ("RANK", "x"), ("RANK", ""), ("WORLD_SIZE", "0"), ("WORLD_SIZE", "-2"),
                              ("WORLD_SIZE", "x"), ("WORLD_SIZE", ""), ("WORLD_SIZE", "1"), ("WORLD_SIZE", "99999999999")])
    draw.variables.update(right, **{name: value})
    draw.said.append(f"{name} is {value!r}")
    expect(draw, {2}, [name, "RANK", "WORLD_SIZE"], ["resolve"] if name == "MASTER_ADDR" and "." in value else [""])
    words = base(draw, rng.choice(["rank", "validate"]))
    return words[:2] + ["--backend", "gloo"] if words[0] == "rank" else ["validate", "--out", draw.out()]


TYPOS = [("workload: train", "workload: trian", "trian"), ("vocab_size: 24", "vocab_sise: 24", "vocab_sise"),
         ("tensor_parallel_size: 2", "tensor_paralel_size: 2", "tensor_paralel_size"), ("lengths: [5, 3]", "lenghts: [5, 3]", "lenghts"),
         ("hidden_size: 16", "hidden_size: wide", "wide"), ("precision: float64", "precision: flaot64", "flaot64"),
         ("steps: 2", "stepz: 2", "stepz"), ("seed: 7", "sed: 7", "sed"), ("kind: nll", "kind: nil", "nil"),
         ("name: AdamW", "name: AdamV", "AdamV"), ("tags: [a]", "tag: [a]", "'tag'"), ("verdict: match", "verdict: mach", "mach"),
         ("temperature: 1.0", "temperature: -1.0", "temperature")]


def lint_all(draw):
    text = """name: t/typos
workload: train
precision: float64
seed: 7
model: {vocab_size: 24, hidden_size: 16, intermediate_size: 24, num_hidden_layers: 1, num_attention_heads: 4}
data: {lengths: [5, 3]}
parallel: {tensor_parallel_size: 2}
run: {steps: 2, temperature: 1.0, loss: {kind: nll}, optimizer: {name: AdamW}}
expect: {verdict: match}
tags: [a]
"""
    chosen = draw.rng.sample(TYPOS, draw.rng.randint(2, len(TYPOS)))
    for right, wrong, _ in chosen:
        assert right in text
        text = text.replace(right, wrong)
    draw.said.append(f"{len(chosen)} typos")
    draw.many = True
    expect(draw, {2}, *[word.strip("'") for _, _, word in chosen])
    return ["lint", write(os.path.join(draw.folder, "s.yaml"), text)]


# Changes of PLAIN or of a case: what is said, and what would mislead.
MISLEADING = [
    ("run: {optimizer: {kwargs: {betas: [-1, 0.9]}}}", ["betas"], ["write two", "1 numbers"]),
    ("run.step: 2", ["run.steps"], ["faults[].step"]), ("run: {step: 2}", ["steps"], ["faults[].step"]),
    ("parallel.expert_parallel: 2", ["expert_parallel_size"], ["did you mean tensor_parallel_size"]),
    ("model.num_layers: 2", ["num_hidden_layers"], []), ("precision: fp64", ["float64"], []), ("world: {deadline_s: .nan}", ["deadline_s"], []),
    ("run: {max_grad_norm: .nan}", ["max_grad_norm"], []), ("run: {temperature: 0}", ["temperature"], []),
    ("data.batch_size: 0", ["batch_size"], []), ("sample_rows: -1", ["sample_rows"], []), ("run: {steps: 0}", ["steps"], []),
    ("tags: smoke", ["tags"], []), ("seed: -1", ["seed"], []), ("seed: 1.5", ["seed"], []), ("name: ''", ["name"], []),
    ("matrix: {seed: []}", ["seed"], []), ("faults: [{kind: drop, rank: 7, op: all_reduce, at_call: 0}]", ["rank"], []),
    ("faults: [{kind: dorp}]", ["drop"], []), ("expect: {verdict: maybe}", ["verdict"], [])]


def misleading(draw):
    line, words, never = draw.rng.choice(MISLEADING)
    command = draw.rng.choice(["lint", "run"])
    key = line.split(":")[0]
    text = PLAIN
    if key in {"name", "model.num_layers", "parallel.expert_parallel", "data.batch_size"}:
        group, _, rest = line.partition(".")
        if rest:
            text = text.replace(f"{group}: {{", f"{group}: {{{rest}, ")
        else:
            text = text.replace("name: t/plain", line)
    else:
        text += line + "\n"
    path = write(os.path.join(draw.folder, "s.yaml"), text)
    draw.said.append(line)
    expect(draw, {2}, *words)
    draw.never = never
    return ["lint", path] if command == "lint" else ["run", path, "--backend", "emulated", "--out", draw.out()]


STATED = {"empty value": empty_value, "empty place": empty_place, "option as value": option_as_value,
          "no number": no_number, "output is input": output_is_input, "output is other": output_is_other,
          "output is no file": output_is_no_file, "outputs collide": outputs_collide, "dash": dash,
          "output folder holds": output_folder_holds, "special input": special_input, "damaged cache": damaged_cache,
          "compared with itself": compared_with_itself,
          "standard output": standard_output, "limits": limits, "no token": no_token,
          "logprobs of nothing": logprobs_of_nothing, "run.json": run_json, "addend axis": addend_axis,
          "journal head": journal_head, "shard": shard, "launcher": launcher, "lint all": lint_all,
          "misleading": misleading}
