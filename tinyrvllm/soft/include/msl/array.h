// array<T, N> (metal_array) and uniform<T> (metal_uniform).
#pragma once
#include "type_traits.h"

namespace metal {
template <class T, size_t N> struct array {
  typedef T value_type;
  T data_[N];
  constexpr T &operator[](size_t i) { return data_[i]; }
  constexpr const T &operator[](size_t i) const { return data_[i]; }
  static constexpr size_t size() { return N; }
  static constexpr bool empty() { return N == 0; }
  constexpr T &front() { return data_[0]; }
  constexpr T &back() { return data_[N - 1]; }
  constexpr T *data() { return data_; }
  constexpr const T *data() const { return data_; }
  constexpr T *begin() { return data_; }
  constexpr const T *begin() const { return data_; }
  constexpr T *end() { return data_ + N; }
  constexpr const T *end() const { return data_ + N; }
  constexpr void fill(const T &v) {
    for (size_t i = 0; i < N; i++) data_[i] = v;
  }
};

// A value that is the same in all threads; here just a value.
template <class T> struct uniform {
  T value;
  uniform() = default;
  constexpr uniform(T v) : value(v) {}
  constexpr operator T() const { return value; }
};
template <class T> MSL_INLINE constexpr uniform<T> make_uniform(T v) { return v; }
template <class T> inline constexpr bool is_uniform_v = false;
template <class T> inline constexpr bool is_uniform_v<uniform<T>> = true;
template <class T> struct is_uniform : bool_constant<is_uniform_v<T>> {};
}  // namespace metal
