"""The checks of the backend in Python alone, for machines that cannot build its extension.

A ProcessGroup whose calls go to an inner one (Gloo, NCCL) once all members have written the same call to the store. Each
call is checked and made on a thread of its group, each message on a thread of its channel, so that it blocks nobody.
"""

import contextlib
import json
import os
import queue
import sys
import threading
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch.distributed import distributed_c10d as c10d

from .call import Call, by_key, call_site, list_text, message_key, names, note_strides, reduce_text, tensors_text

SAME_CALLS = "make every member enter the same calls in the same order"
STORE_ENDED = ("a connection was closed, that of the store, which rank 0 or its launcher keeps; read the error of the rank "
               "that ended first")
ODD_STRIDES = (", of which Gloo takes the elements as they lie in memory: the result would be wrong; make the call on "
               "tensor.contiguous() and copy the result back")
EVEN_WITHOUT_A_STORE = contextlib.suppress(dist.DistNetworkError)  # of what the others are told beside
POLL_SECONDS = (0.0002, 0.005)    # from the first look into the store to later ones
FINDING_SECONDS = 2.0             # after which a rank that waits believes another one's finding


class Lane:
    """Jobs that run one after the other, in the order in which they were given."""

    def __init__(self):
        self._jobs: queue.SimpleQueue = queue.SimpleQueue()
        self._thread = None

    def push(self, job) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, daemon=True)
            self._thread.start()
        self._jobs.put(job)

    def _run(self) -> None:
        while True:
            self._jobs.get()()


class LaterWork(dist.Work):
    """A call that is made on another thread."""

    def __init__(self, result):
        super().__init__()
        self._result = result
        self._future = torch.futures.Future()
        self._ended = threading.Event()
        self._error = None
        self._source = -1

    def make(self, action) -> None:
        try:
            inner = action()
            if inner is not None:
                inner.wait()
                self._source = source_of(inner)
        except BaseException as error:
            self._error = error
            self._future.set_exception(error)
        else:
            self._future.set_result(self._result)
        self._ended.set()

    def wait(self, timeout=None) -> bool:
        seconds = timeout.total_seconds() if timeout is not None else 0
        if not self._ended.wait(seconds if seconds > 0 else None):
            raise dist.DistBackendError(f"the call did not end within {seconds:g} s")
        if self._error is not None:
            raise self._error
        return True

    def is_completed(self) -> bool:
        return self._ended.is_set()

    def get_future(self):
        return self._future

    def result(self):
        return self._result

    def _source_rank(self) -> int:
        return self._source


def source_of(work) -> int:
    try:
        return work._source_rank()
    except RuntimeError:
        return -1


def compares_calls() -> bool:
    """SHARDPROOF_CHECKS."""
    text = os.environ.get("SHARDPROOF_CHECKS") or "1"
    if text not in ("0", "1"):
        raise ValueError(f"SHARDPROOF_CHECKS is {text!r}; give 0, to compare nothing, or 1")
    return text == "1"


class World:
    """What this process keeps for all of its groups."""

    def __init__(self, store, rank: int, timeout: float, notice: float, calls_folder: str):
        self.store, self.rank, self.timeout, self.notice = store, rank, timeout, notice
        self.checks = compares_calls()
        self._log = open(Path(calls_folder) / f"rank{rank}.calls", "w", buffering=1) if calls_folder else None
        self._lock = threading.Lock()

    def enter(self, group: str, call: Call) -> None:
        """The others are told this rank's last call."""
        with self._lock:
            with EVEN_WITHOUT_A_STORE:
                self.store.set(f"last/{self.rank}", f"call {call.sequence} of group {group}: {call.text()}")
            if self._log:
                shapes, _, dtype = call.tensors.rpartition(" ")
                self._log.write("\t".join([str(call.sequence), group, call.op_text(), dtype or "-", shapes or "-",
                                           call.site or "C++"]) + "\n")

    def last_call(self, rank: int) -> str:
        key = f"last/{rank}"
        return self.store.get(key).decode() if self.store.check([key]) else "not told yet"

    def finding(self) -> str:
        return self.store.get("finding").decode() if self.store.check(["finding"]) else ""

    def publish(self, finding: str) -> None:
        with EVEN_WITHOUT_A_STORE:
            if not self.finding():
                self.store.set("finding", finding)


class CheckedGroup(dist.ProcessGroup):
    """A process group that compares each call with those of the other members before it makes it."""

    def __init__(self, world: World, store, inner: dict, ranks: list[int], rank: int, name: str):
        super().__init__(rank, len(ranks))
        self._world, self._store, self._ranks, self._rank = world, store, ranks, rank
        self._id, self._desc = name, ""
        self._inner = dist.ProcessGroup(dist.PrefixStore("calls", store), rank, len(ranks))
        for device, (kind, backend) in inner.items():
            for group in (self, self._inner):
                group._register_backend(torch.device(device), kind, backend)
        self._gloo = {device for device, (kind, _) in inner.items() if kind == dist.ProcessGroup.BackendType.GLOO}
        self._next = 0
        self._counts: dict = {}
        self._lane = Lane()
        self._channels: dict = {}
        self._broken = ""

    # What torch asks of a group.

    def getBackendName(self):  # noqa: N802
        return "shardproof"

    def _set_group_desc(self, desc):
        self._desc = desc
        super()._set_group_desc(desc)

    def shutdown(self):
        pass

    # Collectives.

    def broadcast(self, tensors, opts):
        return self._collective("broadcast", tensors, tensors, opts, f" from rank {self._ranks[opts.rootRank]}")

    def allreduce(self, tensors, opts=c10d.AllreduceOptions()):
        return self._collective("all_reduce", tensors, tensors, opts, method="allreduce")

    def allreduce_coalesced(self, tensors, opts=c10d.AllreduceCoalescedOptions()):
        return self._collective("all_reduce_coalesced", tensors, tensors, opts, method="allreduce_coalesced")

    def reduce(self, tensors, opts):
        return self._collective("reduce", tensors, tensors, opts, f" to rank {self._ranks[opts.rootRank]}")

    def allgather(self, outputs, inputs, opts=c10d.AllgatherOptions()):
        parts = [part for one in outputs for part in one]
        call = self._call("all_gather", inputs, opts)
        if all(part.shape == parts[0].shape for part in parts):
            name_odd_result(call, inputs, parts[:1], 1)
        else:
            call.key = tensors_text(parts)
        return self._make(call, outputs[0], lambda: self._inner.allgather(outputs, inputs, opts))

    def allgather_coalesced(self, outputs, inputs, opts=c10d.AllgatherOptions()):
        return self._make(self._call("all_gather_coalesced", inputs, opts), inputs,
                          lambda: self._inner.allgather_coalesced(outputs, inputs, opts))

    def _allgather_base(self, output, input, opts=c10d.AllgatherOptions()):
        call = self._call("all_gather_into_tensor", [input], opts)
        name_odd_result(call, [input], [output], self.size())
        return self._make(call, [output], lambda: self._inner._allgather_base(output, input, opts))

    def allgather_into_tensor_coalesced(self, outputs, inputs, opts=c10d.AllgatherOptions()):
        return self._make(self._call("all_gather_into_tensor_coalesced", inputs, opts), outputs,
                          lambda: self._inner.allgather_into_tensor_coalesced(outputs, inputs, opts))

    def gather(self, outputs, inputs, opts):
        call = self._call("gather", inputs, opts)
        call.direction = f" to rank {self._ranks[opts.rootRank]}"
        return self._make(call, inputs, lambda: self._inner.gather(outputs, inputs, opts))

    def scatter(self, outputs, inputs, opts):
        call = self._call("scatter", outputs, opts)
        call.direction = f" from rank {self._ranks[opts.rootRank]}"
        self._note_strides(call, [part for one in inputs for part in one], outputs)
        return self._make(call, outputs, lambda: self._inner.scatter(outputs, inputs, opts))

    def reduce_scatter(self, outputs, inputs, opts=c10d.ReduceScatterOptions()):
        sent = [part for one in inputs for part in one]
        call = self._call("reduce_scatter", sent, opts)
        self._note_strides(call, sent, outputs)
        return self._make(call, outputs, lambda: self._inner.reduce_scatter(outputs, inputs, opts))

    def _reduce_scatter_base(self, output, input, opts=c10d.ReduceScatterOptions()):
        call = self._call("reduce_scatter_tensor", [input], opts)
        name_odd_result(call, [input], [output], 1, self.size())
        return self._make(call, [output], lambda: self._inner._reduce_scatter_base(output, input, opts))

    def reduce_scatter_tensor_coalesced(self, outputs, inputs, opts=c10d.ReduceScatterOptions()):
        return self._make(self._call("reduce_scatter_tensor_coalesced", inputs, opts), outputs,
                          lambda: self._inner.reduce_scatter_tensor_coalesced(outputs, inputs, opts))

    def alltoall_base(self, output, input, output_splits, input_splits, opts=c10d.AllToAllOptions()):
        call = self._call("all_to_all_single", [input], opts)
        call.key = tensors_text([input]).rsplit(" ", 1)[-1] + list_text(input.shape[1:])
        call.sends, call.expects = self._splits(input, input_splits), self._splits(output, output_splits)
        self._note_strides(call, [input], [output])
        return self._make(call, [output], lambda: self._inner.alltoall_base(
            output, input, list(output_splits), list(input_splits), opts))

    def alltoall(self, outputs, inputs, opts=None):
        """Gloo has none: its parts go through one all_to_all_single."""
        call = self._call("all_to_all", inputs, opts)
        call.key = str(inputs[0].dtype) if inputs else ""
        call.sends, call.expects = ([part.numel() for part in parts] for parts in (inputs, outputs))

        def make():
            whole = torch.empty(sum(call.expects), dtype=inputs[0].dtype, device=inputs[0].device)
            self._inner.alltoall_base(whole, torch.cat([part.reshape(-1) for part in inputs]), call.expects, call.sends,
                                      c10d.AllToAllOptions()).wait()
            for part, values in zip(outputs, whole.split(call.expects)):
                part.copy_(values.view_as(part))
        return self._make(call, outputs, make)

    def barrier(self, opts=c10d.BarrierOptions()):
        return self._make(self._call("barrier", [], opts), [], lambda: self._inner.barrier(opts))

    # Messages.

    def send(self, tensors, to, tag):
        return self._message("send", f" to rank {self._ranks[to]}", tensors, to, tag,
                             lambda: self._inner.send(tensors, to, tag))

    def recv(self, tensors, source, tag):
        return self._message("recv", f" from rank {self._ranks[source]}", tensors, source, tag,
                             lambda: self._inner.recv(tensors, source, tag))

    def recv_anysource(self, tensors, tag):
        """The first sender that has written its record is taken."""
        call = Call("recv", tensors_text(tensors), direction=" from any rank" + (f" (tag {tag})" if tag else ""))
        call.key = message_key(tensors)
        call.site, call.sequence = call_site(), self._counts.get(("any", tag), 0)
        self._counts["any", tag] = call.sequence + 1
        self._world.enter(self._text(), call)
        work = LaterWork(list(tensors))

        def receive():
            if not self._world.checks:
                return self._inner.recv_anysource(tensors, tag)
            source = self._await_sender(call, tag)
            return self._inner.recv(tensors, source, tag)
        self._channels.setdefault(("any", tag), Lane()).push(
            lambda: work.make(checked(tensors, self._raise_if_broken, receive)))
        return work

    def _await_sender(self, call: Call, tag: int) -> int:
        others = [i for i in range(self.size()) if i != self._rank]

        def look():
            for source in others:
                count = self._counts.get(("recv", source, self._rank, tag), 0)
                if self._store.check([f"message/{source}/{self._rank}/{tag}/{count}/send"]):
                    return source, count
            return None
        source, count = self._await(call, look, lambda: others)
        self._counts["recv", source, self._rank, tag] = count + 1
        self._agree_on_message(call, f"message/{source}/{self._rank}/{tag}/{count}", (source, self._rank), source)
        return source

    # How a call is made.

    def _call(self, op, sent, opts) -> Call:
        call = Call(op, tensors_text(sent))
        if hasattr(opts, "reduceOp"):
            call.reduce_op = reduce_text(opts.reduceOp)
        return call

    def _collective(self, op, sent, received, opts, direction="", method=""):
        call = self._call(op, sent, opts)
        call.direction = direction
        self._note_strides(call, sent, received)
        return self._make(call, received, lambda: getattr(self._inner, method or op)(sent, opts))

    def _note_strides(self, call: Call, sent, received) -> None:
        if received[0].device.type in self._gloo:
            note_strides(call, sent, received)

    def _splits(self, tensor, splits) -> list[int]:
        if splits:
            return list(splits)
        return [(tensor.shape[0] if tensor.ndim else 0) // self.size()] * self.size()

    def _make(self, call: Call, result, action):
        call.site, call.sequence = call_site(), self._next
        self._next += 1
        self._world.enter(self._text(), call)
        work = LaterWork(list(result))
        self._lane.push(lambda: work.make(checked(result, lambda: self._agree(call), action)))
        return work

    def _message(self, op, direction, tensors, peer, tag, action):
        call = Call(op, tensors_text(tensors), direction=direction + (f" (tag {tag})" if tag else ""))
        call.key = message_key(tensors)
        ends = (self._rank, peer) if op == "send" else (peer, self._rank)
        channel = (op, *ends, tag)
        call.site, call.sequence = call_site(), self._counts.get(channel, 0)
        self._counts[channel] = call.sequence + 1
        self._world.enter(self._text(), call)
        work = LaterWork(list(tensors))
        lane = self._channels.setdefault(channel, Lane())
        prefix = f"message/{ends[0]}/{ends[1]}/{tag}/{call.sequence}"
        lane.push(lambda: work.make(checked(tensors, lambda: self._agree_on_message(call, prefix, ends, peer), action)))
        return work

    # Agreement.

    def _agree(self, call: Call) -> None:
        if self.size() == 1 or not self._world.checks:
            return
        self._raise_if_broken()
        prefix = f"call/{call.sequence}"
        if call.odd_strides:
            self._fail(f"call {call.sequence} of group {self._text()}: rank {self._world.rank} calls {call.text()} on "
                       f"{call.odd_strides}{ODD_STRIDES}")
        records = self._exchange(call, {i: f"{prefix}/{i}" for i in range(self.size())}, self._rank)
        if call.sequence > 0:  # all members have read it
            with EVEN_WITHOUT_A_STORE:
                self._store.delete_key(f"call/{call.sequence - 1}/{self._rank}")
        where = f"call {call.sequence} of group {self._text()} differs: "
        if len({record["key"] for record in records}) > 1:
            self._fail(where + by_key(records, " call") + f"; {SAME_CALLS}")
        for source, sender in enumerate(records):
            for to, receiver in enumerate(records if sender["sends"] else []):
                sends, expects = sender["sends"][to], receiver["expects"][source]
                if sends != expects:
                    unit = "elements" if call.op == "all_to_all" else "rows"
                    first, second = f"rank {self._ranks[source]}", f"rank {self._ranks[to]}"
                    self._fail(f"{where}{first} sends {sends} {unit} to {second}, which expects {expects}; {first} "
                               f"calls {sender['text']}, {second} calls {receiver['text']}; make the input splits of "
                               "each rank the output splits of the others")

    def _agree_on_message(self, call: Call, prefix: str, ends, peer: int) -> None:
        if not self._world.checks:
            return
        self._raise_if_broken()
        keys = {self._rank: f"{prefix}/{call.op}", peer: f"{prefix}/{'recv' if call.op == 'send' else 'send'}"}
        mine, theirs = (self._exchange(call, keys, self._rank)[i] for i in (0, 1))
        if mine["key"].split("|")[1] == theirs["key"].split("|")[1]:
            return
        source, to = (self._ranks[end] for end in ends)
        self._fail(f"message {call.sequence} from rank {source} to rank {to} of group {self._text()} differs: "
                   + by_key([mine, theirs], " call") + "; make the receiver expect what is sent")

    def _exchange(self, call: Call, keys: dict[int, str], own: int) -> list[dict]:
        """Writes this rank's record, and reads those of the others as they come."""
        found: dict[int, dict] = {}

        def look():
            if own not in found:
                found[own] = call.record(self._ranks[own])
                self._store.set(keys[own], json.dumps(found[own]))
            for member, key in keys.items():
                if member not in found and self._store.check([key]):
                    found[member] = json.loads(self._store.get(key))
            return [found[member] for member in keys] if len(found) == len(keys) else None
        try:
            return self._await(call, look, lambda: [member for member in keys if member not in found])
        except dist.DistBackendError:
            with EVEN_WITHOUT_A_STORE:
                self._store.delete_key(keys[own])  # one that comes later would go on alone
            raise

    def _await(self, call: Call, look, absent):
        """What look() finds. Until then it says for whom it waits, and after the time-out it raises."""
        where = f"rank {self._world.rank} waits in call {call.sequence} of group {self._text()}: {call.text()}"
        try:
            return self._found(where, look, absent)
        except dist.DistNetworkError:
            missing = [self._ranks[member] for member in absent()]
            self._fail(f"{where}; {names(missing)} did not come and {STORE_ENDED}, and {SAME_CALLS}")

    def _found(self, where: str, look, absent):
        world, start, told, pause = self._world, time.monotonic(), False, POLL_SECONDS[0]
        while (result := look()) is None:
            waited = time.monotonic() - start
            missing = [self._ranks[member] for member in absent()]
            if waited > min(FINDING_SECONDS, world.timeout / 2) and (cause := world.finding()):
                self._fail(f"{where}; {cause}")
            if world.notice and waited > world.notice and not told:
                told = True
                print(f"shardproof: {where}; {names(missing)} did not come within {world.notice:g} s"
                      f"{self._last_calls(missing)}; the wait ends with an error after {world.timeout:g} s",
                      file=sys.stderr)
            if waited > world.timeout:
                self._fail(f"{where}; {names(missing)} did not come within {world.timeout:g} s"
                           f"{self._last_calls(missing)}; {SAME_CALLS}, or set SHARDPROOF_TIMEOUT above "
                           f"{world.timeout:g} s if the {'rank is' if len(missing) == 1 else 'ranks are'} only slow")
            time.sleep(pause)
            pause = min(2 * pause, POLL_SECONDS[1])
        return result

    def _last_calls(self, ranks: list[int]) -> str:
        return "".join(f"; rank {rank}'s last call was {self._world.last_call(rank)}" for rank in ranks)

    def _fail(self, message: str):
        """The group's calls are out of step from here on: each later one raises the same error."""
        self._world.publish(message)
        self._broken = self._broken or message
        raise dist.DistBackendError(message)

    def _raise_if_broken(self) -> None:
        if self._broken:
            raise dist.DistBackendError(self._broken)

    def _text(self) -> str:
        desc = self._desc
        name = "world" if desc == "default_pg" else desc.removeprefix("mesh_") if desc not in ("", "undefined") else self._id
        if len(self._ranks) <= 16:
            return f"{name} {list_text(self._ranks)}"
        return f"{name} [{self._ranks[0]}, {self._ranks[1]} .. {self._ranks[-1]}]"


def name_odd_result(call: Call, sent, result, many: int, of: int = 1) -> None:
    """A result that does not fit what is sent is part of the call: "[2] into [5] float32"."""
    fits = len(sent) == len(result) == 1 and of * result[0].numel() == many * sent[0].numel() \
        and result[0].dtype == sent[0].dtype
    if not fits:
        call.tensors += " into " + tensors_text(result)


def checked(tensors, agree, action):
    """The call as a job: agreement first, then the call itself, in the mode that its tensors need."""
    def job():
        agree()
        with torch.no_grad(), torch.inference_mode(any(one.is_inference() for one in tensors)):
            return action()
    return job


def make(own: World, store, ranks, rank: int, name: str, inner: dict) -> CheckedGroup:
    """The group, around backends by device type."""
    kinds = {"gloo": dist.ProcessGroup.BackendType.GLOO, "nccl": dist.ProcessGroup.BackendType.NCCL}
    return CheckedGroup(own, dist.PrefixStore("python", store), {
        device: (kinds.get(kind, dist.ProcessGroup.BackendType.CUSTOM), backend)
        for device, (kind, backend) in inner.items()}, ranks, rank, name)


def world(store, rank: int, timeout: float, notice: float, calls_folder: str) -> World:
    for name in ("SHARDPROOF_FAULT", "SHARDPROOF_DIGESTS"):
        if os.environ.get(name, "0") not in ("", "0"):
            raise ValueError(f"{name} needs the backend's extension, which cannot be built here; install g++ and the "
                             "headers of Python, or unset it")
    return World(store, rank, timeout, notice, calls_folder)
