#!/usr/bin/env python3
"""Plants one violation of every rule in a small tree and asks that exactly it is named."""

import tempfile
import unittest
from pathlib import Path
from unittest import mock

import check_sources
import include_table

GOOD = {
    "src/mesh/layout.h": "// Cuts.\n#pragma once\n#include <string>\nnamespace shardproof {\nstruct Cut {};\n"
                         "inline constexpr int kMostCuts = 3;\n"
                         "int number_of_cuts(int dim);\n}\n",
    "src/mesh/mesh.h": "// Axes.\n#pragma once\n#include \"mesh/layout.h\"\nnamespace shardproof {\n"
                       "namespace {\nstruct Cut {};\n}\nclass Mesh {\n  struct Cut { int dim; };\n};\n}\n",
    "src/comm/communicator.h": "// Calls.\n#pragma once\n#include <ATen/core/Tensor.h>\n",
    "src/model/slot.h": "// A slot.\n#pragma once\n#include \"mesh/layout.h\"\n",
    "sim/case/case_spec.h": "// A case.\n#pragma once\n#include <nlohmann/json.hpp>\n",
    "sim/world/rank/rank_main.cpp": "// A rank.\n#include <ATen/ATen.h>\n#include \"model/slot.h\"\n",
    "src/base/families.cpp": '// Rows.\nnamespace shardproof {\nconst Family all[] = {{.name = "rows_moe", .experts = kAll}};\n}\n',
    "src/observe/observation_kind.h": "// Kinds.\n#pragma once\n"
                                      'KindPrefix all[] = {{ObservationKind::kGradient, "grad."}};\n',
    "golden/golden_main.cpp": "// Alone.\n#include \"sim/case/case_spec.h\"\n",
}


def found_in(files):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for path, text in {**GOOD, **files}.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        return check_sources.violations(root)


A_CPP, B_CPP, A_H = "// A.\n", "// B.\n", "// A.\n#pragma once\n"

# A file that breaks one rule, and what is said of it.
WRONG = [
    ("src/mesh/a.cpp", A_CPP + '#include "sim/case/case_spec.h"\n', "src/mesh may not include sim/case/case_spec.h"),
    ("golden/a.cpp", A_CPP + '#include "comm/communicator.h"\n', "golden may not include src/comm/communicator.h"),
    ("src/model/a.cpp", A_CPP + '#include "mesh/mesh.h"\n', "src/model may not include src/mesh/mesh.h"),
    *((f"sim/judge/{folder}/a.cpp", A_CPP + '#include "comm/communicator.h"\n',
       f"sim/judge/{folder} may not include src/comm/communicator.h")
      for folder in ("diff", "evidence", "explain", "verdict")),
    ("sim/case/a.cpp", A_CPP + "#include <ATen/ATen.h>\n", "may not use torch"),
    ("sim/case/scenario/a.cpp", A_CPP + "#include <ATen/ATen.h>\n", "may not use torch"),
    ("src/comm/a.h", A_H + "#include <ATen/ATen.h>\n", "heavy LibTorch"),
    ("golden/a.cpp", A_CPP + "  #  include <torch/torch.h>\n", "banned"),
    ("golden/a.cpp", A_CPP + "#include <mutex>\n", "base/mutex.h"),
    ("src/mesh/a.cpp", A_CPP + '#include "mesh/nothing.h"\n', "no file of ours"),
    ("src/mesh/a.cpp", "// " + "x" * 98 + "\n", "101 columns"),
    *(("sim/case/a.cpp", A_CPP + line + "\n", "an enum is compared with a text") for line in (
        'if (result.verdict == "match") return;', 'bool b = spec.precision != "float16";',
        'if (spec.parallel.data_parallel == "fsdp") a();', 'if (spec.loss.kind == "nll") a();',
        'if ("kill" == planned.fault.kind) kill();', 'if (ending->kind == "died") end();')),
    *(("src/mesh/a.cpp", A_CPP + line + "\n", "an object that is gone") for line in (
        "const auto& found = Reader::open(file.string()).metadata();", 'auto s = File::open(path).get("ids").sizes();',
        "const auto [small, large] = std::minmax(double(rows), double(columns));",
        "for (const auto& [name, full] : *seeded_weights(config, 3)) {")),
    ("src/tensor/a.cpp", A_CPP + "namespace shardproof {\nusing Cut = int;\n}\n",
     "shardproof::Cut is defined in src/mesh/layout.h too"),
    ("sim/world/rank/a.cpp", A_CPP + "namespace shardproof::sim {\n}\n", "this folder's is shardproof::sim::world"),
    ("sim/case/record/a.cpp", A_CPP + "namespace shardproof::sim::record {\n}\n", "this folder's is shardproof::sim"),
    ("sim/uses/explore/a.cpp", A_CPP + "namespace shardproof::sim::uses {\n}\n",
     "this folder's is shardproof::sim::explore"),
    ("sim/case/a.cpp", A_CPP + 'bool b = family == "rows_moe";\n', "the family rows_moe is known by its name"),
    ("sim/run/a.cpp", A_CPP + 'bool b = name.starts_with("grad." + layer);\n', "ask its kind"),
    ("src/mesh/a.cpp", A_CPP + "int all() { return number_of_cuts(3); }\n",
     "number_of_cuts() is declared in src/mesh/layout.h, which"),
    ("src/mesh/a.cpp", A_CPP + "int all() { return kMostCuts; }\n", "kMostCuts is declared in src/mesh/layout.h, which"),
    ("src/mesh/a.cpp", A_CPP * 401, "401 lines"),
    ("src/mesh/a.cpp", "#include <string>\n", "concept"),
    ("src/mesh/b.cpp", "", "concept"),
    ("src/mesh/a.h", A_CPP, "#pragma once"),
    ("src/mesh/mesh_utils.cpp", A_CPP, "'utils'"),
    ("src/newfolder/a.cpp", A_CPP, "no row"),
    ("sim/world/a.cpp", A_CPP, "no row"),
    ("sim/world/launch/newfolder/a.cpp", A_CPP, "no row"),
]


class EveryRuleFindsItsViolation(unittest.TestCase):
    def test_a_file_that_breaks_one_rule_is_named_with_it_alone(self):
        for path, text, expected in WRONG:
            with self.subTest(path=path, expected=expected):
                found = found_in({path: text})
                self.assertEqual(len(found), 1, found)
                self.assertTrue(found[0].startswith(path + ":"), found)
                self.assertIn(expected, found[0])

    def test_what_keeps_the_rules_is_no_violation(self):
        for text in ("// " + "\u2500" * 97 + "\n", A_CPP * 400, A_CPP + 'if (path == "world.backend") fail();\n',
                     A_CPP + '#include "mesh/mesh.h"\nint all() { return number_of_cuts(3); }\n',
                     A_CPP + "int all(int number_of_cuts) { return std::number_of_cuts(3) + it.number_of_cuts(); }\n",
                     A_CPP + "const auto found = Reader::open(file).metadata();\nfor (const auto& row : *rows) {\n"):
            self.assertEqual(found_in({"src/mesh/a.cpp": text}), [])

    def test_the_harness_does_not_include_the_golden(self):
        self.assertEqual(len(found_in({"golden/a.h": A_H, "sim/program/b.cpp": B_CPP + '#include "golden/a.h"\n'})), 1)

    def test_a_row_holds_no_folders_below_it(self):
        self.assertEqual(len(found_in({"sim/case/record/a.h": A_H,
                                       "sim/case/b.cpp": B_CPP + '#include "sim/case/record/a.h"\n'})), 1)

    def test_one_technique_does_not_include_another(self):
        self.assertEqual(len(found_in({"src/parallel/cp/a.h": A_H,
                                       "src/parallel/tp/b.cpp": B_CPP + '#include "parallel/cp/a.h"\n'})), 1)

    def test_every_row_names_known_folders(self):
        self.assertEqual(list(check_sources.check_table(Path("."))), [])
        self.assertIn("src/base", include_table.FOLDERS)

    def test_no_organ_includes_a_use(self):
        rows = {"sim/run": ["sim/uses/explore"], "sim/cli": ["sim/uses/explore"], "sim/uses/explore": []}
        with mock.patch.object(include_table, "FOLDERS", rows):
            found = list(check_sources.check_table(Path(".")))
        self.assertEqual(found, [("sim/run", "may include 'sim/uses/explore': no organ of sim includes a use")])

    def test_folders_stand_above_what_they_include(self):
        def circles(rows):
            return [sorted(set(cycle)) for cycle in check_sources.cycles(rows)]

        folders = {"sim/case": [], "sim/run": ["sim/case", "json"], "golden": ["sim/case"], "sim/cli": ["sim/run"]}
        self.assertEqual(circles(folders), [])
        self.assertEqual(circles({**folders, "sim/case": ["sim/cli"]}), [["sim/case", "sim/cli", "sim/run"]] * 2)
        self.assertEqual(circles({**folders, "sim/cli": ["golden"]}), [["golden", "sim"]])


if __name__ == "__main__":
    unittest.main()
