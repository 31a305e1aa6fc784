#include <metal_stdlib>
using namespace metal;

constant float factor [[function_constant(0)]];
constant bool negate [[function_constant(1)]];
constant bool negated = is_function_constant_defined(negate) ? negate : false;

kernel void add(device const float *a [[buffer(0)]],
                device const float *b [[buffer(1)]],
                device float *sum [[buffer(2)]],
                constant uint &n [[buffer(3)]],
                uint i [[thread_position_in_grid]])
{
    if (i < n) sum[i] = a[i] + b[i];
}

kernel void scale(device float *a [[buffer(0)]], uint i [[thread_position_in_grid]])
{
    a[i] *= negated ? -factor : factor;
}

kernel void histogram(device const uchar *x [[buffer(0)]],
                      device atomic_uint *bins [[buffer(1)]],  // [256]
                      uint i [[thread_position_in_grid]])
{
    atomic_fetch_add_explicit(&bins[x[i]], 1u, memory_order_relaxed);
}

// Where each thread of a 3-d grid thinks it is: [threads, 8]
kernel void positions(device uint *out [[buffer(0)]],
                      uint3 grid [[threads_per_grid]],
                      uint3 position [[thread_position_in_grid]],
                      uint3 group [[threadgroup_position_in_grid]],
                      uint3 size [[threads_per_threadgroup]],
                      ushort3 inside [[thread_position_in_threadgroup]],
                      uint index [[thread_index_in_threadgroup]],
                      uint lane [[thread_index_in_simdgroup]],
                      uint simdgroup [[simdgroup_index_in_threadgroup]])
{
    device uint *o = out + ((position.z * grid.y + position.y) * grid.x + position.x) * 8;
    o[0] = group.x + 10 * group.y + 100 * group.z;
    o[1] = inside.x + 10 * inside.y + 100 * inside.z;
    o[2] = size.x + 10 * size.y + 100 * size.z;
    o[3] = index;
    o[4] = lane;
    o[5] = simdgroup;
}
