// Rows that one multiprocessor cannot hold: the blocks of a cluster share a row, a slice of it each.
//
// Each warp hands its part of a sum to every block of the cluster, through that block's shared memory, and a
// barrier there counts the bytes that have come: nobody waits for anything else, no store to global memory
// among it, as a barrier of the cluster would. All add the parts in the same order: the same bits everywhere.
#pragma once
#include <cuda_pipeline.h>

#include "row_tiers_cuda.cuh"

// ---- 1. Which columns a thread has: packs of neighbours, round the threads of a block, slice by slice ----

template <int kThreads, int kPacks, int kPack>
struct Slice {
  static constexpr int kColumns = kThreads * kPacks * kPack;  // of a block
  int64 first;                                                // column of this thread's first pack

  __device__ explicit Slice(int rank) : first(static_cast<int64>(rank) * kColumns + threadIdx.x * kPack) {}
  __device__ int64 column(int pack) const { return first + pack * (kThreads * kPack); }
};

// ---- 2. Rows on their way into shared memory, where packs can be loaded as vectors ----

// Each thread copies what it reads itself, so that no barrier is needed.
template <typename T, int kTensors, int kAhead, int kThreads, int kPacks, int kPack>
struct Ahead {
  T* stages;  // kAhead x kTensors x the columns of a block
  int stage = 0;

  __device__ T* place(int in_stage, int tensor, int pack) const {
    return stages + ((in_stage * kTensors + tensor) * kPacks + pack) * (kThreads * kPack) + threadIdx.x * kPack;
  }

  // rows: of each tensor its row, or null where there is none left.
  __device__ void start(const T* const (&rows)[kTensors], const Slice<kThreads, kPacks, kPack>& slice,
                        int64 columns) const {
    start_in(stage, rows, slice, columns);
  }
  __device__ void start_in(int in_stage, const T* const (&rows)[kTensors],
                           const Slice<kThreads, kPacks, kPack>& slice, int64 columns) const {
    if (rows[0] != nullptr) {
#pragma unroll
      for (int pack = 0; pack < kPacks; ++pack)
        if (slice.column(pack) < columns) {
#pragma unroll
          for (int tensor = 0; tensor < kTensors; ++tensor)
            __pipeline_memcpy_async(place(in_stage, tensor, pack), rows[tensor] + slice.column(pack),
                                    sizeof(T) * kPack);
        }
    }
    __pipeline_commit();
  }

  __device__ void wait() const { __pipeline_wait_prior(kAhead - 1); }
  __device__ void next() { stage = stage + 1 == kAhead ? 0 : stage + 1; }
};

// ---- 3. Barriers that count bytes (PTX ISA, mbarrier and st.async) ----

template <typename Compute>
struct alignas(2 * sizeof(Compute)) Two {
  Compute one, other;
};

using ByteBarrier = unsigned long long;

__device__ inline unsigned shared_address(const void* place) {
  return static_cast<unsigned>(__cvta_generic_to_shared(place));
}
__device__ inline unsigned in_block(unsigned address, int rank) {
  unsigned mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}
__device__ inline void begin(ByteBarrier* barrier) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(shared_address(barrier)) : "memory");
}
__device__ inline void expect(ByteBarrier* barrier, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(barrier)), "r"(bytes)
               : "memory");
}
__device__ inline void wait_for(ByteBarrier* barrier, unsigned parity) {
  unsigned over = 0;
  while (!over)
    asm volatile("{ .reg .pred p; mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2; selp.u32 %0, 1, 0, p; }"
                 : "=r"(over)
                 : "r"(shared_address(barrier)), "r"(parity)
                 : "memory");
}
__device__ inline void send(unsigned slot, unsigned barrier, Two<float> value) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f32 [%0], {%1, %2}, [%3];" ::"r"(slot),
               "f"(value.one), "f"(value.other), "r"(barrier)
               : "memory");
}
__device__ inline void send(unsigned slot, unsigned barrier, Two<double> value) {
  asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.f64 [%0], {%1, %2}, [%3];" ::"r"(slot),
               "d"(value.one), "d"(value.other), "r"(barrier)
               : "memory");
}
__device__ inline void all_have_begun() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

// ---- 4. Sums over a row, two at a time ----

template <typename Compute>
__device__ Two<Compute> over_warp(Two<Compute> mine) {
  const WarpGroup<kWarpSize> warp;
  return {warp.sum(mine.one), warp.sum(mine.other)};
}

// Two sets of slots are used in turns. Who sends the parts of a sum has waited for those of the one before, which
// all warps of the cluster sent after they had read the slots of the sum before that: the slots are free.
template <typename Compute, int kThreads, int kBlocks>
struct RowSums {
  static constexpr int kWarps = kThreads / kWarpSize;
  static constexpr int kParts = kWarps * kBlocks;
  struct Shared {
    Two<Compute> slots[2][kParts];
    ByteBarrier barriers[2];
  };
  Shared& shared;
  int rank;  // of the block in its cluster
  unsigned uses = 0;

  __device__ RowSums(Shared& shared, int rank) : shared(shared), rank(rank) {
    if constexpr (kBlocks > 1) {
      if (threadIdx.x < 2) begin(shared.barriers + threadIdx.x);
      all_have_begun();
    }
  }

  __device__ void give(Two<Compute> mine) {
    mine = over_warp(mine);
    const int lane = threadIdx.x % kWarpSize, turn = uses % 2;
    Two<Compute>* slot = shared.slots[turn] + rank * kWarps + threadIdx.x / kWarpSize;
    ByteBarrier* barrier = shared.barriers + turn;
    if constexpr (kBlocks == 1) {
      if (lane == 0) *slot = mine;
      __syncthreads();
    } else {
      if (threadIdx.x == 0) expect(barrier, sizeof(shared.slots[turn]));
      if (lane < kBlocks) send(in_block(shared_address(slot), lane), in_block(shared_address(barrier), lane), mine);
    }
  }

  __device__ Two<Compute> take() {
    const int lane = threadIdx.x % kWarpSize, turn = uses % 2;
    if constexpr (kBlocks > 1) wait_for(shared.barriers + turn, uses / 2 % 2);
    const Two<Compute>* parts = shared.slots[turn];
    Two<Compute> sum = lane < kParts ? parts[lane] : Two<Compute>{0, 0};
#pragma unroll
    for (int part = lane + kWarpSize; part < kParts; part += kWarpSize) {
      sum.one += parts[part].one;
      sum.other += parts[part].other;
    }
    ++uses;
    return over_warp(sum);
  }
};
