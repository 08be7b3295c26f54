#!/usr/bin/env python3
"""Tests syntax.py on two small sources: a change that does not compile is named, whoever includes what."""
import contextlib
import io
import json
import tempfile
import unittest
from pathlib import Path

from rows import Edit, Row
from syntax import Commands, NoBuild, compile_all, errors_of


class Syntax(unittest.TestCase):
    def setUp(self):
        self.root = Path(self.enterContext(tempfile.TemporaryDirectory()))
        self.build = self.root / "build"
        (self.root / "src/part").mkdir(parents=True)
        self.build.mkdir()
        (self.root / "src/part/sum.h").write_text("#pragma once\ninline int sum(int a, int b) { return a + b; }\n")
        (self.root / "src/part/sum.cpp").write_text('#include "part/sum.h"\nint three() { return sum(1, 2); }\n')
        (self.root / "src/part/own.cpp").write_text("#ifndef OWN\n#error without its own options\n#endif\n")
        command = f"g++ -I{self.root}/src %s -o CMakeFiles/%s.o -c %s"
        unity = self.build / "CMakeFiles/of_several_folders.dir/Unity/unity_0.cxx"
        unity.parent.mkdir(parents=True)
        unity.write_text(f'/* generated */\n\n#include "{self.root}/src/part/sum.cpp"\n')
        own = self.root / "src/part/own.cpp"
        entries = [{"file": str(unity), "command": command % ("", "of_several_folders.dir/unity_0.cxx", unity)},
                   {"file": str(own), "command": command % ("-DOWN", "sp_part.dir/own.cpp", own)}]
        (self.build / "compile_commands.json").write_text(json.dumps(entries))
        self.commands = Commands(self.root, self.build)
        self.row = Row(id="row", source="", what="", edits=[])

    def errors(self, **texts):
        return errors_of(self.row, {Path(f"src/part/{name.replace('_', '.')}"): text for name, text in texts.items()},
                         self.commands)

    def test_what_compiles_has_no_errors(self):
        self.assertEqual(self.errors(sum_cpp='#include "part/sum.h"\nint four() { return sum(2, 2); }\n'), [])
        self.assertEqual(self.errors(own_cpp="#ifndef OWN\n#error no\n#endif\n"), [])

    def test_a_file_that_does_not_compile_is_named_with_its_first_error(self):
        error, = self.errors(sum_cpp='#include "part/sum.h"\nint four() { return summ(2, 2); }\n')
        self.assertIn("row: src/part/sum.cpp does not compile: ", error)
        self.assertIn("summ", error)

    def test_a_changed_header_is_what_a_changed_source_includes(self):
        header = "#pragma once\ninline int sum(int a, int b, int c) { return a + b + c; }\n"
        source = '#include "part/sum.h"\nint four() { return sum(2, 1, 1); }\n'
        self.assertEqual(self.errors(sum_h=header, sum_cpp=source), [])
        self.assertEqual(len(self.errors(sum_cpp=source)), 1)

    def test_a_file_of_no_library_is_an_error(self):
        with self.assertRaisesRegex(NoBuild, "golden/other.cpp is in no library"):
            self.commands.words("golden/other.cpp")

    def test_all_rows(self):
        from plant import Sources
        edit = Edit(file="src/part/sum.cpp", old="sum(1, 2)", new="sum(1)", function="three")
        row = Row(id="fewer", source="", what="", edits=[edit])
        with contextlib.redirect_stdout(io.StringIO()) as said:
            failed = compile_all([row], Sources.below(self.root), self.root, self.build, 1)
        self.assertEqual(failed, 1)
        self.assertIn("fewer: src/part/sum.cpp does not compile", said.getvalue())
        self.assertIn("1 rows, 1 changed files", said.getvalue())


if __name__ == "__main__":
    unittest.main()
