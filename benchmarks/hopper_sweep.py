# SPDX-License-Identifier: Apache-2.0
"""Times forward configurations (hopper_sweep.cu) beside cuDNN in one process: random normal data,
cold L2, medians of interleaved rounds. Usage: hopper_sweep.py LIB OUT.jsonl [--d 64,128]
[--lengths 512,4096] [--causal 0,1] [--rounds 7] [--factor 1.0] [--only 0,3]"""
import argparse
import ctypes
import json
import statistics
import subprocess
import time

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

TOKENS = 16384
WIDTH = 2048
BF16 = 2  # fa3_dtype


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
    p.add_argument("--rival", default="")
    p.add_argument("--burn", type=float, default=0.0, help="seconds of warm-up for each cell")
    return p.parse_args()


def numbers(text):
    return [int(x) for x in text.split(",") if x]


class RivalParams(ctypes.Structure):
    """The C entry that benchmarks/rivals.py documents."""

    _fields_ = (
        [(n, ctypes.c_int64) for n in "size b sq sk hq hk d dv".split()]
        + [("dtype", ctypes.c_int32), ("causal", ctypes.c_int32), ("scale", ctypes.c_float), ("reserved", ctypes.c_int32)]
        + [(n, ctypes.c_void_p) for n in "q k v o lse workspace".split()]
    )


def rival_of(path):
    rival = ctypes.CDLL(path)
    rival.rival_workspace.restype = ctypes.c_int64
    return rival


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
    rival = rival_of(a.rival) if a.rival else None
    flush = torch.empty(256 << 20, dtype=torch.uint8, device="cuda")
    workspace = torch.zeros(64 << 20, dtype=torch.uint8, device="cuda")
    rival_workspace = torch.zeros(64 << 20, dtype=torch.uint8, device="cuda")
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
                if a.rival:
                    params = RivalParams(size=ctypes.sizeof(RivalParams), b=b, sq=s, sk=s, hq=h, hk=h, d=d, dv=d,
                                         dtype=BF16, causal=causal, scale=d**-0.5, q=q.data_ptr(), k=k.data_ptr(),
                                         v=v.data_ptr(), o=o.data_ptr(), lse=lse.data_ptr(),
                                         workspace=rival_workspace.data_ptr())

                    def fa3():
                        assert rival.rival_forward(ctypes.byref(params), stream) == 0

                    candidates["fa3"] = fa3
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
                burn_until = time.monotonic() + a.burn
                while time.monotonic() < burn_until:
                    for run in candidates.values():
                        run()
                    torch.cuda.synchronize()
                for r in range(a.rounds + 1):
                    events = []
                    for name, run in candidates.items() if r % 2 else reversed(candidates.items()):
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
                    config = None if name in ("cudnn", "fa3") else configs[name]
                    out.write(json.dumps(dict(engine=str(name), config=config, d=d, causal=causal, s=s,
                                              tflops=round(tflops, 1), best=round(flop / min(t) / 1e9, 1),
                                              error=errors.get(name), clock=sm, watts=watts)) + "\n")
                    label = name if name in ("cudnn", "fa3") else f"{name}:{config[3]}x{config[4]}q{config[5]}k{config[6]}p{config[7]}"
                    bad = "" if errors.get(name, 0) < 1e-2 else f"!ERR{errors[name]:.1e}"
                    line.append(f"{label} {tflops:.0f}{bad}")
                print(f"d{d} c{causal} s{s} {sm}MHz | " + " | ".join(line), flush=True)
                out.flush()


if __name__ == "__main__":
    main()
