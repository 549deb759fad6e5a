// SPDX-License-Identifier: Apache-2.0
// The gradient of an output gate, 8 columns of a row at a time: the pieces of a preprocess that
// applies the chain rule of O = s A with s = logistic(gate),
//
//   dA = s dO, which the main kernel takes for dO;   dgate = dO O logistic(-gate).
//
// Delta needs no gate: rowsum(dA A) = rowsum(dO O).
#pragma once

#include "engine/cuda/backward/gate_rows.h"
#include "engine/cuda/backward/row_statistics.cuh"
#include "engine/cuda/softmax/output_gate.cuh"

namespace fa3::cuda {

// 8 logits of a row as they lie in memory, or the row's one: bits of floats, or pairs.
struct GateVector {
  uint4 words[2] = {};

  // `count` of the 8 exist; all, if they come in vectors.
  __device__ __forceinline__ void load(const GateRows& p, int64_t row, int column,
                                       int count = kVectorColumns) {
    const GateParams& gate = p.gate;
    if (gate.kind == Gate::kRows) {
      words[0].x = __float_as_uint(load_logit(gate.logits.data, row, gate.type));
      return;
    }
    const char* const from =
        static_cast<const char*>(gate.logits.data) + (row + column) * bytes_of(gate.type);
    if (p.in_vectors) {
      words[0] = __ldg(reinterpret_cast<const uint4*>(from));
      if (gate.type == GateType::kFp32) words[1] = __ldg(reinterpret_cast<const uint4*>(from) + 1);
      return;
    }
    float logits[kVectorColumns];
#pragma unroll
    for (int i = 0; i < kVectorColumns; ++i) {
      logits[i] = i < count ? load_logit(from, i, gate.type) : 0.0f;
    }
    words[0] = {__float_as_uint(logits[0]), __float_as_uint(logits[1]), __float_as_uint(logits[2]),
                __float_as_uint(logits[3])};
    words[1] = {__float_as_uint(logits[4]), __float_as_uint(logits[5]), __float_as_uint(logits[6]),
                __float_as_uint(logits[7])};
  }

  __device__ __forceinline__ void logits(const GateRows& p, float (&x)[kVectorColumns]) const {
    const uint32_t w[] = {words[0].x, words[0].y, words[0].z, words[0].w,
                          words[1].x, words[1].y, words[1].z, words[1].w};
    const bool are_floats = p.gate.type == GateType::kFp32 || !p.in_vectors;
#pragma unroll
    for (int i = 0; i < kVectorColumns; i += 2) {
      if (p.gate.kind == Gate::kRows) {
        x[i] = x[i + 1] = __uint_as_float(w[0]);
      } else if (are_floats) {
        x[i] = __uint_as_float(w[i]), x[i + 1] = __uint_as_float(w[i + 1]);
      } else if (p.gate.type == GateType::kBf16) {
        unpack_pair<Element::kBf16>(w[i / 2], x[i], x[i + 1]);
      } else {
        unpack_pair<Element::kFp16>(w[i / 2], x[i], x[i + 1]);
      }
    }
  }
};

__device__ __forceinline__ void store_gate_number(void* to, int64_t at, GateType type, float x) {
  if (type == GateType::kFp32) {
    static_cast<float*>(to)[at] = x;
    return;
  }
  const uint32_t pair = type == GateType::kBf16 ? pack_pair<Element::kBf16>(x, 0.0f)
                                                : pack_pair<Element::kFp16>(x, 0.0f);
  static_cast<uint16_t*>(to)[at] = uint16_t(pair);
}

// 8 columns of a row of dgate.
__device__ __forceinline__ void store_gate_vector(const GateRows& p, int64_t at,
                                                  const float (&x)[kVectorColumns],
                                                  int count = kVectorColumns) {
  const GateType type = p.gate.type;
  if (!p.in_vectors) {
#pragma unroll
    for (int i = 0; i < kVectorColumns; ++i) {
      if (i < count) store_gate_number(p.d_gate.data, at + i, type, x[i]);
    }
  } else if (type == GateType::kFp32) {
    float4* const to = reinterpret_cast<float4*>(static_cast<float*>(p.d_gate.data) + at);
    to[0] = {x[0], x[1], x[2], x[3]};
    to[1] = {x[4], x[5], x[6], x[7]};
  } else {
    uint32_t w[kVectorColumns / 2];
#pragma unroll
    for (int i = 0; i < kVectorColumns; i += 2) {
      w[i / 2] = type == GateType::kBf16 ? pack_pair<Element::kBf16>(x[i], x[i + 1])
                                         : pack_pair<Element::kFp16>(x[i], x[i + 1]);
    }
    *reinterpret_cast<uint4*>(static_cast<uint16_t*>(p.d_gate.data) + at) = {w[0], w[1], w[2],
                                                                             w[3]};
  }
}

// The chain rule for 8 columns of a row: dO becomes dA, and `d_gate` what is stored.
template <Element E>
__device__ __forceinline__ void apply_gate(const float (&logits)[kVectorColumns], const uint4& o,
                                           uint4& d_o, float (&d_gate)[kVectorColumns]) {
  const uint32_t of_o[] = {o.x, o.y, o.z, o.w};
  uint32_t of_d_o[] = {d_o.x, d_o.y, d_o.z, d_o.w};
#pragma unroll
  for (int i = 0; i < kVectorColumns; i += 2) {
    float value[2], gradient[2];
    unpack_pair<E>(of_o[i / 2], value[0], value[1]);
    unpack_pair<E>(of_d_o[i / 2], gradient[0], gradient[1]);
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      d_gate[i + j] = gradient[j] * value[j] * logistic(-logits[i + j]);
      gradient[j] *= logistic(logits[i + j]);
    }
    of_d_o[i / 2] = pack_pair<E>(gradient[0], gradient[1]);
  }
  d_o = {of_d_o[0], of_d_o[1], of_d_o[2], of_d_o[3]};
}

}  // namespace fa3::cuda
