// Step four: a block of up to 1024 threads per row, dy staged in shared memory, sums joined in two levels.
//
// Each warp joins its lanes and leaves one number in a shared array of 32; every warp then joins the 32. With
// fewer than 32 warps the rest of that array was never written, yet it is added. The barrier again stands inside
// a loop with unequal numbers of turns. T is also the type of the sums.
#include <cuda_fp16.h>

template <typename T>
__device__ T warp_sum(T value) {
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
  return value;
}

template <typename T>
__global__ void layer_norm_backward(T* dx, T* dweight, T* dbias, const T* dy, const T* x, const T* weight,
                                    const T* means, const T* rstds, int hidden) {
  extern __shared__ __align__(16) unsigned char staged[];
  T* dy_shared = reinterpret_cast<T*>(staged);
  __shared__ T dnorm_of_warp[32];
  __shared__ T dnorm_norm_of_warp[32];
  const int lane = threadIdx.x % 32;
  const int warp = threadIdx.x / 32;
  const int row = blockIdx.x;
  const T* dy_row = dy + row * hidden;
  const T* x_row = x + row * hidden;
  T* dx_row = dx + row * hidden;
  const T mean = means[row];
  const T rstd = rstds[row];

  T dnorm_mean = 0;
  T dnorm_norm_mean = 0;
  for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
    dy_shared[i] = dy_row[i];
    __syncthreads();
    const T norm = (x_row[i] - mean) * rstd;
    const T dnorm = weight[i] * dy_shared[i];
    dnorm_mean += dnorm;
    dnorm_norm_mean += dnorm * norm;
  }

  // First level: one number per warp.
  dnorm_mean = warp_sum(dnorm_mean);
  dnorm_norm_mean = warp_sum(dnorm_norm_mean);
  if (lane == 0) {
    dnorm_of_warp[warp] = dnorm_mean;
    dnorm_norm_of_warp[warp] = dnorm_norm_mean;
  }
  __syncthreads();
  // Second level: every warp joins all 32 slots.
  dnorm_mean = warp_sum(dnorm_of_warp[lane]) / T(hidden);
  dnorm_norm_mean = warp_sum(dnorm_norm_of_warp[lane]) / T(hidden);

  for (int i = threadIdx.x; i < hidden; i += blockDim.x) {
    const T norm = (x_row[i] - mean) * rstd;
    const T dnorm = weight[i] * dy_shared[i];
    atomicAdd(&dbias[i], dy_shared[i]);
    atomicAdd(&dweight[i], norm * dy_shared[i]);
    dx_row[i] += (dnorm - dnorm_mean - norm * dnorm_norm_mean) * rstd;
  }
}
