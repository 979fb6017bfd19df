// Step one: a thread goes through a row alone, twice, and adds to the shared gradients atomically.
//
// Neighbouring threads read addresses a whole row apart, so that every load fetches 32 lines of memory, and the
// threads of a warp add to the same element of dweight at the same time. It is the slowest of the five by two
// orders of magnitude, and the one whose arithmetic is easiest to read. T is also the type of the sums.
#include <cuda_fp16.h>

template <typename T>
__global__ void layer_norm_backward(T* dx, T* dweight, T* dbias, const T* dy, const T* x, const T* weight,
                                    const T* means, const T* rstds, int rows, int hidden) {
  const int row = blockIdx.x * blockDim.x + threadIdx.x;
  if (row >= rows) return;
  const T* dy_row = dy + row * hidden;
  const T* x_row = x + row * hidden;
  T* dx_row = dx + row * hidden;
  const T mean = means[row];
  const T rstd = rstds[row];

  // First sweep: the two means of the row.
  T dnorm_mean = 0;
  T dnorm_norm_mean = 0;
  for (int i = 0; i < hidden; ++i) {
    const T norm = (x_row[i] - mean) * rstd;
    const T dnorm = weight[i] * dy_row[i];
    dnorm_mean += dnorm;
    dnorm_norm_mean += dnorm * norm;
  }
  dnorm_mean = dnorm_mean / T(hidden);
  dnorm_norm_mean = dnorm_norm_mean / T(hidden);

  // Second sweep: all three gradients.
  for (int i = 0; i < hidden; ++i) {
    const T norm = (x_row[i] - mean) * rstd;
    const T dnorm = weight[i] * dy_row[i];
    atomicAdd(&dbias[i], dy_row[i]);
    atomicAdd(&dweight[i], norm * dy_row[i]);
    dx_row[i] += (dnorm - dnorm_mean - norm * dnorm_norm_mean) * rstd;
  }
}
