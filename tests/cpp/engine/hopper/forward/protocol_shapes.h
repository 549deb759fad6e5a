// SPDX-License-Identifier: Apache-2.0
//
// What the protocol test runs the forward kernels on: few tiles each, of every kind that takes a
// way of its own through the barriers. Next: protocol_test.cpp.
#pragma once

#include "launch/shape.h"

namespace fa3::hopper {

inline constexpr MaskRuleOf<int> kFull, kCausal{.right = 0};

// Queries, keys, heads, heads of keys, sequences, mask.
inline constexpr CallShape kShapes[] = {
    // Groups of three are never packed: the model knows rows as queries.
    {500, 700, 2, 2, 2, kFull},   {700, 700, 6, 2, 1, kCausal}, {384, 50, 3, 1, 3, kFull},
    {900, 300, 3, 1, 1, kCausal}, {1, 900, 4, 4, 2, kCausal},
};

// Block masks: many short lists, few long ones, and rows that end within a block.
inline constexpr CallShape kListed[] = {
    {900, 700, 4, 2, 2, kFull},
    {300, 2560, 3, 1, 1, kFull},
    {40, 60, 3, 3, 3, kFull},
};

// FP8 (e4m3): tiles of several parts of O, one after the other.
inline constexpr CallShape kManyParts[] = {
    {300, 2700, 2, 1, 1, kFull},
    {2700, 2700, 1, 1, 1, kCausal},
};

// For the general kernels as well: warpgroups of one tile begin and end at different keys.
inline constexpr CallShape kWindows[] = {
    {700, 700, 3, 1, 1, {.left = 100, .right = 0}},
    {500, 900, 2, 2, 1, {.left = 300}},
    {900, 400, 3, 1, 1, {.left = 64, .right = 130}},
    {600, 800, 2, 2, 1, {.right = 0, .chunk = 170}},
    // Beside the diagonal: the first queries see nothing, or the last.
    {500, 600, 3, 1, 1, {.left = 200, .right = -130}},
    {600, 500, 2, 2, 1, {.left = -150}},
};

// Sequences of their own lengths, empty ones on either side, and rows that none owns.
inline constexpr int32_t kQueries[] = {0, 0, 300, 301, 301, 700, 713};
inline constexpr int32_t kKeys[] = {0, 40, 540, 540, 640, 1000, 1017};
inline constexpr int32_t kUsed[] = {0, 1, 300, 171};
inline constexpr CallShape kRagged[] = {
    CallShape{399, 500, 3, 1, 6, kCausal}.with_packed(kQueries, kKeys),
    CallShape{200, 300, 2, 2, 4, {.left = 90}}.with_used(kUsed),
    CallShape{399, 500, 3, 1, 6, {.left = -70, .right = 200}}.with_packed(kQueries, kKeys),
};

// A multiple of every kernel's block: the model knows rows by where they lie, which zeros behind
// the last page have no answer to; one sequence, since its pages are one long tensor there.
inline constexpr int kWholeBlocks = 1920;
inline constexpr int32_t kAllUsed[] = {kWholeBlocks};

// Boxes of many rows, and of few or copies by threads.
inline constexpr CallShape kPaged[] = {
    CallShape{100, kWholeBlocks, 2, 2, 1, {.left = 90}}.with_used(kAllUsed).in_pages(640),
    CallShape{100, kWholeBlocks, 2, 2, 1, {.left = 90}}.with_used(kAllUsed).in_pages(16),
    CallShape{100, kWholeBlocks, 2, 2, 1, {.left = -30}}.with_used(kAllUsed).in_pages(640),
};

// Tiles in splits: runs and fixed parts, of one length and of many, in pairs, keys in one run and
// in pages. And whole tiles of many lengths that are found by number.
inline constexpr CallShape kCut[] = {
    CallShape{1, 900, 4, 4, 2, kCausal}.stream_k(2),
    CallShape{150, 1000, 3, 1, 1, kCausal}.fixed_splits(3),
    CallShape{399, 500, 3, 1, 6, {.left = 200, .right = 0}}
        .with_packed(kQueries, kKeys)
        .stream_k(2),
    CallShape{70, 1100, 4, 4, 2, kCausal}.stream_k(4, 1),
    CallShape{900, 1000, 3, 1, 1, kCausal}.stream_k(4).paired(),
    CallShape{20, kWholeBlocks, 2, 2, 1, kCausal}.with_used(kAllUsed).in_pages(640).fixed_splits(2),
    CallShape{1, kWholeBlocks, 2, 2, 1, kCausal}.with_used(kAllUsed).in_pages(16).stream_k(2),
    CallShape{150, 1000, 3, 1, 1, {.left = -60}}.fixed_splits(3),
    CallShape{70, 1100, 4, 4, 2, {.left = 400, .right = -90}}.stream_k(4, 1),
    kRagged[0].direct(),
    kRagged[1].direct(),
    kRagged[2].direct(),
    kPaged[0].direct(),
};

// Copied by threads: whole tiles, fixed parts and equal shares, several tiles of a head each;
// without pages by kernels of few queries.
inline constexpr CallShape kGathered[] = {
    CallShape{300, kWholeBlocks, 6, 2, 1, kCausal}.with_used(kAllUsed).in_pages(7),
    CallShape{20, kWholeBlocks, 2, 2, 1, kCausal}.with_used(kAllUsed).in_pages(1).fixed_splits(2),
    CallShape{150, kWholeBlocks, 2, 2, 1, {.left = 500, .right = 0}}
        .with_used(kAllUsed)
        .in_pages(4)
        .stream_k(2),
    CallShape{300, kWholeBlocks, 6, 2, 2, kCausal}.by_threads(),
    CallShape{20, kWholeBlocks, 2, 2, 3, kFull}.by_threads().stream_k(2),
    CallShape{300, kWholeBlocks, 2, 2, 1, {.left = -40}}.with_used(kAllUsed).in_pages(7),
};

// Decoding: shares of one tile and of several, in pages and not. One sequence: these kernels have a
// lane for each, and a warp of the model has one lane.
inline constexpr int32_t kFewerBlocks[] = {1280};
inline constexpr CallShape kDecoded[] = {
    CallShape{1, kWholeBlocks, 1, 1, 1, kCausal}.with_used(kAllUsed).in_pages(16).stream_k(2),
    CallShape{20, kWholeBlocks, 7, 7, 1, kFull}.by_threads().stream_k(2),
    CallShape{64, kWholeBlocks, 6, 6, 1, {.right = -20}}
        .with_used(kFewerBlocks)
        .by_threads()
        .stream_k(4, 1),
};

// Tiles of 128 rows: in so many splits that a kernel combines them, and whole ones, of which a CTA
// may have several.
inline constexpr CallShape kDecodedByMoreRows[] = {
    CallShape{128, kWholeBlocks, 1, 1, 1, kCausal}.with_used(kAllUsed).in_pages(16).stream_k(5),
    CallShape{128, kWholeBlocks, 9, 9, 1, kCausal}.with_used(kFewerBlocks).in_pages(16).direct(),
    CallShape{70, kWholeBlocks, 2, 2, 1, {.right = -20}}.with_used(kAllUsed).by_threads().direct(),
    CallShape{16, kWholeBlocks, 2, 2, 1, kFull}.with_used(kAllUsed).by_threads().direct(),
};

// Few splits a tile, which the CTA that opens it combines: a CTA that also goes on with another
// tile; a split that is a whole range, of rows for one warpgroup alone; ranges side by side; and a
// split of which the first warpgroup's rows see nothing.
inline constexpr CallShape kOpened[] = {
    CallShape{80, kWholeBlocks, 2, 2, 1, kCausal}
        .with_used(kAllUsed)
        .in_pages(16)
        .stream_k(3)
        .opened(),
    CallShape{48, kWholeBlocks, 1, 1, 1, kCausal}
        .with_used(kAllUsed)
        .by_threads()
        .stream_k(3)
        .opened(),
    CallShape{70, kWholeBlocks, 2, 2, 1, kFull}
        .with_used(kAllUsed)
        .by_threads()
        .stream_k(4, 1)
        .opened(),
    CallShape{90, kWholeBlocks, 1, 1, 1, {.right = -870}}
        .with_used(kAllUsed)
        .in_pages(16)
        .stream_k(2)
        .opened(),
};

}  // namespace fa3::hopper
