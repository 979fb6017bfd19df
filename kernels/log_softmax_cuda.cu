// Log-softmax: x - max - log(sum of exp(x - max)). The shifted value is kept and the exponential dropped.
#include "softmax_tiers_cuda.cuh"

struct LogSoftmax {
  template <typename Compute>
  static __device__ Compute kept(Compute shifted, Compute) {
    return shifted;
  }
  template <typename Compute>
  static __device__ Compute whole(Compute total) {
    return logarithm(total);
  }
  template <typename Compute>
  static __device__ Compute finish(Compute shifted, Compute log_total) {
    return shifted - log_total;
  }
  template <typename Compute>
  static __device__ Compute term(Compute, Compute grad) {
    return grad;
  }
  template <typename Compute>
  static __device__ Compute gradient(Compute output, Compute grad, Compute sum) {
    return grad - exponential(output) * sum;
  }
};
