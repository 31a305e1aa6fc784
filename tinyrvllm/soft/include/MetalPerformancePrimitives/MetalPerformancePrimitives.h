// MetalPerformancePrimitives (Metal 4): of its operations this device has matmul2d (msl/tensor_ops.h).
#pragma once
#include <metal_tensor>
#ifdef MSL_PREPROCESS
namespace mpp {
namespace tensor_ops = msl_tensors::ops;
}
#endif
