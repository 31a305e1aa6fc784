// What every kernel is compiled with. Built once per set of flags (build.py): it takes 300 ms to read, a kernel 100 ms.
#include <metal_stdlib>
#include "entry.h"
