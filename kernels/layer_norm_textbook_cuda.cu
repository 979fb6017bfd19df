// Layer normalization with the textbook variance: E[x^2] - E[x]^2, both sums in one sweep.
//
// One read of the row and two sums that do not wait for each other. But the two numbers subtracted grow with
// the mean while their difference does not: at |mean| = 1000 standard deviations about 20 of the 24 bits of
// a float are lost. The clamp of the skeleton hides the sign of such a variance, not its error.
#include "layer_norm_tiers_cuda.cuh"

struct Textbook {
  template <typename Compute, typename Values, typename Group>
  static __device__ Moments<Compute> moments(Values& values, Group group, int64 columns) {
    Compute sum = 0, squares = 0;
    values.each([&](Compute x) {
      sum += x;
      squares += x * x;
    });
    const Compute count = static_cast<Compute>(columns);
    const Compute mean = group.sum(sum) / count;
    return {mean, group.sum(squares) / count - mean * mean};
  }
};
