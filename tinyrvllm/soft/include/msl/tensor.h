// metal_tensor and metal_cooperative_tensor (MSL specification 4, section 2.20): the subset that a matrix product over
// tensors made in the kernel needs. Names and signatures are those of Apple's headers, as far as public sources show
// them; tensors bound by the host (tensor_handle) are not here.
//
// Dimension 0 is the contiguous one: a row-major matrix [rows][columns] has the extents (columns, rows).
#pragma once
#include "array.h"
#include "simd_ops.h"

namespace msl_tensors {  // metal_tensor brings these names into namespace metal
using namespace metal;

inline constexpr size_t dynamic_extent = ~(size_t)0;
struct tensor_handle {};
struct tensor_inline {};
struct tensor_offset {};

template <class I, size_t... E> struct extents {
  typedef I index_type;
  static constexpr size_t dynamic = (0 + ... + (size_t)(E == dynamic_extent));
  I sizes[sizeof...(E)];
  static constexpr size_t rank() { return sizeof...(E); }
  template <class... A>
    requires(sizeof...(A) == dynamic)
  constexpr extents(A... given) {
    I values[] = {(I)given..., I()};
    size_t fixed[] = {E...}, next = 0;
    for (size_t i = 0; i < rank(); i++)
      sizes[i] = fixed[i] == dynamic_extent ? values[next++] : (I)fixed[i];
  }
  constexpr I extent(size_t i) const { return sizes[i]; }
};
namespace detail {
template <class I, size_t R, size_t... E> struct all_dynamic : all_dynamic<I, R - 1, dynamic_extent, E...> {};
template <class I, size_t... E> struct all_dynamic<I, 0, E...> {
  typedef extents<I, E...> type;
};
}  // namespace detail
template <class I, size_t R> using dextents = typename detail::all_dynamic<I, R>::type;

// A view of memory; only of rank 2, and only over a pointer that the kernel has (tensor_inline).
template <class T, class Extents, class Descriptor = tensor_handle, class... Tags> struct tensor {
  static_assert(metal::detail::same<Descriptor, tensor_inline>,
                "the software device has no tensors bound by the host: make a tensor_inline over a pointer");
  static_assert(Extents::rank() == 2, "the software device has tensors of rank 2");
  typedef T element_type;
  typedef typename metal::detail::bare<T>::type value_type;
  typedef typename Extents::index_type index_type;
  T *data;
  index_type sizes[2], steps[2];

  tensor(T *p, const Extents &e) : data(p), sizes{e.extent(0), e.extent(1)}, steps{1, e.extent(0)} {}
  tensor(T *p, const Extents &e, const array<index_type, 2> &strides)
      : data(p), sizes{e.extent(0), e.extent(1)}, steps{strides[0], strides[1]} {}
  static constexpr size_t get_rank() { return 2; }
  index_type get_extent(size_t i) const { return sizes[i]; }
  index_type get_stride(size_t i) const { return steps[i]; }

  // The same memory with its origin moved; what lies beyond the old extents stays beyond the new ones.
  tensor<T, dextents<index_type, 2>, tensor_inline> slice(index_type x, index_type y) const {
    return slice<dynamic_extent, dynamic_extent>(x, y);
  }
  template <size_t X, size_t Y>
  tensor<T, dextents<index_type, 2>, tensor_inline> slice(index_type x, index_type y) const {
    dextents<index_type, 2> left(X == dynamic_extent ? sizes[0] - x : (index_type)X,
                                 Y == dynamic_extent ? sizes[1] - y : (index_type)Y);
    return {data + x * steps[0] + y * steps[1], left, array<index_type, 2>{steps[0], steps[1]}};
  }
};

template <int N> struct execution_simdgroups {
  static constexpr uint threads = 32 * N;
};
using execution_simdgroup = execution_simdgroups<1>;
struct execution_thread {
  static constexpr uint threads = 1;
};

// A matrix [M][N] that belongs to the threads of a scope; which element is whose is the implementation's business. Here
// element i of thread t is number i * threads + t, or, where one simdgroup owns tiles of 16 x 16, what MLX relies on in
// steel/gemm/nax.h (no document of Apple's says so): eight elements of each tile, the tiles row by row, four neighbours
// in row r and four in row r + 8, where r and their first column come from the lane as in simdgroup_matrix.
// Each thread has one element more than it owns, which is not valid: a kernel that does not ask is_valid_element()
// writes past its tile. Elements are NaN until they are set.
template <class T, int M, int N, class Scope> struct cooperative_tensor {
  typedef T element_type, value_type;
  static constexpr uint threads = Scope::threads, owned = (M * N + threads - 1) / threads;
  T elements[owned + 1];

  cooperative_tensor() {
    for (uint i = 0; i <= owned; i++) elements[i] = (T)__builtin_nanf("");
  }
  static uint place(uint i) { return place(i, (msl::arena()->first + msl::thread_index()) % threads); }
  static uint place(uint i, uint t) {  // row * N + column of thread t's element i; M * N or more where there is none
    if (i >= owned) return M * N;
    if constexpr (threads == 32 && M % 16 == 0 && N % 16 == 0) {
      uint tile = i / 8, row = (t / 4 & 4) + t / 2 % 4 + i / 4 % 2 * 8, column = (t / 4 & 2) * 4 + t % 2 * 4 + i % 4;
      return (tile / (N / 16) * 16 + row) * N + tile % (N / 16) * 16 + column;
    }
    return i * threads + t;
  }
  static constexpr size_t get_rank() { return 2; }
  static constexpr ushort get_capacity() { return owned + 1; }
  static bool is_valid_element(ushort i) { return place(i) < M * N; }
  static array<int, 2> get_multidimensional_index(ushort i) {
    return {(int)(place(i) % N), (int)(place(i) / N)};
  }
  T &operator[](ushort i) { return elements[i]; }
  const T &operator[](ushort i) const { return elements[i]; }
  T get(ushort i) const { return is_valid_element(i) ? elements[i] : T(); }
  void set(ushort i, T v) {
    if (is_valid_element(i)) elements[i] = v;
  }
  // Elements beyond the tensor's extents are neither read nor written.
  template <class Tensor> METAL_FUNC void load(const Tensor &from) {
    static_assert(metal::detail::same<T, typename Tensor::value_type>, "load: the element types differ");
    for (ushort i = 0; i < owned; i++)
      if (inside(from, i)) elements[i] = from.data[offset(from, i)];
  }
  template <class Tensor> METAL_FUNC void store(const Tensor &to) const {
    static_assert(metal::detail::same<T, typename Tensor::value_type>, "store: the element types differ");
    for (ushort i = 0; i < owned; i++)
      if (inside(to, i)) to.data[offset(to, i)] = elements[i];
  }

 private:
  template <class Tensor> static bool inside(const Tensor &t, ushort i) {
    uint p = place(i);
    return p < M * N && (int)(p % N) < t.sizes[0] && (int)(p / N) < t.sizes[1];
  }
  template <class Tensor> static long offset(const Tensor &t, ushort i) {
    uint p = place(i);
    return (long)(p % N) * t.steps[0] + (long)(p / N) * t.steps[1];
  }
};
}  // namespace msl_tensors
