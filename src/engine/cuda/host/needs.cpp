// SPDX-License-Identifier: Apache-2.0
#include "engine/cuda/host/needs.h"

namespace fa3::cuda {

const char* words_of(Need need) {
  switch (need) {
    case Need::kE4m3:
      return "float8_e4m3 queries";
    case Need::kQuantizedKeys:
      return "float8 keys and values";
    case Need::kBlockMask:
      return "block_mask";
    case Need::kScoreFunction:
      return "a score function";
    case Need::kDropout:
      return "dropout";
    case Need::kGate:
      return "an output gate";
    case Need::kMaxLogit:
      return "max_logit";
    case Need::kPartial:
      return "a partial result";
    case Need::kSoftcap:
      return "softcap";
    case Need::kSink:
      return "sink logits";
    case Need::kChunks:
      return "chunks";
    case Need::kLeftWindow:
    case Need::kRightWindow:
      return "a window";
    case Need::kMasked:
      return "a mask";
    case Need::kVarlenQueries:
      return "queries of unequal lengths";
    case Need::kVarlenKeys:
      return "keys of unequal lengths";
    case Need::kPackedKeys:
      return "packed keys";
    case Need::kElsewhere:
      return "page_table or batch_index";
    case Need::kIndexed:
      return "batch_index";
    case Need::kLeftPadding:
      return "left_padding";
    case Need::kSingleRows:
      return "pages of an odd size, or of left_padding";
    case Need::kFloat32Out:
      return "an output of float32";
    case Need::kRowsNot8:
      return "head dims that are no multiples of 8";
    case Need::kRowsNot16:
      return "head dims that are no multiples of 16";
    case Need::kManySplits:
    case Need::kAnySplits:
      return "num_splits";
    case Need::kBatchInvariant:
      return "batch_invariant";
    case Need::kFewRowsOfGroup:
      return "few queries";
    case Need::kNoCpAsync:
      return "strides of k or v that are no multiples of 16 bytes";
    case Need::kValuesNotByTma:
      return "strides of v that are no multiples of 16 bytes";
    case Need::kTransposedValues:
      return "transposed values";
    case Need::kNoKeys:
      return "no keys";
    case Need::kScorePure:
    case Need::kScoreLine:
    case Need::kScoreTwoLines:
    case Need::kScoreKeyTerm:
    case Need::kScoreRun:
    case Need::kScoreClampedRun:
    case Need::kScoreTile:
    case Need::kScoreOther:
      return "a score function of this kind";
    case Need::kFindsTiles:
    case Need::kFixedSplits:
      return "split tiles";
  }
  return "";
}

}  // namespace fa3::cuda
