#include <cuda_fp16.h>

// A warp per row, two columns to a thread at a time; W is the type of weight and bias.
template <typename T>
struct alignas(2 * sizeof(T)) Pair {
  T elements[2];
};

template <typename T, bool kVector>
__device__ Pair<T> fetch(const T* from) {
  if constexpr (kVector) return *reinterpret_cast<const Pair<T>*>(from);
  return {from[0], from[1]};
}

__device__ float warp_sum(float value) {
  for (int distance = 16; distance > 0; distance /= 2) value += __shfl_xor_sync(0xffffffffu, value, distance);
  return value;
}

template <typename W, bool kVector>
__global__ void layer_norm(__half* out, const __half* input, const W* weight, const W* bias, int columns, float eps) {
  const __half* x = input + (long long)blockIdx.x * columns;
  __half* y = out + (long long)blockIdx.x * columns;
  float total = 0.0f;
  for (int i = threadIdx.x; i < columns; i += 32) total += __half2float(x[i]);
  const float mean = __fdiv_rn(warp_sum(total), (float)columns);
  total = 0.0f;
  for (int i = threadIdx.x; i < columns; i += 32) {
    const float centred = __half2float(x[i]) - mean;
    total += centred * centred;
  }
  const float rstd = __fdiv_rn(1.0f, __fsqrt_rn(__fdiv_rn(warp_sum(total), (float)columns) + eps));
  for (int first = 2 * threadIdx.x; first < columns; first += 64) {
    const int held = columns - first < 2 ? 1 : 2;
    Pair<W> scale, shift;
    if (held == 2 && weight) scale = fetch<W, kVector>(weight + first);
    if (held == 2 && bias) shift = fetch<W, kVector>(bias + first);
    if (held == 1 && weight) scale.elements[0] = weight[first];
    if (held == 1 && bias) shift.elements[0] = bias[first];
    for (int i = 0; i < held; ++i) {
      float value = (__half2float(x[first + i]) - mean) * rstd;
      if (weight) value *= static_cast<float>(scale.elements[i]);
      if (bias) value += static_cast<float>(shift.elements[i]);
      y[first + i] = __float2half(value);
    }
  }
}
