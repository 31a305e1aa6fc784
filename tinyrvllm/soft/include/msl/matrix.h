// metal_matrix: floatCxR and halfCxR, C columns of R rows, stored column after column (MSL specification, 2.3, 6.7).
#pragma once
#include "geometric.h"

namespace metal {
template <class T, int C, int R> struct matrix {
  typedef vec<T, R> column;
  typedef vec<T, C> row;
  column columns[C];

  matrix() = default;
  explicit matrix(T diagonal) {
    for (int i = 0; i < C; i++) {
      columns[i] = (column)T(0);
      if (i < R) columns[i][i] = diagonal;
    }
  }
  template <class... V>
    requires(sizeof...(V) == C && (detail::same<V, column> && ...))
  matrix(V... v) : columns{v...} {}
  template <class... S>
    requires(sizeof...(S) == C * R && (__is_arithmetic(S) && ...))
  matrix(S... s) {
    const T flat[] = {(T)s...};
    for (int i = 0; i < C * R; i++) columns[i / R][i % R] = flat[i];
  }
  template <class U> explicit matrix(matrix<U, C, R> m) {
    for (int i = 0; i < C; i++) columns[i] = __builtin_convertvector(m.columns[i], column);
  }
  column &operator[](int i) { return columns[i]; }
  const column &operator[](int i) const { return columns[i]; }

  friend matrix operator+(matrix a, const matrix &b) {
    for (int i = 0; i < C; i++) a[i] += b[i];
    return a;
  }
  friend matrix operator-(matrix a, const matrix &b) {
    for (int i = 0; i < C; i++) a[i] -= b[i];
    return a;
  }
  friend matrix operator-(matrix a) {
    for (int i = 0; i < C; i++) a[i] = -a[i];
    return a;
  }
  friend matrix operator*(matrix a, T s) {
    for (int i = 0; i < C; i++) a[i] *= s;
    return a;
  }
  friend matrix operator*(T s, const matrix &a) { return a * s; }
  friend column operator*(const matrix &a, row v) {
    column sum = a[0] * v[0];
    for (int i = 1; i < C; i++) sum += a[i] * v[i];
    return sum;
  }
  friend row operator*(column v, const matrix &a) {
    row r;
    for (int i = 0; i < C; i++) r[i] = dot(v, a[i]);
    return r;
  }
  friend bool operator==(const matrix &a, const matrix &b) {
    for (int i = 0; i < C; i++)
      for (int j = 0; j < R; j++)
        if (a[i][j] != b[i][j]) return false;
    return true;
  }
  matrix &operator+=(const matrix &b) { return *this = *this + b; }
  matrix &operator-=(const matrix &b) { return *this = *this - b; }
  matrix &operator*=(T s) { return *this = *this * s; }
  template <int K>
    requires(K == C)
  matrix &operator*=(const matrix<T, K, K> &b) {
    return *this = *this * b;
  }
};

template <class T, int C, int R, int K>
MSL_INLINE matrix<T, K, R> operator*(const matrix<T, C, R> &a, const matrix<T, K, C> &b) {
  matrix<T, K, R> product;
  for (int i = 0; i < K; i++) product[i] = a * b[i];
  return product;
}
template <class T, int C, int R> MSL_INLINE matrix<T, R, C> transpose(const matrix<T, C, R> &a) {
  matrix<T, R, C> t;
  for (int i = 0; i < C; i++)
    for (int j = 0; j < R; j++) t[j][i] = a[i][j];
  return t;
}
template <class T> MSL_INLINE T determinant(const matrix<T, 2, 2> &a) {
  return a[0].x * a[1].y - a[1].x * a[0].y;
}
template <class T> MSL_INLINE T determinant(const matrix<T, 3, 3> &a) {
  return dot(a[0], cross(a[1], a[2]));
}
template <class T> MSL_INLINE T determinant(const matrix<T, 4, 4> &a) {  // along the first row
  return a[0].x * determinant(matrix<T, 3, 3>(a[1].yzw, a[2].yzw, a[3].yzw)) -
         a[1].x * determinant(matrix<T, 3, 3>(a[0].yzw, a[2].yzw, a[3].yzw)) +
         a[2].x * determinant(matrix<T, 3, 3>(a[0].yzw, a[1].yzw, a[3].yzw)) -
         a[3].x * determinant(matrix<T, 3, 3>(a[0].yzw, a[1].yzw, a[2].yzw));
}
}  // namespace metal

#define MSL_MATRICES(T)                  \
  typedef metal::matrix<T, 2, 2> T##2x2; \
  typedef metal::matrix<T, 2, 3> T##2x3; \
  typedef metal::matrix<T, 2, 4> T##2x4; \
  typedef metal::matrix<T, 3, 2> T##3x2; \
  typedef metal::matrix<T, 3, 3> T##3x3; \
  typedef metal::matrix<T, 3, 4> T##3x4; \
  typedef metal::matrix<T, 4, 2> T##4x2; \
  typedef metal::matrix<T, 4, 3> T##4x3; \
  typedef metal::matrix<T, 4, 4> T##4x4;
MSL_MATRICES(float)
MSL_MATRICES(half)
#undef MSL_MATRICES
