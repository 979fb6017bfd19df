// Softmax: exp(x - max) / sum of exp(x - max). The exponentials are kept, so that each is taken once.
#include "softmax_tiers_cuda.cuh"

struct Softmax {
  template <typename Compute>
  static __device__ Compute kept(Compute, Compute power) {
    return power;
  }
  template <typename Compute>
  static __device__ Compute whole(Compute total) {
    return total;
  }
  template <typename Compute>
  static __device__ Compute finish(Compute power, Compute total) {
    return power / total;
  }
  template <typename Compute>
  static __device__ Compute term(Compute output, Compute grad) {
    return grad * output;
  }
  template <typename Compute>
  static __device__ Compute gradient(Compute output, Compute grad, Compute sum) {
    return output * (grad - sum);
  }
};
