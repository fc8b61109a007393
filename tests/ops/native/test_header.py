import pytest

from saccade.ops.native.header import Header, HeaderError, read

WHOLE = """\
// A comment; struct Not { int32_t really; };
#pragma once
#include <cstdint>
namespace saccade {
enum Code : int32_t { A = 0, B = 7 };
constexpr int WIDEST = 15, STEP = 16;  // two of them
struct Inner { void* data; int64_t row, column; };
struct Outer {
  int32_t size;
  Inner x, y;
  const float *a, *b;  // pointers
  const void* c;
};
}  // namespace saccade
"""


def test_reads_structures_limits_and_enums_in_their_order():
    inner = {"data": "pointer", "row": "int64_t", "column": "int64_t"}
    pointers = dict.fromkeys("abc", "pointer")
    outer = {"size": "int32_t", "x": "Inner", "y": "Inner", **pointers}
    header = read(WHOLE)
    assert header == Header(
        {"Inner": inner, "Outer": outer}, {"WIDEST": 15, "STEP": 16}, {"Code": {"A": 0, "B": 7}}
    )
    assert list(header.structures["Outer"]) == list(outer)


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("struct S { float x; };", "expected a pointer, one of .* not float, got 'x'"),
        ("struct S { const int32_t n; };", "not int32_t, got 'n'"),
        ("struct S { int32_t* n; };", "a pointer to one of .* not to int32_t"),
        ("struct S { short* n; };", "not to short"),
        ("struct S { float** n; };", "expected a name, got '\\*'"),
        ("struct S { int32_t n[4]; };", "expected ',', got '\\['"),
        ("struct S { int32_t n : 3; };", "expected ',', got ':'"),
        ("struct S { int32_t n = 1; };", "expected ',', got '='"),
        ("struct S { unsigned int n; };", "not unsigned, got 'int'"),
        ("struct S { int32_t n, n; };", "expected a name of its own, got 'n'"),
        ("struct S { int32_t n() const { return 1; } };", "expected ',', got '\\('"),
        ("struct S { Unknown n; };", "not Unknown"),
        ("struct S : T { int32_t n; };", "expected '{', got ':'"),
        ("struct S {};", "at least one field in S"),
        ("struct alignas(64) S { int32_t n; };", "expected '{', got '\\('"),
        ("union S { int32_t n; };", "expected 'struct', got 'union'"),
        ("struct S { int32_t n; }; struct S { int32_t m; };", "a name of its own, got 'S'"),
        ("/* struct S { int32_t n; }; */", "expected 'struct', got '/'"),
        ("constexpr int A = B;", "expected a whole number, got 'B'"),
        ("constexpr int A = 4 * 4;", "expected ',', got '\\*'"),
        ("constexpr float A = 4;", "expected 'int', got 'float'"),
        ("enum E : int32_t { A };", "expected '=', got '}'"),
        ("enum E { A = 0 };", "expected ':', got '{'"),
        ("#include <vector>", "'#include <vector>' is not among"),
        ("#pragma pack(1)", "'#pragma pack\\(1\\)' is not among"),
        ("}", "expected nothing after the namespace, got '}'"),
        ("struct S {", "line last: expected ';', got 'the end'"),
    ],
)
def test_refuses_what_it_does_not_understand(line, message):
    """A field that was skipped would move all that follow: there is no guessing here."""
    with pytest.raises(HeaderError, match=message):
        read(f"namespace saccade {{\n{line}\n}}\n")


def test_names_the_line():
    with pytest.raises(HeaderError, match=r"call\.h, line 3: "):
        read("namespace saccade {\n// fine\nstruct S { bool n; };\n}\n")
