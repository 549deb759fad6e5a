// SPDX-License-Identifier: Apache-2.0
// The backward of sequences that a tile holds: at most 64 queries and 64 keys. A warpgroup has one
// kv head of a sequence, and goes through all query heads that share it; a kernel of its own has
// several at once, where the longest sequence leaves room in the tile (PackGQA). So all sums stay
// in its registers: no scratch, no order of additions, one launch, and several CTAs on an SM. The
// CTAs behind the last sequence clear the rows that no sequence owns.
#pragma once

#include "engine/hopper/backward/backward_smem.cuh"
#include "engine/hopper/backward/postprocess.cuh"
#include "engine/hopper/backward/preprocess.cuh"
#include "engine/hopper/backward/scores/score_tile.cuh"
#include "engine/hopper/backward/store_keys.cuh"
#include "engine/hopper/pipeline/roles.cuh"
#include "engine/hopper/tile/load.cuh"

namespace fa3::hopper {

// A sequence's rows of one tensor; behind the last sequence, the rows that none owns.
struct SequenceRows {
  int batch;
  int begin;
  int owned;
  int used;

  __device__ __forceinline__ SequenceRows(const Lengths& lengths, int sequences, int number) {
    const bool packed = lengths.packed(), exists = number < sequences;
    const Rows rows = exists   ? lengths.clamped_rows_of(number)
                      : packed ? lengths.unowned_rows(sequences)
                               : Rows{};
    batch = packed || !exists ? 0 : number;
    begin = int(rows.begin);
    owned = int(rows.owned);
    used = int(rows.used);
  }
};

// What QueryEdge says, in rows of the tile instead of queries.
struct PackedQueryEdge {
  static constexpr bool kHidesLeft = true, kHidesRight = true;
  QueryEdge<SequenceExtents> edge;
  PackGqa pack;

  __device__ __forceinline__ int begin_of(int key) const { return rows(edge.begin_of(key)); }
  __device__ __forceinline__ int end_of(int key) const { return rows(edge.end_of(key)); }

 private:
  __device__ __forceinline__ int rows(int query) const {
    return pack.rows(query < kRowsPerWarpgroup ? query : kRowsPerWarpgroup);
  }
};

template <BackwardConfig C, bool Packs>
class ShortSequence {
 public:
  __device__ __forceinline__ ShortSequence(const ShortSequencesParams& params,
                                           BackwardSmem<C>& smem, const SequenceRows& queries,
                                           const SequenceRows& keys, int kv_head)
      : all_(params),
        params_(params.main),
        smem_(smem),
        at_{uniform(ptx::cvta_to_shared(&smem))},
        queries_(queries),
        keys_(keys),
        kv_head_(kv_head),
        scale_(keys.used == 1 ? params_.scale_of_one_key : params_.scale) {}

  __device__ __forceinline__ void run() {
    if (threadIdx.x == 0) {
      at_.k_pipeline().init(1);
      at_.q_pipeline().init(1);
      ptx::fence_mbarrier_init();
      load_keys();
    }
    float dk[C.shape.head_dim / 2] = {};
    float dv[C.shape.head_dim_v / 2] = {};
    PipelineState<1> cursor;
    const int packs = params_.heads_per_kv_head >> pack().log2;
#pragma unroll 1
    for (int number = kv_head_ * packs; number < (kv_head_ + 1) * packs; ++number) {
      __syncthreads();  // barriers are initialised; no thread reads the heads before any more
      add_heads(dk, dv, number, cursor);
      cursor.advance();
    }
    __syncthreads();
    store_gradient<C.element, C.dk_tile()>(at_.q(0), dk, scale_);
    store_gradient<C.element, C.dv_tile()>(at_.d_o(0), dv, 1.0f);
    ptx::fence_proxy_async();
    __syncthreads();
    if (!stores()) return;
    const ptx::TileCoordinates to =
        tile::clipped_place(keys_.begin, keys_.owned, 0, kRowsPerWarpgroup, kv_head_, keys_.batch);
    copy_gradient<C.dk_tile(), true>(params_.dk_map, params_.columns, at_.q(0), to);
    copy_gradient<C.dv_tile(), true>(params_.dv_map, params_.columns_v, at_.d_o(0), to);
    finish_copies();
  }

 private:
  using Tile = ScoreTile<C>;
  static constexpr tile::TileLayout kKSlab{C.shape.block_n, C.dq_accum().columns()};
  static_assert(C.shape.block_m == kRowsPerWarpgroup && C.shape.block_n == kRowsPerWarpgroup);

  // One head a tile is known to the compiler, which is worth 4 to 7%.
  __device__ __forceinline__ PackGqa pack() const {
    if constexpr (Packs) return all_.pack;
    return {};
  }

  // The heads of a pack.
  __device__ __forceinline__ void add_heads(float (&dk)[C.shape.head_dim / 2],
                                            float (&dv)[C.shape.head_dim_v / 2], int number,
                                            PipelineState<1> cursor) {
    if (threadIdx.x == 0) load_queries(number);
    const auto rows = rows_of(number);
    for_each_row<C, kWarpgroupSize>(
        all_.rows, rows, [] {},
        [&](int row, const RowStatistics& statistics, float product) {
          smem_.lse[0][row] = statistics.lse_log2();
          smem_.delta[0][row] = statistics.delta(product);
        });
    __syncthreads();
    typename Tile::Statistics lse, delta;
    Tile::read(lse, at_.lse(0));
    Tile::read(delta, at_.delta(0));
    at_.k_pipeline().wait_full({});
    at_.q_pipeline().wait_full(cursor);

    typename Tile::Scores p, dp;
    ptx::wgmma_fence();
    tile::issue_abt<C.element, C.k_tile(), C.q_tile()>(p, tile::k_major_low(at_.k()),
                                                       tile::k_major_low(at_.q(0)));
    ptx::wgmma_commit_group();
    tile::issue_abt<C.element, C.v_tile(), C.d_o_tile()>(dp, tile::k_major_low(at_.v()),
                                                         tile::k_major_low(at_.d_o(0)));
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
    mask(p);
    Tile::exponentiate(p, lse, Tile::score_of(params_), 0, {});
    typename Tile::Packed packed_p, ds;
    Tile::pack(packed_p, p);
    Tile::differentiate(dp, packed_p, delta, {});
    Tile::pack(ds, dp);
    Tile::store_transposed(at_.ds(0), 0, ds);
    ptx::fence_proxy_async();
    __syncthreads();

    ptx::wgmma_fence();
    tile::issue_ab<C.element, C.d_o_tile()>(dv, packed_p,
                                            tile::mn_major_low(C.d_o_tile(), at_.d_o(0)));
    tile::issue_ab<C.element, C.q_tile()>(dk, ds, tile::mn_major_low(C.q_tile(), at_.q(0)));
    ptx::wgmma_commit_group();
    ptx::wgmma_wait_group<0>();
#pragma unroll 1
    for (int part = 0; part < C.dq_accum().parts(); ++part) {
      float dq[C.dq_accum().columns() / 2];
      ptx::wgmma_fence();
      tile::issue_ab<C.element, C.ds_tile(), kKSlab>(
          dq, tile::k_major_low(at_.ds(0)),
          tile::mn_major_low(kKSlab, at_.k() + part * C.k_tile().slab_bytes()));
      ptx::wgmma_commit_group();
      ptx::wgmma_wait_group<0>();
      store_part<C>(all_.dq, rows, part, dq, scale_);
    }
  }

  __device__ __forceinline__ auto rows_of(int number) const {
    const RowTile rows{0,
                       queries_.batch,
                       number,
                       0,
                       queries_.begin,
                       pack().rows(queries_.owned),
                       pack().rows(queries_.used),
                       keys_.used};
    if constexpr (Packs) {
      return PackedRowTile{rows, pack()};
    } else {
      return rows;
    }
  }

  __device__ __forceinline__ void mask(typename Tile::Scores& scores) const {
    const SequenceExtents extents{queries_.used, keys_.used, params_.mask, 0};
    const KeyRangeOf<int> unmasked = unmasked_queries(extents, 0, C.shape.block_n);
    if constexpr (Packs) {
      if (unmasked.begin <= 0 && unmasked.end >= C.shape.block_m >> pack().log2) return;
      const PackedQueryEdge edge{{extents, 0}, pack()};
      mask_scores(scores, edge, PackGqa{}, int(threadIdx.x), 0);
    } else if (Tile::is_masked(unmasked, 0)) {
      Tile::mask(scores, extents, 0, 0);
    }
  }

  __device__ __forceinline__ void load_keys() {
    const ptx::TileCoordinates from =
        tile::clipped_place(keys_.begin, keys_.used, 0, C.shape.block_n, kv_head_, keys_.batch);
    load({params_.k_map, params_.k_outside, params_.columns}, C.k_tile(), at_.k(), from,
         {params_.v_map, params_.v_outside, params_.columns_v}, C.v_tile(), at_.v(),
         from.inner < C.shape.block_n, at_.k_pipeline().full(0));
  }
  __device__ __forceinline__ void load_queries(int number) {
    const int box = C.shape.block_m >> pack().log2;
    ptx::TileCoordinates from =
        tile::clipped_place(queries_.begin, queries_.used, 0, box, number, queries_.batch);
    const bool some_inside = from.inner < box;
    // Dimensions of packed maps: see encode_clipped_queries().
    if constexpr (Packs) from = {0, from.inner, from.row, number};
    load({params_.q_map, params_.q_outside, params_.columns}, C.q_tile(), at_.q(0), from,
         {params_.d_o_map, params_.d_o_outside, params_.columns_v}, C.d_o_tile(), at_.d_o(0),
         some_inside, at_.q_pipeline().full(0));
  }
  // Two tiles of the same rows, for one barrier.
  static __device__ __forceinline__ void load(const tile::ClippedMap& map, tile::TileLayout layout,
                                              uint32_t smem, ptx::TileCoordinates from,
                                              const tile::ClippedMap& map_v,
                                              tile::TileLayout layout_v, uint32_t smem_v,
                                              bool some_inside, uint32_t barrier) {
    ptx::mbarrier_arrive_expect_tx(barrier, layout.bytes() + layout_v.bytes());
    tile::issue_clipped_rows(map, layout, some_inside, smem, barrier, from);
    tile::issue_clipped_rows(map_v, layout_v, some_inside, smem_v, barrier, from);
  }

  const ShortSequencesParams& all_;
  const BackwardParams& params_;
  BackwardSmem<C>& smem_;
  const BackwardAddresses<C> at_;
  const SequenceRows& queries_;
  const SequenceRows& keys_;
  const int kv_head_;
  const float scale_;
};

// Zeros from row `first` on, by all threads of the CTA.
__device__ __forceinline__ void clear_rows(const RowTensor& t, const SequenceRows& rows, int head,
                                           int first) {
  const int vectors = t.columns / kVectorColumns;
  for (int i = int(threadIdx.x); i < (rows.owned - first) * vectors; i += kWarpgroupSize) {
    uint16_t* const row = t.at(rows.batch, head, rows.begin + first + i / vectors);
    store_global_if(true, row + i % vectors * kVectorColumns, {0, 0, 0, 0});
  }
}

template <BackwardConfig C, bool Packs>
__global__ void __launch_bounds__(kWarpgroupSize, C.shape.head_dim <= 64 ? 3 : 2)
    short_sequences_kernel(const __grid_constant__ ShortSequencesParams p) {
  extern __shared__ __align__(kSmemAlignment) unsigned char raw_smem[];
  const int kv_heads = p.main.order.num_kv_heads;
  const int number = int(blockIdx.x) / kv_heads, kv_head = int(blockIdx.x) % kv_heads;
  const SequenceRows queries(p.lengths_q, p.sequences, number);
  const SequenceRows keys(p.lengths_k, p.sequences, number);
  const bool owned = number < p.sequences;
  if (owned) {
    auto& smem = *reinterpret_cast<BackwardSmem<C>*>(raw_smem);
    ShortSequence<C, Packs>(p, smem, queries, keys, kv_head).run();
  }
  const int first = owned ? kRowsPerWarpgroup : 0;  // a sequence may own many unused rows
  const int first_query = Packs ? first >> p.pack.log2 : first;
  clear_rows(p.dk, keys, kv_head, first);
  clear_rows(p.dv, keys, kv_head, first);
  const int heads = p.main.heads_per_kv_head;
  for (int head = kv_head * heads; head < (kv_head + 1) * heads; ++head) {
    clear_rows(p.dq, queries, head, first_query);
  }
}

}  // namespace fa3::hopper
