// A cluster of two blocks has a row, half of it each; both leave their part of a sum in both blocks.
#include <cooperative_groups.h>

__device__ float block_sum(float value, float* of_warp) {
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
  __syncthreads();  // who still reads the sums of the last time has read them
  if (threadIdx.x % 32 == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  float total = 0.0f;
  for (int warp = 0; warp < blockDim.x / 32; ++warp) total += of_warp[warp];
  return total;
}

__device__ float cluster_sum(float value, float* of_warp, float* parts) {
  const auto cluster = cooperative_groups::this_cluster();
  value = block_sum(value, of_warp);
  if (threadIdx.x < 2) cluster.map_shared_rank(parts, threadIdx.x)[cluster.block_rank()] = value;
  cluster.sync();
  return parts[0] + parts[1];
}

template <bool kLong>
__global__ void __cluster_dims__(2, 1, 1) layer_norm(float* out, const float* input, const float* weight,
                                                     const float* bias, int columns, float eps) {
  __shared__ float of_warp[32];
  __shared__ float parts[2][2];
  const auto cluster = cooperative_groups::this_cluster();
  const long long row = blockIdx.x / 2;
  const float* x = input + row * columns;
  float* y = out + row * columns;
  const int half = (columns + 1) / 2;
  const int begin = cluster.block_rank() * half, end = min(begin + half, columns);
  cluster.sync();
  float total = 0.0f;
  for (int i = begin + threadIdx.x; i < end; i += blockDim.x) total += x[i];
  const float mean = __fdiv_rn(cluster_sum(total, of_warp, parts[0]), (float)columns);
  total = 0.0f;
  for (int i = begin + threadIdx.x; i < end; i += blockDim.x) total += (x[i] - mean) * (x[i] - mean);
  // The bug: in long rows the other block may not have read its parts of the first sum.
  const float squares = cluster_sum(total, of_warp, parts[kLong ? 0 : 1]);
  const float rstd = __fdiv_rn(1.0f, __fsqrt_rn(__fdiv_rn(squares, (float)columns) + eps));
  for (int i = begin + threadIdx.x; i < end; i += blockDim.x) {
    float value = (x[i] - mean) * rstd;
    if (weight) value *= weight[i];
    if (bias) value += bias[i];
    y[i] = value;
  }
}
