/* SPDX-License-Identifier: Apache-2.0 */
/**
 * @file
 * Attention in FP8 from 16-bit tensors: q, k and v quantized in one call, and whether it pays.
 */
#ifndef FA3_FP8_H
#define FA3_FP8_H

#include <fa3/fa3.h>

#ifdef __cplusplus
extern "C" {
#endif

/** The most tensors of fa3_quantize_together_with_allocator() and fa3_dequantize_together(). */
#define FA3_MOST_TOGETHER 3

/** fa3_quantize() of several tensors of one device, such as q, k and v of an attention call.
 *
 * Engine hopper reads k and v for their means while it quantizes q, and multiplies by the Hadamard
 * matrix on tensor cores. Numbers of such a tensor differ from those of fa3_quantize() by the
 * roundings of that sum: a few of 100,000 are the next e4m3 number, and scales differ in their last
 * bits (docs/numerics.md). Tensors of other layouts, and those of other engines, are quantized one
 * by one, with the same bits as fa3_quantize().
 *
 * @param params    `count` calls. No output of one shares memory with a tensor of another
 * @param count     1 to FA3_MOST_TOGETHER
 * @param allocate  lends the workspace, once for all
 * @param context   goes to `allocate`
 * @param stream    as that of fa3_forward() */
FA3_API fa3_status fa3_quantize_together_with_allocator(const fa3_quantize_params* const* params,
                                                        int32_t count,
                                                        fa3_workspace_allocator allocate,
                                                        void* context, void* stream);

/** The inverse of fa3_quantize() for several tensors of one device, such as those that an FP8
 * forward has read: writes each x as the numbers that y * descale + mean stands for, in x's type.
 *
 * y, descale and mean of each call are read and x is written. With `hadamard` the transform is
 * turned back behind the mean, so x is in the frame that fa3_quantize() read. All is computed in
 * float32 and rounded once; all engines give the same bits (docs/numerics.md). Rows that no
 * sequence uses become 0. Rotary tables are refused. `engine` is not looked at.
 *
 * @param params  `count` calls. The x of one shares memory with no tensor of another
 * @param count   1 to FA3_MOST_TOGETHER
 * @param stream  as that of fa3_forward() */
FA3_API fa3_status fa3_dequantize_together(const fa3_quantize_params* const* params, int32_t count,
                                           void* stream);

/** What fa3_forward_advise() says of a call with q, k and v of 16 bits. */
typedef struct fa3_advice {
  /** FA3_FLOAT8_E4M3 where quantizing q, k and v and attending to them in FP8 is expected to take
   * less than 90% of the time, or where no engine takes the call in q's type; otherwise q's type.
   */
  int32_t precision;
  int32_t reserved;   /**< unused */
  double seconds;     /**< expected in q's type; 0: not known */
  double seconds_fp8; /**< expected in FP8, quantization included; 0: not known */
  double error;       /**< relative error of O in q's type, on normal numbers */
  double error_fp8;   /**< relative error of O in FP8, on normal numbers */
  int64_t bytes;      /**< q, k, v, O and the workspace in q's type; 0: no engine takes it */
  int64_t bytes_fp8;  /**< in FP8, with the quantized tensors; 0: likewise */
  char reason[256];   /**< why; cut off behind 255 bytes */
} fa3_advice;

/** Does FP8 pay for this call? `params` is the call in q's type; tensors may be without data.
 *
 * Times are interpolated from measurements on one H200 (docs/fp8.md). They hold for calls that fill
 * a GPU, whose lengths and mask are known to the host. On a CPU FP8 never pays. */
FA3_API fa3_status fa3_forward_advise(const fa3_forward_params* params, fa3_advice* advice);

#ifdef __cplusplus
}
#endif

#endif
