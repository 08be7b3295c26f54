"""The c10d backend "shardproof": each collective is checked against what the other ranks call.

    import shardproof.backend
    torch.distributed.init_process_group("shardproof")
"""

import functools
import os
import sys
import sysconfig
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
import typing_extensions
from torch.distributed import distributed_c10d as c10d

from . import build, checker

FAULT_KINDS = ("drop", "double", "average", "stale", "corrupt", "skip", "wrong_group")
FAULT_KEYS = ("op", "group", "site", "call", "rank", "kind", "side", "to")
DEFAULT_TIMEOUT_S = 300.0
DEFAULT_NOTICE_S = 10.0


@functools.cache
def extension():
    """The extension's module, built at first use."""
    return build.extension()


def in_python():
    """Whether the calls are checked in Python alone: where the extension cannot be built, or SHARDPROOF_CHECKER asks."""
    wanted = os.environ.get("SHARDPROOF_CHECKER", "")
    if wanted not in ("", "extension", "python"):
        raise ValueError(f"SHARDPROOF_CHECKER is {wanted!r}; choose extension or python")
    if wanted == "extension":
        extension()
    return wanted == "python" or (not wanted and bool(why_not_built()))


@functools.cache
def why_not_built():
    """Why there is no extension, which is also printed; empty if there is one."""
    try:
        extension()
    except build.NoCompiler as error:
        print(f"shardproof: {error}; until then the calls are checked in Python, which is slower and plants no faults",
              file=sys.stderr)
        return str(error)
    return ""


def parse_fault(text):
    """One fault, such as "op=all_reduce,group=tp,call=3,rank=1,kind=drop", as a dictionary. The key rank is absent for
    all ranks."""
    fault = {"side": "input"}
    for item in text.split(","):
        key, equals, value = item.strip().partition("=")
        if not equals or key not in FAULT_KEYS:
            raise ValueError(f"SHARDPROOF_FAULT has {item!r} in {text!r}; write "
                             "op=NAME,group=NAME,site=FILE:LINE,call=N,rank=R,kind=KIND,"
                             "side=input|output,to=NAME")
        if key in ("call", "rank") and value != "all":
            if not value.isdecimal():
                raise ValueError(f"SHARDPROOF_FAULT has {key} {value!r} in {text!r}; give a number from 0, or all")
            value = int(value)
        fault[key] = value
    if fault.get("kind") not in FAULT_KINDS:
        raise ValueError(f"SHARDPROOF_FAULT has kind {fault.get('kind')!r} in {text!r}; "
                         f"choose one of {', '.join(FAULT_KINDS)}")
    if "rank" not in fault:
        raise ValueError(f"SHARDPROOF_FAULT names no rank in {text!r}; add rank=R or rank=all")
    if fault["side"] not in ("input", "output"):
        raise ValueError(f"SHARDPROOF_FAULT has side {fault['side']!r} in {text!r}; "
                         "choose input or output")
    if (fault["kind"] == "wrong_group") != ("to" in fault):
        raise ValueError(f"SHARDPROOF_FAULT has kind {fault['kind']} and to={fault.get('to')} in {text!r}; "
                         "give to=NAME with kind=wrong_group, and only with it")
    fault["output"] = fault.pop("side") == "output"
    fault["every"] = fault.get("call") == "all"
    for key in ("call", "rank"):
        if fault.get(key) == "all":
            del fault[key]
    return fault


def seconds_of(name, default):
    """The seconds that an environment variable gives."""
    text = os.environ.get(name, "")
    try:
        seconds = float(text or default)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e9:
        raise ValueError(f"{name} is {text!r}; give a number of seconds")
    return seconds


def timeout_s():
    """How long a rank waits for the others; 0 would fail every call."""
    seconds = seconds_of("SHARDPROOF_TIMEOUT", DEFAULT_TIMEOUT_S)
    if seconds == 0:
        raise ValueError("SHARDPROOF_TIMEOUT is 0; give a number of seconds above 0")
    return seconds


def inner_names():
    """{device type: inner backend} by SHARDPROOF_INNER, else Gloo and, with CUDA, NCCL."""
    devices = ["cpu"] + (["cuda"] if torch.cuda.is_available() else [])
    text = os.environ.get("SHARDPROOF_INNER", "")
    if not text:
        return {device: "nccl" if device == "cuda" and dist.is_nccl_available() else "gloo"
                for device in devices}
    if ":" in text:
        names = dict(item.partition(":")[::2] for item in text.split(","))
    else:
        names = {device: text for device in devices if text != "nccl" or device == "cuda"}
    if not names or not all(names) or not all(names.values()):
        raise ValueError(f"SHARDPROOF_INNER is {text!r} and this machine has {', '.join(devices)}; "
                         "give a backend, such as gloo, or one for each device, such as "
                         "cpu:gloo,cuda:nccl")
    return names


def make_inner(name, store, rank, size, timeout, group, ranks):
    """The backend `name` of a group, as torch.distributed makes it."""
    if name == "gloo":
        backend = dist.ProcessGroupGloo(store, rank, size, timeout=timeout)
        backend.options.group_name = group
        backend.options.global_ranks_in_group = ranks
        return backend
    if name == "nccl":
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = timeout
        options.group_name = group
        options.global_ranks_in_group = ranks
        return dist.ProcessGroupNCCL(store, rank, size, options)
    plugin = dist.Backend._plugins.get(name.upper())
    if plugin is None or name == "shardproof":
        raise ValueError(f"SHARDPROOF_INNER names the backend {name!r}; choose gloo, nccl or one "
                         "that is registered with torch.distributed")
    if not plugin.extended_api:
        return plugin.creator_fn(store, rank, size, timeout)
    options = c10d._DistributedBackendOptions()
    options.store, options.group_rank, options.group_size = store, rank, size
    options.timeout, options.group_id = timeout, group
    options.global_ranks_in_group = ranks
    return plugin.creator_fn(options, None)


def meet(store, rank, ranks, group, seconds, kind):
    """Waits until all members make the group, and names those that do not, or that check in another way."""
    keys = [f"shardproof/here/{i}" for i in range(len(ranks))]
    try:
        store.set(keys[rank], kind)
        store.wait(keys, timedelta(seconds=seconds))
    except dist.DistNetworkError as error:
        raise dist.DistBackendError(f"group {group} {ranks} was not made: rank {ranks[rank]} makes it, and "
                                    f"{checker.STORE_ENDED}") from error
    except Exception as error:
        missing = [str(ranks[i]) for i, key in enumerate(keys) if not store.check([key])]
        if not missing:
            raise
        who = f"rank {missing[0]}" if len(missing) == 1 else f"ranks {', '.join(missing)}"
        raise dist.DistBackendError(
            f"group {group} {ranks} was not made within {seconds:g} s: rank {ranks[rank]} makes "
            f"it, {who} did not; call init_process_group or new_group on every rank, in the same "
            "order") from error
    kinds = {ranks[i]: store.get(key).decode() for i, key in enumerate(keys)}
    if len(set(kinds.values())) > 1:
        extension_on = [member for member, one in kinds.items() if one == "extension"]
        raise dist.DistBackendError(
            f"group {group} {ranks} has the backend's extension on {extension_on} only; install g++ and the headers of "
            "Python on the other machines, or set SHARDPROOF_CHECKER=python on all")


def calls_folder():
    """The folder that SHARDPROOF_CALLS names, which is made; empty without one."""
    folder = os.environ.get("SHARDPROOF_CALLS", "")
    try:
        if folder:
            Path(folder).mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ValueError(f"SHARDPROOF_CALLS is {folder!r}, which cannot be a folder: {error.strerror}; name another one") from error
    return folder


def settings(module, rank, seconds):
    """What the environment asks for, for this rank."""
    own = module.Settings()
    own.rank = rank
    own.timeout_ms = int(seconds * 1000)
    own.notice_ms = int(seconds_of("SHARDPROOF_NOTICE", DEFAULT_NOTICE_S) * 1000)
    own.digests = os.environ.get("SHARDPROOF_DIGESTS", "0") not in ("", "0")
    own.checks = checker.compares_calls()
    own.calls_folder = calls_folder()
    own.faults = faults(module, rank)
    folders = (Path(torch.__file__).parent, Path(__file__).parents[1],
               sysconfig.get_paths()["stdlib"])
    # typing_extensions wraps the functions that torch has deprecated.
    own.skipped = [f"{folder}/" for folder in folders] + [typing_extensions.__file__]
    own.here = os.getcwd()
    return own


def fault_texts():
    return filter(None, os.environ.get("SHARDPROOF_FAULT", "").split(";"))


def faults(module, rank):
    """The faults that SHARDPROOF_FAULT plants in a rank, separated by semicolons."""
    out = []
    for text in fault_texts():
        values = parse_fault(text)
        if values.pop("rank", rank) != rank:
            continue
        fault = module.Fault()
        for key, value in values.items():
            setattr(fault, key, value)
        fault.text = text
        out.append(fault)
    return out


def check_ranks_of_faults(size):
    for text in fault_texts():
        rank = parse_fault(text).get("rank", 0)
        if not 0 <= rank < size:
            raise ValueError(f"SHARDPROOF_FAULT names rank {rank} in {text!r}, but the ranks are 0 to {size - 1}")


def process_rank(module, store, rank, seconds):
    """What this process keeps for all of its groups; made anew with the default group. Without `module`: in Python."""
    world = c10d._world.default_pg
    base = dist.PrefixStore("shardproof", c10d._world.pg_map[world][1] if world else store.underlying_store)
    if module is not None:
        return module.rank(settings(module, rank, seconds), base, world is None)
    if world is None or process_rank.own is None:
        notice = seconds_of("SHARDPROOF_NOTICE", DEFAULT_NOTICE_S)
        process_rank.own = checker.world(base, rank, seconds, notice, calls_folder())
    return process_rank.own


process_rank.own = None


def create(options, _):
    """Makes the backend of one group; torch.distributed calls it on each member."""
    ranks = list(options.global_ranks_in_group) or list(range(options.group_size))
    if c10d._world.default_pg is None:
        check_ranks_of_faults(len(ranks))
    return make(options.store, options.group_rank, ranks, options.group_id, options.timeout, inner_names())


def make(store, rank, ranks, group, timeout, inners):
    """The backend of a group. `inners`: {device type: name of the backend that makes its calls}."""
    module = None if in_python() else extension()
    seconds = min(timeout_s(), timeout.total_seconds())
    own = process_rank(module, store, ranks[rank], seconds)
    meet(store, rank, ranks, group, seconds, "extension" if module else "python")
    inner = {}
    for device, name in inners.items():
        inner[device] = make_inner(name, dist.PrefixStore(f"inner/{device}", store), rank,
                                   len(ranks), timeout, group, ranks)
    if module is None:
        return checker.make(own, store, ranks, rank, group, {device: (inners[device], backend)
                                                             for device, backend in inner.items()})
    side = dist.ProcessGroupGloo(dist.PrefixStore("side", store), rank, len(ranks),
                                 timeout=timedelta(seconds=seconds))
    return module.backend(own=own, inner=inner, side=side, ranks=ranks, name=group, rank=rank)


dist.Backend.register_backend("shardproof", create, extended_api=True, devices=["cpu", "cuda"])
