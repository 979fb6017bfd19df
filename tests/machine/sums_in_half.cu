// Kernels that keep a sum in half precision, and kernels that add in half without keeping a sum.
#include <cuda_bf16.h>
#include <cuda_fp16.h>

template <typename T> __device__ T number(float x);
template <> __device__ __half number<__half>(float x) { return __float2half(x); }
template <> __device__ __nv_bfloat16 number<__nv_bfloat16>(float x) { return __float2bfloat16(x); }

// ---- Sums ----

extern "C" __global__ void over_threads_half(const __half* x, __half* y) {
  __half sum = x[threadIdx.x];
  for (int far = 16; far; far /= 2) sum = __hadd(sum, __shfl_xor_sync(~0u, sum, far));
  y[threadIdx.x] = sum;
}

extern "C" __global__ void over_threads_bfloat16(const __nv_bfloat16* x, __nv_bfloat16* y) {
  __nv_bfloat16 sum = x[threadIdx.x];
  for (int far = 16; far; far /= 2) sum = __hadd(sum, __shfl_xor_sync(~0u, sum, far));
  y[threadIdx.x] = sum;
}

extern "C" __global__ void over_threads_rounded(const __half* x, __half* y) {
  __half sum = x[threadIdx.x];
  for (int far = 16; far; far /= 2)
    sum = __float2half(__half2float(sum) + __half2float(__shfl_xor_sync(~0u, sum, far)));
  y[threadIdx.x] = sum;
}

extern "C" __global__ void in_a_loop(const __half* x, __half* y, int n) {
  __half sum = number<__half>(0);
  for (int i = 0; i < n; ++i) sum = __hadd(sum, x[i * 32 + threadIdx.x]);
  y[threadIdx.x] = sum;
}

extern "C" __global__ void squares_in_a_loop(const __half* x, __half* y, int n) {
  __half sum = number<__half>(0);
  for (int i = 0; i < n; ++i) sum = __hfma(x[i], x[i], sum);
  y[threadIdx.x] = sum;
}

extern "C" __global__ void rounded_in_a_loop(const __nv_bfloat16* x, __nv_bfloat16* y, int n) {
  __nv_bfloat16 sum = number<__nv_bfloat16>(0);
  for (int i = 0; i < n; ++i) sum = __float2bfloat16(__bfloat162float(sum) + __bfloat162float(x[i]));
  y[threadIdx.x] = sum;
}

extern "C" __global__ void of_a_vector(const uint4* x, __half* y) {
  uint4 v = x[threadIdx.x];
  auto two = [](unsigned bits) { return *reinterpret_cast<__half2*>(&bits); };
  __half2 sum = __hadd2(__hadd2(two(v.x), two(v.y)), __hadd2(two(v.z), two(v.w)));
  y[threadIdx.x] = __hadd(sum.x, sum.y);
}

// A chain of more additions than Python lets functions call each other.
extern "C" __global__ void of_a_long_row(const __half* x, __half* y) {
  __half sum = x[threadIdx.x];
#pragma unroll
  for (int i = 1; i < 700; ++i) sum = __hadd(sum, x[i * 32 + threadIdx.x]);
  y[threadIdx.x] = sum;
}

// Each tile of a row is staged where the one before it was.
extern "C" __global__ void of_a_row_in_tiles(const __half2* x, __half2* y, int columns) {
  __shared__ __half2 place[32];
  __half2 sum = __float2half2_rn(0);
#pragma unroll
  for (int n = 0; n < 4; ++n) {
    __half2 value = __halves2half2(__ushort_as_half(0), __ushort_as_half(0));
    if (threadIdx.x + 32 * n < columns) value = x[32 * n + threadIdx.x];
    __syncthreads();
    place[threadIdx.x] = value;
    __syncthreads();
    sum = __hadd2(sum, place[31 - threadIdx.x]);
  }
  y[threadIdx.x] = sum;
}

extern "C" __global__ void in_shared_memory(const __half* x, __half* y) {
  __shared__ __half parts[128];
  parts[threadIdx.x] = x[threadIdx.x];
  __syncthreads();
  for (int far = 64; far; far /= 2) {
    if (threadIdx.x < far) parts[threadIdx.x] = __hadd(parts[threadIdx.x], parts[threadIdx.x + far]);
    __syncthreads();
  }
  y[threadIdx.x] = parts[0];
}

extern "C" __global__ void by_atomics(const __half* x, __half* y) { atomicAdd(y, x[threadIdx.x]); }

extern "C" __global__ void under_a_lock(const __half* x, volatile __half* y, int* lock) {
  if (threadIdx.x == 0) {
    while (atomicCAS(lock, 0, 1) != 0) {}
    __threadfence();
    __half before = const_cast<__half*>(y)[0];
    const_cast<__half*>(y)[0] = __hadd(before, x[blockIdx.x]);
    __threadfence();
    atomicExch(lock, 0);
  }
}

// ---- No sums ----

extern "C" __global__ void bias_and_residual(const __half* x, const __half* w, const __half* b, __half* y) {
  int i = threadIdx.x;
  y[i] = __hadd(__hfma(x[i], w[i], b[i]), y[i]);
}

extern "C" __global__ void residual_in_pairs(const uint4* x, uint4* residual) {
  uint4 a = x[threadIdx.x], b = residual[threadIdx.x];
  auto add = [](unsigned one, unsigned other) {
    __half2 sum = __hadd2(*reinterpret_cast<__half2*>(&one), *reinterpret_cast<__half2*>(&other));
    return *reinterpret_cast<unsigned*>(&sum);
  };
  residual[threadIdx.x] = make_uint4(add(a.x, b.x), add(a.y, b.y), add(a.z, b.z), add(a.w, b.w));
}

extern "C" __global__ void wide_over_threads(const __half* x, __half* y, int n) {
  float sum = 0;
  for (int i = 0; i < n; ++i) sum += __half2float(x[i * 32 + threadIdx.x]);
  for (int far = 16; far; far /= 2) sum += __shfl_xor_sync(~0u, sum, far);
  y[threadIdx.x] = __float2half(sum);
}

extern "C" __global__ void wide_in_shared_memory(const __half* x, __half* y) {
  __shared__ float parts[128];
  parts[threadIdx.x] = __half2float(x[threadIdx.x]);
  __syncthreads();
  for (int far = 64; far; far /= 2) {
    if (threadIdx.x < far) parts[threadIdx.x] += parts[threadIdx.x + far];
    __syncthreads();
  }
  y[threadIdx.x] = __float2half(parts[0]);
}

extern "C" __global__ void residual_in_a_loop_over_rows(const __half* x, __half* residual, int rows, int n) {
  for (int row = 0; row < rows; ++row) {
    int i = row * n + threadIdx.x;
    residual[i] = __hadd(residual[i], x[i]);
  }
}

extern "C" __global__ void largest_and_difference(const __half* x, __half* y, int n) {
  __half largest = x[threadIdx.x];
  for (int i = 1; i < n; ++i) largest = __hmax(largest, x[i * 32 + threadIdx.x]);
  for (int far = 16; far; far /= 2) largest = __hmax(largest, __shfl_xor_sync(~0u, largest, far));
  for (int i = 0; i < n; ++i) y[i * 32 + threadIdx.x] = __hsub(x[i * 32 + threadIdx.x], largest);
}

extern "C" __global__ void staged_in_shared_memory(const __half* x, const __half* residual, __half* y) {
  __shared__ __half staged[256];
  staged[threadIdx.x] = x[threadIdx.x];
  staged[threadIdx.x + 128] = residual[threadIdx.x];
  __syncthreads();
  staged[127 - threadIdx.x] = __hadd(staged[127 - threadIdx.x], staged[255 - threadIdx.x]);
  __syncthreads();
  y[threadIdx.x] = staged[threadIdx.x];
}

extern "C" __global__ void rotated(const __half* x, const __half* cosine, const __half* sine, __half* y) {
  int i = threadIdx.x;
  __half other = __shfl_xor_sync(~0u, x[i], 1);
  y[i] = __hfma(x[i], cosine[i], __hmul(other, sine[i]));
}

extern "C" __global__ void wide_under_a_lock(const __half* x, __half* y, float* sum, int* lock) {
  if (threadIdx.x == 0) {
    while (atomicCAS(lock, 0, 1) != 0) {}
    __threadfence();
    *sum += __half2float(x[blockIdx.x]);
    __threadfence();
    atomicExch(lock, 0);
    y[blockIdx.x] = __hadd(y[blockIdx.x], x[blockIdx.x]);
  }
}

// Layouts change through one place in shared memory, and two results are rounded by one conversion.
extern "C" __global__ void staged_in_turn(const __half2* x, const float* weight, const float* bias, __half2* y) {
  __shared__ float place[64];
  int t = threadIdx.x;
  float2 v = __half22float2(x[t]);
  place[t] = weight[t];
  place[t + 32] = weight[t + 32];
  __syncthreads();
  float2 w = reinterpret_cast<float2*>(place)[t];
  __syncthreads();
  place[t] = bias[t];
  place[t + 32] = bias[t + 32];
  __syncthreads();
  float2 b = reinterpret_cast<float2*>(place)[t];
  y[t] = __floats2half2_rn(__fadd_rn(__fmul_rn(w.x, v.x), b.x), __fadd_rn(__fmul_rn(w.y, v.y), b.y));
}

// The same of what is added: a residual comes by the same way as the bias.
extern "C" __global__ void staged_three_times(
    const __half2* x, const __half* weight, const __half* bias, const __half* residual, __half2* y) {
  __shared__ __half place[64];
  int t = threadIdx.x;
  const __half* sources[3] = {weight, bias, residual};
  __half2 given[3];
#pragma unroll
  for (int n = 0; n < 3; ++n) {
    __syncthreads();
    place[t] = sources[n][t];
    place[t + 32] = sources[n][t + 32];
    __syncthreads();
    given[n] = reinterpret_cast<__half2*>(place)[t];
  }
  y[t] = __hadd2(__hadd2(__hmul2(given[0], x[t]), given[1]), given[2]);
}

// Copies that no register holds stage them, too.
extern "C" __global__ void staged_by_copies(
    const __half* weight, const __half* bias, const __half* residual, __half2* y) {
  __shared__ __align__(16) __half place[128];
  int t = threadIdx.x;
  const __half* sources[3] = {weight, bias, residual};
  __half2 given[3];
#pragma unroll
  for (int n = 0; n < 3; ++n) {
    unsigned to = (unsigned)__cvta_generic_to_shared(place + 4 * t);
    __syncthreads();
    asm volatile("cp.async.ca.shared.global [%0], [%1], 8;" ::"r"(to), "l"(sources[n] + 4 * t) : "memory");
    asm volatile("cp.async.wait_all;" ::: "memory");
    __syncthreads();
    given[n] = reinterpret_cast<__half2*>(place)[31 - t];
  }
  y[t] = __hadd2(__hadd2(given[0], given[1]), given[2]);
}
