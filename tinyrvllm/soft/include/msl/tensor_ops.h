// MetalPerformancePrimitives: matmul2d, C = A B or C = A B + C with tensors (MSL specification 4, section 7.2.1). Every
// thread of the scope must come; each computes the elements of C that are its own, straight from the operands' memory,
// so that a missing barrier around run() is a race like any other. Operands may also be two cooperative tensors of one
// simdgroup; then the last lane to come computes all of C. The order of a sum is ours: Apple states none.
#pragma once
#include "tensor.h"

namespace msl_tensors::ops {
struct matmul2d_descriptor {
  enum class mode { multiply, multiply_accumulate };
  int m, n, k;
  bool transpose_left, transpose_right, relaxed_precision;
  mode matmul_mode;
  constexpr matmul2d_descriptor(int m, int n, int k = (int)dynamic_extent, bool transpose_left = false,
                                bool transpose_right = false, bool relaxed_precision = false,
                                mode matmul_mode = mode::multiply)
      : m(m), n(n), k(k), transpose_left(transpose_left), transpose_right(transpose_right),
        relaxed_precision(relaxed_precision), matmul_mode(matmul_mode) {}
};

namespace detail {
using namespace metal::detail;
typedef float vector8 __attribute__((ext_vector_type(8)));
template <class T> struct eight {  // contiguous elements at any multiple of their own alignment
  typedef T type __attribute__((ext_vector_type(8), aligned(__alignof__(T))));
};
template <class P> MSL_INLINE vector8 load8(P p) {
#ifdef MSL_AS
  return (vector8)(float)*p;
#else
  return __builtin_convertvector(*(const typename eight<pointee<P>>::type *)p, vector8);
#endif
}
// sum of a[i * a_step] * b[i * b_step] over i < count, in eight partial sums
template <class A, class B>
MSL_INLINE float dot(A a, int a_step, B b, int b_step, int count) {
  vector8 sums = (vector8)0.0f;
  int i = 0;
  if (a_step == 1 && b_step == 1)
    for (; i + 8 <= count; i += 8) sums = __builtin_elementwise_fma(load8(a + i), load8(b + i), sums);
  for (; i < count; i++) sums[i & 7] += (float)a[i * a_step] * (float)b[i * b_step];
  return ((sums[0] + sums[1]) + (sums[2] + sums[3])) + ((sums[4] + sums[5]) + (sums[6] + sums[7]));
}
// Tables 7.3 and 7.4, less what has char in it.
template <class L, class R, class D>
inline constexpr bool takes = is_float<L> && is_float<R> &&
    (same<D, float> || (same<D, half> && (same<L, half> || same<R, half>) && !same<L, float> && !same<R, float>) ||
     (same<D, bfloat> && (same<L, bfloat> || same<R, bfloat>) && !same<L, float> && !same<R, float>));
struct Meeting {  // in the checking mode all lanes of a simdgroup meet here
  typedef char In, Out;
  static constexpr bool one = true, whole_simdgroup = true;
  static void run(const char *, char *, uint) {}
};
// Both operands in the lanes' registers, each as it would be stored: a left one [M][K], or [K][M] if D transposes it.
template <matmul2d_descriptor D, class Left, class Right, class Result> struct Product {
  struct In {
    const Left *left;
    const Right *right;
    Result *result;
    void *padding;
  };
  typedef char Out;
  static constexpr bool one = true, whole_simdgroup = true;
  static void run(const In *in, char *, uint mask) {
    float a[D.m * D.k] = {}, b[D.n * D.k] = {};  // [M][K] and [N][K]
    for (uint l = 0; l < 32; l++)
      if (mask >> l & 1) {
        for (uint i = 0; i < Left::owned; i++)
          a[by_k<D.transpose_left, D.m>(Left::place(i, l))] = (float)in[l].left->elements[i];
        for (uint i = 0; i < Right::owned; i++)
          b[by_k<!D.transpose_right, D.n>(Right::place(i, l))] = (float)in[l].right->elements[i];
      }
    for (uint l = 0; l < 32; l++)
      if (mask >> l & 1)
        for (uint i = 0; i < Result::owned; i++) {
          uint p = Result::place(i, l);
          auto &c = in[l].result->elements[i];
          float before = D.matmul_mode == matmul2d_descriptor::mode::multiply_accumulate ? (float)c : 0.0f;
          c = (typename Result::value_type)(before + dot(a + p / D.n * D.k, 1, b + p % D.n * D.k, 1, D.k));
        }
  }
  template <bool TURNED, int ROWS> static uint by_k(uint p) { return TURNED ? p % ROWS * D.k + p / ROWS : p; }
};
template <class T> struct Operand;
template <class T, class... Rest> struct Operand<tensor<T, Rest...>> {
  typedef typename tensor<T, Rest...>::value_type value;
};
}  // namespace detail

template <matmul2d_descriptor D, class Scope> class matmul2d {
  static_assert(D.m % 16 == 0 && D.n % 16 == 0, "matmul2d: Apple's compiler refuses tiles of 8, and takes 16");

 public:
  template <class Left, class Right, class T>
  cooperative_tensor<T, D.m, D.n, Scope> get_destination_cooperative_tensor() const {
    return {};
  }
  template <class Left, class Right, class T>
  auto get_left_input_cooperative_tensor() const {
    return input<Left, D.transpose_left ? D.k : D.m, D.transpose_left ? D.m : D.k>();
  }
  template <class Left, class Right, class T>
  auto get_right_input_cooperative_tensor() const {
    return input<Right, D.transpose_right ? D.n : D.k, D.transpose_right ? D.k : D.n>();
  }

  template <class L, class R, class T, int LM, int LN, int RM, int RN, int M, int N>
  METAL_FUNC void run(cooperative_tensor<L, LM, LN, Scope> &left, cooperative_tensor<R, RM, RN, Scope> &right,
                      cooperative_tensor<T, M, N, Scope> &c, MSL_SITE) const {
    static_assert(LM * LN == D.m * D.k && LN == (D.transpose_left ? D.m : D.k) && RM * RN == D.n * D.k &&
                      RN == (D.transpose_right ? D.k : D.n) && M == D.m && N == D.n,
                  "matmul2d: an operand or the destination belongs to another operation");
    static_assert(detail::takes<L, R, T>, "matmul2d: this combination of element types is not supported");
    typedef detail::Product<D, cooperative_tensor<L, LM, LN, Scope>, cooperative_tensor<R, RM, RN, Scope>,
                            cooperative_tensor<T, M, N, Scope>> Product;
    detail::collective<Product>({&left, &right, &c, nullptr}, site);
  }
  template <class Left, class Right, class T, int M, int N>
  METAL_FUNC void run(Left &left, Right &right, cooperative_tensor<T, M, N, Scope> &c, MSL_SITE) const {
    static_assert(M == D.m && N == D.n, "matmul2d: the destination belongs to another operation");
    static_assert(detail::takes<typename detail::Operand<Left>::value, typename detail::Operand<Right>::value, T>,
                  "matmul2d: this combination of element types is not supported");
    meet(site);
    for (ushort i = 0; i < c.owned; i++)
      if (c.is_valid_element(i)) {
        auto at = c.get_multidimensional_index(i);
        c[i] = result(left, right, at[1], at[0], (float)c[i]);
      }
  }
  template <class Left, class Right, class T, class E>
  METAL_FUNC void run(Left &left, Right &right, tensor<T, E, tensor_inline> &c, MSL_SITE) const {
    meet(site);
    typedef typename tensor<T, E, tensor_inline>::value_type value;
    cooperative_tensor<value, D.m, D.n, Scope> mine;
    for (ushort i = 0; i < mine.owned; i++) {
      auto at = mine.get_multidimensional_index(i);
      if (mine.is_valid_element(i) && at[0] < c.sizes[0] && at[1] < c.sizes[1]) {
        auto to = c.data + ((long)at[0] * c.steps[0] + (long)at[1] * c.steps[1]);
        *to = (value)result(left, right, at[1], at[0], (float)*to);
      }
    }
  }
  // How a source calls run() that has a function of that name with events (soft/msl/call_paths.py).
  template <class Left, class Right, class Result>
  METAL_FUNC void run(msl::From site, Left &left, Right &right, Result &c) const {
    run(left, right, c, site);
  }

 private:
  template <class T, int ROWS, int COLUMNS> static cooperative_tensor<T, ROWS, COLUMNS, Scope> input() {
    static_assert(Scope::threads == 32, "matmul2d: operands in registers belong to one execution_simdgroup");
    static_assert((D.m + D.n) * D.k <= 8192, "matmul2d: operands in registers are too large");
    static_assert(ROWS % 16 == 0 && COLUMNS % 16 == 0, "matmul2d: operands in registers have sides of 16 n");
    return {};
  }
  static METAL_FUNC void meet([[maybe_unused]] uint site) {
#ifdef MSL_CHECK
    metal::detail::collective<detail::Meeting>(0, site);
#endif
  }
  // c[row][column]; NaN where the launch has other than the scope's threads, which Apple leaves undefined
  template <class Left, class Right>
  static METAL_FUNC float result(const Left &a, const Right &b, int row, int column, float before) {
    constexpr int ka = D.transpose_left, kb = !D.transpose_right;  // which dimension of each is K
    msl::U3 g = msl::arena()->group;
    if (Scope::threads > 32 && g.x * g.y * g.z != Scope::threads) return __builtin_nanf("");
    int all = a.sizes[ka] < b.sizes[kb] ? a.sizes[ka] : b.sizes[kb];
    int count = D.k > 0 && D.k < 1 << 30 && D.k < all ? D.k : all;
    float sum = D.matmul_mode == matmul2d_descriptor::mode::multiply_accumulate ? before : 0.0f;
    if (row >= a.sizes[!ka] || column >= b.sizes[!kb]) return sum;  // beyond the operands: zeros
    return sum + detail::dot(a.data + (long)row * a.steps[!ka], a.steps[ka],
                             b.data + (long)column * b.steps[!kb], b.steps[kb], count);
  }
};
}  // namespace msl_tensors::ops
