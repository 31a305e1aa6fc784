// metal_simdgroup_matrix: 8x8 matrices that belong to a simdgroup (MSL specification, 2.4, 6.11).
//
// Lane 0 holds all 64 elements and does the work. The source is compiled twice: for lane 0 (MSL_LEAD 1), and for the
// other lanes (MSL_LEAD 0), where a matrix is empty and every operation is nothing. A library that asks for
// thread_elements() is compiled with MSL_MATRIX_PER_LANE instead (simdgroup_matrix_per_lane.h).
//
// Elements are kept as float, which holds any half or bfloat. A product accumulates in float over k = 0..7 with fma and
// is rounded to the result's type once.
#pragma once
#include "simd_ops.h"

#ifndef MSL_CUDA
namespace metal {
namespace detail {
typedef float float8 __attribute__((ext_vector_type(8)));
template <class T> MSL_INLINE float8 rounded(float8 v) {
  if constexpr (same<T, float>) return v;
  else
    return __builtin_convertvector(
        __builtin_convertvector(v, T __attribute__((ext_vector_type(8)))), float8);
}
// d = a b + c for 8x8 matrices given by rows; d may be any of them. A call of its own: inlined, dozens of products have
// their rows moved to and fro between registers and the stack, two moves for each multiplication.
template <class T>
static MSL_NOINLINE void multiply_rows(float8 *d, const float8 *a, const float8 *b, const float8 *c) {
  const float *elements = (const float *)a;
  float8 rows[8];
  for (int k = 0; k < 8; k++) rows[k] = b[k];
  for (int i = 0; i < 8; i++) {
    float8 r = c[i];
    for (int k = 0; k < 8; k++)
      r = __builtin_elementwise_fma((float8)elements[i * 8 + k], rows[k], r);
    d[i] = rounded<T>(r);
  }
}
}  // namespace detail
}  // namespace metal
#endif

#if defined(MSL_MATRIX_PER_LANE)
#include "simdgroup_matrix_per_lane.h"
#elif defined(MSL_CUDA)
#include "tensor_core_matrix.h"
#else
namespace metal {
template <class T, int COLUMNS = 8, int ROWS = 8> struct simdgroup_matrix {
  static_assert(COLUMNS == 8 && ROWS == 8, "Metal's simdgroup matrices are 8x8");
  simdgroup_matrix() = default;
#if MSL_LEAD
  detail::float8 row[8];
  explicit simdgroup_matrix(T diagonal) {
    for (int i = 0; i < 8; i++) {
      row[i] = (detail::float8)0.0f;
      row[i][i] = (float)diagonal;
    }
  }
#else
  explicit simdgroup_matrix(T) {}
#endif
};

namespace detail {
// In the checking mode all lanes meet at a matrix operation, so that one without all of them is found.
struct Together {
  typedef char In, Out;
  static constexpr bool one = true, whole_simdgroup = true;
  static void run(const char *, char *, uint) {}
};
MSL_INLINE void together([[maybe_unused]] msl::From site) {
#ifdef MSL_CHECK
  collective<Together>(0, site);
#endif
}
}  // namespace detail

#if MSL_LEAD
namespace detail {
// Rows lie at any multiple of the element's alignment. (An alias template would lose `aligned`.)
template <class T> struct unaligned {
  typedef T row __attribute__((ext_vector_type(8), aligned(__alignof__(T))));
};
template <class P> MSL_INLINE float8 load_row(P p) {
#ifdef MSL_AS
  return (float8)(float)*p;
#else
  return __builtin_convertvector(*(const typename unaligned<pointee<P> >::row *)p, float8);
#endif
}
template <class P> MSL_INLINE void store_row(P p, float8 v) {
#ifdef MSL_AS
  *p = (pointee<P>)v[0];
#else
  typedef typename unaligned<pointee<P> >::row row;
  *(row *)p = __builtin_convertvector(v, row);
#endif
}
// Three interleavings of rows i and i + 4 transpose eight rows; element by element would take 64 moves.
MSL_INLINE void transpose_rows(float8 *r) {
  for (int step = 0; step < 3; step++) {
    float8 t[8];
    for (int i = 0; i < 4; i++) {
      t[2 * i] = __builtin_shufflevector(r[i], r[i + 4], 0, 8, 1, 9, 2, 10, 3, 11);
      t[2 * i + 1] = __builtin_shufflevector(r[i], r[i + 4], 4, 12, 5, 13, 6, 14, 7, 15);
    }
    for (int i = 0; i < 8; i++) r[i] = t[i];
  }
}
}  // namespace detail

template <class T, int C = 8, int R = 8>
MSL_INLINE simdgroup_matrix<T, C, R> make_filled_simdgroup_matrix(T v) {
  simdgroup_matrix<T, C, R> m;
  for (int i = 0; i < 8; i++) m.row[i] = (detail::float8)(float)v;
  return m;
}
// origin: (column, row) of the matrix within the memory, whose rows are `stride` elements apart
template <class T, int C, int R, class P>
MSL_INLINE void simdgroup_load(simdgroup_matrix<T, C, R> &m, P p, ulong stride = C,
                               ulong2 origin = ulong2{0, 0}, bool transposed = false, MSL_SITE) {
  detail::together(site);
  static_assert(detail::same<detail::pointee<P>, T>,
                "simdgroup_load: the matrix and the memory differ in type");
  p += transposed ? origin.x * stride + origin.y : origin.y * stride + origin.x;
  for (int i = 0; i < 8; i++) m.row[i] = detail::load_row(p + i * stride);
  if (transposed) detail::transpose_rows(m.row);
}
template <class T, int C, int R, class P>
MSL_INLINE void simdgroup_store(simdgroup_matrix<T, C, R> m, P p, ulong stride = C,
                                ulong2 origin = ulong2{0, 0}, bool transposed = false, MSL_SITE) {
  detail::together(site);
  static_assert(detail::same<detail::pointee<P>, T>,
                "simdgroup_store: the matrix and the memory differ in type");
  p += transposed ? origin.x * stride + origin.y : origin.y * stride + origin.x;
  if (transposed) detail::transpose_rows(m.row);
  for (int i = 0; i < 8; i++) detail::store_row(p + i * stride, m.row[i]);
}
template <class D, class A, class B, class E>
MSL_INLINE void simdgroup_multiply_accumulate(simdgroup_matrix<D> &d, const simdgroup_matrix<A> &a,
                                              const simdgroup_matrix<B> &b,
                                              const simdgroup_matrix<E> &c, MSL_SITE) {
  detail::together(site);
  detail::multiply_rows<D>(d.row, a.row, b.row, c.row);
}
#else
template <class T, int C = 8, int R = 8>
MSL_INLINE simdgroup_matrix<T, C, R> make_filled_simdgroup_matrix(T) {
  return {};
}
template <class M, class P>
MSL_INLINE void simdgroup_load(M &, P, ulong = 8, ulong2 = ulong2{0, 0}, bool = false, MSL_SITE) {
  detail::together(site);
}
template <class M, class P>
MSL_INLINE void simdgroup_store(M, P, ulong = 8, ulong2 = ulong2{0, 0}, bool = false, MSL_SITE) {
  detail::together(site);
}
template <class D, class A, class B, class E>
MSL_INLINE void simdgroup_multiply_accumulate(D &, const A &, const B &, const E &, MSL_SITE) {
  detail::together(site);
}
#endif
}  // namespace metal
#endif  // MSL_MATRIX_PER_LANE

typedef metal::simdgroup_matrix<float> simdgroup_float8x8;
typedef metal::simdgroup_matrix<half> simdgroup_half8x8;
typedef metal::simdgroup_matrix<bfloat> simdgroup_bfloat8x8;
namespace metal {
using ::simdgroup_bfloat8x8;
using ::simdgroup_float8x8;
using ::simdgroup_half8x8;
template <class D, class A, class B>
MSL_INLINE void simdgroup_multiply(simdgroup_matrix<D> &d, const simdgroup_matrix<A> &a,
                                   const simdgroup_matrix<B> &b) {
  simdgroup_multiply_accumulate(d, a, b, make_filled_simdgroup_matrix<D, 8, 8>((D)0.0f));
}
template <class T> MSL_INLINE simdgroup_matrix<T> operator*(const simdgroup_matrix<T> &a,
                                                            const simdgroup_matrix<T> &b) {
  simdgroup_matrix<T> d;
  simdgroup_multiply(d, a, b);
  return d;
}
}  // namespace metal
