"""The extension is built once for all ranks, and a build that cannot be says why."""

import os
import tempfile
import unittest
from pathlib import Path
from unittest import mock

import ranks  # puts the package on the path

from shardproof.backend import build

COMPILER = """#!/bin/sh
echo built >> {folder}/count
sleep 0.5
while [ "$1" != -o ]; do shift; done
echo library > "$2"
"""


class Build(unittest.TestCase):
    def setUp(self):
        self.folder = Path(self.enterContext(tempfile.TemporaryDirectory()))

    def environment(self, compiler, text=None):
        if text is not None:
            Path(compiler).write_text(text.format(folder=self.folder))
            os.chmod(compiler, 0o755)
        values = {"CXX": str(compiler), "XDG_CACHE_HOME": str(self.folder / "cache")}
        return mock.patch.dict(os.environ, values)

    def test_ranks_build_once(self):
        with self.environment(self.folder / "compiler", COMPILER):
            children = []
            for _ in range(3):
                child = os.fork()
                if child == 0:
                    try:
                        os._exit(0 if build.built().read_text() == "library\n" else 1)
                    finally:
                        os._exit(2)
                children.append(child)
            self.assertEqual([os.waitpid(child, 0)[1] for child in children], [0, 0, 0])
            self.assertEqual(Path(self.folder, "count").read_text(), "built\n")

    def test_failed_compiler(self):
        with self.environment(self.folder / "compiler", "#!/bin/sh\necho no such header\nexit 3\n"):
            with self.assertRaisesRegex(build.NoCompiler, "status 3 .* its messages are in ") as caught:
                build.built()
            log = Path(str(caught.exception).rsplit(" ", 1)[1])
            self.assertEqual(log.read_text(), "no such header\n")
            self.assertFalse(build.extension_path().exists())

    def test_no_compiler(self):
        with self.environment(self.folder / "none"):
            with self.assertRaisesRegex(build.NoCompiler, "no compiler .*none.*; install g"):
                build.built()

    def test_another_source_is_another_entry(self):
        before = build.extension_path()
        source = self.folder / "csrc"
        source.mkdir()
        (source / "backend.cpp").write_text("other")
        with mock.patch.object(build, "SOURCES", source):
            self.assertNotEqual(build.extension_path(), before)
        self.assertEqual(build.extension_path(), before)


if __name__ == "__main__":
    unittest.main()
