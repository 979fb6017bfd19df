// Layer normalization in the three tiers of row_tiers_cuda.cuh, for any variance algorithm.
//
// A variance algorithm is a type with one function,
//   static Moments<Compute> moments(values, group, columns)
// which sees the row only through `values` and `group`; the .cu files beside this one define one each.
#pragma once
#include "row_tiers_cuda.cuh"

template <typename Compute>
struct Moments {
  Compute mean;
  Compute variance;  // biased: the sum of squares divided by the number of columns
};

// Rounding can leave a small negative variance; a NaN passes, so that it reaches the output.
template <typename Compute>
__device__ Compute clamped(Compute variance) {
  return variance < Compute(0) ? Compute(0) : variance;
}

template <typename Variance, typename Compute, typename Store>
struct LayerNorm {
  Store store;
  Compute* means;
  Compute* rstds;
  int64 columns;
  Compute eps;

  template <typename Values, typename Group>
  __device__ void operator()(Values& values, Group group, int64 row, bool stores, bool leads) const {
    const Moments<Compute> moments = Variance::template moments<Compute>(values, group, columns);
    const Compute mean = moments.mean;
    const Compute rstd = inverse_root(clamped(moments.variance) + eps);
    if (!stores) return;
    if (leads) {
      means[row] = mean;
      rstds[row] = rstd;
    }
    values.store(store, row, [mean, rstd](Compute x) { return (x - mean) * rstd; });
  }
};

// The entries differ in their tier only. `residual` is read by the ResidualLoad alone (kResidual).
template <bool kResidual, typename T, typename Compute>
__device__ auto loader(const T* input, int64 input_row, int64 input_column, const T* residual, int64 residual_row,
                       int64 residual_column) {
  const DirectLoad<T, Compute> plain{input, input_row, input_column};
  if constexpr (kResidual)
    return ResidualLoad<T, Compute>{plain, {residual, residual_row, residual_column}};
  else
    return plain;
}

// W is the type of weight and bias: training code keeps them in float beside halves.
#define LAYER_NORM_PARAMETERS(T, W, Output, Compute)                                                              \
  const T *input, int64 input_row, int64 input_column, const T *residual, int64 residual_row, int64 residual_column, \
      const W *weight, int64 weight_stride, const W *bias, int64 bias_stride, Output *output, Compute *means,       \
      Compute *rstds, int64 rows, int64 columns, Compute eps

#define LAYER_NORM_PARTS(Variance, T, W, Output, Compute, kResidual)                                               \
  using Store = AffineStore<W, Output, Compute>;                                                                   \
  const auto load =                                                                                                \
      loader<kResidual, T, Compute>(input, input_row, input_column, residual, residual_row, residual_column);      \
  const Store store{{output, columns}, weight, weight_stride, bias, bias_stride};                                  \
  const LayerNorm<Variance, Compute, Store> work{store, means, rstds, columns, eps};

template <typename Variance, typename T, typename W, typename Output, bool kResidual, int kPack, bool kVector,
          int kColumnsPerThread, int kWidth, int kRowsPerAccess, bool kPadding, typename Compute = typename ComputeOf<T>::type>
__global__ void __launch_bounds__(128) layer_norm_warp(LAYER_NORM_PARAMETERS(T, W, Output, Compute)) {
  LAYER_NORM_PARTS(Variance, T, W, Output, Compute, kResidual)
  warp_tier<Compute, kPack, kVector, kColumnsPerThread, kWidth, kRowsPerAccess, kPadding>(load, store, rows, columns,
                                                                                          work);
}

template <typename Variance, typename T, typename W, typename Output, bool kResidual, int kPack, bool kVector,
          typename Compute = typename ComputeOf<T>::type>
__global__ void __launch_bounds__(1024) layer_norm_shared(LAYER_NORM_PARAMETERS(T, W, Output, Compute)) {
  LAYER_NORM_PARTS(Variance, T, W, Output, Compute, kResidual)
  shared_tier<Compute, kPack, kVector>(load, store, columns, work);
}

template <typename Variance, typename T, typename W, typename Output, bool kResidual, int kPack, bool kVector,
          typename Compute = typename ComputeOf<T>::type>
__global__ void __launch_bounds__(1024) layer_norm_streamed(LAYER_NORM_PARAMETERS(T, W, Output, Compute)) {
  LAYER_NORM_PARTS(Variance, T, W, Output, Compute, kResidual)
  streamed_tier<Compute, kPack, kVector>(load, store, columns, work);
}
