#!/usr/bin/env python3
"""Tests of the tokens of C++ texts and of the functions found in them."""

import sys
import unittest
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))
from cpp_tokens import BadText, definitions_of, spelling_of, tokens_of


class Tokens(unittest.TestCase):
    def same(self, one, other):
        self.assertEqual(spelling_of(one), spelling_of(other))

    def differ(self, one, other):
        self.assertNotEqual(spelling_of(one), spelling_of(other))

    def test_white_space_and_comments_are_none(self):
        self.same("f(a, b); // why\n", "f ( a,b )/* x */;")
        self.same("a // one \\\n still the comment\n b", "a b")
        self.same("a /* \" ' // */ b", "a b")
        self.assertEqual(spelling_of("x /* ** / */+ y"), ["x", "+", "y"])

    def test_a_text_is_one_token_whatever_is_in_it(self):
        self.assertEqual(spelling_of(r'f("a // \" b", u8"/*")'), ["f", "(", r'"a // \" b"', ",", 'u8"/*"', ")"])
        self.differ('"a b"', '"a  b"')
        self.assertEqual(spelling_of(r"'\'' '\\' L'\"' '}'"), [r"'\''", r"'\\'", r"L'\"'", "'}'"])

    def test_a_raw_text_ends_at_its_own_mark(self):
        self.assertEqual(spelling_of('R"(a " b\n// c)" x'), ['R"(a " b\n// c)"', "x"])
        self.assertEqual(spelling_of('LR"k(a )" b)k";'), ['LR"k(a )" b)k"', ";"])
        self.assertEqual(spelling_of('FOR"a"'), ["FOR", '"a"'])

    def test_numbers(self):
        self.assertEqual(spelling_of("1'000'000 1e-6 .5f 0x1p+3 16<<20 x.y"),
                         ["1'000'000", "1e-6", ".5f", "0x1p+3", "16", "<<", "20", "x", ".", "y"])

    def test_operators_are_as_long_as_they_can_be(self):
        self.assertEqual(spelling_of("a<=>b<<=c->*d...e::f->g++ +h"),
                         ["a", "<=>", "b", "<<=", "c", "->*", "d", "...", "e", "::", "f", "->", "g", "++", "+", "h"])
        self.differ("a+++b", "a+ ++b")

    def test_a_preprocessor_line_is_one_token(self):
        self.assertEqual(spelling_of("#include <a/b.h>  // c\nint x;\n  # define F(x) \\\n  { x\ny"),
                         ["# include < a / b . h >", "int", "x", ";", "# define F ( x ) { x", "y"])
        self.same("#if A  /* a\n b */ && B\n", "#  if A && B")
        self.differ('#define A "x  y"', '#define A "x y"')
        self.assertEqual(len(spelling_of("#error don't\nx")), 2)

    def test_positions_give_the_text_back(self):
        text = 'int a = f("x"); // c\n#pragma once\nR"(y)"'
        for token in tokens_of(text)[:-2]:
            self.assertEqual(text[token.start:token.end], token.text)

    def test_what_does_not_end_is_said_with_its_line(self):
        for text in ('a;\n"open', "a;\n'open", "a;\n/* open", 'a;\nR"x(open)y"'):
            with self.assertRaisesRegex(BadText, "line 2"):
                tokens_of(text)


class Definitions(unittest.TestCase):
    def names(self, text):
        return [each.name for each in definitions_of(text, tokens_of(text))]

    def texts(self, text):
        tokens = tokens_of(text)
        return {each.name: text[tokens[each.first].start:tokens[each.end - 1].end]
                for each in definitions_of(text, tokens)}

    def test_namespaces_and_classes_are_part_of_the_name(self):
        self.assertEqual(self.names("""
            namespace a::b { namespace { int f() { return 1; } }
            inline namespace v1 { struct S { struct T { void g() const {} }; }; } }
            extern "C" { void h() {} }
            """), ["a::b::f", "a::b::v1::S", "a::b::v1::S::T", "a::b::v1::S::T::g", "h"])

    def test_the_name_is_as_written(self):
        self.assertEqual(self.names("""
            at::Tensor Trainer::step(const Batch& b) { return {}; }
            template <typename T, size_t N = sizeof(T)> std::vector<T> Map<T>::at(T (&x)[N]) { }
            template <> void f<int>(int) {}
            static constexpr auto later() -> std::map<int, int> { return {}; }
            [[nodiscard]] bool g() noexcept(true) { return true; }
            """), ["Trainer::step", "Map::at", "f", "later", "g"])

    def test_operators_constructors_destructors(self):
        self.assertEqual(self.names("""
            bool A::operator==(const A& b) const { return true; }
            int A::operator()(int i) { return i; }
            int& A::operator[](size_t i) { return x; }
            A& operator<<(A& a, int) { return a; }
            A::operator bool() const { return true; }
            A& A::operator=(A&& a) noexcept { return *this; }
            A::A() {}  A::~A() { f(); }
            """), ["A::operator==", "A::operator()", "A::operator[]", "operator<<", "A::operatorbool",
                   "A::operator=", "A::A", "A::~A"])

    def test_an_initializer_list_is_part_of_the_constructor(self):
        text = "X::X(int a) : Base<int>{a}, a_{a, {1}}, f_([] { return 1; }), b_(2) { go(); } int y() { return 0; }"
        self.assertEqual(self.names(text), ["X::X", "y"])
        self.assertTrue(self.texts(text)["X::X"].endswith("{ go(); }"))
        self.assertEqual(self.names("struct X : Y<int> { X() : a(1) {} X(int) noexcept : a{1} {} int a = 0; };"),
                         ["X", "X::X", "X::X"])

    def test_a_function_has_its_template_and_arguments(self):
        text = "int x;\ntemplate <class T>\nvoid f(T a, Options b = {.c = 1}) { g(); }\nint y;"
        self.assertEqual(self.texts(text)["f"], "template <class T>\nvoid f(T a, Options b = {.c = 1}) { g(); }")

    def test_braces_that_are_no_function(self):
        self.assertEqual(self.names("""
            const std::array<int, 2> kTable = {1, 2};  Options kOptions{.a = 1};
            const auto lambda = [](int x) { return x; };
            const std::function<int(int)> kCall{twice};
            enum class Kind : int { kA, kB };
            class Later;  void declared(int x = f());  using F = void (*)(int);
            int last() { const auto inner = [&] { return 1; }; struct In { void m() {} }; return inner(); }
            """), ["Kind", "last"])

    def test_macros_and_preprocessor_lines_between_declarations(self):
        self.assertEqual(self.names("#if A\nDECLARE_ALL(Some, names)\nDECLARE_ALL(Others)\n#endif\nnamespace n {\n"
                                    "#define OPEN {\nint f() {\n#ifdef B\n g();\n#endif\n} }"), ["n::f"])

    def test_brackets_in_texts_and_comments_do_not_count(self):
        self.assertEqual(self.names("""int f() { g("}"); /* } */ h('}'); // }
            i(R"(}})"); } int j() {}"""), ["f", "j"])

    def test_overloads_are_listed_each(self):
        self.assertEqual(self.names("void f(int) {} void f(double) {}"), ["f", "f"])

    def test_brackets_that_do_not_match_are_said(self):
        for text in ("int f() {\n", "}\n", "int f(]\n"):
            with self.assertRaisesRegex(BadText, "line 1: .* (closes nothing|is not closed)"):
                self.names(text)


if __name__ == "__main__":
    unittest.main()
