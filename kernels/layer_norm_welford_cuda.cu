// Layer normalization with Welford's variance: mean and squared deviations updated element by element.
//
// One read of the row, and no difference of large numbers. The price is a division per element. Each thread
// runs Welford over its part; the parts are then merged in a tree by Chan's rule.
#include "layer_norm_tiers_cuda.cuh"

template <typename Compute>
struct WelfordState {
  Compute mean;
  Compute deviations;  // the sum of (x - mean)^2 so far
  Compute count;       // a float: it is only ever multiplied and divided

  static __device__ WelfordState empty() { return {Compute(0), Compute(0), Compute(0)}; }

  __device__ void add(Compute x) {
    count += Compute(1);
    const Compute before = x - mean;
    mean += before / count;
    deviations += before * (x - mean);
  }

  __device__ void merge(const WelfordState& other) {
    if (other.count == Compute(0)) return;  // two empty parts would make 0 / 0
    const Compute both = count + other.count;
    const Compute share = other.count / both;
    const Compute apart = other.mean - mean;
    mean += apart * share;
    deviations += other.deviations + apart * apart * count * share;
    count = both;
  }

  __device__ WelfordState from_below(int distance, int width) const {
    return {__shfl_down_sync(kWholeWarp, mean, distance, width), __shfl_down_sync(kWholeWarp, deviations, distance, width),
            __shfl_down_sync(kWholeWarp, count, distance, width)};
  }

  __device__ WelfordState broadcast(int width) const {
    return {__shfl_sync(kWholeWarp, mean, 0, width), __shfl_sync(kWholeWarp, deviations, 0, width),
            __shfl_sync(kWholeWarp, count, 0, width)};
  }
};

struct Welford {
  template <typename Compute, typename Values, typename Group>
  static __device__ Moments<Compute> moments(Values& values, Group group, int64) {
    WelfordState<Compute> state = WelfordState<Compute>::empty();
    values.each([&](Compute x) { state.add(x); });
    state = group.merge(state);
    return {state.mean, state.deviations / state.count};
  }
};
