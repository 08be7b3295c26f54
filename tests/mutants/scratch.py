"""A copy of the sources with a build of its own, in which one bug at a time is planted.

  build/mutants/tree                  the copy; files keep their times unless their content changed
  build/mutants/tree/build/release    its build for a few rows: as ./shardproof builds, whose objects the
                                      compile cache has; a bug rebuilds the piece that its file is in
  build/mutants/build                 its build for many rows: src file by file, which costs minutes once,
                                      and seconds less for each row
  build/mutants/lock                  held by a pass and by every process that it starts
  <build>/clean.json                  digests of the sources without a bug and of what was made of them

A pass may be killed at any time, and its compilers go on and write objects with its bug. So the next pass waits for
the lock, which the last of them gives back, and an output that is not the one in clean.json is deleted before
anything is built, whatever its time says.
"""

import fcntl
import hashlib
import json
import os
import shutil
import subprocess
from pathlib import Path

from plant import Sources, plant

ROOT = Path(__file__).parents[2]
PLACE = ROOT / "build" / "mutants"
PARTS = ("CMakeLists.txt", "CMakePresets.json", "cmake", "src", "sim", "golden", "bench", "scenarios",
         "python/shardproof/__init__.py")  # the version
OF_TESTS = ("tests/unit", "tests/support", "tests/multirank", "tests/fuzz", "tests/cuda")
LEFT_OUT = {"golden/hf", "golden/witness"}  # data: linked, and read where it is
OUTPUTS = {".o", ".a", ".gch"}
FEW = 40  # rows
NAMED = 4  # of the sources that are restored


class BuildError(Exception):
    pass


class NotCompiled(BuildError):
    pass


class SameProgram(BuildError):
    pass


def digest_of(path):
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(1 << 20):
            digest.update(piece)
    return digest.hexdigest()


def _files_of(root, parts):
    for part in parts:
        if (root / part).is_file():
            yield part
        for folder, below, names in os.walk(root / part):
            below[:] = sorted(name for name in below if name != "__pycache__" and
                              str((Path(folder) / name).relative_to(root)) not in LEFT_OUT)
            for name in sorted(names):
                yield str((Path(folder) / name).relative_to(root))


def _torch(tree):
    """Where LibTorch is: as the build of ./shardproof found it; that of .venv as seen from the copy."""
    chosen = ROOT / "build" / "release" / ".torch"
    named = os.environ.get("SHARDPROOF_TORCH") or (chosen.read_text().strip() if chosen.is_file() else "")
    found = [Path(named)] if named else sorted(tree.glob(".venv/lib/python3*/site-packages/torch"))
    if not found:
        raise BuildError("no LibTorch; run ./shardproof build first")
    return found[0]


def compilers():
    """Compiler processes at a time: one per core, and 1.5 GB for each, as in ./shardproof."""
    chosen = os.environ.get("SHARDPROOF_JOBS")
    if chosen:
        return chosen
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return str(max(1, min(len(os.sched_getaffinity(0)), int(memory / 1.5e9))))


class Scratch:
    def __init__(self, rows, root=ROOT, place=PLACE, test="", folder=""):
        """`rows`: how many are to come. A build file by file that is there already is used for any. `test`: a
        program of unit tests, for which the tree has their sources too; `folder`: the only one that is changed."""
        self.root, self.place, self.tree = root, place, place / "tree"
        self._folder, self._parts = folder, PARTS + (OF_TESTS if test else ())
        self._file_by_file = rows > FEW or (place / "build" / "build.ninja").is_file()
        self.build = place / "build" if self._file_by_file else self.tree / "build" / "release"
        self.program, self.test = self.build / "shardproof-bin", self.build / test if test else None
        self.lock = None
        self._clean = {"sources": {}, "outputs": {}}
        self._planted, self._originals, self._digests = {}, {}, {}

    def begin(self):
        """Builds the program without a bug, from a tree and outputs that hold none. Yields what there is to tell."""
        yield from self._take_lock()
        self._clean = self._recorded()
        yield from self._left_behind()
        self._copy_sources()
        self._drop_foreign_outputs()
        if self._folder or not (self.build / "build.ninja").is_file():
            self._configure()
        self._build(*(path.name for path in (self.program, self.test) if path))
        sources = self._tree_digests()
        if sources != {name: digest_of(self.root / name) for name in _files_of(self.root, self._parts)}:
            raise BuildError("the sources changed while they were compiled; run it again")
        self._clean = {"sources": sources, "outputs": self._output_digests()}
        (self.build / "clean.json.part").write_text(json.dumps(self._clean, indent=1))
        os.replace(self.build / "clean.json.part", self.build / "clean.json")
        self._sources = Sources.below(self.tree)

    def plant(self, row):
        """Writes the row's bug into the tree; sentences about what was found elsewhere than the row says."""
        texts, moved = plant(self._sources, row)
        self.write(texts)
        return moved

    def write(self, texts):
        """Puts {file: changed text} into the tree."""
        self._planted = {name: text.encode() for name, text in texts.items()}
        self._originals = {name: (self.tree / name).read_bytes() for name in texts}
        for name, text in self._planted.items():
            (self.tree / name).write_bytes(text)

    def compile(self, program=None):
        """The digest of the program (default: shardproof-bin), which is made of the tree with what was planted and of
        nothing else."""
        program = program or self.program
        self._drop_foreign_outputs()
        self._build(program.name)
        planted = {name: hashlib.sha256(text).hexdigest() for name, text in self._planted.items()}
        if self._tree_digests() != self._clean["sources"] | planted:
            raise BuildError("the tree changed while it was compiled; is something else at work in it?")
        digest = digest_of(program)
        if digest == self._clean["outputs"].get(self._name(program)):
            raise SameProgram("the program is the same as without the bug")
        return digest

    def restore(self):
        for name, text in self._originals.items():
            (self.tree / name).write_bytes(text)
        self._planted, self._originals = {}, {}

    def close(self):
        """Leaves nothing of a bug behind."""
        self.restore()
        self._drop_foreign_outputs()
        self.lock.close()

    def _take_lock(self):
        self.place.mkdir(parents=True, exist_ok=True)
        self.lock = open(self.place / "lock", "w", encoding="utf-8")
        try:
            fcntl.flock(self.lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield (f"waiting: another pass works in {self.place}, or processes of one that was killed; "
                   f"`fuser {self.place / 'lock'}` names them")
            fcntl.flock(self.lock, fcntl.LOCK_EX)

    def _recorded(self):
        try:
            return json.loads((self.build / "clean.json").read_text())
        except (OSError, ValueError):  # nothing is known of what is there: all of it is made anew
            return {"sources": {}, "outputs": {}}

    def _left_behind(self):
        """What a pass that was stopped left in the tree and in the build."""
        known = self._clean["sources"]
        sources = [name for name, digest in self._tree_digests().items() if known and known.get(name) != digest]
        outputs = self._foreign_outputs() if known else []
        if sources or outputs:
            yield (f"a pass before was stopped in the middle: {len(outputs)} outputs are made anew"
                   + "".join(f", {name} is restored" for name in sources[:NAMED])
                   + (f", and {len(sources) - NAMED} more sources" if len(sources) > NAMED else ""))

    def _copy_sources(self):
        """Makes the copy equal to the sources. What clean.json does not know is newer than any output."""
        wanted = set(_files_of(self.root, self._parts))
        self.tree.mkdir(parents=True, exist_ok=True)
        for name in set(_files_of(self.tree, self._parts)) - wanted:
            (self.tree / name).unlink()
        for name in sorted(wanted):
            here, there = self.root / name, self.tree / name
            if not there.is_file() or there.read_bytes() != here.read_bytes():
                there.parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(here, there)
            elif self._clean["sources"].get(name) != digest_of(there):
                os.utime(there)
        for name in sorted(LEFT_OUT) + [".venv"]:  # scenarios name cases of golden/hf
            there = self.tree / name
            if not there.is_symlink():
                shutil.rmtree(there, ignore_errors=True)
                there.parent.mkdir(parents=True, exist_ok=True)
                there.symlink_to(self.root / name)

    def _tree_digests(self):
        return {name: digest_of(self.tree / name) for name in _files_of(self.tree, self._parts)}

    def _name(self, path):
        return path.relative_to(self.build).as_posix()

    def _output_digests(self):
        """Of each file that was made of the sources; one is read again only when its time or size changed."""
        found = {}
        for path in self.build.rglob("*"):
            if (path.suffix in OUTPUTS or path in (self.program, self.test)) and path.is_file():
                stat = path.stat()
                key = path, stat.st_mtime_ns, stat.st_size, stat.st_ino
                if key not in self._digests:
                    self._digests[key] = digest_of(path)
                found[self._name(path)] = self._digests[key]
        return found

    def _foreign_outputs(self):
        known = self._clean["outputs"]
        return [name for name, digest in self._output_digests().items() if known.get(name) != digest]

    def _drop_foreign_outputs(self):
        for name in self._foreign_outputs():
            (self.build / name).unlink()

    def _build(self, *programs):
        self._run(["ninja", "-C", str(self.build), "-j", compilers(), *programs])

    def _configure(self):
        launcher = shutil.which("ccache")
        options = [*([f"-DCMAKE_CXX_COMPILER_LAUNCHER={launcher}"] if launcher else []),
                   f"-DSHARDPROOF_TORCH={_torch(self.tree)}", f"-DSHARDPROOF_TESTS={'ON' if self.test else 'OFF'}",
                   "-DSHARDPROOF_NCCL=OFF", "-DSHARDPROOF_CUDA_KERNELS=OFF"]
        if self._file_by_file:  # what a bug leaves unused is not an error of the row
            self._run(["cmake", "-S", str(self.tree), "-B", str(self.build), "-G", "Ninja",
                       "-DCMAKE_BUILD_TYPE=None", "-DCMAKE_CXX_FLAGS=-O1 -fpch-preprocess",
                       "-DCMAKE_UNITY_BUILD=ON", "-DSHARDPROOF_FILE_BY_FILE=^src/",
                       "-DSHARDPROOF_WERROR=OFF", *options])
        else:  # the command lines of ./shardproof, as seen from the build folder
            self._run(["cmake", "--preset", "release", "-DCMAKE_CXX_COMPILER=g++",
                       "-DSHARDPROOF_WERROR_UNDONE=ON",
                       f"-DSHARDPROOF_FILE_BY_FILE={f'^{self._folder}$' if self._folder else ''}", *options])

    def _run(self, command):
        environment = dict(os.environ, CCACHE_SLOPPINESS="pch_defines,time_macros",
                           CCACHE_BASEDIR=str(ROOT), CCACHE_IGNOREOPTIONS="-Wno-error")
        done = subprocess.run(command, cwd=self.tree, env=environment, stdout=subprocess.PIPE,
                              stderr=subprocess.STDOUT, text=True, errors="replace",
                              pass_fds=(self.lock.fileno(),))
        if done.returncode != 0:
            errors = [line for line in done.stdout.splitlines() if "error" in line]
            raise NotCompiled("\n".join(errors[:4] or done.stdout.splitlines()[-4:]))
