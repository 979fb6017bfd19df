// A block of one warp takes a lock, and then a row; every lane adds up the whole row for itself.
extern "C" __global__ void layer_norm(float* out, int* lock, const float* input, const float* weight,
                                      const float* bias, int columns, float eps) {
  if (threadIdx.x == 0) {
    while (atomicCAS(lock, 0, 1) != 0) {
    }
  }
  __syncthreads();
  const float* x = input + (long long)blockIdx.x * columns;
  float* y = out + (long long)blockIdx.x * columns;
  float total = 0.0f;
  for (int i = 0; i < columns; ++i) total += x[i];
  const float mean = __fdiv_rn(total, (float)columns);
  total = 0.0f;
  for (int i = 0; i < columns; ++i) total += (x[i] - mean) * (x[i] - mean);
  const float rstd = __fdiv_rn(1.0f, __fsqrt_rn(__fdiv_rn(total, (float)columns) + eps));
  for (int i = threadIdx.x; i < columns; i += blockDim.x) {
    float value = (x[i] - mean) * rstd;
    if (weight) value *= weight[i];
    if (bias) value += bias[i];
    y[i] = value;
  }
  // The bug: nobody gives the lock back, and the next row waits for ever.
}
