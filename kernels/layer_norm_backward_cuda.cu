// The backward of layer normalization: one read of the row for all three gradients, and no atomic.
//
// With xhat = (x - mean) * rstd and g = weight * dy,
//   dx      = (g - mean(g) - xhat * mean(g * xhat)) * rstd      a row each
//   dweight = sum over rows of dy * xhat,  dbias = sum over rows of dy
// A block takes a fixed run of rows. For each it joins the two row sums, writes dx, and adds its part of dweight
// and dbias to what it has so far; then it writes those parts to a row of its own in a float (or double) buffer.
// A second kernel joins the blocks' parts in a fixed order: the same bits in every run, nothing lost to half.
// W is the type of weight and of its gradient, which need not be that of the rows.
#include "column_parts_cuda.cuh"
#include "row_tiers_cuda.cuh"

template <typename Compute>
struct RowSums {  // both sums of a row travel together: one pair of barriers a row
  Compute along_normalized;
  Compute plain;
};

template <typename Compute>
__device__ RowSums<Compute> warp_sums(RowSums<Compute> sums) {
  return {WarpGroup<kWarpSize>().sum(sums.along_normalized), WarpGroup<kWarpSize>().sum(sums.plain)};
}

template <typename Compute>
__device__ RowSums<Compute> block_sums(RowSums<Compute> sums) {
  __shared__ RowSums<Compute> slots[kWarpSize];
  __shared__ RowSums<Compute> result;
  const int lane = threadIdx.x % kWarpSize;
  const int warp = threadIdx.x / kWarpSize;
  sums = warp_sums(sums);
  if (lane == 0) slots[warp] = sums;
  __syncthreads();
  if (warp == 0) {
    // Slots of warps that do not exist were never written: they count as zero.
    const RowSums<Compute> none{Compute(0), Compute(0)};
    const RowSums<Compute> joined = warp_sums(lane < blockDim.x / kWarpSize ? slots[lane] : none);
    if (lane == 0) result = joined;
  }
  __syncthreads();
  return result;
}

// Rows that fit the registers of a block: x and dy are read once, weight once for all rows of the block.
template <typename T, typename W, int kPack, bool kVector, int kPacksPerThread, typename Compute = typename ComputeOf<T>::type>
__global__ void __launch_bounds__(512)
    layer_norm_backward_cached(const T* grad_output, int64 grad_row, int64 grad_column, const T* input, int64 input_row,
                               int64 input_column, const W* weight, int64 weight_stride, const Compute* means,
                               const Compute* rstds, T* grad_input, Compute* weight_parts, Compute* bias_parts,
                               int64 rows, int64 columns, int64 rows_per_block) {
  constexpr int kValues = kPack * kPacksPerThread;
  const DirectLoad<T, Compute> load_grad{grad_output, grad_row, grad_column};
  const DirectLoad<T, Compute> load_input{input, input_row, input_column};
  const DirectStore<T, Compute> store{grad_input, columns};
  Compute factor[kValues], of_weight[kValues], of_bias[kValues];
#pragma unroll
  for (int pack = 0; pack < kPacksPerThread; ++pack) {
    const int64 column = static_cast<int64>(pack * blockDim.x + threadIdx.x) * kPack;
#pragma unroll
    for (int i = 0; i < kPack; ++i) {
      factor[pack * kPack + i] = Compute(1);
      of_weight[pack * kPack + i] = of_bias[pack * kPack + i] = Compute(0);
    }
    if (weight != nullptr && column < columns)
      fetch<kPack, kVector>(weight + column * weight_stride, weight_stride, factor + pack * kPack);
  }

  const int64 first = blockIdx.x * rows_per_block;
  const int64 last = first + rows_per_block < rows ? first + rows_per_block : rows;
  for (int64 row = first; row < last; ++row) {
    const Compute mean = means[row], rstd = rstds[row];
    Compute normalized[kValues], grad[kValues];
    RowSums<Compute> sums{Compute(0), Compute(0)};
#pragma unroll
    for (int pack = 0; pack < kPacksPerThread; ++pack) {
      const int64 column = static_cast<int64>(pack * blockDim.x + threadIdx.x) * kPack;
      if (column < columns) {
        load_input.template load<kPack, kVector>(normalized + pack * kPack, row, column);
        load_grad.template load<kPack, kVector>(grad + pack * kPack, row, column);
#pragma unroll
        for (int i = pack * kPack; i < (pack + 1) * kPack; ++i) {
          normalized[i] = (normalized[i] - mean) * rstd;
          of_weight[i] += grad[i] * normalized[i];
          of_bias[i] += grad[i];
          grad[i] = product(grad[i], factor[i]);
          sums.along_normalized += grad[i] * normalized[i];
          sums.plain += grad[i];
        }
      }
    }
    sums = block_sums(sums);
    const Compute c1 = sums.along_normalized / static_cast<Compute>(columns);
    const Compute c2 = sums.plain / static_cast<Compute>(columns);
#pragma unroll
    for (int pack = 0; pack < kPacksPerThread; ++pack) {
      const int64 column = static_cast<int64>(pack * blockDim.x + threadIdx.x) * kPack;
      if (column < columns) {
#pragma unroll
        for (int i = pack * kPack; i < (pack + 1) * kPack; ++i) grad[i] = (grad[i] - (normalized[i] * c1 + c2)) * rstd;
        store.template store<kPack, kVector>(grad + pack * kPack, row, column);
      }
    }
  }

#pragma unroll
  for (int pack = 0; pack < kPacksPerThread; ++pack) {
    const int64 column = static_cast<int64>(pack * blockDim.x + threadIdx.x) * kPack;
    if (column < columns) {
      for (int i = 0; i < kPack; ++i) {
        weight_parts[blockIdx.x * columns + column + i] = of_weight[pack * kPack + i];
        bias_parts[blockIdx.x * columns + column + i] = of_bias[pack * kPack + i];
      }
    }
  }
}

// Longer rows are read twice, and the block's parts grow in its own row of the buffers: only the thread that
// owns a column touches it, so that the order of additions stays that of the rows.
template <typename T, typename W, int kPack, bool kVector, typename Compute = typename ComputeOf<T>::type>
__global__ void __launch_bounds__(1024)
    layer_norm_backward_streamed(const T* grad_output, int64 grad_row, int64 grad_column, const T* input,
                                 int64 input_row, int64 input_column, const W* weight, int64 weight_stride,
                                 const Compute* means, const Compute* rstds, T* grad_input, Compute* weight_parts,
                                 Compute* bias_parts, int64 rows, int64 columns, int64 rows_per_block) {
  const DirectLoad<T, Compute> load_grad{grad_output, grad_row, grad_column};
  const DirectLoad<T, Compute> load_input{input, input_row, input_column};
  const DirectStore<T, Compute> store{grad_input, columns};
  const int64 packs = columns / kPack;
  const int64 first = blockIdx.x * rows_per_block;
  const int64 last = first + rows_per_block < rows ? first + rows_per_block : rows;
  Compute normalized[kPack], grad[kPack], factor[kPack];
  for (int64 row = first; row < last; ++row) {
    const Compute mean = means[row], rstd = rstds[row];
    RowSums<Compute> sums{Compute(0), Compute(0)};
    for (int64 pack = threadIdx.x; pack < packs; pack += blockDim.x) {
      const int64 column = pack * kPack;
      load_input.template load<kPack, kVector>(normalized, row, column);
      load_grad.template load<kPack, kVector>(grad, row, column);
      if (weight != nullptr) fetch<kPack, kVector>(weight + column * weight_stride, weight_stride, factor);
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        normalized[i] = (normalized[i] - mean) * rstd;
        Compute& of_weight = weight_parts[blockIdx.x * columns + column + i];
        Compute& of_bias = bias_parts[blockIdx.x * columns + column + i];
        of_weight = (row == first ? Compute(0) : of_weight) + grad[i] * normalized[i];
        of_bias = (row == first ? Compute(0) : of_bias) + grad[i];
        if (weight != nullptr) grad[i] = product(grad[i], factor[i]);
        sums.along_normalized += grad[i] * normalized[i];
        sums.plain += grad[i];
      }
    }
    sums = block_sums(sums);
    const Compute c1 = sums.along_normalized / static_cast<Compute>(columns);
    const Compute c2 = sums.plain / static_cast<Compute>(columns);
    for (int64 pack = threadIdx.x; pack < packs; pack += blockDim.x) {
      const int64 column = pack * kPack;
      load_input.template load<kPack, kVector>(normalized, row, column);
      load_grad.template load<kPack, kVector>(grad, row, column);
      if (weight != nullptr) fetch<kPack, kVector>(weight + column * weight_stride, weight_stride, factor);
#pragma unroll
      for (int i = 0; i < kPack; ++i) {
        if (weight != nullptr) grad[i] = product(grad[i], factor[i]);
        grad[i] = (grad[i] - ((normalized[i] - mean) * rstd * c1 + c2)) * rstd;
      }
      store.template store<kPack, kVector>(grad, row, column);
    }
  }
}
