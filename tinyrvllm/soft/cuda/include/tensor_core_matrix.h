// simdgroup_matrix on tensor cores. Included by msl/simdgroup_matrix.h in the place of lane 0's matrices.
//
// 1. Each lane holds two neighbours of one row: row lane / 4, columns 2 (lane % 4) and the next, which is how mma's
//    results lie. A matrix may also be held turned: `turned` says that the lane's row is a column of the matrix. A load
//    picks what is contiguous in memory; inside unrolled code `turned` is known when compiled and costs nothing.
//
//        lane    0: (0,0) (0,1)   1: (0,2) (0,3)  ...   4: (1,0) (1,1)  ...   31: (7,6) (7,7)
//
// 2. Half times half is one mma.m16n8k8, whose rows 8 to 15 are zeros.
// 3. With float operands: TF32's products have 11 bits of each factor, so a float is cut in two of 11 bits,
//    x = high + low, and the 16 rows of mma.m16n8k8 take both at once: rows 0-7 high, rows 8-15 low. A half is exact in
//    TF32: one instruction. A float on the right is cut in two as well: two instructions. The error is 2^-22 of the
//    products' size (docs/cuda.md shows it). Before sm_80 there is no TF32: shuffles and fma.
// 4. The order of the 8 products inside an instruction is free as long as both operands agree: mma's k = j and j + 4
//    are the matrix's columns 2 j and 2 j + 1, so that no operand has to change lanes.
#pragma once

namespace metal {
template <class T, int COLUMNS = 8, int ROWS = 8> struct simdgroup_matrix {
  static_assert(COLUMNS == 8 && ROWS == 8, "Metal's simdgroup matrices are 8x8");
  T a, b;
  bool turned;
  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T diagonal) : a(0.0f), b(0.0f), turned(false) {
    uint row = detail::lane() / 4, column = detail::lane() % 4 * 2;
    if (row == column) a = diagonal;
    if (row == column + 1) b = diagonal;
  }
  simdgroup_matrix(T first, T second, bool is_turned) : a(first), b(second), turned(is_turned) {}
};

namespace detail {
MSL_INLINE uint word(float v) { return __builtin_bit_cast(uint, v); }
MSL_INLINE uint pair(half a, half b) { return (uint)a.bits | (uint)b.bits << 16; }
// The same matrix with rows and columns exchanged among lanes.
MSL_INLINE simdgroup_matrix<half> turn(simdgroup_matrix<half> m) {
  uint p = pair(m.a, m.b);
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(p) : "r"(p));
  m.a.bits = (ushort)p;
  m.b.bits = (ushort)(p >> 16);
  m.turned = !m.turned;
  return m;
}
template <class T> MSL_INLINE simdgroup_matrix<T> turn(simdgroup_matrix<T> m) {
  uint row = lane() / 4, from = lane() % 4 * 8 + row / 2;   // the lane that holds (column, row)
  T a0 = from_lane(~0u, m.a, from), b0 = from_lane(~0u, m.b, from);
  T a1 = from_lane(~0u, m.a, from + 4), b1 = from_lane(~0u, m.b, from + 4);
  return {row % 2 ? b0 : a0, row % 2 ? b1 : a1, !m.turned};
}
template <class T> MSL_INLINE simdgroup_matrix<T> laid(simdgroup_matrix<T> m, bool turned) {
  if (m.turned != turned) m = turn(m);
  return m;
}
struct Pair {
  float a, b;
};
MSL_INLINE float tf32(float x) { return __builtin_bit_cast(float, word(x) & 0xffffe000u); }
MSL_INLINE float below_tf32(float x) {          // what tf32 leaves out; none of infinity and NaN
  float rest = x - tf32(x);
  return rest == rest ? rest : 0.0f;
}
#if __CUDA_ARCH__ >= 800
// (high + low)[8, 8] * b[8, 8] + c; b's factors are exact in TF32
MSL_INLINE Pair multiply_tf32(Pair a, Pair b, Pair c) {
  float low0 = 0, low1 = 0;
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
      : "+f"(c.a), "+f"(c.b), "+f"(low0), "+f"(low1)
      : "r"(word(tf32(a.a))), "r"(word(below_tf32(a.a))), "r"(word(tf32(a.b))), "r"(word(below_tf32(a.b))),
        "r"(word(b.a)), "r"(word(b.b)));
  return {c.a + low0, c.b + low1};
}
template <class B> MSL_INLINE Pair multiply(Pair a, Pair b, Pair c) {
  if constexpr (same<B, float>) {
    c = multiply_tf32(a, {below_tf32(b.a), below_tf32(b.b)}, c);
    return multiply_tf32(a, {tf32(b.a), tf32(b.b)}, c);
  } else {
    return multiply_tf32(a, b, c);
  }
}
#else
// c[row, column] += a[row, k] b[column, k] for k = 0..7, in that order
template <class B> MSL_INLINE Pair multiply(Pair a, Pair b, Pair c) {
  uint row = lane() / 4 * 4, column = lane() % 4 * 8;       // lanes where a's row and b's first column start
  _Pragma("unroll") for (uint k = 0; k < 4; k++) {
    float a0 = from_lane(~0u, a.a, row + k), a1 = from_lane(~0u, a.b, row + k);
    c.a = ::fmaf(a0, from_lane(~0u, b.a, column + k), c.a);
    c.a = ::fmaf(a1, from_lane(~0u, b.b, column + k), c.a);
    c.b = ::fmaf(a0, from_lane(~0u, b.a, column + 4 + k), c.b);
    c.b = ::fmaf(a1, from_lane(~0u, b.b, column + 4 + k), c.b);
  }
  return c;
}
#endif
MSL_INLINE Pair multiply_half(simdgroup_matrix<half> a, simdgroup_matrix<half> b, Pair c) {
  float unused0 = 0, unused1 = 0;
  asm("mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5}, {%6}, {%0,%1,%2,%3};"
      : "+f"(c.a), "+f"(c.b), "+f"(unused0), "+f"(unused1)
      : "r"(pair(a.a, a.b)), "r"(0), "r"(pair(b.a, b.b)));
  return c;
}
}  // namespace detail

template <class T, int C = 8, int R = 8>
MSL_INLINE simdgroup_matrix<T, C, R> make_filled_simdgroup_matrix(T v) {
  return {v, v, false};
}
// origin: (column, row) of the matrix within the memory, whose rows are `stride` elements apart
template <class T, int C, int R, class P>
MSL_INLINE void simdgroup_load(simdgroup_matrix<T, C, R> &m, P p, ulong stride = C, ulong2 origin = ulong2(0, 0),
                               bool transposed = false) {
  static_assert(detail::same<detail::pointee<P>, T>, "simdgroup_load: the matrix and the memory differ in type");
  p += transposed ? origin.x * stride + origin.y : origin.y * stride + origin.x;
  auto *from = p + (detail::lane() / 4 * (uint)stride + detail::lane() % 4 * 2);
  if constexpr (sizeof(T) == 4) {
    m.a = from[0];
    m.b = from[1];
  } else if (((uint)(uintptr_t)from & 3) == 0) {
    vec<T, 2> both = *(const vec<T, 2> *)from;
    m.a = both.x;
    m.b = both.y;
  } else {
    m.a = from[0];
    m.b = from[1];
  }
  m.turned = transposed;
}
template <class T, int C, int R, class P>
MSL_INLINE void simdgroup_store(simdgroup_matrix<T, C, R> m, P p, ulong stride = C, ulong2 origin = ulong2(0, 0),
                                bool transposed = false) {
  static_assert(detail::same<detail::pointee<P>, T>, "simdgroup_store: the matrix and the memory differ in type");
  p += transposed ? origin.x * stride + origin.y : origin.y * stride + origin.x;
  m = detail::laid(m, transposed);
  auto *to = p + (detail::lane() / 4 * (uint)stride + detail::lane() % 4 * 2);
  to[0] = m.a;
  to[1] = m.b;
}
template <class D, class A, class B, class E>
MSL_INLINE void simdgroup_multiply_accumulate(simdgroup_matrix<D> &d, simdgroup_matrix<A> a, simdgroup_matrix<B> b,
                                              simdgroup_matrix<E> c) {
  a = detail::laid(a, false);
  b = detail::laid(b, true);
  c = detail::laid(c, false);
  detail::Pair sum = {(float)c.a, (float)c.b};
  if constexpr (detail::same<A, half> && detail::same<B, half>) sum = detail::multiply_half(a, b, sum);
  else sum = detail::multiply<B>({(float)a.a, (float)a.b}, {(float)b.a, (float)b.b}, sum);
  d = simdgroup_matrix<D>((D)sum.a, (D)sum.b, false);
}
}  // namespace metal
