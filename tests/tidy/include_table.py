"""Which folder may include which: the include rules as data.

A row lists the folders of ours and the outside libraries whose headers a folder may name in an
#include of its own. Every folder may include itself and the standard library (POSIX included).
"""

ANY = "*"

# Outside libraries, by the first part of the header's path.
LIBRARIES = {
    "torch": ("ATen/", "c10/", "torch/"),
    "fmt": ("fmt/",),
    "json": ("nlohmann/",),
    "yaml": ("yaml-cpp/",),
    "cli": ("CLI/",),
    "asio": ("boost/",),
    "gloo": ("gloo/",),
    "cuda": ("cuda", "nccl"),
}

_BASE = ["src/base", "fmt"]
_TENSOR = _BASE + ["src/mesh", "src/tensor", "torch", "json"]
_COMM = _TENSOR + ["src/comm"]
_MODEL = _BASE + ["src/mesh/layout.h", "src/tensor", "src/observe", "src/random", "torch", "json"]
_ALL_SRC = ["src/" + name for name in (
    "base mesh tensor observe comm collective model parallel sequence logprob random optim train "
    "policy").split()] + ["fmt", "torch", "json"]
_PARALLEL = _COMM + ["src/observe", "src/random", "src/collective", "src/model", "src/sequence"]


def _sim(names):
    return ["sim/" + name for name in names.split()]


FOLDERS = {
    # The sharded stack knows nothing of sim and golden.
    "src/base": ["fmt"],
    "src/mesh": _BASE,
    "src/tensor": _TENSOR,
    "src/observe": _TENSOR,
    "src/comm": _COMM + ["gloo", "cuda"],
    "src/collective": _COMM,
    "src/random": _BASE + ["src/tensor", "src/observe", "torch"],  # never comm
    "src/model": _MODEL,  # one device: never the rest of mesh, comm, parallel
    "src/sequence": _COMM + ["src/collective"],
    "src/optim": _BASE + ["src/tensor", "torch"],
    "src/parallel/tp": _PARALLEL,
    "src/parallel/sp": _PARALLEL,
    "src/parallel/dp": _PARALLEL,
    "src/parallel/cp": _PARALLEL,
    "src/parallel/ulysses": _PARALLEL,
    "src/parallel/hf": _PARALLEL,
    "src/parallel/fsdp": _PARALLEL,
    "src/logprob": _COMM + ["src/observe", "src/collective", "src/sequence"],
    "src/train": _ALL_SRC,
    "src/policy": _ALL_SRC,
    # The golden never includes what it judges.
    "golden": _MODEL + ["src/mesh", "src/model"] + _sim("scenario inputs record"),
    # The harness. Nothing that judges communicates.
    "sim/scenario": _BASE + ["src/mesh", "yaml", "json"],
    # What a case starts from, for the golden and the ranks.
    "sim/inputs": _MODEL + ["src/model"] + _sim("scenario"),
    "sim/match": [],
    "sim/record": _TENSOR + ["src/observe"],
    "sim/net": _COMM + _sim("scenario record match"),
    "sim/trace": _COMM + _sim("scenario record match"),
    "sim/compare": _TENSOR + ["src/observe"] + _sim("scenario record"),
    "sim/rank": _ALL_SRC + _sim("scenario inputs net trace match record compare"),
    "sim/report": _BASE + ["src/mesh", "src/observe", "src/tensor", "torch", "json"]
                  + _sim("scenario record compare"),
    "sim/launch": _BASE + ["src/mesh", "asio", "json", "torch"]  # torch: versions in a golden's key
                  + _sim("scenario match record compare report"),
    # Registered workloads: a sharded function beside its plain twin.
    "sim/workload": _ALL_SRC + _sim("scenario net trace record compare rank"),
    # The commands. With sim/program, which alone knows the golden too, they are the program.
    "sim/cli": _ALL_SRC + ["cli", "asio"]
               + _sim("scenario inputs match record compare report launch rank"),
    "sim/program": [ANY],  # the only place that knows rank, golden and launch together
    "sim/main.cpp": ["sim/program", "sim/workload"],
    "examples": [ANY],
    "tests": [ANY],
    "bench": [ANY],
    "cmake": [ANY],
}

# Headers of ours are parsed again and again: of LibTorch they name only these (seconds each if more).
LIGHT_TORCH_HEADERS = {"ATen/core/Tensor.h", "c10/core/ScalarType.h", "c10/core/Event.h",
                       "torch/headeronly/version.h"}

# torch/torch.h costs 14 s a file. Nobody includes it.
BANNED_HEADERS = {"torch/torch.h": "name the one header that you need"}

BANNED_FILE_WORDS = {"utils", "util", "helpers", "helper", "common", "misc", "manager"}

MAX_COLUMNS = 100
MAX_LINES = 400
# File, and why it may be longer.
LONGER_FILES = {}
