#pragma once
inline float twice(float x) { return 2 * x; }
