// SPDX-License-Identifier: Apache-2.0
//
// What the protocol test runs the forward kernels on: few tiles each, of every kind that takes a
// way of its own through the barriers. Next: protocol_test.cpp.
#pragma once

#include "shape.h"

namespace fa3::hopper {

inline constexpr MaskRuleOf<int> kFull, kCausal{.right = 0};

inline constexpr Shape kShapes[] = {
    // Groups of three are never packed: the model knows rows as queries.
    {.seqlen_q = 500, .seqlen_k = 700, .heads = 2, .kv_heads = 2, .batches = 2, .mask = kFull},
    {.seqlen_q = 700, .seqlen_k = 700, .heads = 6, .kv_heads = 2, .batches = 1, .mask = kCausal},
    {.seqlen_q = 384, .seqlen_k = 50, .heads = 3, .kv_heads = 1, .batches = 3, .mask = kFull},
    {.seqlen_q = 900, .seqlen_k = 300, .heads = 3, .kv_heads = 1, .batches = 1, .mask = kCausal},
    {.seqlen_q = 1, .seqlen_k = 900, .heads = 4, .kv_heads = 4, .batches = 2, .mask = kCausal},
};

// Of block masks: many short lists, few long ones, and rows that end within a block.
inline constexpr Shape kListed[] = {
    {.seqlen_q = 900, .seqlen_k = 700, .heads = 4, .kv_heads = 2, .batches = 2, .mask = kFull},
    {.seqlen_q = 300, .seqlen_k = 2560, .heads = 3, .kv_heads = 1, .batches = 1, .mask = kFull},
    {.seqlen_q = 40, .seqlen_k = 60, .heads = 3, .kv_heads = 3, .batches = 3, .mask = kFull},
};

// Of e4m3: tiles of several parts of O, one after the other.
inline constexpr Shape kManyParts[] = {
    {.seqlen_q = 300, .seqlen_k = 2700, .heads = 2, .kv_heads = 1, .batches = 1, .mask = kFull},
    {.seqlen_q = 2700, .seqlen_k = 2700, .heads = 1, .kv_heads = 1, .batches = 1, .mask = kCausal},
};

// For the general kernels as well: warpgroups of one tile begin and end at different keys.
inline constexpr Shape kWindows[] = {
    {.seqlen_q = 700,
     .seqlen_k = 700,
     .heads = 3,
     .kv_heads = 1,
     .batches = 1,
     .mask = {.left = 100, .right = 0}},
    {.seqlen_q = 500,
     .seqlen_k = 900,
     .heads = 2,
     .kv_heads = 2,
     .batches = 1,
     .mask = {.left = 300}},
    {.seqlen_q = 900,
     .seqlen_k = 400,
     .heads = 3,
     .kv_heads = 1,
     .batches = 1,
     .mask = {.left = 64, .right = 130}},
    {.seqlen_q = 600,
     .seqlen_k = 800,
     .heads = 2,
     .kv_heads = 2,
     .batches = 1,
     .mask = {.right = 0, .chunk = 170}},
    // Beside the diagonal: the first queries see nothing, or the last.
    {.seqlen_q = 500,
     .seqlen_k = 600,
     .heads = 3,
     .kv_heads = 1,
     .batches = 1,
     .mask = {.left = 200, .right = -130}},
    {.seqlen_q = 600,
     .seqlen_k = 500,
     .heads = 2,
     .kv_heads = 2,
     .batches = 1,
     .mask = {.left = -150}},
};

// Sequences of their own lengths, empty ones on either side, and rows that none owns.
inline constexpr int32_t kQueries[] = {0, 0, 300, 301, 301, 700, 713};
inline constexpr int32_t kKeys[] = {0, 40, 540, 540, 640, 1000, 1017};
inline constexpr int32_t kUsed[] = {0, 1, 300, 171};
inline constexpr Shape kRagged[] = {
    {.seqlen_q = 399,
     .seqlen_k = 500,
     .heads = 3,
     .kv_heads = 1,
     .batches = 6,
     .mask = kCausal,
     .cu_q = kQueries,
     .cu_k = kKeys},
    {.seqlen_q = 200,
     .seqlen_k = 300,
     .heads = 2,
     .kv_heads = 2,
     .batches = 4,
     .mask = {.left = 90},
     .used_k = kUsed},
    {.seqlen_q = 399,
     .seqlen_k = 500,
     .heads = 3,
     .kv_heads = 1,
     .batches = 6,
     .mask = {.left = -70, .right = 200},
     .cu_q = kQueries,
     .cu_k = kKeys},
};

// Of every kernel's blocks: the model knows rows by where they lie, which zeros behind the last
// page have no answer to; one sequence, since its pages are one long tensor there.
inline constexpr int kWholeBlocks = 1920;
inline constexpr int32_t kAllUsed[] = {kWholeBlocks};

// Boxes of many rows, and of few or copies by threads.
inline constexpr Shape kPaged[] = {
    {.seqlen_q = 100,
     .seqlen_k = kWholeBlocks,
     .heads = 2,
     .kv_heads = 2,
     .batches = 1,
     .mask = {.left = 90},
     .used_k = kAllUsed,
     .page_size = 640},
    {.seqlen_q = 100,
     .seqlen_k = kWholeBlocks,
     .heads = 2,
     .kv_heads = 2,
     .batches = 1,
     .mask = {.left = 90},
     .used_k = kAllUsed,
     .page_size = 16},
    {.seqlen_q = 100,
     .seqlen_k = kWholeBlocks,
     .heads = 2,
     .kv_heads = 2,
     .batches = 1,
     .mask = {.left = -30},
     .used_k = kAllUsed,
     .page_size = 640},
};

constexpr Shape direct(Shape shape) {
  shape.scheduler = Scheduler::kDirect;
  return shape;
}

// Tiles in splits: runs and fixed parts, of one length and of many, keys in one run and in pages.
// And whole tiles of many lengths that are found by number.
inline constexpr Shape kCut[] = {
    {.seqlen_q = 1,
     .seqlen_k = 900,
     .heads = 4,
     .kv_heads = 4,
     .batches = 2,
     .mask = kCausal,
     .scheduler = Scheduler::kStreamK,
     .split = {.ctas = 2}},
    {.seqlen_q = 150,
     .seqlen_k = 1000,
     .heads = 3,
     .kv_heads = 1,
     .batches = 1,
     .mask = kCausal,
     .scheduler = Scheduler::kFixedSplit,
     .split = {.num_splits = 3}},
    {.seqlen_q = 399,
     .seqlen_k = 500,
     .heads = 3,
     .kv_heads = 1,
     .batches = 6,
     .mask = {.left = 200, .right = 0},
     .cu_q = kQueries,
     .cu_k = kKeys,
     .scheduler = Scheduler::kStreamK,
     .split = {.ctas = 2}},
    {.seqlen_q = 70,
     .seqlen_k = 1100,
     .heads = 4,
     .kv_heads = 4,
     .batches = 2,
     .mask = kCausal,
     .scheduler = Scheduler::kStreamK,
     .split = {.ctas = 4, .groups_log2 = 1}},
    {.seqlen_q = 20,
     .seqlen_k = kWholeBlocks,
     .heads = 2,
     .kv_heads = 2,
     .batches = 1,
     .mask = kCausal,
     .used_k = kAllUsed,
     .scheduler = Scheduler::kFixedSplit,
     .split = {.num_splits = 2},
     .page_size = 640},
    {.seqlen_q = 1,
     .seqlen_k = kWholeBlocks,
     .heads = 2,
     .kv_heads = 2,
     .batches = 1,
     .mask = kCausal,
     .used_k = kAllUsed,
     .scheduler = Scheduler::kStreamK,
     .split = {.ctas = 2},
     .page_size = 16},
    {.seqlen_q = 150,
     .seqlen_k = 1000,
     .heads = 3,
     .kv_heads = 1,
     .batches = 1,
     .mask = {.left = -60},
     .scheduler = Scheduler::kFixedSplit,
     .split = {.num_splits = 3}},
    {.seqlen_q = 70,
     .seqlen_k = 1100,
     .heads = 4,
     .kv_heads = 4,
     .batches = 2,
     .mask = {.left = 400, .right = -90},
     .scheduler = Scheduler::kStreamK,
     .split = {.ctas = 4, .groups_log2 = 1}},
    direct(kRagged[0]),
    direct(kRagged[1]),
    direct(kRagged[2]),
    direct(kPaged[0]),
};

// Copied by threads: whole tiles, fixed parts and equal shares, several tiles of a head each;
// without pages by kernels of few queries.
inline constexpr Shape kGathered[] = {
    {.seqlen_q = 300,
     .seqlen_k = kWholeBlocks,
     .heads = 6,
     .kv_heads = 2,
     .batches = 1,
     .mask = kCausal,
     .used_k = kAllUsed,
     .page_size = 7},
    {.seqlen_q = 20,
     .seqlen_k = kWholeBlocks,
     .heads = 2,
     .kv_heads = 2,
     .batches = 1,
     .mask = kCausal,
     .used_k = kAllUsed,
     .scheduler = Scheduler::kFixedSplit,
     .split = {.num_splits = 2},
     .page_size = 1},
    {.seqlen_q = 150,
     .seqlen_k = kWholeBlocks,
     .heads = 2,
     .kv_heads = 2,
     .batches = 1,
     .mask = {.left = 500, .right = 0},
     .used_k = kAllUsed,
     .scheduler = Scheduler::kStreamK,
     .split = {.ctas = 2},
     .page_size = 4},
    {.seqlen_q = 300,
     .seqlen_k = kWholeBlocks,
     .heads = 6,
     .kv_heads = 2,
     .batches = 2,
     .mask = kCausal,
     .by_cp_async = true},
    {.seqlen_q = 20,
     .seqlen_k = kWholeBlocks,
     .heads = 2,
     .kv_heads = 2,
     .batches = 3,
     .mask = kFull,
     .scheduler = Scheduler::kStreamK,
     .split = {.ctas = 2},
     .by_cp_async = true},
    {.seqlen_q = 300,
     .seqlen_k = kWholeBlocks,
     .heads = 2,
     .kv_heads = 2,
     .batches = 1,
     .mask = {.left = -40},
     .used_k = kAllUsed,
     .page_size = 7},
};

// Decoding: shares of one tile and of several, in pages and not. One sequence: these kernels have a
// lane for each, and a warp of the model has one lane.
inline constexpr int32_t kFewerBlocks[] = {1280};
inline constexpr Shape kDecoded[] = {
    {.seqlen_q = 1,
     .seqlen_k = kWholeBlocks,
     .heads = 1,
     .kv_heads = 1,
     .batches = 1,
     .mask = kCausal,
     .used_k = kAllUsed,
     .scheduler = Scheduler::kStreamK,
     .split = {.ctas = 2},
     .page_size = 16},
    {.seqlen_q = 20,
     .seqlen_k = kWholeBlocks,
     .heads = 7,
     .kv_heads = 7,
     .batches = 1,
     .mask = kFull,
     .scheduler = Scheduler::kStreamK,
     .split = {.ctas = 2},
     .by_cp_async = true},
    {.seqlen_q = 64,
     .seqlen_k = kWholeBlocks,
     .heads = 6,
     .kv_heads = 6,
     .batches = 1,
     .mask = {.right = -20},
     .used_k = kFewerBlocks,
     .scheduler = Scheduler::kStreamK,
     .split = {.ctas = 4, .groups_log2 = 1},
     .by_cp_async = true},
};

// The same of 128 rows, and whole ones, of which a block may have several.
inline constexpr Shape kDecodedByMoreRows[] = {
    {.seqlen_q = 128,
     .seqlen_k = kWholeBlocks,
     .heads = 3,
     .kv_heads = 3,
     .batches = 1,
     .mask = kCausal,
     .used_k = kAllUsed,
     .scheduler = Scheduler::kStreamK,
     .split = {.ctas = 2},
     .page_size = 16},
    {.seqlen_q = 128,
     .seqlen_k = kWholeBlocks,
     .heads = 9,
     .kv_heads = 9,
     .batches = 1,
     .mask = kCausal,
     .used_k = kFewerBlocks,
     .scheduler = Scheduler::kDirect,
     .page_size = 16},
    {.seqlen_q = 70,
     .seqlen_k = kWholeBlocks,
     .heads = 2,
     .kv_heads = 2,
     .batches = 1,
     .mask = {.right = -20},
     .used_k = kAllUsed,
     .scheduler = Scheduler::kDirect,
     .by_cp_async = true},
    {.seqlen_q = 16,
     .seqlen_k = kWholeBlocks,
     .heads = 2,
     .kv_heads = 2,
     .batches = 1,
     .mask = kFull,
     .used_k = kAllUsed,
     .scheduler = Scheduler::kDirect,
     .by_cp_async = true},
};

}  // namespace fa3::hopper
