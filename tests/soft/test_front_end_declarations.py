"""What the passes of the front end stand on: declarations, functions, and names, found by tokens."""

import pytest

from tinyrvllm.soft.msl.declarations import scan
from tinyrvllm.soft.msl.functions import (
    aliases,
    call,
    declared_type,
    declares_variable,
    functions,
    initialized,
    lambdas,
    template_heads,
    template_types,
    template_values,
)
from tinyrvllm.soft.msl.tokens import Tokens

# source: (kind, name, scope, text, parameters, body) of its declarations
DECLARATIONS = {
    "; int a; ; float b[2] = {c}": [
        ("variable", "a", "", "int a;", "", ""),
        ("variable", "b", "", "float b[2]={c}", "", ""),
    ],
    "namespace n { inline namespace m { int a; } namespace q = n; } namespace { int b; } int c;": [
        ("variable", "a", "n::m::", "int a;", "", ""),
        ("variable", "q", "n::", "namespace q=n;", "", ""),
        ("variable", "b", "", "int b;", "", ""),
        ("variable", "c", "", "int c;", "", ""),
    ],
    "void f(int a) { g(a); } template <> float h<1>(A<int> x) const { } int i(int);": [
        ("function", "f", "", "void f(int a){g(a);}", "(int a)", "{g(a);}"),
        ("function", "h", "", "template<>float h<1>(A<int>x)const{}", "(A<int>x)", "{}"),
        ("variable", "i", "", "int i(int);", "(int)", ""),
    ],
    "T A::operator[](int i) { } bool operator<(A a) { } bool operator>(A a) { } B operator>>(A a) { }": [
        ("function", "]", "", "T A::operator[](int i){}", "(int i)", "{}"),
        ("function", "<", "", "bool operator<(A a){}", "(A a)", "{}"),
        ("function", ">", "", "bool operator>(A a){}", "(A a)", "{}"),
        ("function", ">", "", "B operator>>(A a){}", "(A a)", "{}"),
    ],
    "float f<A<B<int>>>(int x) { } float g<(4 > 2)>(int x) { } alignas(16) int b[4] = { };": [
        ("function", "f", "", "float f<A<B<int>>>(int x){}", "(int x)", "{}"),
        ("function", "g", "", "float g<(4>2)>(int x){}", "(int x)", "{}"),
        ("variable", "b", "", "alignas(16)int b[4]={};", "", ""),
    ],
    "decltype(h<half>(1)) f(int a) { } alignas(16) __attribute__((x)) float c; requires(x) void g() { }": [
        ("function", "f", "", "decltype(h<half>(1))f(int a){}", "(int a)", "{}"),
        ("variable", "c", "", "alignas(16)__attribute__((x))float c;", "", ""),
        ("function", "g", "", "requires(x)void g(){}", "()", "{}"),
    ],
    "using A = B<int>; typedef vec<float, 2> F; typedef struct { int a; } S; typedef int T[4];": [
        ("type", "A", "", "using A=B<int>;", "", ""),
        ("type", "F", "", "typedef vec<float,2>F;", "", ""),
        ("type", "S", "", "typedef struct{int a;}S;", "", ""),
        ("type", "T", "", "typedef int T[4];", "", ""),
    ],
    "struct A : B { int c; }; enum class E { a }; template <class T, struct U> class V;": [
        ("type", "A", "", "struct A:B{int c;};", "", ""),
        ("type", "E", "", "enum class E{a};", "", ""),
        ("type", "V", "", "template<class T,struct U>class V;", "", ""),
    ],
    "constant struct B { int a; } b = {1}; struct C { } c": [
        ("type", "B", "", "constant struct B{int a;}b={1};", "", ""),
        ("type", "C", "", "struct C{}c", "", ""),
    ],
    "struct [[x]] A { } a; template void f<int>(); template <int N> constexpr int m = N < 3 ? 1 : (N > 2);": [
        ("type", "x", "", "struct[[x]]A{}a;", "", ""),
        ("instantiation", "", "", "template void f<int>();", "", ""),
        ("variable", "m", "", "template<int N>constexpr int m=N<3?1:(N>2);", "", ""),
    ],
}  # fmt: skip


@pytest.mark.parametrize("source", DECLARATIONS)
def test_declarations(source: str) -> None:
    tokens = Tokens(source, "t")
    found = list(scan(tokens))
    assert [
        (
            d.kind,
            d.name,
            d.scope,
            *(tokens.text(*r) for r in ((d.start, d.end), d.parameters, d.body)),
        )
        for d in found
    ] == DECLARATIONS[source]
    assert [d.template for d in found] == [
        text.startswith("template<") for _, _, _, text, _, _ in DECLARATIONS[source]
    ]


# source: (name, what stands at `at`, parameters, body, late) of the functions in its declarations
FUNCTIONS = {
    "float f(float f) { return f; } float g(int); A A::operator+(A b) { } int a;": [
        ("f", "f", "(float f)", "{return f;}", False),
        ("g", "g", "(int)", "", False),
        ("", "+", "(A b)", "{}", False),
    ],
    "void f() { auto g = [](int a) { x; }; auto h = [&] { y; }; b = [](int c) { }; d(e) { } }": [
        ("f", "f", "()", "{auto g=[](int a){x;};auto h=[&]{y;};b=[](int c){};d(e){}}", False),
        ("g", "g", "(int a)", "{x;}", False),
    ],
    "auto l = [](int a) { return a; }; struct S { int b = c(1); void f() { if (x) { } g(1); } }; f(2);": [
        ("l", "l", "(int a)", "{return a;}", False),
        ("f", "f", "()", "{if(x){}g(1);}", False),
        ("f", "f", "(2)", "", False),
    ],
    "struct A { A(int x) : b(1), c{2}, d(x) { } explicit A(float); A() = default; ~A(); int b, c, d; };": [
        ("A", "A", "(int x)", "{}", True),
    ],
    "struct B { B operator()(B c) const { d; } bool operator<(B); B operator+(B c) { e; } operator int() { } };": [
        ("B", "operator", "(B c)", "{d;}", True),
        ("", "operator", "(B c)", "{e;}", False),
        ("", "operator", "()", "{}", False),
    ],
    "struct C { int f(int) const; auto g() const -> int { x ? h(1) : i(2); } void j() = k; bool l() { switch (m) { case n(1): { } } } };": [
        ("f", "f", "(int)", "", False),
        ("g", "g", "()", "{x?h(1):i(2);}", False),
        ("l", "l", "()", "{switch(m){case n(1):{}}}", False),
    ],
    "template <int N> struct D { static device T *f(device T *a); template <class U> U g(U u) { return N(u); } };": [
        ("f", "f", "(device T*a)", "", False),
        ("g", "g", "(U u)", "{return N(u);}", False),
    ],
}  # fmt: skip


@pytest.mark.parametrize("source", FUNCTIONS)
def test_functions_methods_and_named_lambdas(source: str) -> None:
    tokens = Tokens(source, "t")
    found = [f for d in scan(tokens) for f in functions(tokens, d)]
    assert [
        (
            f.name,
            tokens[f.at],
            tokens.text(f.parameters, tokens.after(f.parameters)),
            tokens.text(*f.body),
            f.late,
        )
        for f in found
    ] == FUNCTIONS[source]


def test_members_that_a_constructor_initializes() -> None:
    tokens = Tokens(
        "struct A { A(int x) : b(x), c{f(x), 1}, d(2) { } auto g() -> A { h(1); } };", "t"
    )
    found = [f for d in scan(tokens) for f in functions(tokens, d)]
    names = [[tokens[i] for i in initialized(tokens, f)] for f in found]
    assert names == [["b", "c", "d"], []]


def test_lambdas_have_bodies() -> None:
    text = "f([](int a) { b; }, c[1]); d = [&] { }; e[2] = g ? [x] { y; } : [z]; [] { }; (h)[{1}]"
    tokens = Tokens(text, "t")
    found = [tokens.text(body.start, body.stop) for body in lambdas(tokens, range(len(tokens)))]
    assert found == ["{b;}", "{}", "{y;}", "{}"]


def test_template_heads() -> None:
    tokens = Tokens(
        "template <> a<b>; template <typename T, int N = (3) < 4, class U> c < d; template e<f>();"
        "template <uint F(uint, G), bool B = 2 < 3, uint (*H)(int), half4 V = W> g;",
        "t",
    )
    heads = [tokens[i] for i in template_heads(tokens)]
    first = ["typename", "T", ",", "int", "N", "=", "(", "3", ")", "<", "4", ",", "class", "U"]
    assert heads[: len(first)] == first and heads[-2:] == ["=", "W"]
    assert "b" not in heads and "d" not in heads and "f" not in heads
    assert template_types(tokens) == {"T", "U"}
    assert template_values(tokens) == {"N", "F", "B", "H", "V", "W"}


def test_other_names_of_types() -> None:
    tokens = Tokens(
        "using A = B<int>; typedef C D; int e; typedef float F[2]; using namespace n;", "t"
    )
    assert aliases(tokens) == {"A", "D", "]", "namespace"}


@pytest.mark.parametrize(
    ("text", "type_"),
    [
        ("float x", "float"), ("device T *x", "T"), ("const A *const thread &x", "A"), ("B && x", ""),
        ("= a * x", ""), ("; a * x", "a"), ("(f & x", "f"), ("return x", ""), ("f(x", ""), ("5 x", ""),
        ("vec<float, 4> x", ">"), ("A<B<int>> x", ">"), ("A<> x", ">"), ("a > x", ""), ("; b; c > x", ""), ("(a) < b > x", ""),
        ("a < b && c > x", ""), ("f(a > x", ""), ("y = A<3> x", ">"), ("operator x", ""),
    ],
)  # fmt: skip
def test_the_type_of_a_variable(text: str, type_: str) -> None:
    tokens = Tokens(text, "t")
    last = len(tokens) - 1
    assert declared_type(tokens, last) == type_
    assert declares_variable(tokens, last) == bool(type_)
    assert declared_type(tokens, last - 1) in ("", tokens[last - 2])


@pytest.mark.parametrize(
    ("text", "paren"),
    [
        ("f(1)", 1), ("f<a>(1)", 4), ("f<a<b>, (c > d)>(1)", 13), ("f", 0), ("f + (1)", 0), ("f < a; b > (c)", 0),
        ("f < a && b > (c)", 0), ("f < a || b > (c)", 0), ("f<a> + (1)", 0), ("f < {a > (b)}", 0), ("f < a", 0),
    ],
)  # fmt: skip
def test_the_parenthesis_of_a_call(text: str, paren: int) -> None:
    assert call(Tokens(text, "t"), 0) == paren
