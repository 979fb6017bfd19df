// Step five: a block goes through many rows and adds to the shared gradients once per column, at the end.
//
// Each thread owns kColumnsPerThread columns and keeps their part of dweight and dbias in registers, so that
// rows * hidden atomics become blocks * hidden. Which block adds first is left to chance, and so are the last
// bits. T is also the type of the sums.
#include <cuda_fp16.h>

template <typename T>
__device__ T warp_sum(T value) {
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
  return value;
}

// Slots of absent warps count as zero, and the closing barrier lets the next row write them again.
template <typename T>
__device__ T block_sum(T value) {
  __shared__ T of_warp[32];
  const int lane = threadIdx.x % 32;
  value = warp_sum(value);
  if (lane == 0) of_warp[threadIdx.x / 32] = value;
  __syncthreads();
  const T joined = warp_sum(lane < blockDim.x / 32 ? of_warp[lane] : T(0));
  __syncthreads();
  return joined;
}

template <typename T, int kColumnsPerThread>
__global__ void layer_norm_backward(T* dx, T* dweight, T* dbias, const T* dy, const T* x, const T* weight,
                                    const T* means, const T* rstds, int rows, int hidden) {
  T dweight_part[kColumnsPerThread];
  T dbias_part[kColumnsPerThread];
#pragma unroll
  for (int k = 0; k < kColumnsPerThread; ++k) dweight_part[k] = dbias_part[k] = T(0);

  for (int row = blockIdx.x; row < rows; row += gridDim.x) {
    const T* dy_row = dy + row * hidden;
    const T* x_row = x + row * hidden;
    T* dx_row = dx + row * hidden;
    const T mean = means[row];
    const T rstd = rstds[row];

    T dnorm_mean = 0;
    T dnorm_norm_mean = 0;
#pragma unroll
    for (int k = 0; k < kColumnsPerThread; ++k) {
      const int i = threadIdx.x + k * blockDim.x;
      if (i < hidden) {
        const T norm = (x_row[i] - mean) * rstd;
        const T dnorm = weight[i] * dy_row[i];
        dnorm_mean += dnorm;
        dnorm_norm_mean += dnorm * norm;
      }
    }
    dnorm_mean = block_sum(dnorm_mean) / T(hidden);
    dnorm_norm_mean = block_sum(dnorm_norm_mean) / T(hidden);

#pragma unroll
    for (int k = 0; k < kColumnsPerThread; ++k) {
      const int i = threadIdx.x + k * blockDim.x;
      if (i < hidden) {
        const T norm = (x_row[i] - mean) * rstd;
        const T dnorm = weight[i] * dy_row[i];
        dbias_part[k] += dy_row[i];
        dweight_part[k] += norm * dy_row[i];
        dx_row[i] += (dnorm - dnorm_mean - norm * dnorm_norm_mean) * rstd;
      }
    }
  }

#pragma unroll
  for (int k = 0; k < kColumnsPerThread; ++k) {
    const int i = threadIdx.x + k * blockDim.x;
    if (i < hidden) {
      atomicAdd(&dbias[i], dbias_part[k]);
      atomicAdd(&dweight[i], dweight_part[k]);
    }
  }
}
