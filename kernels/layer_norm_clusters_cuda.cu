// Layer normalization of long rows: a cluster of blocks has a row (row_clusters_cuda.cuh), read and written once.
//
// The mean is kept as two numbers, high and low = mean(x - high), as in layer_norm_compensated_triton.py.
// Clusters take rows in turns, and the next ones are on their way while one is computed.
#include "column_parts_cuda.cuh"
#include "row_clusters_cuda.cuh"

__device__ inline float root(float x) { return __fsqrt_rn(x); }
__device__ inline double root(double x) { return __dsqrt_rn(x); }

// ---- 1. Forward ----

template <typename T, typename W, int kPack, bool kVector, int kThreads, int kPacks, int kBlocks, int kAhead,
          int kResident, typename Compute = typename ComputeOf<T>::type>
__global__ void __cluster_dims__(kBlocks, 1, 1) __launch_bounds__(kThreads, kResident)
    layer_norm_forward(const T* input, int64 input_row, const W* weight, const W* bias, T* output, Compute* highs,
                       Compute* lows, Compute* means, Compute* rstds, int64 rows, int64 columns, Compute eps) {
  extern __shared__ __align__(16) unsigned char stages[];
  using Sums = RowSums<Compute, kThreads, kBlocks>;
  __shared__ typename Sums::Shared shared;
  const int rank = blockIdx.x % kBlocks;
  const int64 clusters = gridDim.x / kBlocks, first = blockIdx.x / kBlocks;
  const Slice<kThreads, kPacks, kPack> slice(rank);
  const Compute count = static_cast<Compute>(columns);
  const AffineStore<W, T, Compute> store{{output, columns}, weight, 1, bias, 1};
  const auto row_of = [&](int64 row) { return row < rows ? input + row * input_row : nullptr; };

  Ahead<T, 1, kAhead, kThreads, kPacks, kPack> ahead{reinterpret_cast<T*>(stages)};
  if constexpr (kVector) {
#pragma unroll
    for (int stage = 0; stage < kAhead; ++stage)
      ahead.start_in(stage, {row_of(first + stage * clusters)}, slice, columns);
  }
  Sums sums(shared, rank);
  for (int64 row = first; row < rows; row += clusters) {
    Compute values[kPacks * kPack];
    if constexpr (kVector) ahead.wait();
    Compute sum = 0;
#pragma unroll
    for (int pack = 0; pack < kPacks; ++pack)
      if (slice.column(pack) < columns) {
        Compute* const value = values + pack * kPack;
        if constexpr (kVector)
          fetch<kPack, true>(ahead.place(ahead.stage, 0, pack), 1, value);
        else
          fetch<kPack, false>(row_of(row) + slice.column(pack), 1, value);
#pragma unroll
        for (int i = 0; i < kPack; ++i) sum += value[i];
      }
    if constexpr (kVector) {
      ahead.start({row_of(row + kAhead * clusters)}, slice, columns);
      ahead.next();
    }
    sums.give({sum, 0});
    const Compute high = sums.take().one / count;
    Two<Compute> deviations{0, 0};
#pragma unroll
    for (int pack = 0; pack < kPacks; ++pack)
      if (slice.column(pack) < columns) {
#pragma unroll
        for (int i = pack * kPack; i < (pack + 1) * kPack; ++i) {
          values[i] -= high;
          deviations.one += values[i];
          deviations.other += product(values[i], values[i]);
        }
      }
    sums.give(deviations);
    deviations = sums.take();
    const Compute low = deviations.one / count;
    Compute variance = deviations.other / count - product(low, low);
    if (variance < Compute(0)) variance = 0;  // keeps NaN
    const Compute rstd = Compute(1) / root(variance + eps);
    if (rank == 0 && threadIdx.x == 0) {
      highs[row] = high;
      lows[row] = low;
      means[row] = high + low;
      rstds[row] = rstd;
    }
#pragma unroll
    for (int pack = 0; pack < kPacks; ++pack)
      if (slice.column(pack) < columns) {
#pragma unroll
        for (int i = pack * kPack; i < (pack + 1) * kPack; ++i) values[i] = product(values[i] - low, rstd);
        store.template store<kPack, kVector>(values + pack * kPack, row, slice.column(pack));
      }
  }
}

// ---- 2. Backward: each cluster keeps its part of the gradients of weight and bias in registers ----

template <typename T, typename W, int kPack, bool kVector, int kThreads, int kPacks, int kBlocks, int kAhead,
          typename Compute = typename ComputeOf<T>::type>
__global__ void __cluster_dims__(kBlocks, 1, 1) __launch_bounds__(kThreads)
    layer_norm_backward(const T* grad_output, int64 grad_output_row, const T* input, int64 input_row, const W* weight,
                        const Compute* highs, const Compute* lows, const Compute* rstds, T* grad_input,
                        Compute* parts_weight, Compute* parts_bias, int64 rows, int64 columns) {
  constexpr int kValues = kPacks * kPack;
  extern __shared__ __align__(16) unsigned char stages[];
  using Sums = RowSums<Compute, kThreads, kBlocks>;
  __shared__ typename Sums::Shared shared;
  const int rank = blockIdx.x % kBlocks;
  const int64 clusters = gridDim.x / kBlocks, first = blockIdx.x / kBlocks;
  const Slice<kThreads, kPacks, kPack> slice(rank);
  const Compute count = static_cast<Compute>(columns);
  const DirectStore<T, Compute> store{grad_input, columns};
  const auto input_of = [&](int64 row) { return row < rows ? input + row * input_row : nullptr; };
  const auto gradient_of = [&](int64 row) { return row < rows ? grad_output + row * grad_output_row : nullptr; };

  Compute factors[kValues], sum_weight[kValues], sum_bias[kValues];
#pragma unroll
  for (int i = 0; i < kValues; ++i) sum_weight[i] = sum_bias[i] = 0, factors[i] = 1;
#pragma unroll
  for (int pack = 0; pack < kPacks; ++pack)
    if (weight != nullptr && slice.column(pack) < columns)
      fetch<kPack, kVector>(weight + slice.column(pack), 1, factors + pack * kPack);

  Ahead<T, 2, kAhead, kThreads, kPacks, kPack> ahead{reinterpret_cast<T*>(stages)};
  if constexpr (kVector) {
#pragma unroll
    for (int stage = 0; stage < kAhead; ++stage) {
      const int64 row = first + stage * clusters;
      ahead.start_in(stage, {input_of(row), gradient_of(row)}, slice, columns);
    }
  }
  Compute high = 0, low = 0, rstd = 0;
  if (first < rows) high = highs[first], low = lows[first], rstd = rstds[first];
  Sums sums(shared, rank);
  for (int64 row = first; row < rows; row += clusters) {
    Compute hats[kValues], gradients[kValues];
    if constexpr (kVector) ahead.wait();
    Two<Compute> along{0, 0};  // of g * hat, and of g
#pragma unroll
    for (int pack = 0; pack < kPacks; ++pack)
      if (slice.column(pack) < columns) {
        Compute *const hat = hats + pack * kPack, *const gradient = gradients + pack * kPack;
        if constexpr (kVector) {
          fetch<kPack, true>(ahead.place(ahead.stage, 0, pack), 1, hat);
          fetch<kPack, true>(ahead.place(ahead.stage, 1, pack), 1, gradient);
        } else {
          fetch<kPack, false>(input_of(row) + slice.column(pack), 1, hat);
          fetch<kPack, false>(gradient_of(row) + slice.column(pack), 1, gradient);
        }
#pragma unroll
        for (int i = 0; i < kPack; ++i) {
          hat[i] = ((hat[i] - high) - low) * rstd;
          const Compute g = product(gradient[i], factors[pack * kPack + i]);
          along.one = fma(hat[i], g, along.one);
          along.other += g;
        }
      }
    if constexpr (kVector) {
      const int64 later = row + kAhead * clusters;
      ahead.start({input_of(later), gradient_of(later)}, slice, columns);
      ahead.next();
    }
    sums.give(along);
    const int64 following = row + clusters;
    Compute next_high = 0, next_low = 0, next_rstd = 0;
    if (following < rows) next_high = highs[following], next_low = lows[following], next_rstd = rstds[following];
#pragma unroll
    for (int pack = 0; pack < kPacks; ++pack)
      if (slice.column(pack) < columns) {
#pragma unroll
        for (int i = pack * kPack; i < (pack + 1) * kPack; ++i) {
          sum_weight[i] += gradients[i] * hats[i];
          sum_bias[i] += gradients[i];
        }
      }
    along = sums.take();
    const Compute along_hat = along.one / count, plain = along.other / count;
#pragma unroll
    for (int pack = 0; pack < kPacks; ++pack)
      if (slice.column(pack) < columns) {
#pragma unroll
        for (int i = pack * kPack; i < (pack + 1) * kPack; ++i)
          hats[i] = (product(gradients[i], factors[i]) - fma(hats[i], along_hat, plain)) * rstd;
        store.template store<kPack, kVector>(hats + pack * kPack, row, slice.column(pack));
      }
    high = next_high, low = next_low, rstd = next_rstd;
  }
  if (parts_weight == nullptr) return;
  const DirectStore<Compute, Compute> weight_part{parts_weight, columns}, bias_part{parts_bias, columns};
#pragma unroll
  for (int pack = 0; pack < kPacks; ++pack)
    if (slice.column(pack) < columns) {
      weight_part.template store<kPack, kVector>(sum_weight + pack * kPack, first, slice.column(pack));
      bias_part.template store<kPack, kVector>(sum_bias + pack * kPack, first, slice.column(pack));
    }
}
