// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fa3/mla.h>

#include "api/describe/describe.h"
#include "api/describe/rules/tensor_rules.h"
#include "core/latent.h"

namespace fa3::api {

struct LatentCacheNames {
  const char *cache, *rope, *descale;
};

// Where the parts of a cache's rows and their scales lie. format: what FA3_MLA_ROWS_AUTO becomes.
Status describe_latent_cache(LatentCacheNames names, const fa3_mla_cache& given, Purpose purpose,
                             LatentCache* cache, int32_t* format);

// Arguments beside a cache: numbers of float32 or 16 bits; int32 (count) on the device of `like`;
// and one that the others leave no room for.
Status check_float(Named named);
Status check_numbers(Named named, int64_t count, const fa3_tensor& like, Purpose purpose);
Status check_none(Named named, const char* since);

}  // namespace fa3::api
