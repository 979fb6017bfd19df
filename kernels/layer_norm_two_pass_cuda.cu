// Layer normalization with the two-pass variance: first the mean, then the mean of (x - mean)^2.
//
// The second sweep waits for the first, but it costs no traffic where the row is kept in registers or in
// shared memory. An error of the mean enters the variance squared.
#include "layer_norm_tiers_cuda.cuh"

struct TwoPass {
  template <typename Compute, typename Values, typename Group>
  static __device__ Moments<Compute> moments(Values& values, Group group, int64 columns) {
    const Compute count = static_cast<Compute>(columns);
    Compute sum = 0;
    values.each([&](Compute x) { sum += x; });
    const Compute mean = group.sum(sum) / count;
    Compute squares = 0;
    values.each([&](Compute x) {
      const Compute centred = x - mean;
      squares += centred * centred;
    });
    return {mean, group.sum(squares) / count};
  }
};
