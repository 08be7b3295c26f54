#!/usr/bin/env python3
"""Lets `import torch` (so torchrun) work on a machine without CUDA's libraries.

PyTorch's wheel links cuBLAS, cuDNN, NCCL and more, 2.5 GB of wheels of which nothing is called without
a GPU. This makes a library with the same name and symbols for each one that the loader does not find;
a function of it that is called nevertheless says so and aborts.

  LD_LIBRARY_PATH=$(tests/support/cuda_stand_ins.py .venv) .venv/bin/python -c 'import torch'

Prints the folder, .venv/cuda_stand_ins; a second call only prints it.
"""

import re
import subprocess
import sys
import tempfile
from pathlib import Path

USERS = ("libtorch_python.so", "libtorch_cuda.so", "libtorch_nvshmem.so")
# Libraries whose symbols carry no version, by the first letters of their functions.
PREFIXES = {"nccl": "libnccl", "cuFile": "libcufile", "cusparseLt": "libcusparseLt",
            "curand": "libcurand", "nvshmem": "libnvshmem_host"}


def output(*command):
    return subprocess.run(command, check=True, text=True, capture_output=True).stdout


def missing_libraries(folder):
    """Names like libcublas.so.13 that some library of PyTorch needs and the loader does not find."""
    names = set()
    for user in USERS:
        names |= set(re.findall(r"(\S+) => not found", output("ldd", str(folder / user))))
    return sorted(names)


def version_owners(user):
    """{version: library}: which library a versioned symbol of `user` must come from."""
    owners, library = {}, None
    for line in output("readelf", "-V", "-W", str(user)).splitlines():
        if found := re.search(r"Version: \d+  File: (\S+)", line):
            library = found.group(1)
        elif found := re.search(r"Name: (\S+)  Flags", line):
            owners[found.group(1)] = library
    return owners


def symbols_of(folder):
    """{(library, version): names} of everything that PyTorch's libraries leave undefined."""
    symbols = {}
    for user in USERS:
        owners = version_owners(folder / user)
        listing = output("nm", "-D", "--undefined-only", "--with-symbol-versions", str(folder / user))
        for line in listing.splitlines():
            name, _, version = line.split()[-1].partition("@")
            library = owners.get(version.strip("@"))
            if not version:
                library = next((PREFIXES[p] for p in PREFIXES if name.startswith(p)), None)
            if library:
                symbols.setdefault((library, version.strip("@")), set()).add(name)
    return symbols


def write_library(path, versions):
    """`versions` is {version or "": names}. Compiles a library of functions that only abort."""
    names = sorted(set().union(*versions.values())) if versions else []
    code = "#include <stdio.h>\n#include <stdlib.h>\n"
    for name in names:
        code += (f'void {name}(void) {{ fputs("{name}: {path.name} stands in for CUDA\'s library, '
                 'which is not installed\\n", stderr); abort(); }\n')
    script = "".join(f"{version} {{ global: {'; '.join(sorted(names))}; }};\n"
                     for version, names in versions.items() if version)
    with tempfile.TemporaryDirectory() as folder:
        source, map_file = Path(folder) / "stand_in.c", Path(folder) / "versions.map"
        source.write_text(code)
        map_file.write_text(script)
        subprocess.run(["g++", "-x", "c", "-w", "-shared", "-fPIC", "-o", str(path), str(source),
                        f"-Wl,-soname,{path.name}"]
                       + ([f"-Wl,--version-script,{map_file}"] if script else []), check=True)


def main():
    venv = Path(sys.argv[1]).resolve()
    target = venv / "cuda_stand_ins"
    if not target.is_dir():
        folder = next(venv.glob("lib/python3*/site-packages/torch/lib"))
        symbols = symbols_of(folder)
        with tempfile.TemporaryDirectory(dir=venv) as partial:
            made = Path(partial) / "made"
            made.mkdir()
            for name in missing_libraries(folder):
                stem = name.partition(".")[0]
                write_library(made / name, {version: names for (library, version), names
                                            in symbols.items() if library in (name, stem)})
            try:
                made.rename(target)
            except OSError:  # another test has made it meanwhile
                if not target.is_dir():
                    raise
    print(target)


if __name__ == "__main__":
    main()
