#!/usr/bin/env python3
"""Tests what every option of every command refuses, and what --help says, with the real program.

Usage: options_test.py PROGRAM [unittest arguments]
"""
import re

import cli_test

# Words that a command needs before any option is looked at.
NEEDED = {"calls": ["x.yaml"], "shrink": ["x.yaml"], "check": ["x"], "judge": ["x"], "golden": ["x"],
          "compare-runs": ["a", "b"], "logprobs": ["a", "b"]}


class Options(cli_test.CommandTest):
    def commands(self):
        text = self.call("completion")
        return dict(re.findall(r'^    ([\w-]+)\) words="(.*)" ;;$', text, re.MULTILINE))

    def options_with_values(self):
        """(command, option, what --help says of its values) of all commands."""
        for command in self.commands():
            if command in ("model", "score"):
                continue  # the Python package reads its words
            for option, kind in re.findall(r"^  (?:-\w,)?(--[\w-]+)[^ ]* ([A-Z][A-Z/]+\S*)", self.call(command, "--help"),
                                           re.MULTILINE):
                if option != "--changed":  # which may stand without a value
                    yield command, option, kind

    def refused(self, command, *words):
        return self.call(command, *NEEDED.get(command, []), *words, status=2)

    def test_words_are_no_numbers(self):
        self.assertIn("--jobs: 'two' is not a number in the range 1 to 1024", self.call("run", "x", "--jobs", "two", status=2))
        self.assertIn("--jobs: Value 0 not in range 1 to 1024", self.call("run", "x", "--jobs", "0", status=2))

    def test_an_empty_value_is_refused_by_every_option(self):
        options = list(self.options_with_values())
        self.assertGreater(len(options), 60)
        for command, option, _ in options:
            with self.subTest(command=command, option=option):
                self.assertIn(f"shardproof: {option} is empty; ", self.refused(command, option, ""))
        self.assertIn("shardproof: --filter is empty; ", self.refused("run", "--filter="))
        self.assertIn("an argument of run is empty; ", self.refused("run", ""))
        self.assertIn("an argument of logprobs is empty; ", self.call("logprobs", "a", "", status=2))
        self.assertEqual([], sorted(self.folder.glob("runs")))

    def test_the_next_option_is_not_a_value(self):
        first = {command: option for command, option, _ in self.options_with_values()}
        self.assertGreater(len(first), 12)
        for command, option in first.items():
            with self.subTest(command=command, option=option):
                self.assertIn(f"shardproof: {option} needs a value, and --help is an option; ",
                              self.refused(command, option, "--help"))
        self.assertIn("--out needs a value, and --force is an option", self.refused("run", "--out", "--force"))
        self.assertIn("--out needs a value, and -q is an option", self.refused("run", "--out", "-q"))
        self.assertFalse((self.folder / "--force").exists() or (self.folder / "-q").exists())

    def test_nan_is_refused_by_every_option_that_takes_a_number(self):
        numbers = {(command, option) for command, option, kind in self.options_with_values()
                   if "FLOAT" in kind or "NUMBER" in kind}
        for one in (("run", "--time-budget"), ("validate", "--slow"), ("validate", "--minutes"),
                    ("shrink", "--deadline"), ("fuzz", "--minutes"), ("check", "--deadline")):
            self.assertIn(one, numbers)
        for command, option in sorted(numbers):
            with self.subTest(command=command, option=option):
                self.assertIn(f"{option} nan is not a number", self.refused(command, option, "nan"))
        for nan in ("-NaN", "nan(1)", "+nan"):
            self.assertIn(f"--slow {nan} is not a number", self.refused("validate", f"--slow={nan}"))

    def test_a_share_out_of_too_many_is_refused_with_the_limit(self):
        self.assertIn("'1/99999999': N is at most 1000000", self.refused("run", "--shard", "1/99999999"))
        self.assertIn("'5/4' is not a shard; write I/N with 1 <= I <= N", self.refused("run", "--shard", "5/4"))

    def test_help_groups_the_commands_and_has_the_exit_statuses_once(self):
        text = self.call("--help")
        for said in ("Run scenarios:", "Search for bugs:", "Examples:", "5: a fault in shardproof itself",
                     "a case not as expected, or with --no-unresolved a tensor that could not be judged"):
            self.assertIn(said, text)
        for command in self.commands():
            self.assertRegex(text, rf"(?m)^  {command} ")
            if command not in ("model", "score", "validate"):
                self.says(self.call(command, "--help"), "Exit status: see shardproof --help",
                          absent=["a fault in shardproof itself"])

    def test_help_of_judge_says_which_options_are_of_which_input(self):
        sections = {heading: set(re.findall(r"(?m)^  (?:-\w,)?(--[\w-]+)", body)) for heading, body in
                    re.findall(r"(?m)^(\w[\w ]*):\n((?:  .*\n)+)", self.call("judge", "--help"))}
        self.assertEqual(sections["Options"], {"--help", "--golden", "--no-unresolved"})
        self.assertEqual(sections["Options of recorded runs"], {"--reference", "--out", "--force"})
        self.assertEqual(sections["Options of case folders"], {"--precision", "--seed", "--steps", "--deadline", "--no-cache",
                                                               "--ignore-limits", "--allow-partial"})


if __name__ == "__main__":
    cli_test.main()
