// What the front end's C++ stands on: function constants, threadgroup variables, kernel entry points. The counterpart of
// soft/cpu/entry.h.
#pragma once

#define MSL_FUNCTION_CONSTANT(T, name, index)     \
  static constexpr T name = (T)(MSL_FC_##index);  \
  static constexpr bool msl_defined_##name = MSL_FC_DEFINED_##index

// A GPU needs nobody to tell it where a simd operation was called from (msl/call_paths.py).
#define MSL_FROM
#define MSL_FROM_AND
#define MSL_CALLER
#define MSL_CALLER_AND
#define MSL_CALLER_LAST
#define MSL_AND_CALLER_LAST
#define MSL_ENTER
#define MSL_FROM_AT_AND(site)
#define MSL_AND_BEHIND
#define MSL_CALLING (void)0
#define MSL_ROUNDS(name)
#define MSL_NEXT(name) (void)0
#define MSL_LAST(name) (void)0

#define MSL_KERNEL_RESULT MSL_INLINE void
#define MSL_THREADGROUP(name, T, K) __shared__ __align__(16) T name
#define MSL_STATIC_BYTES(kernel, count)

extern __shared__ __align__(16) char msl_threadgroup[];   // [[threadgroup(n)]] arguments, one after another

// Arguments of a kernel: each becomes what the parameter is.
namespace msl {
struct Pointer {
  char *p;
  template <class T> operator T *() const { return (T *)p; }
  template <class T> operator T &() const { return *(T *)p; }
};
struct Position {
  U3 v;
  operator uint() const { return v.x; }
  operator ushort() const { return (ushort)v.x; }
  template <class T> operator metal::vec<T, 2>() const { return {(T)v.x, (T)v.y}; }
  template <class T> operator metal::vec<T, 3>() const { return {(T)v.x, (T)v.y, (T)v.z}; }
};
MSL_INLINE uint threads() { return blockDim.x * blockDim.y * blockDim.z; }
#define MSL_BUILTIN(name, ...) \
  MSL_INLINE Position name() { return {{__VA_ARGS__}}; }
MSL_BUILTIN(thread_position_in_grid, blockIdx.x *blockDim.x + threadIdx.x, blockIdx.y *blockDim.y + threadIdx.y,
            blockIdx.z *blockDim.z + threadIdx.z)
MSL_BUILTIN(threadgroup_position_in_grid, blockIdx.x, blockIdx.y, blockIdx.z)
MSL_BUILTIN(thread_position_in_threadgroup, threadIdx.x, threadIdx.y, threadIdx.z)
MSL_BUILTIN(threads_per_threadgroup, blockDim.x, blockDim.y, blockDim.z)
MSL_BUILTIN(dispatch_threads_per_threadgroup, blockDim.x, blockDim.y, blockDim.z)
MSL_BUILTIN(threads_per_grid, gridDim.x *blockDim.x, gridDim.y *blockDim.y, gridDim.z *blockDim.z)
MSL_BUILTIN(grid_size, gridDim.x *blockDim.x, gridDim.y *blockDim.y, gridDim.z *blockDim.z)
MSL_BUILTIN(grid_origin, 0, 0, 0)
MSL_BUILTIN(threadgroups_per_grid, gridDim.x, gridDim.y, gridDim.z)
MSL_BUILTIN(thread_index_in_threadgroup, thread_index(), 1, 1)
MSL_BUILTIN(simdgroup_index_in_threadgroup, thread_index() / 32, 1, 1)
MSL_BUILTIN(thread_index_in_simdgroup, thread_index() % 32, 1, 1)
MSL_BUILTIN(threads_per_simdgroup, 32, 1, 1)
MSL_BUILTIN(thread_execution_width, 32, 1, 1)
MSL_BUILTIN(simdgroups_per_threadgroup, (threads() + 31) / 32, 1, 1)
MSL_BUILTIN(dispatch_simdgroups_per_threadgroup, (threads() + 31) / 32, 1, 1)
MSL_BUILTIN(quadgroup_index_in_threadgroup, thread_index() / 4, 1, 1)
MSL_BUILTIN(thread_index_in_quadgroup, thread_index() % 4, 1, 1)
MSL_BUILTIN(quadgroups_per_threadgroup, (threads() + 3) / 4, 1, 1)
#undef MSL_BUILTIN
}  // namespace msl
