// short_conv: LFM2's mixing of neighbouring tokens, in place of attention in most of its layers.
//
//   in [rows, 3, channels] = (b, c, x)      u = b * x
//   y[t] = c[t] * sum over j of filter[j] * u[t - taps + 1 + j]       per channel, causal
//
// Version ladder
//   1  b * x, shift the state, convolve, c * y: four dispatches and a state copied on the host
//   2  this file: one thread a (sequence, channel) walks the sequence's rows of this step with the
//      last taps - 1 values of u in registers; decoding (1 row) and chunks of a prompt are one code
//
// 1. The state [slots, taps - 1, channels] holds the last values of u, oldest first. A sequence
//    that starts in this step (its first position is 0) takes zeros instead of what its slot held
//    for the sequence before it.
// 2. Neighbouring threads own neighbouring channels: every access is contiguous over a simdgroup.
// 3. Rows of a sequence are walked one after another: prompts are short loops over many channels,
//    and 3 taps need no parallel scan.
#include "common.h"

constant uint TAPS [[function_constant(0)]];   // 2 to 4
constant constexpr ushort MAX_TAPS = 4;
#define EACH_TAP(j) UNROLL for (ushort j = 0; j < MAX_TAPS; j++) if (j < TAPS)

struct ConvArgs {   // mirrored by kernels/conv.py
    uint channels, in_stride, out_stride;
};

[[max_total_threads_per_threadgroup(64)]]
kernel void short_conv(device const float *in [[buffer(0)]],          // [rows, 3 * channels]
                       device const float *filter [[buffer(1)]],      // [channels, taps]
                       device float *state [[buffer(2)]],             // [slots, taps - 1, channels]
                       device float *out [[buffer(3)]],               // [rows, channels]
                       device const int *query_start [[buffer(4)]],   // [sequences + 1]
                       device const int *positions [[buffer(5)]],     // [rows]
                       device const int *state_slots [[buffer(6)]],   // [sequences]; -1: padding
                       constant ConvArgs &a [[buffer(7)]],
                       uint2 at [[thread_position_in_grid]]) {        // channel, sequence
    uint channel = at.x, sequence = at.y;
    int slot = state_slots[sequence], from = query_start[sequence], to = query_start[sequence + 1];
    if (channel >= a.channels || slot < 0 || from >= to) return;
    device float *mine = state + ulong(slot) * (TAPS - 1) * a.channels + channel;
    bool fresh = positions[from] == 0;
    float taps[MAX_TAPS], u[MAX_TAPS];                                // u: oldest first
    EACH_TAP(j) {
        taps[j] = filter[channel * TAPS + j];
        u[j] = fresh || j + 1 == TAPS ? 0.0f : mine[j * a.channels];
    }
    for (int row = from; row < to; row++) {
        device const float *bcx = in + ulong(row) * a.in_stride + channel;
        EACH_TAP(j) if (j + 1 == TAPS) u[j] = bcx[0] * bcx[2 * a.channels];
        float sum = 0.0f;
        EACH_TAP(j) sum = fma(taps[j], u[j], sum);
        out[ulong(row) * a.out_stride + channel] = bcx[a.channels] * sum;
        EACH_TAP(j) if (j + 1 < TAPS) u[j] = u[j + 1];
    }
    EACH_TAP(j) if (j + 1 < TAPS) mine[j * a.channels] = u[j];
}
