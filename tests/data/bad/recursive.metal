#include <metal_stdlib>
using namespace metal;
int f(int n) { return n ? f(n - 1) : 0; }
kernel void k(device int *a [[buffer(0)]]) { a[0] = f(9); }
