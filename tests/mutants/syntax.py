"""Whether the files that rows change still compile. Nothing is made: the compiler only reads them, from a folder that it
searches before the sources."""

import concurrent.futures
import json
import re
import shlex
import subprocess
import tempfile
from pathlib import Path

from plant import plant

SOURCES = ("src", "sim", "golden", "bench")


class NoBuild(Exception):
    pass


class Commands:
    """The compiler's words for a file, of the build of ./shardproof."""

    def __init__(self, root, build):
        listed = build / "compile_commands.json"
        if not listed.is_file():
            raise NoBuild(f"{listed} is not there; run ./shardproof build first")
        self.build, self.of_file, self.of_folder = build, {}, {}
        for entry in json.loads(listed.read_text()):
            file = Path(entry["file"])
            words = shlex.split(entry["command"].split(" -o ")[0])
            for source in self._sources(file, build):
                if source.is_relative_to(root) and not source.is_relative_to(build):
                    source = source.relative_to(root)
                    self.of_file[str(source)] = words
                    self.of_folder.setdefault(source.parent, words)

    def _sources(self, file, build):
        """What one command compiles: a file, or the sources that a unity file includes."""
        if not (file.is_relative_to(build) and "Unity" in file.parts):
            return [file]
        return map(Path, re.findall(r'^#include "(.+)"$', file.read_text(), re.M))

    def words(self, file):
        """Of the file itself, or of a source in the nearest folder above it."""
        if file in self.of_file:
            return self.of_file[file]
        for folder in Path(file).parents:
            if folder in self.of_folder:
                return self.of_folder[folder]
        raise NoBuild(f"{file} is in no library of {self.build}")


def errors_of(row, texts, commands):
    """What the compiler says of the changed files of one row."""
    errors = []
    with tempfile.TemporaryDirectory() as folder:
        for file, text in texts.items():
            place = Path(folder) / file
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_text(text)
        for file in map(str, texts):
            if not file.endswith((".cpp", ".h")) or not file.startswith(SOURCES):
                continue
            first, *rest = commands.words(file)
            words = [first, f"-I{folder}", f"-I{folder}/src", *rest, "-fsyntax-only", "-Wno-error",
                     "-Wno-pragma-once-outside-header", "-x", "c++", str(Path(folder) / file)]
            done = subprocess.run(words, cwd=commands.build, text=True, stdout=subprocess.PIPE,
                                  stderr=subprocess.STDOUT)
            if done.returncode != 0:
                said = [line for line in done.stdout.splitlines() if "error" in line]
                errors.append(f"{row.id}: {file} does not compile: {(said or ['no message'])[0]}")
    return errors


def compile_all(rows, sources, root, build, jobs):
    """Prints each file that does not compile, and returns how many there are."""
    commands = Commands(root, build)
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(jobs) as pool:
        planted = [(row, plant(sources, row)[0]) for row in rows]
        for errors in pool.map(lambda one: errors_of(*one, commands), planted):
            for error in errors:
                print(error, flush=True)
            failed += len(errors)
    print(f"{len(rows)} rows, {failed} changed files that do not compile")
    return failed
