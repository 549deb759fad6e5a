# SPDX-License-Identifier: Apache-2.0
"""Times forward configurations (hopper_sweep.cu) beside cuDNN in one process: random normal data,
cold L2, medians of interleaved rounds. Usage: hopper_sweep.py LIB OUT.jsonl [--d 64,128]
[--lengths 512,4096] [--causal 0,1] [--rounds 7] [--factor 1.0] [--only 0,3]"""
import argparse
import ctypes
import json
import statistics
import subprocess

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

TOKENS = 16384
WIDTH = 2048


def parse():
    p = argparse.ArgumentParser()
    p.add_argument("lib")
    p.add_argument("out")
    p.add_argument("--d", default="64,128,256")
    p.add_argument("--lengths", default="512,1024,2048,4096,8192,16384")
    p.add_argument("--causal", default="0,1")
    p.add_argument("--rounds", type=int, default=7)
    p.add_argument("--factor", type=float, default=1.0)
    p.add_argument("--only", default="")
    return p.parse_args()


def numbers(text):
    return [int(x) for x in text.split(",") if x]


def clock():
    query = ["nvidia-smi", "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader,nounits"]
    sm, watts = subprocess.run(query, capture_output=True, text=True).stdout.strip().split(", ")
    return int(sm), float(watts)


def main():
    a = parse()
    lib = ctypes.CDLL(a.lib)
    configs = []
    for i in range(lib.sweep_count()):
        raw = (ctypes.c_int * 8)()
        lib.sweep_config(i, raw)
        configs.append(tuple(raw))
    only = numbers(a.only)
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    workspace = torch.zeros(64 << 20, dtype=torch.uint8, device="cuda")
    rows = []
    out = open(a.out, "w")
    for d in numbers(a.d):
        for causal in numbers(a.causal):
            for s in numbers(a.lengths):
                b, h = TOKENS // s, WIDTH // d
                g = torch.Generator(device="cuda").manual_seed(s + d)
                q, k, v = (torch.randn(b, s, h, d, device="cuda", generator=g).bfloat16() for _ in range(3))
                q *= a.factor
                qt, kt, vt = (x.transpose(1, 2) for x in (q, k, v))
                o = torch.full_like(q, float("nan"))
                lse = torch.empty(b, h, s, device="cuda")
                stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
                pointers = [ctypes.c_void_p(t.data_ptr()) for t in (q, k, v, o, lse, workspace)]

                def ours(i):
                    error = lib.sweep_forward(i, *pointers, b, h, h, s, s, d, d, causal,
                                              ctypes.c_float(d**-0.5), stream)
                    assert error == 0, error

                def cudnn():
                    with sdpa_kernel(SDPBackend.CUDNN_ATTENTION):
                        return torch.nn.functional.scaled_dot_product_attention(
                            qt, kt, vt, is_causal=bool(causal))

                candidates = {"cudnn": cudnn}
                for i, c in enumerate(configs):
                    if c[0] == 1 and c[1] == d and c[2] == d and (not only or i in only):
                        candidates[i] = lambda i=i: ours(i)
                want = cudnn().transpose(1, 2).float()
                errors = {}
                for name, run in candidates.items():
                    if name == "cudnn":
                        continue
                    o.fill_(float("nan"))
                    run()
                    errors[name] = ((o.float() - want).norm() / want.norm()).item()
                times = {name: [] for name in candidates}
                for r in range(a.rounds + 1):
                    events = []
                    for name, run in candidates.items():
                        flush.zero_()
                        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
                        begin.record()
                        run()
                        end.record()
                        events.append((name, begin, end))
                    torch.cuda.synchronize()
                    if r > 0:
                        for name, begin, end in events:
                            times[name].append(begin.elapsed_time(end))
                sm, watts = clock()
                flop = 4 * b * h * s * s * d / (2 if causal else 1)
                line = []
                for name, t in times.items():
                    tflops = flop / statistics.median(t) / 1e9
                    config = None if name == "cudnn" else configs[name]
                    out.write(json.dumps(dict(engine=str(name), config=config, d=d, causal=causal, s=s,
                                              tflops=round(tflops, 1), best=round(flop / min(t) / 1e9, 1),
                                              error=errors.get(name), clock=sm, watts=watts)) + "\n")
                    label = "cudnn" if name == "cudnn" else f"{name}:{config[3]}x{config[4]}q{config[5]}k{config[6]}p{config[7]}"
                    bad = "" if errors.get(name, 0) < 1e-2 else f"!ERR{errors[name]:.1e}"
                    line.append(f"{label} {tflops:.0f}{bad}")
                print(f"d{d} c{causal} s{s} {sm}MHz | " + " | ".join(line), flush=True)
                out.flush()


if __name__ == "__main__":
    main()
