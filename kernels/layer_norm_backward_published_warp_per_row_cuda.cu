// Step two: a warp per row. Neighbouring lanes read neighbouring columns, and a butterfly joins their sums.
//
// This is the step that pays: the same memory traffic in coalesced loads. T is also the type of the sums.
#include <cuda_fp16.h>

template <typename T>
__device__ T warp_sum(T value) {
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
  return value;
}

template <typename T>
__global__ void layer_norm_backward(T* dx, T* dweight, T* dbias, const T* dy, const T* x, const T* weight,
                                    const T* means, const T* rstds, int hidden) {
  const int row = blockIdx.x;
  const T* dy_row = dy + row * hidden;
  const T* x_row = x + row * hidden;
  T* dx_row = dx + row * hidden;
  const T mean = means[row];
  const T rstd = rstds[row];

  T dnorm_mean = 0;
  T dnorm_norm_mean = 0;
  for (int i = threadIdx.x; i < hidden; i += 32) {
    const T norm = (x_row[i] - mean) * rstd;
    const T dnorm = weight[i] * dy_row[i];
    dnorm_mean += dnorm;
    dnorm_norm_mean += dnorm * norm;
  }
  dnorm_mean = warp_sum(dnorm_mean) / T(hidden);
  dnorm_norm_mean = warp_sum(dnorm_norm_mean) / T(hidden);

  for (int i = threadIdx.x; i < hidden; i += 32) {
    const T norm = (x_row[i] - mean) * rstd;
    const T dnorm = weight[i] * dy_row[i];
    atomicAdd(&dbias[i], dy_row[i]);
    atomicAdd(&dweight[i], norm * dy_row[i]);
    dx_row[i] += (dnorm - dnorm_mean - norm * dnorm_norm_mean) * rstd;
  }
}
