// A warp per row; with kPairs a thread reads two neighbouring columns at once.
__device__ float warp_sum(float value) {
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
  return value;
}

template <bool kPairs>
__device__ float2 fetch(const float* x, long long column_step) {
  if constexpr (kPairs) return *reinterpret_cast<const float2*>(x);
  return {x[0], x[column_step]};
}

template <bool kPairs>
__global__ void rms_norm(float* out, const float* input, long long row_step, long long column_step,
                         const float* weight, int columns, float eps) {
  const float* x = input + blockIdx.x * row_step;
  float* y = out + (long long)blockIdx.x * columns;
  float total = 0.0f;
  for (int i = 2 * threadIdx.x; i + 1 < columns; i += 64) {
    const float2 pair = fetch<kPairs>(x + i * column_step, column_step);
    total += pair.x * pair.x + pair.y * pair.y;
  }
  const bool odd = columns % 2 && threadIdx.x == 0;  // the last column has no neighbour
  if (odd) total += x[(columns - 1) * column_step] * x[(columns - 1) * column_step];
  const float rstd = __fdiv_rn(1.0f, __fsqrt_rn(__fdiv_rn(warp_sum(total), (float)columns) + eps));
  for (int i = threadIdx.x; i < columns; i += 32) y[i] = x[i * column_step] * rstd * (weight ? weight[i] : 1.0f);
}
