// SPDX-License-Identifier: Apache-2.0
//
// A library with NCCL's interface whose ranks are threads of one process and whose memory is the
// host's. It is stricter than NCCL: a message and its receive must have the same size.
#pragma once

#include <cstddef>

extern "C" {

// The communicators of n ranks, which live until fake_nccl_destroy().
void** fake_nccl_world(int ranks);
void fake_nccl_destroy(void** comms);

// The rank's operations fail from its n-th message on.
void fake_nccl_fail(void* comm, int messages);
// Messages between all ranks so far, and their bytes.
size_t fake_nccl_messages(void* comm);
size_t fake_nccl_bytes(void* comm);
}
