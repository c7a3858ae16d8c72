// For text that is the same on the CPU and in kernels, where it cannot be constexpr: QUIRE_DEVICE before a function
// makes it the device's under CUDA's compiler, and means nothing under any other.
#pragma once

#ifdef __CUDACC__
#define QUIRE_DEVICE __device__
#else
#define QUIRE_DEVICE
#endif
