// The skeleton under every row kernel here: who holds which part of a row, and how the parts are joined.
//
// A row kernel needs a statistic of a row (a variance, a maximum, a sum) and then a second look at the row.
// Three tiers differ only in where that second look finds the row:
//   warp     N <= 1024: a group of 1 to 32 lanes keeps it in registers;
//   shared   a block keeps it in dynamic shared memory;
//   streamed a block reads it from global memory again.
// A kernel is written once, against the two concepts below, and works in all three:
//   Values   this thread's part of the row:   values.each(f) and values.store(row, f)
//   Group    the threads that share the row:  group.sum(x), group.maximum(x), group.merge(state)
//
// Which thread takes which column depends on the row's length and dtype alone, never on strides or alignment:
// the vector loads change how a pack is fetched, not who fetches it, so a row has the same bits in every layout.
#pragma once
#include <cuda_bf16.h>
#include <cuda_fp16.h>

using int64 = long long;  // every offset: rows * stride passes 2^31 easily

// ---- 1. Numbers: half formats and float are computed in float, double in double ----

template <typename T>
struct ComputeOf {
  using type = float;
};
template <>
struct ComputeOf<double> {
  using type = double;
};

__device__ inline float infinity_of(float) { return __int_as_float(0x7f800000); }
__device__ inline double infinity_of(double) { return __longlong_as_double(0x7ff0000000000000ll); }
__device__ inline float larger(float a, float b) { return fmaxf(a, b); }
__device__ inline double larger(double a, double b) { return fmax(a, b); }
__device__ inline float inverse_root(float x) { return rsqrtf(x); }
__device__ inline double inverse_root(double x) { return rsqrt(x); }
__device__ inline float exponential(float x) { return expf(x); }
__device__ inline double exponential(double x) { return exp(x); }
__device__ inline float logarithm(float x) { return logf(x); }
__device__ inline double logarithm(double x) { return log(x); }
// A product that is rounded before a sum takes it: no compiler fuses it into one sum and not into another.
__device__ inline float product(float a, float b) { return __fmul_rn(a, b); }
__device__ inline double product(double a, double b) { return __dmul_rn(a, b); }

// ---- 2. Loads and stores are functors, so that what surrounds a norm fuses into the same kernel ----

template <typename T, int kPack>
struct alignas(sizeof(T) * kPack) Pack {
  T elements[kPack];
};

// A pack is written in words of up to 16 bytes, by a function that a compiler cannot take apart: it would write
// the elements of a structure one by one.
template <int kBytes>
struct WordOf {
  using type = uint4;
};
template <>
struct WordOf<2> {
  using type = unsigned short;
};
template <>
struct WordOf<4> {
  using type = unsigned;
};
template <>
struct WordOf<8> {
  using type = uint2;
};

template <typename T, int kPack>
__device__ void put(const Pack<T, kPack>& pack, T* to) {
  using Word = typename WordOf<sizeof(pack)>::type;
  Word words[sizeof(pack) / sizeof(Word)];
  memcpy(words, &pack, sizeof(pack));
#pragma unroll
  for (int i = 0; i < sizeof(pack) / sizeof(Word); ++i) __stcs(reinterpret_cast<Word*>(to) + i, words[i]);
}

template <int kPack, bool kVector, typename T, typename Compute>
__device__ void fetch(const T* from, int64 step, Compute* values) {
  Pack<T, kPack> pack;
  if constexpr (kVector) pack = *reinterpret_cast<const Pack<T, kPack>*>(from);
#pragma unroll
  for (int i = 0; i < kPack; ++i) {
    if constexpr (!kVector) pack.elements[i] = from[i * step];
    values[i] = static_cast<Compute>(pack.elements[i]);
  }
}

template <typename T, typename Compute>
struct DirectLoad {
  const T* data;
  int64 row_stride;
  int64 column_stride;

  template <int kPack, bool kVector>
  __device__ void load(Compute* values, int64 row, int64 column) const {
    fetch<kPack, kVector>(data + row * row_stride + column * column_stride, column_stride, values);
  }
};

// The residual stream of a transformer: the norm of input + residual, with no pass of its own for the sum.
template <typename T, typename Compute>
struct ResidualLoad {
  DirectLoad<T, Compute> input;
  DirectLoad<T, Compute> residual;

  template <int kPack, bool kVector>
  __device__ void load(Compute* values, int64 row, int64 column) const {
    Compute added[kPack];
    input.template load<kPack, kVector>(values, row, column);
    residual.template load<kPack, kVector>(added, row, column);
#pragma unroll
    for (int i = 0; i < kPack; ++i) values[i] += added[i];
  }
};

// Outputs are new and contiguous, so a pack can always be written at once; T converts on the way.
template <typename T, typename Compute>
struct DirectStore {
  T* data;
  int64 columns;

  template <int kPack, bool kVector>
  __device__ void store(const Compute* values, int64 row, int64 column) const {
    Pack<T, kPack> pack;
#pragma unroll
    for (int i = 0; i < kPack; ++i) pack.elements[i] = static_cast<T>(values[i]);
    put(pack, data + row * columns + column);
  }
};

template <typename W, typename T, typename Compute>
struct AffineStore {
  DirectStore<T, Compute> output;
  const W* weight;  // null: 1
  int64 weight_stride;
  const W* bias;  // null: 0
  int64 bias_stride;

  template <int kPack, bool kVector>
  __device__ void store(const Compute* normalized, int64 row, int64 column) const {
    Compute values[kPack], factor[kPack];
#pragma unroll
    for (int i = 0; i < kPack; ++i) values[i] = normalized[i];
    if (weight != nullptr) {
      fetch<kPack, kVector>(weight + column * weight_stride, weight_stride, factor);
#pragma unroll
      for (int i = 0; i < kPack; ++i) values[i] *= factor[i];
    }
    if (bias != nullptr) {
      fetch<kPack, kVector>(bias + column * bias_stride, bias_stride, factor);
#pragma unroll
      for (int i = 0; i < kPack; ++i) values[i] += factor[i];
    }
    output.template store<kPack, kVector>(values, row, column);
  }
};

// ---- 3. Groups: a part of a warp, or a block ----

constexpr unsigned kWholeWarp = 0xffffffffu;
constexpr int kWarpSize = 32;

template <int kWidth>
struct WarpGroup {
  // Butterfly: addition and maximum commute, so every lane of the group ends with the same bits.
  template <typename Compute>
  __device__ Compute sum(Compute x) const {
#pragma unroll
    for (int distance = kWidth / 2; distance > 0; distance /= 2) x += __shfl_xor_sync(kWholeWarp, x, distance, kWidth);
    return x;
  }

  template <typename Compute>
  __device__ Compute maximum(Compute x) const {
#pragma unroll
    for (int distance = kWidth / 2; distance > 0; distance /= 2)
      x = larger(x, __shfl_xor_sync(kWholeWarp, x, distance, kWidth));
    return x;
  }

  // Merging moments does not commute in its last bit: the tree ends in lane 0, which then tells the others.
  template <typename State>
  __device__ State merge(State state) const {
#pragma unroll
    for (int distance = kWidth / 2; distance > 0; distance /= 2) state.merge(state.from_below(distance, kWidth));
    return state.broadcast(kWidth);
  }
};

struct BlockGroup {
  template <typename Compute>
  __device__ Compute sum(Compute x) const {
    return across_warps(WarpGroup<kWarpSize>().sum(x), Compute(0),
                        [](Compute slot) { return WarpGroup<kWarpSize>().sum(slot); });
  }

  template <typename Compute>
  __device__ Compute maximum(Compute x) const {
    return across_warps(WarpGroup<kWarpSize>().maximum(x), -infinity_of(x),
                        [](Compute slot) { return WarpGroup<kWarpSize>().maximum(slot); });
  }

  template <typename State>
  __device__ State merge(State state) const {
    return across_warps(WarpGroup<kWarpSize>().merge(state), State::empty(),
                        [](State slot) { return WarpGroup<kWarpSize>().merge(slot); });
  }

 private:
  // One value a warp goes through shared memory; the first warp joins them and leaves the result for all.
  // The second barrier also protects the slots: whoever writes them next has passed it.
  template <typename State, typename Join>
  __device__ State across_warps(State of_warp, State neutral, Join join) const {
    __shared__ State slots[kWarpSize];
    __shared__ State result;
    const int lane = threadIdx.x % kWarpSize;
    const int warp = threadIdx.x / kWarpSize;
    if (lane == 0) slots[warp] = of_warp;
    __syncthreads();
    if (warp == 0) {
      const State joined = join(lane < blockDim.x / kWarpSize ? slots[lane] : neutral);
      if (lane == 0) result = joined;
    }
    __syncthreads();
    return result;
  }
};

// ---- 4. Values: this thread's part of the row ----

template <typename Load, typename Store, typename Compute, int kPack, bool kVector, int kColumnsPerThread, int kWidth,
          bool kPadding>
struct RegisterValues {
  static constexpr bool kWritable = true;  // what each() leaves in x is still there in store()
  Compute values[kColumnsPerThread];
  int64 columns;

  __device__ void load(const Load& from, int64 row) {
#pragma unroll
    for (int pack = 0; pack < kColumnsPerThread / kPack; ++pack)
      if (inside(pack)) from.template load<kPack, kVector>(values + pack * kPack, row, column_of(pack));
  }

  template <typename Visit>
  __device__ void each(Visit visit) {
#pragma unroll
    for (int pack = 0; pack < kColumnsPerThread / kPack; ++pack)
      if (inside(pack)) {
#pragma unroll
        for (int i = 0; i < kPack; ++i) visit(values[pack * kPack + i]);
      }
  }

  template <typename Finish>
  __device__ void store(const Store& to, int64 row, Finish finish) {
#pragma unroll
    for (int pack = 0; pack < kColumnsPerThread / kPack; ++pack)
      if (inside(pack)) {
        Compute finished[kPack];
#pragma unroll
        for (int i = 0; i < kPack; ++i) finished[i] = finish(values[pack * kPack + i]);
        to.template store<kPack, kVector>(finished, row, column_of(pack));
      }
  }

 private:
  __device__ int column_of(int pack) const { return (pack * kWidth + threadIdx.x) * kPack; }
  // A pack is inside or outside as a whole, since the pack size divides N.
  __device__ bool inside(int pack) const { return !kPadding || column_of(pack) < columns; }
};

// The row is kept transposed by pack: element i of all packs lies together, so that neighbouring threads
// touch neighbouring banks. A thread reads back only what it wrote, hence no barrier.
template <typename Load, typename Store, typename Compute, int kPack, bool kVector>
struct SharedValues {
  static constexpr bool kWritable = true;
  Compute* kept;
  int64 columns;

  __device__ void load(const Load& from, int64 row) {
    for (int64 pack = threadIdx.x; pack < packs(); pack += blockDim.x) {
      Compute values[kPack];
      from.template load<kPack, kVector>(values, row, pack * kPack);
#pragma unroll
      for (int i = 0; i < kPack; ++i) kept[i * packs() + pack] = values[i];
    }
  }

  template <typename Visit>
  __device__ void each(Visit visit) {
    for (int64 pack = threadIdx.x; pack < packs(); pack += blockDim.x) {
#pragma unroll
      for (int i = 0; i < kPack; ++i) visit(kept[i * packs() + pack]);
    }
  }

  template <typename Finish>
  __device__ void store(const Store& to, int64 row, Finish finish) {
    for (int64 pack = threadIdx.x; pack < packs(); pack += blockDim.x) {
      Compute finished[kPack];
#pragma unroll
      for (int i = 0; i < kPack; ++i) finished[i] = finish(kept[i * packs() + pack]);
      to.template store<kPack, kVector>(finished, row, pack * kPack);
    }
  }

 private:
  __device__ int64 packs() const { return columns / kPack; }
};

template <typename Load, typename Store, typename Compute, int kPack, bool kVector>
struct StreamedValues {
  static constexpr bool kWritable = false;
  Load from;
  int64 row;
  int64 columns;

  template <typename Visit>
  __device__ void each(Visit visit) {
    for (int64 pack = threadIdx.x; pack < columns / kPack; pack += blockDim.x) {
      Compute values[kPack];
      from.template load<kPack, kVector>(values, row, pack * kPack);
#pragma unroll
      for (int i = 0; i < kPack; ++i) visit(values[i]);
    }
  }

  template <typename Finish>
  __device__ void store(const Store& to, int64, Finish finish) {
    for (int64 pack = threadIdx.x; pack < columns / kPack; pack += blockDim.x) {
      Compute values[kPack];
      from.template load<kPack, kVector>(values, row, pack * kPack);
#pragma unroll
      for (int i = 0; i < kPack; ++i) values[i] = finish(values[i]);
      to.template store<kPack, kVector>(values, row, pack * kPack);
    }
  }
};

// ---- 5. The three tiers: Work is the kernel proper, work(values, group, row, stores, leads) ----

// blockDim = (kWidth, groups). All threads of a block go through, because shuffles name the whole warp: a group
// beyond the last row repeats the last rows and stores nothing.
template <typename Compute, int kPack, bool kVector, int kColumnsPerThread, int kWidth, int kRowsPerAccess, bool kPadding,
          typename Load, typename Store, typename Work>
__device__ void warp_tier(const Load& load, const Store&, int64 rows, int64 columns, Work work) {
  using Values = RegisterValues<Load, Store, Compute, kPack, kVector, kColumnsPerThread, kWidth, kPadding>;
  const int64 group = static_cast<int64>(blockIdx.x) * blockDim.y + threadIdx.y;
  const int64 wanted = group * kRowsPerAccess;
  const bool stores = wanted < rows;
  const int64 first = stores ? wanted : rows - kRowsPerAccess;
  static_assert(kRowsPerAccess == 1 || kRowsPerAccess == 2);
  Values here, next;  // of two rows both are loaded before either is worked on
  here.columns = next.columns = columns;
  here.load(load, first);
  if constexpr (kRowsPerAccess == 2) next.load(load, first + 1);
  work(here, WarpGroup<kWidth>(), first, stores, threadIdx.x == 0);
  if constexpr (kRowsPerAccess == 2) work(next, WarpGroup<kWidth>(), first + 1, stores, threadIdx.x == 0);
}

// A block has a row: rows of more than 1024 columns never come near the 2^31 blocks of a grid.
template <typename Compute, int kPack, bool kVector, typename Load, typename Store, typename Work>
__device__ void shared_tier(const Load& load, const Store&, int64 columns, Work work) {
  extern __shared__ __align__(16) unsigned char row_buffer[];
  SharedValues<Load, Store, Compute, kPack, kVector> values{reinterpret_cast<Compute*>(row_buffer), columns};
  values.load(load, blockIdx.x);
  work(values, BlockGroup(), blockIdx.x, true, threadIdx.x == 0);
}

template <typename Compute, int kPack, bool kVector, typename Load, typename Store, typename Work>
__device__ void streamed_tier(const Load& load, const Store&, int64 columns, Work work) {
  StreamedValues<Load, Store, Compute, kPack, kVector> values{load, blockIdx.x, columns};
  work(values, BlockGroup(), blockIdx.x, true, threadIdx.x == 0);
}
