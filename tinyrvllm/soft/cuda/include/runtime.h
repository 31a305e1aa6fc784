// What the shared headers of metal_stdlib need from the machine, on an NVIDIA GPU: the counterpart of soft/cpu/runtime.h.
// Everything here is device code: NVRTC compiles with -default-device.
#pragma once
#define MSL_INLINE static __forceinline__
#define MSL_NOINLINE __noinline__
typedef unsigned char uchar;
typedef unsigned short ushort;
typedef unsigned int uint;
typedef unsigned long long ulong;
typedef decltype(sizeof(0)) size_t;

namespace msl {
struct U3 {
  uint x, y, z;
};
// Threads count x fastest, in Metal as in CUDA.
MSL_INLINE uint thread_index() {
  return (threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x;
}
// A place in the source: here nobody asks for it.
#define MSL_HERE 0u
struct From {
  constexpr From(uint) {}
};
MSL_INLINE void barrier(uint, From) { __syncthreads(); }
template <class F> MSL_INLINE F &&calling(uint, F &&f) { return (F &&)f; }
}  // namespace msl
