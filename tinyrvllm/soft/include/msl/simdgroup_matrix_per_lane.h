// simdgroup_matrix as a GPU keeps it: two elements in each lane, which thread_elements() shows. Lane ownership is
// Apple's, as read off by others on hardware (it is not in the specification): with quad = lane / 4,
//   row    = (quad & 4) + lane / 2 % 4            lane  0: row 0, columns 0 1      lane  1: row 0, columns 2 3
//   column = (quad & 2) * 2 + lane % 2 * 2        lane  8: row 0, columns 4 5      lane 16: row 4, columns 0 1
// Loads and stores touch only the lane's own elements; a product is a simd operation.
#pragma once

namespace metal {
template <class T, int COLUMNS = 8, int ROWS = 8> struct simdgroup_matrix {
  static_assert(COLUMNS == 8 && ROWS == 8, "Metal's simdgroup matrices are 8x8");
  typedef vec<T, 2> thread_elements_type;
  thread_elements_type elements;
  simdgroup_matrix() = default;
  explicit simdgroup_matrix(T diagonal);
  thread thread_elements_type &thread_elements() { return elements; }
  const thread thread_elements_type &thread_elements() const { return elements; }
};

namespace detail {
MSL_INLINE uint row_of_lane(uint l) { return (l / 4 & 4) + l / 2 % 4; }
MSL_INLINE uint column_of_lane(uint l) { return (l / 4 & 2) * 2 + l % 2 * 2; }

template <class T> struct Multiply {
  struct In {
    float2 a, b, c, padding;
  };
  typedef vec<T, 2> Out;
  static constexpr bool one = false, whole_simdgroup = true;
  static void run(const In *in, Out *out, uint) {
    float8 a[8], b[8], c[8], d[8];
    for (uint l = 0; l < 32; l++) {
      uint row = row_of_lane(l), column = column_of_lane(l);
      for (uint i = 0; i < 2; i++) {
        a[row][column + i] = in[l].a[i];
        b[row][column + i] = in[l].b[i];
        c[row][column + i] = in[l].c[i];
      }
    }
    multiply_rows<T>(d, a, b, c);
    for (uint l = 0; l < 32; l++) {
      uint row = row_of_lane(l), column = column_of_lane(l);
      out[l] = Out{(T)d[row][column], (T)d[row][column + 1]};
    }
  }
};
// Distance of the lane's element i from the matrix's first, in memory
MSL_INLINE ulong element_at(uint i, ulong stride, ulong2 origin, bool transposed) {
  ulong row = row_of_lane(lane()), column = column_of_lane(lane()) + i;
  return transposed ? (origin.x + column) * stride + origin.y + row
                    : (origin.y + row) * stride + origin.x + column;
}
}  // namespace detail

template <class T, int C, int R> simdgroup_matrix<T, C, R>::simdgroup_matrix(T diagonal) {
  uint row = detail::row_of_lane(detail::lane()), column = detail::column_of_lane(detail::lane());
  elements =
      thread_elements_type{row == column ? diagonal : (T)0, row == column + 1 ? diagonal : (T)0};
}
template <class T, int C = 8, int R = 8>
MSL_INLINE simdgroup_matrix<T, C, R> make_filled_simdgroup_matrix(T v) {
  simdgroup_matrix<T, C, R> m;
  m.elements = (vec<T, 2>)v;
  return m;
}
template <class T, int C, int R, class P>
MSL_INLINE void simdgroup_load(simdgroup_matrix<T, C, R> &m, P p, ulong stride = C,
                               ulong2 origin = ulong2{0, 0}, bool transposed = false) {
  static_assert(detail::same<detail::pointee<P>, T>,
                "simdgroup_load: the matrix and the memory differ in type");
  for (uint i = 0; i < 2; i++) m.elements[i] = p[detail::element_at(i, stride, origin, transposed)];
}
template <class T, int C, int R, class P>
MSL_INLINE void simdgroup_store(simdgroup_matrix<T, C, R> m, P p, ulong stride = C,
                                ulong2 origin = ulong2{0, 0}, bool transposed = false) {
  static_assert(detail::same<detail::pointee<P>, T>,
                "simdgroup_store: the matrix and the memory differ in type");
  for (uint i = 0; i < 2; i++) p[detail::element_at(i, stride, origin, transposed)] = m.elements[i];
}
template <class D, class A, class B, class E>
MSL_INLINE void simdgroup_multiply_accumulate(simdgroup_matrix<D> &d, const simdgroup_matrix<A> &a,
                                              const simdgroup_matrix<B> &b,
                                              const simdgroup_matrix<E> &c, MSL_SITE) {
  auto wide = [](auto v) { return __builtin_convertvector(v, float2); };
  d.elements = detail::collective<detail::Multiply<D>>(
      {wide(a.elements), wide(b.elements), wide(c.elements)}, site);
}
}  // namespace metal
