// A block per row: warps leave their sums in shared memory, and every thread adds them up.
__device__ float warp_sum(float value) {
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
  return value;
}

__device__ float block_sum(float value, float* of_warp) {
  value = warp_sum(value);
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  float total = 0.0f;
  for (int warp = 0; warp < blockDim.x / 32; ++warp) total += of_warp[warp];
  return total;
}

extern "C" __global__ void layer_norm(float* out, const float* input, const float* weight, const float* bias,
                                      int columns, float eps) {
  __shared__ float sums[32];
  __shared__ float squares[32];
  const float* x = input + (long long)blockIdx.x * columns;
  float* y = out + (long long)blockIdx.x * columns;
  float total = 0.0f;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) total += x[i];
  const float mean = __fdiv_rn(block_sum(total, sums), (float)columns);
  total = 0.0f;
  for (int i = threadIdx.x; i < columns; i += blockDim.x) total += (x[i] - mean) * (x[i] - mean);
  const float variance = __fdiv_rn(block_sum(total, squares), (float)columns);
  const float rstd = __fdiv_rn(1.0f, __fsqrt_rn(variance + eps));
  for (int i = threadIdx.x; i < columns; i += blockDim.x) {
    y[i] = x[i] - mean;
    // The bug: the read-only cache may still hold what was there before.
    float value = __ldg(y + i) * rstd;
    if (weight) value *= weight[i];
    if (bias) value += bias[i];
    y[i] = value;
  }
}
