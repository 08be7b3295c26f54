#!/usr/bin/env python3
"""Plants one violation of every rule in a small tree and asks that exactly it is named."""

import tempfile
import unittest
from pathlib import Path

import check_sources
import include_table

GOOD = {
    "src/mesh/layout.h": "// Cuts.\n#pragma once\n#include <string>\n",
    "src/mesh/mesh.h": "// Axes.\n#pragma once\n#include \"mesh/layout.h\"\n",
    "src/comm/communicator.h": "// Calls.\n#pragma once\n#include <ATen/core/Tensor.h>\n",
    "src/model/slot.h": "// A slot.\n#pragma once\n#include \"mesh/layout.h\"\n",
    "sim/case/case_spec.h": "// A case.\n#pragma once\n#include <nlohmann/json.hpp>\n",
    "sim/world/rank/rank_main.cpp": "// A rank.\n#include <ATen/ATen.h>\n#include \"model/slot.h\"\n",
    "golden/golden_main.cpp": "// Alone.\n#include \"sim/case/case_spec.h\"\n",
}


def found_in(files):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for path, text in {**GOOD, **files}.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        return check_sources.violations(root)


class EveryRuleFindsItsViolation(unittest.TestCase):
    def only(self, path, text, expected):
        found = found_in({path: text})
        self.assertEqual(len(found), 1, found)
        self.assertTrue(found[0].startswith(path + ":"), found)
        self.assertIn(expected, found[0])

    def test_clean_sources_have_no_violation(self):
        self.assertEqual(found_in({}), [])

    def test_the_stack_may_not_know_the_harness(self):
        self.only("src/mesh/a.cpp", '// A.\n#include "sim/case/case_spec.h"\n',
                  "src/mesh may not include sim/case/case_spec.h")

    def test_the_golden_may_not_include_what_it_judges(self):
        self.only("golden/a.cpp", '// A.\n#include "comm/communicator.h"\n',
                  "golden may not include src/comm/communicator.h")

    def test_the_harness_does_not_include_the_golden(self):
        self.assertEqual(len(found_in({
            "golden/a.h": "// A.\n#pragma once\n",
            "sim/program/b.cpp": '// B.\n#include "golden/a.h"\n'})), 1)

    def test_a_row_holds_no_folders_below_it(self):
        self.assertEqual(len(found_in({
            "sim/case/record/a.h": "// A.\n#pragma once\n",
            "sim/case/b.cpp": '// B.\n#include "sim/case/record/a.h"\n'})), 1)

    def test_the_model_takes_layouts_but_not_the_rest_of_mesh(self):
        self.only("src/model/a.cpp", '// A.\n#include "mesh/mesh.h"\n',
                  "src/model may not include src/mesh/mesh.h")

    def test_the_judge_may_not_communicate(self):
        for folder in ("diff", "evidence", "explain", "verdict"):
            self.only(f"sim/judge/{folder}/a.cpp", '// A.\n#include "comm/communicator.h"\n',
                      f"sim/judge/{folder} may not include src/comm/communicator.h")

    def test_one_technique_does_not_include_another(self):
        self.assertEqual(len(found_in({
            "src/parallel/cp/a.h": "// A.\n#pragma once\n",
            "src/parallel/tp/b.cpp": '// B.\n#include "parallel/cp/a.h"\n'})), 1)

    def test_a_case_and_its_reader_have_no_libtorch(self):
        for folder in ("sim/case", "sim/case/scenario"):
            self.only(f"{folder}/a.cpp", "// A.\n#include <ATen/ATen.h>\n", "may not use torch")

    def test_heavy_libtorch_headers_stay_out_of_headers(self):
        self.only("src/comm/a.h", "// A.\n#pragma once\n#include <ATen/ATen.h>\n", "heavy LibTorch")

    def test_torch_torch_h_is_banned_everywhere(self):
        self.only("golden/a.cpp", "// A.\n  #  include <torch/torch.h>\n", "banned")

    def test_a_quoted_include_names_a_file_of_ours(self):
        self.only("src/mesh/a.cpp", '// A.\n#include "mesh/nothing.h"\n', "no file of ours")

    def test_lines_end_at_100_columns(self):
        self.assertEqual(found_in({"src/mesh/a.cpp": "// " + "\u2500" * 97 + "\n"}), [])
        self.only("src/mesh/a.cpp", "// " + "x" * 98 + "\n", "101 columns")

    def test_an_enum_is_not_compared_with_a_text(self):
        for line in ('if (result.verdict == "match") return;', 'bool b = spec.precision != "float16";',
                     'if (spec.parallel.data_parallel == "fsdp") a();', 'if (spec.loss.kind == "nll") a();',
                     'if ("kill" == planned.fault.kind) kill();', 'if (ending->kind == "died") end();'):
            self.only("sim/case/a.cpp", f"// A.\n{line}\n", "an enum is compared with a text")
        self.assertEqual(found_in({"sim/case/a.cpp": '// A.\nif (path == "world.backend") fail();\n'}), [])

    def test_long_files_are_split(self):
        self.assertEqual(found_in({"src/mesh/a.cpp": "// A.\n" * 400}), [])
        self.only("src/mesh/a.cpp", "// A.\n" * 401, "401 lines")

    def test_a_file_says_its_concept_first(self):
        self.only("src/mesh/a.cpp", "#include <string>\n", "concept")
        self.only("src/mesh/b.cpp", "", "concept")

    def test_headers_are_guarded(self):
        self.only("src/mesh/a.h", "// A.\n", "#pragma once")

    def test_names_that_say_nothing(self):
        self.only("src/mesh/mesh_utils.cpp", "// A.\n", "'utils'")

    def test_a_new_folder_needs_a_row(self):
        for path in ("src/newfolder/a.cpp", "sim/world/a.cpp", "sim/world/launch/newfolder/a.cpp"):
            self.only(path, "// A.\n", "no row")

    def test_every_row_names_known_folders(self):
        self.assertEqual(list(check_sources.check_table(Path("."))), [])
        self.assertIn("src/base", include_table.FOLDERS)

    def test_folders_stand_above_what_they_include(self):
        def circles(rows):
            return [" ".join(cycle) for cycle in check_sources.cycles(rows)]

        folders = {"sim/case": [], "sim/run": ["sim/case", "json"], "golden": ["sim/case"], "sim/cli": ["sim/run"]}
        self.assertEqual(circles(folders), [])
        self.assertEqual(circles({**folders, "sim/case": ["sim/cli"]}), ["sim/case sim/cli sim/run sim/case"] * 2)
        self.assertEqual(circles({**folders, "sim/cli": ["golden"]}), ["golden sim golden"])


class MergedFiles(unittest.TestCase):
    """Two files of one folder, each with something of its own in an unnamed namespace."""

    def clash(self, one, other, folder="tests/unit/mesh", tail=""):
        wrapped = ["// A.\nnamespace shardproof {\nnamespace {\n" + text + "\n}  // namespace\n" + tail + "}\n"
                   for text in (one, other)]
        return found_in({f"{folder}/a_test.cpp": wrapped[0], f"{folder}/b_test.cpp": wrapped[1]})

    def assert_named(self, name, found):
        self.assertEqual(len(found), 1, found)
        self.assertIn(f"a_test.cpp has a {name} of its own too", found[0])

    def test_constants_types_and_functions_with_one_name_are_two_things(self):
        for folder in ("tests/unit/mesh", "src/mesh", "golden"):
            self.assert_named("kB", self.clash("constexpr int kA = 1, kB = f(2, 3);", "const double kB[] = {1, 2};",
                                               folder))
        self.assert_named("Case", self.clash("struct Case {\n  int a;\n};", "enum class Case { kOne };"))
        self.assert_named("run", self.clash("int run(int a, const T& b = {}) { return a; }", "void run(int c, const T& d);"))
        self.assert_named("small", self.clash("T small() {\n  return {};\n}\n\nint x;", "template <class T>\nT small() { return {}; }"))
        self.assert_named("List", self.clash("using List = std::vector<int>;", "using List = std::set<int>;"))

    def test_overloads_equal_aliases_and_what_is_inside_of_something_are_none(self):
        for one, other in (("int run(int a) { return a; }", "int run(double a) { return 1; }"),
                           ("using List = std::vector<int>;", "using List = std::vector<int>;"),
                           ("void f() { int kB = 1; }", "struct G { int kB = 1; };"),
                           ("constexpr long kA = long{1} << 20;", "constexpr long kB = long{2} << 20;"),
                           ("// int kB;\nint kA;", 'const char* text = "int kB;";\nint kB;')):
            self.assertEqual(self.clash(one, other), [])
        self.assertEqual(self.clash("int kA;", "int kB;", tail='TEST_CASE("one") {\n  int kA;\n}\n'), [])

    def test_a_namespace_of_its_own_tells_them_apart(self):
        self.assertEqual(found_in({
            "src/mesh/a.cpp": "// A.\nnamespace shardproof {\nnamespace {\nint kA;\n}\n}\n",
            "src/mesh/b.cpp": "// B.\nnamespace shardproof::b {\nnamespace {\nint kA;\n}\n}\n",
            "src/comm/c.cpp": "// C.\nnamespace shardproof {\nnamespace {\nint kA;\n}\n}\n"}), [])


if __name__ == "__main__":
    unittest.main()
