// SPDX-License-Identifier: Apache-2.0
// As in src/engine/hopper/ptx/: any number of columns.
#pragma once

#include "engine/hopper/ptx/wgmma.cuh"
