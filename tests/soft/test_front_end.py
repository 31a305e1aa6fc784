"""The front end: what Metal accepts compiles, what it refuses is refused with its line."""

import pytest

from tinyrvllm.soft.cpu.library import SoftLibrary, compile_library
from tinyrvllm.soft.msl import MSLError
from tinyrvllm.soft.msl.tokens import Tokens

HEADER = "#include <metal_stdlib>\nusing namespace metal;\n"


def library(code: str, **options: object) -> SoftLibrary:
    return compile_library(HEADER + code, filename="user.metal", **options)  # type: ignore[arg-type]


def body(statements: str, before: str = "") -> str:
    return before + f"kernel void k(device float *a [[buffer(0)]]) {{\n{statements}\n}}\n"


VALID = {
    "struct copied from device": "struct B { half d; char q[32]; };\n"
    "kernel void k(device float *a, device const B *b) { B x = b[1]; a[0] = x.d; }",
    "struct copied from constant": "struct B { uint n; };\n"
    "kernel void k(device float *a, constant B &b) { B x = b; a[0] = x.n; }",
    "struct stored to device": "struct B { uint n; float f; };\n"
    "kernel void k(device B *a [[buffer(0)]]) { B x = {1, 2}; a[0] = x; }",
    "reinterpret_cast": body("auto p = reinterpret_cast<device uint *>(a); p[0] = as_type<uint>(1.0f);"),
    "conditional of pointers": "kernel void k(device float *a, device float *b, "
    "uint i [[thread_position_in_grid]]) { device float *p = i & 1 ? a : b; p[i] = 1; }",
    "bool vectors": "kernel void k(device float4 *a) { bool4 m = a[0] < a[1]; a[0] = select(a[0], a[1], !m); }",
    "alias of a vector": "template <typename T> void f(device T *p) { using T4 = vec<T, 4>; "
    "*(device T4 *)p = T4(1, 2, 3, 4) + T4(vec<float, 4>(2)); }\n"
    "kernel void k(device half *a) { f(a); }",
    "array of threadgroup structs": "struct S { float a[4]; uint n; };\n" + body("threadgroup S s[2]; s[0].a[1] = 1;"),
    "all threadgroup memory": body("threadgroup char s[16385], t[16368]; s[0] = t[0] = 1;"),
    "threadgroup atomic": body("threadgroup atomic_uint n; atomic_store_explicit(&n, 0, memory_order_relaxed);"),
    "threadgroup pointer": body("threadgroup float s[4]; threadgroup float *p = s; p[0] = 1;"),
    "aligned threadgroup array": body("alignas(16) threadgroup float s[4], t[4]; *(threadgroup float4 *)s = 1; t[0] = 2;"),
    "aligned as a type is": body("alignas(float4) threadgroup half s[8]; s[0] = 1;"),
    "threadgroup array of a template": body("threadgroup array<half, 8> s; s[0] = 1;"),
    "two instances, and a copy that address spaces make doubtful": "struct B { half d; };\n"
    "template <typename T> kernel void f(device T *a, device B *b) { threadgroup T s[4]; s[0] = 1; "
    "B x = b[0]; a[0] = s[0] + T(x.d); }\n"
    'template [[host_name("x")]] kernel void f<half>(device half *, device B *);\n'
    'template [[host_name("y")]] kernel void f<float>(device float *, device B *);',
    "kernels from macros": "#define K(name, T) kernel void name(device T *a) { a[0] = T(1); }\nK(kf, float)\nK(kh, half)",
    "instantiation by decltype": "template <typename T> [[kernel]] void f(device T *a) { a[0] = T(1); }\n"
    'template [[host_name("f_half")]] [[kernel]] decltype(f<half>) f<half>;',
    "kernel in a namespace": "namespace n { constant float x = 2; kernel void k(device float *a) { a[0] = x; } }",
    "methods of two spaces behind an access specifier": "struct S { float x; public: float f() device { return x; } "
    "float f() thread { return x; } }; kernel void k(device S *s) { S t = s[0]; s[0].x = s[1].f() + t.f(); }",
    "lambda": body("auto f = [](float x) { return x * 2; }; a[0] = f(1);"),
    "pragma and static_assert": body(
        'static_assert(sizeof(half4) == 8, "size");\n#pragma unroll\nfor (short i = 0; i < 4; i++) a[i] += 1e-3;'
    ),
    "recursion of templates": body(
        "a[0] = sum<3>(a);",
        "template <int N> float sum(device float *a) { return a[N] + sum<N - 1>(a); }\n"
        "template <> float sum<0>(device float *a) { return a[0]; }\n",
    ),
    "an overload that calls its namesake": body(
        "a[0] = f(float2(1));", "float f(float x) { return x; }\nfloat f(float2 x) { return f(x.x); }\n"
    ),
    "variables named as what is not supported": body("float mesh = 1, sampler = 2; a[0] = mesh + sampler;"),
}  # fmt: skip

INVALID = {
    "device pointer to threadgroup": (body("threadgroup float *p = a;"), 4, "cannot initialize a variable of type 'threadgroup float"),
    "threadgroup argument for device": (body("threadgroup float s[4];\nf(s);", "void f(device float *p) { }\n"), 6, "no matching function for call to 'f'"),
    "pointer without an address space": (body("f(a);", "void f(thread float *p) { }\n"), 5, "no matching function for call to 'f'"),
    "two address spaces": ("void f(device const thread float *p) { }", 3, "multiple address spaces specified for type"),
    "write to constant": ("kernel void k(constant float *a [[buffer(0)]]) {\n  a[0] = 1;\n}", 4, "read-only variable is not assignable"),
    "threadgroup variable in a helper": ("float f() {\n  threadgroup float s[4];\n  return s[0];\n}", 4, "variable 's' in the threadgroup address space cannot be declared in the non-kernel function 'f'"),
    "threadgroup variable at program scope": ("threadgroup float s[4];", 3, "program scope variable must reside in constant address space"),
    "a byte over 32 KB of threadgroup memory": (body("threadgroup char s[16400], t[16368], u; s[0] = t[0] = u = 1;"), 4, "threadgroup memory exceeds the limit of 32768 bytes"),
    "33 KB of threadgroup memory": (body("threadgroup float s[8448]; s[0] = 1;"), 4, "threadgroup memory exceeds the limit of 32768 bytes"),
    "threadgroup variable aligned to more than 16": (body("alignas(32) threadgroup float s[8]; s[0] = 1;"), 4, "multiples of 16 bytes"),
    "initialised threadgroup variable": (body("threadgroup float s[1] = {1};"), 4, "initializer for threadgroup variable is not allowed"),
    "buffer 31": ("kernel void k(device float *a [[buffer(31)]]) { }", 3, "must be between 0 and 30"),
    "one slot twice": ("kernel void k(device float *a [[buffer(1)]], device float *b [[buffer(1)]]) { }", 3, "two parameters of kernel 'k' have [[buffer(1)]]"),
    "value without an attribute": ("kernel void k(device float *a [[buffer(0)]], uint i) { }", 3, "kernel parameter 'i' has no [[buffer(n)]] or built-in attribute"),
    "plain pointer parameter": ("kernel void k(float *a [[buffer(0)]]) { }", 3, "needs a pointer or reference in address space device or constant"),
    "unknown name": (body("a[0] = frobnicate(1);"), 4, "use of undeclared identifier 'frobnicate'"),
    "half4 where float4 is due": ("kernel void k(device float4 *a, device half4 *h) {\n  a[0] = h[0];\n}", 4, "from incompatible type"),
    "missing semicolon": (body("a[0] = 1"), 4, "expected ';'"),
    "unbalanced brace": ("kernel void k(device float *a) { if (1) { }", 3, "expected '}'"),
    "loop without parentheses": (body("for *a; a[0] = simd_sum(1);"), 4, "expected '('"),
    "too few components": (body("float4 v = float4(1, 2); a[0] = v.x;"), 4, "a vector constructor needs as many components"),
    "inside a template": ("template <typename T> kernel void f(device T *a) {\n  a[0] = T(b);\n}\ntemplate [[host_name(\"x\")]] kernel void f<half>(device half *);", 4, "undeclared identifier 'b'"),
}  # fmt: skip

UNSUPPORTED = {
    "double x = 1;": "'double' is not supported in Metal",
    "float *p = new float[3];": "'new' is not supported in Metal",
    "goto end; end:;": "'goto' is not supported in Metal",
    "texture2d<float> t;": "textures are not supported by the software device",
    "sampler s;": "samplers are not supported by the software device",
    "metal::raytracing::intersector<> i;": "ray tracing is not supported by the software device",
}


@pytest.mark.parametrize("name", VALID)
def test_valid(name: str) -> None:
    assert library(VALID[name]).functions


@pytest.mark.parametrize("name", INVALID)
def test_invalid(name: str) -> None:
    code, line, message = INVALID[name]
    with pytest.raises(MSLError) as error:
        library(code)
    assert message in str(error.value)
    assert str(error.value).startswith(f"user.metal:{line}:"), str(error.value)


@pytest.mark.parametrize("statement", UNSUPPORTED)
def test_unsupported_is_named_with_its_line(statement: str) -> None:
    with pytest.raises(MSLError) as error:
        library(body("\n" + statement))
    assert str(error.value).startswith("user.metal:5:"), str(error.value)
    assert UNSUPPORTED[statement] in str(error.value)


def test_render_functions_are_not_supported() -> None:
    with pytest.raises(MSLError, match="user.metal:3:1: error: 'vertex': render pipelines are not"):
        library("vertex float4 v() { return 0; }")


def test_recursion_is_refused() -> None:
    with pytest.raises(MSLError, match="user.metal:4:.*recursive call of 'f' is not supported"):
        library("float f(float x) {\n  return x > 0 ? f(x - 1) : 0;\n}\n" + body("a[0] = f(1);"))


def test_recursion_through_another_function_is_refused() -> None:
    source = (
        "float g(float);\nfloat f(float x) {\n  return g(x);\n}\n"
        "float g(float x) {\n  return x > 0 ? f(x - 1) : f(0);\n}\n"
    )
    with pytest.raises(MSLError, match="user.metal:8:.*recursive call of 'f' is not supported"):
        library(source + body("a[0] = f(1);"))
    library(source.replace("? f(x - 1) : f(0)", "? x : 0") + body("a[0] = f(1);"))


def test_the_caret_stands_under_what_the_user_wrote() -> None:
    with pytest.raises(MSLError) as error:
        library(body("    a[0]  =  float4(1.0) .x  + missing;"))
    _, written, caret = str(error.value).splitlines()
    assert written[caret.index("^") :].startswith("missing")


def test_lines_of_spliced_includes_are_their_own_files() -> None:
    code = '#line 1 "shared.h"\nfloat twice(float x) { return y; }\n#line 2 "main.metal"\n' + body("")
    with pytest.raises(MSLError) as error:
        library(code)
    assert str(error.value).startswith("shared.h:1:31: error: use of undeclared identifier 'y'")
    assert "float twice(float x) { return y; }" in str(error.value)


def test_what_a_host_may_know() -> None:
    info = library(
        "constant bool flag [[function_constant(2)]];\n"
        "[[max_total_threads_per_threadgroup(128)]] kernel void k(\n"
        "    device float *a [[buffer(3)]], constant uint &n [[buffer(0), function_constant(flag)]],\n"
        "    threadgroup half *t [[threadgroup(1)]], ushort2 i [[thread_position_in_grid]]) { }\n"
    ).functions["k"]
    assert info.max_total_threads == 128
    assert (info.file, info.line) == ("user.metal", 4)
    assert [(p.name, p.kind, p.index, p.access) for p in info.params] == [
        ("a", "buffer", 3, "read_write"),
        ("n", "buffer", 0, "read"),
        ("t", "threadgroup", 1, None),
        ("i", "thread_position_in_grid", None, None),
    ]
    assert info.params[1].function_constant == "flag"


def test_buffers_without_an_index_are_numbered_in_order() -> None:
    info = library("kernel void k(device float *a, constant uint &n, device float *b) { }")
    assert [p.index for p in info.functions["k"].params] == [0, 1, 2]


def test_tokens_give_back_their_source_and_know_their_places() -> None:
    source = '# 7 "x.metal"\nint a[b[1]]; // [[no]]\n/* two\nlines */ float c = .5e-3h;\n'
    tokens = Tokens(source, "user.metal")
    assert tokens.source() == source
    assert [(t.text, t.file, t.line) for t in tokens.list][-5:] == [
        ("float", "x.metal", 9),
        ("c", "x.metal", 9),
        ("=", "x.metal", 9),
        (".5e-3h", "x.metal", 9),
        (";", "x.metal", 9),
    ]
