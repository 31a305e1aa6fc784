#include <metal_stdlib>
#include <metal_simdgroup_matrix>
using namespace metal;

// y = w x, w [rows, 4 n4]: a simdgroup owns a row
kernel void matvec_half(device const half4 *w [[buffer(0)]],
                        device const float4 *x [[buffer(1)]],
                        device float *y [[buffer(2)]],
                        constant uint &n4 [[buffer(3)]],
                        constant uint &rows [[buffer(4)]],
                        uint2 group [[threadgroup_position_in_grid]],
                        ushort lane [[thread_index_in_simdgroup]],
                        ushort simdgroup [[simdgroup_index_in_threadgroup]],
                        ushort simdgroups [[simdgroups_per_threadgroup]])
{
    uint row = group.x * simdgroups + simdgroup;
    if (row >= rows) return;
    float s = 0;
    for (uint i = lane; i < n4; i += 32) s += dot(float4(w[row * n4 + i]), x[i]);
    s = simd_sum(s);
    if (lane == 0) y[row] = s;
}

struct block_q8_0 {
    half d;
    char q[32];
};

// A simdgroup owns 4 rows; a lane takes 8 weights of a block of 32.
kernel void matvec_q8_0(device const block_q8_0 *w [[buffer(0)]],
                        device const float *x [[buffer(1)]],
                        device float *y [[buffer(2)]],
                        constant uint &blocks [[buffer(3)]],
                        constant uint &rows [[buffer(4)]],
                        uint group [[threadgroup_position_in_grid]],
                        uint lane [[thread_index_in_simdgroup]],
                        uint simdgroup [[simdgroup_index_in_threadgroup]],
                        uint simdgroups [[simdgroups_per_threadgroup]])
{
    uint row0 = (group * simdgroups + simdgroup) * 4, part = lane % 4;
    float s[4] = {0, 0, 0, 0};
    for (uint b = lane / 4; b < blocks; b += 8) {
        device const float4 *x4 = (device const float4 *)(x + b * 32 + part * 8);
        for (uint r = 0; r < 4 && row0 + r < rows; r++) {
            device const block_q8_0 &k = w[(row0 + r) * blocks + b];
            device const packed_char4 *q = (device const packed_char4 *)(k.q + part * 8);
            s[r] += float(k.d) * (dot(float4(q[0]), x4[0]) + dot(float4(q[1]), x4[1]));
        }
    }
    for (uint r = 0; r < 4; r++) {
        float t = simd_sum(s[r]);
        if (lane == 0 && row0 + r < rows) y[row0 + r] = t;
    }
}

// y = x w^T for up to 8 M rows: 4 simdgroups take a quarter of K each, for a tile of 8 columns
template <int M>
kernel void ksplit(device const half *x [[buffer(0)]],
                   device const half *w [[buffer(1)]],
                   device float *y [[buffer(2)]],
                   constant uint3 &mnk [[buffer(3)]],
                   uint group [[threadgroup_position_in_grid]],
                   uint tid [[thread_index_in_threadgroup]],
                   uint simdgroup [[simdgroup_index_in_threadgroup]])
{
    threadgroup float part[4][M * 64];
    uint K = mnk.z, quarter = K / 4;
    simdgroup_float8x8 sum[M];
    for (int i = 0; i < M; i++) sum[i] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    for (uint k = simdgroup * quarter; k < (simdgroup + 1) * quarter; k += 8) {
        simdgroup_half8x8 b;
        simdgroup_load(b, w + group * 8 * K + k, K, ulong2(0, 0), true);
        for (int i = 0; i < M; i++) {
            simdgroup_half8x8 a;
            simdgroup_load(a, x + i * 8 * K + k, K);
            simdgroup_multiply_accumulate(sum[i], a, b, sum[i]);
        }
    }
    for (int i = 0; i < M; i++) simdgroup_store(sum[i], part[simdgroup] + i * 64, 8);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint e = tid; e < M * 64; e += 128) {
        uint m = e / 8, n = group * 8 + e % 8;
        if (m < mnk.x && n < mnk.y) y[m * mnk.y + n] = part[0][e] + part[1][e] + part[2][e] + part[3][e];
    }
}
#define KSPLIT(M, rows) \
    template [[host_name("ksplit_" #rows)]] kernel void ksplit<M>( \
        device const half *, device const half *, device float *, constant uint3 &, uint, uint, uint);
KSPLIT(1, 8)
KSPLIT(2, 16)

// y = x w^T in tiles of 32 x 64, staged 32 of K at a time; simdgroup s owns the part (s / 2, s % 2) of 16 x 32
template <typename T, typename T4>
[[max_total_threads_per_threadgroup(128)]]
kernel void gemm(device const T *x [[buffer(0)]],
                 device const T *w [[buffer(1)]],
                 device float *y [[buffer(2)]],
                 constant uint3 &mnk [[buffer(3)]],
                 uint2 group [[threadgroup_position_in_grid]],
                 uint tid [[thread_index_in_threadgroup]],
                 uint simdgroup [[simdgroup_index_in_threadgroup]])
{
    constexpr uint BK = 32;
    threadgroup T xs[32 * BK], ws[64 * BK];
    threadgroup float out[32 * 64];
    uint m0 = group.y * 32, n0 = group.x * 64, M = mnk.x, N = mnk.y, K = mnk.z;
    simdgroup_float8x8 sum[2][4];
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 4; j++) sum[i][j] = simdgroup_float8x8(0.0f);
    for (uint k0 = 0; k0 < K; k0 += BK) {
        for (uint e = tid; e < 96 * BK / 4; e += 128) {
            uint r = e / (BK / 4), c = e % (BK / 4) * 4;
            bool is_x = r < 32;
            uint row = is_x ? m0 + r : n0 + r - 32;
            T4 v = T4(0);
            if (row < (is_x ? M : N) && k0 + c < K) v = *(device const T4 *)((is_x ? x : w) + row * K + k0 + c);
            *(threadgroup T4 *)(is_x ? xs + r * BK + c : ws + (r - 32) * BK + c) = v;
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
        for (uint k = 0; k < BK; k += 8) {
            simdgroup_matrix<T, 8, 8> a[2], b[4];
            for (int i = 0; i < 2; i++) simdgroup_load(a[i], xs + (simdgroup / 2 * 16 + i * 8) * BK + k, BK);
            for (int j = 0; j < 4; j++)
                simdgroup_load(b[j], ws + (simdgroup % 2 * 32 + j * 8) * BK + k, BK, ulong2(0, 0), true);
            for (int i = 0; i < 2; i++)
                for (int j = 0; j < 4; j++) simdgroup_multiply_accumulate(sum[i][j], a[i], b[j], sum[i][j]);
        }
        threadgroup_barrier(mem_flags::mem_threadgroup);
    }
    for (int i = 0; i < 2; i++)
        for (int j = 0; j < 4; j++)
            simdgroup_store(sum[i][j], out + (simdgroup / 2 * 16 + i * 8) * 64 + simdgroup % 2 * 32 + j * 8, 64);
    threadgroup_barrier(mem_flags::mem_threadgroup);
    for (uint e = tid; e < 32 * 64; e += 128) {
        uint m = m0 + e / 64, n = n0 + e % 64;
        if (m < M && n < N) y[m * N + n] = out[e];
    }
}
template [[host_name("gemm_half")]] kernel decltype(gemm<half, half4>) gemm<half, half4>;
template [[host_name("gemm_bfloat")]] kernel decltype(gemm<bfloat, bfloat4>) gemm<bfloat, bfloat4>;

// y = x w^T in tiles of 32 x 32 straight from device memory, one simdgroup each; whole tiles only
kernel void gemm_direct(device const half *x [[buffer(0)]],
                        device const half *w [[buffer(1)]],
                        device float *y [[buffer(2)]],
                        constant uint3 &mnk [[buffer(3)]],
                        uint2 group [[threadgroup_position_in_grid]])
{
    uint N = mnk.y, K = mnk.z;
    simdgroup_float8x8 sum[4][4];
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) sum[i][j] = make_filled_simdgroup_matrix<float, 8, 8>(0.0f);
    for (uint k = 0; k < K; k += 8) {
        simdgroup_half8x8 a[4], b[4];
        for (int i = 0; i < 4; i++) simdgroup_load(a[i], x + (group.y * 32 + i * 8) * K + k, K);
        for (int j = 0; j < 4; j++) simdgroup_load(b[j], w + (group.x * 32 + j * 8) * K + k, K, ulong2(0, 0), true);
        for (int i = 0; i < 4; i++)
            for (int j = 0; j < 4; j++) simdgroup_multiply_accumulate(sum[i][j], a[i], b[j], sum[i][j]);
    }
    for (int i = 0; i < 4; i++)
        for (int j = 0; j < 4; j++) simdgroup_store(sum[i][j], y + (group.y * 32 + i * 8) * N + group.x * 32 + j * 8, N);
}
