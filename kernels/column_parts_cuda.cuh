// Sums over rows that several blocks have a part of: a kernel joins the parts in a fixed order.
#pragma once
#include "row_tiers_cuda.cuh"

// blockDim = (32 columns, 32 lanes): lane l takes parts l, l + 32, ... of its column in turn into kTurns sums that do
// not wait for each other; they are joined by halves, and so are the lanes.
constexpr int kTurns = 4;

template <typename Compute>
__device__ Compute joined_turns(const Compute (&sums)[kTurns]) {
  return (sums[0] + sums[2]) + (sums[1] + sums[3]);
}

template <typename W, typename Compute>
__global__ void __launch_bounds__(1024)
    join_parts(const Compute* weight_parts, const Compute* bias_parts, W* grad_weight, W* grad_bias, int64 parts,
               int64 columns) {
  __shared__ Compute of_weight[kWarpSize][kWarpSize + 1];  // + 1: a column of the tile lies in 32 banks
  __shared__ Compute of_bias[kWarpSize][kWarpSize + 1];
  const int64 column = static_cast<int64>(blockIdx.x) * kWarpSize + threadIdx.x;
  Compute weight_sums[kTurns] = {}, bias_sums[kTurns] = {};
  if (column < columns)
    for (int64 first = threadIdx.y; first < parts; first += kTurns * kWarpSize) {
#pragma unroll
      for (int turn = 0; turn < kTurns; ++turn) {
        const int64 part = first + turn * kWarpSize;
        if (part < parts) {
          weight_sums[turn] += weight_parts[part * columns + column];
          bias_sums[turn] += bias_parts[part * columns + column];
        }
      }
    }
  of_weight[threadIdx.y][threadIdx.x] = joined_turns(weight_sums);
  of_bias[threadIdx.y][threadIdx.x] = joined_turns(bias_sums);
  __syncthreads();
  // Turned by 90 degrees: now a warp holds the 32 lanes of one column.
  Compute weight_sum = WarpGroup<kWarpSize>().sum(of_weight[threadIdx.x][threadIdx.y]);
  Compute bias_sum = WarpGroup<kWarpSize>().sum(of_bias[threadIdx.x][threadIdx.y]);
  const int64 joined = static_cast<int64>(blockIdx.x) * kWarpSize + threadIdx.y;
  if (threadIdx.x == 0 && joined < columns) {
    grad_weight[joined] = static_cast<W>(weight_sum);
    grad_bias[joined] = static_cast<W>(bias_sum);
  }
}
