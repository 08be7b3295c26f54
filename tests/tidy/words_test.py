#!/usr/bin/env python3
"""Plants each refused word in a small tree and checks that words.py names exactly it."""

import tempfile
import unittest
from pathlib import Path

import words

SENTENCES = {
    "told": "The probe is told of it.", "untold": "A call untold.", "asked": "Whether a stop was asked for.",
    "lives": "It lives in the pool.", "came home": "The gradient came home.", "beyond": "Values beyond the allowance.",
    "where it stands": "It is cut where it stands.", "by itself": "Each is cut by itself.",
    "at first": "It is wrong at first.", "alike": "All ranks hold it alike.", "put right": "It is put right.",
    "seed 004": "See seed 004, layers.py.", "is no": "The text is no number."}
OPTION_SENTENCES = {"without it": "Ranks; without it 1", "The same": "The same of tp",
                    "By this": "By this the loss is divided"}


def found_in(files):
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        for path, text in files.items():
            (root / path).parent.mkdir(parents=True, exist_ok=True)
            (root / path).write_text(text)
        return words.problems(root)


class EachWordIsFound(unittest.TestCase):
    def only(self, path, text, line, word):
        found = found_in({path: text})
        self.assertEqual(len(found), 1, found)
        self.assertTrue(found[0].startswith(f"{path}:{line}: '{word}'"), found)

    def test_each_entry_has_a_sentence(self):
        for word in words.WORDS_OF_OPTIONS:
            sentences = SENTENCES | OPTION_SENTENCES
            self.assertTrue(any(list(words.found_in(text, {word: ""})) for text in sentences.values()), word)

    def test_in_a_comment(self):
        for word, sentence in SENTENCES.items():
            self.only("src/a.cpp", f"// A.\nint a;  // {sentence}\n", 2, word)
            self.only("sim/b/c.h", f"// A.\n/* {sentence} */\n", 2, word)

    def test_across_two_lines_of_a_comment(self):
        self.only("golden/a.h", "int a;\n// The gradient came\n// home.\n", 2, "came home")

    def test_in_a_page(self):
        for word, sentence in SENTENCES.items():
            self.only("docs/a.md", f"# A\n\n{sentence}\n", 3, word)

    def test_in_a_message(self):
        for word, sentence in SENTENCES.items():
            self.only("sim/a.cpp", f'int a;\nthrow_bad_input("{sentence}");\n', 2, word)

    def test_in_a_text_of_an_option(self):
        for word, sentence in (SENTENCES | OPTION_SENTENCES).items():
            first, _, second = sentence.partition(" ")
            self.only("sim/case/run_rows.cpp", f'// A.\nrow("{first} "\n    "{second}");\n', 2, word)

    def test_in_a_name(self):
        for part in words.WORDS_OF_NAMES:
            for name in (part, f"all_{part}", f"{part}_", f"k{part.title()}At", f"{part.title()}Store"):
                self.only("src/a.cpp", f"// A.\nint {name} = 0;\n", 2, name)
        self.only("sim/b/asked_store.h", "// A.\nint a;\n", 1, "asked_store.h")

    def test_names_code_quotations_and_expected_messages_may_use_them(self):
        self.assertEqual(found_in({
            "tests/b.h": "int came_from, kAsked, told;\n",
            "src/b.h": "// There is no such rank, and it is no longer one.\n",
            "tests/a.cpp": 'CHECK(text == "is told of it");\n',
            "src/a.cpp": '// `told`, draw_alike, run.lives, kAlike, "at first", aliked, lives.h\n'
                         'const char* toldest = "//beyond"; auto lives = beyond(1, R"(// asked)"); // x\n',
            "sim/case/run_rows.cpp": 'row("run.lives", "Times");\n',
            "docs/a.md": '`run.lives: 2`, "a case beyond" and\n```\nlives: 2   # told\n```\n   ```diff\n+ beyond\n   ```\n'}), [])


if __name__ == "__main__":
    unittest.main()
