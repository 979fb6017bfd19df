// An RMS norm of two kernels, of which only one runs below 2^24 columns.
#include "rows.cuh"

__device__ float unused(float value) { return value + 1.0f; }

extern "C" __global__ void short_row(float* out, const float* input, int columns, float eps) {
  const float* x = input + static_cast<long long>(blockIdx.x) * columns;
  float* y = out + static_cast<long long>(blockIdx.x) * columns;
  float total = 0.0f;
  for (int i = 0; i < columns; ++i) {  // once for one column
    total += x[i] * x[i];
  }
  for (int i = threadIdx.x; i < columns; i += blockDim.x) {
    y[i] = scaled(x[i], total / columns, eps);
  }
}

extern "C" __global__ void endless_row(float* out, const float* input, int columns, float eps) {
  int i = 0;
  while (i < columns) {
    out[i] = scaled(input[i], 1.0f, eps);
    ++i;
  }
}
