// Softmax and log-softmax in the three tiers of row_tiers_cuda.cuh: maximum, sum of exponentials, finish.
//
// The two share everything but three one-line functions, a Kind:
//   kept(shifted, exponential)  what a thread keeps of an element between the sum and the end
//   whole(total)                what the row contributes to the end, from the sum of exponentials
//   finish(kept, whole)         the output
// and two for the gradient:
//   term(output, grad)          what an element adds to the row's sum
//   gradient(output, grad, sum) the gradient of an element
#pragma once
#include "row_tiers_cuda.cuh"

template <typename Kind, typename Compute, typename Store>
struct RowSoftmax {
  Store store;

  template <typename Values, typename Group>
  __device__ void operator()(Values& values, Group group, int64 row, bool stores, bool) const {
    Compute most = -infinity_of(Compute());
    values.each([&](Compute x) { most = larger(most, x); });
    most = group.maximum(most);

    Compute total = 0;
    values.each([&](Compute& x) {
      const Compute shifted = x - most;  // at most 0, so that no exponential overflows
      const Compute power = exponential(shifted);
      total += power;
      if constexpr (Values::kWritable) x = Kind::kept(shifted, power);
    });
    const Compute whole = Kind::whole(group.sum(total));
    if (!stores) return;
    values.store(store, row, [most, whole](Compute x) {
      if constexpr (Values::kWritable) {
        return Kind::finish(x, whole);
      } else {  // nothing was kept: the exponential is taken again
        const Compute shifted = x - most;
        return Kind::finish(Kind::kept(shifted, exponential(shifted)), whole);
      }
    });
  }
};

template <typename Kind, typename T, int kPack, bool kVector, int kColumnsPerThread, int kWidth, int kRowsPerAccess,
          bool kPadding, typename Compute = typename ComputeOf<T>::type>
__global__ void __launch_bounds__(128)
    softmax_warp(const T* input, int64 input_row, int64 input_column, T* output, int64 rows, int64 columns) {
  using Store = DirectStore<T, Compute>;
  const DirectLoad<T, Compute> load{input, input_row, input_column};
  const Store store{output, columns};
  warp_tier<Compute, kPack, kVector, kColumnsPerThread, kWidth, kRowsPerAccess, kPadding>(
      load, store, rows, columns, RowSoftmax<Kind, Compute, Store>{store});
}

template <typename Kind, typename T, int kPack, bool kVector, typename Compute = typename ComputeOf<T>::type>
__global__ void __launch_bounds__(1024)
    softmax_shared(const T* input, int64 input_row, int64 input_column, T* output, int64 rows, int64 columns) {
  using Store = DirectStore<T, Compute>;
  const DirectLoad<T, Compute> load{input, input_row, input_column};
  const Store store{output, columns};
  shared_tier<Compute, kPack, kVector>(load, store, columns, RowSoftmax<Kind, Compute, Store>{store});
}

template <typename Kind, typename T, int kPack, bool kVector, typename Compute = typename ComputeOf<T>::type>
__global__ void __launch_bounds__(1024)
    softmax_streamed(const T* input, int64 input_row, int64 input_column, T* output, int64 rows, int64 columns) {
  using Store = DirectStore<T, Compute>;
  const DirectLoad<T, Compute> load{input, input_row, input_column};
  const Store store{output, columns};
  streamed_tier<Compute, kPack, kVector>(load, store, columns, RowSoftmax<Kind, Compute, Store>{store});
}

// The gradient needs one sum a row, over output and grad_output, and then both again: two sweeps by a warp (up
// to 1024 columns; blockDim = (32, warps)) or by a block. The second sweep finds most of the row in the caches.
template <typename Kind, typename T, int kPack, bool kVector, bool kBlock, typename Compute = typename ComputeOf<T>::type>
__global__ void __launch_bounds__(1024)
    softmax_backward(const T* grad_output, int64 grad_row, int64 grad_column, const T* output, int64 output_row,
                     int64 output_column, T* grad_input, int64 rows, int64 columns) {
  const DirectLoad<T, Compute> load_grad{grad_output, grad_row, grad_column};
  const DirectLoad<T, Compute> load_output{output, output_row, output_column};
  const DirectStore<T, Compute> store{grad_input, columns};
  const int64 packs = columns / kPack;
  Compute grad[kPack], value[kPack];
  const int64 wanted = static_cast<int64>(blockIdx.x) * blockDim.y + threadIdx.y;
  const bool stores = wanted < rows;  // a warp beyond the end repeats the last row
  const int64 row = stores ? wanted : rows - 1;
  Compute sum = 0;
  for (int64 pack = threadIdx.x; pack < packs; pack += blockDim.x) {
    load_grad.template load<kPack, kVector>(grad, row, pack * kPack);
    load_output.template load<kPack, kVector>(value, row, pack * kPack);
#pragma unroll
    for (int i = 0; i < kPack; ++i) sum += Kind::term(value[i], grad[i]);
  }
  if constexpr (kBlock)
    sum = BlockGroup().sum(sum);
  else
    sum = WarpGroup<kWarpSize>().sum(sum);
  if (!stores) return;
  for (int64 pack = threadIdx.x; pack < packs; pack += blockDim.x) {
    load_grad.template load<kPack, kVector>(grad, row, pack * kPack);
    load_output.template load<kPack, kVector>(value, row, pack * kPack);
#pragma unroll
    for (int i = 0; i < kPack; ++i) grad[i] = Kind::gradient(value[i], grad[i], sum);
    store.template store<kPack, kVector>(grad, row, pack * kPack);
  }
}
