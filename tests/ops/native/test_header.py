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
    "line",
    [
        "struct S { float x; };",
        "struct S { const int32_t n; };",
        "struct S { int32_t* n; };",
        "struct S { char* n; };",
        "struct S { float** n; };",
        "struct S { int32_t n[4]; };",
        "struct S { int32_t n : 3; };",
        "struct S { int32_t n = 1; };",
        "struct S { unsigned int n; };",
        "struct S { int32_t n, n; };",
        "struct S { int32_t n() const { return 1; } };",
        "struct S { int32_t; };",
        "struct S { int32_t n };",
        "struct S { int32_t 4n; };",
        "struct S { Unknown n; };",
        "struct S { S n; };",
        "struct S { int32_tn; };",
        "struct S : T { int32_t n; };",
        "struct S {};",
        "struct S { ; };",
        "struct alignas(64) S { int32_t n; };",
        "union S { int32_t n; };",
        "struct S { int32_t n; }; struct S { int32_t m; };",
        "struct S { int32_t n; } s;",
        "/* struct S { int32_t n; }; */",
        "constexpr int A = B;",
        "constexpr int A = 4 * 4;",
        "constexpr int A = 4, A = 5;",
        "constexpr int A = 4;; ",
        "constexpr float A = 4;",
        "enum E : int32_t { A };",
        "enum E { A = 0 };",
        "enum E : int32_t { A = 0, A = 1 };",
        "#include <vector>",
        "#pragma pack(1)",
        "}",
        "struct S {",
        "int32_t n;",
    ],
)
def test_refuses_what_it_does_not_understand(line):
    """A field that was skipped would move all that follow: there is no guessing here."""
    with pytest.raises(HeaderError, match=r"only the C\+\+ .* is read, got '"):
        read(f"namespace saccade {{\n{line}\n}}\n")


def test_names_the_line():
    with pytest.raises(HeaderError, match=r"call\.h, line 3: .* got 'struct S \{ bool n; \};'"):
        read("namespace saccade {\n// fine\nstruct S { bool n; };\n}\n")


@pytest.mark.parametrize("text", ["", "struct S { int32_t n; };", WHOLE + "int32_t n;"])
def test_all_of_it_is_inside_the_namespace(text):
    with pytest.raises(HeaderError, match=r"call\.h, line 1: "):
        read(text)
