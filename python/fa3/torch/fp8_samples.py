# SPDX-License-Identifier: Apache-2.0
"""The sampled error of fa3.attention_fp8 in torch's programs: what fa3.fp8 sums up.

torch.ops.fa3.forward_fp8 takes the samples, so that compiled programs and CUDA graphs have them. A
graph's replay runs no Python: it computes its samples again and adds them to sums in pinned memory
of the host, which belong to no graph.
"""

import torch

from fa3 import _backends

devices: set[torch.device] = set()  # that have samples


def has_fp8_sampler():
    """For a compiled program what it is when that is compiled."""
    return _backends.fp8_sampler() is not None


# As torch.compiler.assume_constant_result() marks it, which takes seconds to import.
has_fp8_sampler._dynamo_marked_constant = True  # type: ignore[attr-defined]


def see(q, k, v, out, attend):
    """A call of attention_fp8, inside of its operator. attend(): out without quantization."""
    sampler = _backends.fp8_sampler()
    if sampler is not None:
        sampler.see(q, k, v, out, attend)


def add_sample(sums, error):
    """In order of the error's stream. sums: None before the first sample."""
    if sums is None:
        with torch.inference_mode(False):
            sums = torch.zeros(3, dtype=torch.float64, pin_memory=error.is_cuda)
    samples, total, most = sums.to(error.device, non_blocking=True)
    error = error.double()
    now = torch.stack((samples + 1, total + error, torch.maximum(most, error)))
    sums.copy_(now, non_blocking=True)
    if error.is_cuda:
        devices.add(error.device)
    return sums


def wait_for_samples():
    for device in devices:
        torch.cuda.synchronize(device)
