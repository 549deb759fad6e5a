// SPDX-License-Identifier: Apache-2.0
#pragma once

struct alignas(128) CUtensorMap {
  unsigned long opaque[16];
};
