// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <fa3/mla.h>

#include "api/describe/describe.h"
#include "core/latent.h"

namespace fa3::api {

struct LatentCacheNames {
  const char *cache, *rope, *descale;
};

// Where the parts of a cache's rows and their scales lie. format: what FA3_MLA_ROWS_AUTO becomes.
Status describe_latent_cache(LatentCacheNames names, const fa3_mla_cache& given, Purpose purpose,
                             LatentCache* cache, int32_t* format);

}  // namespace fa3::api
