#!/usr/bin/env python3
"""Checks the CUDA attention kernels on the present GPU, then times them beside PyTorch's own, in one run.

    attention_device_check.py LIBRARY --kernels sm90,mma --checks all --times 28931,217088 --out results.json

LIBRARY is the shared library built from src/backend/cuda/attention*.cu and tools/attention_entry.cc. Exits with 1 when any
check fails; timings are made all the same and marked. Needs PyTorch with CUDA.
"""

import argparse
import ctypes
import json
import math
import statistics
import subprocess
import sys
import time
import zlib

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

HEAD_DIM = 128
FUSED_HEADS = 56
FUSED_ROW = 3 * FUSED_HEADS * HEAD_DIM  # one token's Q, K and V: 21,504 elements
KERNELS = {"sm90": (0, 0, 0), "mma": (1, 0, 0), "auto": (3, 0, 0)}
MMA_SHAPES = {f"mma{w}x{s}": (2, w, s) for w, s in ((8, 2), (8, 1), (4, 1))}  # warps x stages
KERNELS |= MMA_SHAPES


class AttentionCall(ctypes.Structure):
    _fields_ = (
        [(n, ctypes.c_void_p) for n in ("q", "k", "v", "o", "lse")]
        + [(n, ctypes.c_int64) for n in ("heads", "q_tokens", "kv_tokens")]
        + [(f"{t}_{s}_stride", ctypes.c_int64) for t in "qkvo" for s in ("head", "token")]
        + [("scale", ctypes.c_float)]
        + [(n, ctypes.c_int32) for n in ("is_bf16", "kernel", "warps", "stages")]
    )


class Library:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.lib.attention_last_error.restype = ctypes.c_char_p

    def attend(self, kernel, q, k, v, o=None, lse=None, scale=HEAD_DIM**-0.5):
        """q, k, v: [H, S, 128] tensors of any strides; o: a [H, Sq, 128] view, made as [Sq, H, 128] when None."""
        heads, q_tokens, _ = q.shape
        if o is None:
            o = torch.full((q_tokens, heads, HEAD_DIM), float("nan"), dtype=q.dtype, device=q.device).transpose(0, 1)
        call = AttentionCall(
            q.data_ptr(), k.data_ptr(), v.data_ptr(), o.data_ptr(), None if lse is None else lse.data_ptr(),
            heads, q_tokens, k.shape[1],
            q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1), o.stride(0), o.stride(1),
            scale, int(q.dtype == torch.bfloat16), *(KERNELS[kernel][i] for i in range(3)),
        )  # fmt: skip
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        if self.lib.attention_call(ctypes.byref(call), stream) != 0:
            raise RuntimeError(self.lib.attention_last_error().decode())
        return o


def bits(x):
    return x.contiguous().view(torch.int16 if x.element_size() == 2 else torch.int32)


def same_bits(a, b):
    return torch.equal(bits(a), bits(b))


def rel_rms(x, reference):
    x, reference = x.double(), reference.double()
    return float(((x - reference).square().mean() / reference.square().mean()).sqrt())


def seed(name):
    value = zlib.crc32(name.encode())
    torch.manual_seed(value)
    return value


def make_qkv(kind, heads, q_tokens, kv_tokens, dtype):
    q, k, v = (torch.randn(heads, n, HEAD_DIM, device="cuda") for n in (q_tokens, kv_tokens, kv_tokens))
    if kind == "outlier":  # four loud channels in q and k, with a common offset in k
        loud = [5, 42, 79, 116]
        q[..., loud] *= 6
        k[..., loud] = 6 * k[..., loud] + 4
    return q.to(dtype), k.to(dtype), v.to(dtype)


def reference_attention(q, k, v, scale=HEAD_DIM**-0.5):
    """float64, one head at a time. Returns (o [H, Sq, 128], lse [H, Sq])."""
    outputs, lses = [], []
    for h in range(q.shape[0]):
        scores = (q[h].double() @ k[h].double().T) * scale
        lses.append(torch.logsumexp(scores, -1))
        outputs.append(torch.softmax(scores, -1) @ v[h].double())
    return torch.stack(outputs), torch.stack(lses)


def torch_attention(backend, q, k, v):
    with sdpa_kernel(backend):
        return F.scaled_dot_product_attention(q[None], k[None], v[None])[0]


class Report:
    def __init__(self):
        self.checks, self.failed = [], 0

    def check(self, kernel, name, ok, **facts):
        self.checks.append({"kernel": kernel, "check": name, "ok": bool(ok), **facts})
        self.failed += not ok
        if not ok:
            print(f"FAIL {kernel} {name} {facts}", flush=True)


# ---- checks: each takes (library, kernel, dtype, report) ----


def check_accuracy(lib, kernel, dtype, report):
    """Error against float64 no worse than PyTorch flash's on the same inputs, at every kind of key tail."""
    sizes = [1, 2, 31, 32, 33, 63, 64, 65, 96, 127, 128, 129, 175, 176, 177, 351, 352, 353]
    sizes += [1024 + r for r in (0, 1, 64, 65, 96, 127)] + [4099]
    worst = {}
    for kind in ("gaussian", "outlier"):
        for kv_tokens in sizes:
            name = f"accuracy/{kind}/{kv_tokens}/{dtype}"
            value = seed(name)
            q, k, v = make_qkv(kind, 2, 259, kv_tokens, dtype)
            lse = torch.full(q.shape[:2], float("nan"), device="cuda")
            o = lib.attend(kernel, q, k, v, lse=lse)
            o_ref, lse_ref = reference_attention(q, k, v)
            error, peer = rel_rms(o, o_ref), rel_rms(torch_attention(SDPBackend.FLASH_ATTENTION, q, k, v), o_ref)
            lse_error = float((lse.double() - lse_ref).abs().max())
            # 5%: p is rounded relative to a maximum, and flash splits calls this short over the keys, so it rounds against more
            # and smaller ones. The formula itself, in float64 with only the 16-bit roundings, gives 2.30e-3 on gaussian data
            # at 4099 keys with running maxima and 2.26e-3 in eight splits; two draws differ by as much. lse moves no more than
            # the score that moves most: 16 truncations of a partial sum (8 wide products), each below 2^-23 of the sum of
            # magnitudes; 4e-6 is for the logarithm and the sum of p.
            magnitude = max(float((q[h].float().abs() @ k[h].float().abs().T).max()) for h in range(q.shape[0]))
            lse_bound = 16 * 2.0**-23 * magnitude * HEAD_DIM**-0.5 + 4e-6
            ok = error <= 1.05 * peer + 1e-7 and lse_error <= lse_bound
            if not ok or kv_tokens == 4099:
                worst[kind] = {"error": error, "flash_error": peer, "lse_error": lse_error}
            if not ok:
                report.check(kernel, name, ok, seed=value, error=error, flash=peer, lse_error=lse_error, lse_bound=lse_bound)
    report.check(kernel, f"accuracy/{dtype}", True, sizes=sizes, at_4099=worst)


def check_chunks(lib, kernel, dtype, report):
    """Rows of a call equal rows of the full call, bit for bit, for every chunk size; so do heads."""
    total, heads = 4099 + 300, 5
    value = seed(f"chunks/{dtype}")
    q, k, v = make_qkv("gaussian", heads, total, 2051, dtype)
    lse = torch.empty(heads, total, device="cuda")
    full = lib.attend(kernel, q, k, v, lse=lse)
    again = lib.attend(kernel, q, k, v)
    report.check(kernel, f"two runs/{dtype}", same_bits(full, again), seed=value)
    bad = []
    for chunk in (1, 31, 32, 33, 63, 64, 65, 127, 129, 259, 4099):
        starts = list(range(0, total, chunk))
        if len(starts) > 60:  # ends, and some in between
            starts = starts[:20] + starts[20 : -20 : max(1, len(starts) // 20)] + starts[-20:]
        for start in starts:
            rows = slice(start, min(start + chunk, total))
            part_lse = torch.empty(heads, rows.stop - rows.start, device="cuda")
            part = lib.attend(kernel, q[:, rows], k, v, lse=part_lse)
            if not (same_bits(part, full[:, rows]) and same_bits(part_lse, lse[:, rows])):
                bad.append((chunk, start))
    report.check(kernel, f"query chunks/{dtype}", not bad, seed=value, bad=bad[:5])
    bad = []
    for first, last in ((0, 1), (1, 3), (4, 5), (2, 5)):
        if not same_bits(lib.attend(kernel, q[first:last], k[first:last], v[first:last]), full[first:last]):
            bad.append((first, last))
    report.check(kernel, f"head subsets/{dtype}", not bad, seed=value, bad=bad)
    # A row must not see its neighbours: the same rows among loud and among quiet ones.
    loud = q.clone()
    loud[:, 1::2] *= 50
    report.check(kernel, f"neighbours/{dtype}", same_bits(lib.attend(kernel, loud, k, v)[:, 0::2], full[:, 0::2]), seed=value)
    # Nor does another mix of maxima change anything: ascending scores rescale at every tile, descending ones never.
    order = torch.argsort((q[0, :1].float() @ k[0].float().T)[0])
    for name, keys in (("ascending", order), ("descending", order.flip(0))):
        one = lib.attend(kernel, q[:1, :1], k[:1, keys], v[:1, keys])
        many = lib.attend(kernel, q[:1], k[:1, keys], v[:1, keys])
        o_ref, _ = reference_attention(q[:1, :1], k[:1, keys], v[:1, keys])
        report.check(kernel, f"{name} scores/{dtype}", same_bits(one, many[:, :1]) and rel_rms(one, o_ref) < 4e-3, seed=value)


def check_poison(lib, kernel, dtype, report):
    """NaN everywhere around the inputs, sentinels around the output: nothing outside is read into a result or written."""
    guard, heads, gap = 300, 3, 24
    bad = []
    for q_tokens, kv_tokens in ((1, 1), (33, 65), (64, 96), (127, 127), (259, 1089), (129, 177), (320, 352)):
        value = seed(f"poison/{q_tokens}/{kv_tokens}/{dtype}")
        tokens = max(q_tokens, kv_tokens)
        row = 3 * heads * HEAD_DIM + gap
        buffer = torch.full((tokens + 2 * guard, row), float("nan"), dtype=dtype, device="cuda")
        clean = make_qkv("gaussian", heads, q_tokens, kv_tokens, dtype)
        views = []
        for part, x in enumerate(clean):
            columns = slice(part * heads * HEAD_DIM, (part + 1) * heads * HEAD_DIM)
            view = buffer[guard : guard + x.shape[1], columns].unflatten(1, (heads, HEAD_DIM)).transpose(0, 1)
            view.copy_(x)
            views.append(view)
        sentinel = 1234.0
        o_buffer = torch.full((q_tokens + 2 * guard, heads * HEAD_DIM + gap), sentinel, dtype=dtype, device="cuda")
        o_inside = o_buffer[guard : guard + q_tokens, : heads * HEAD_DIM]
        o_inside.fill_(float("nan"))
        lse_buffer = torch.full((guard + heads * q_tokens + guard,), sentinel, device="cuda")
        lse = lse_buffer[guard:-guard].view(heads, q_tokens)
        o = o_inside.unflatten(1, (heads, HEAD_DIM)).transpose(0, 1)
        lib.attend(kernel, *views, o=o, lse=lse)
        plain = lib.attend(kernel, *clean)
        o_ref, _ = reference_attention(*clean)
        outside = o_buffer.clone()
        outside[guard : guard + q_tokens, : heads * HEAD_DIM] = sentinel
        ok = same_bits(o, plain) and rel_rms(o, o_ref) < 4e-3 and bool(torch.isfinite(lse).all())
        ok = ok and bool((outside == sentinel).all())
        ok = ok and bool((lse_buffer[:guard] == sentinel).all()) and bool((lse_buffer[-guard:] == sentinel).all())
        if not ok:
            bad.append((q_tokens, kv_tokens, value))
    report.check(kernel, f"poison and guards/{dtype}", not bad, bad=bad)


def check_shapes_agree(lib, kernel, dtype, report):
    """The block shapes of the portable kernel give the same bits; the dispatcher takes the kernel of the card."""
    major = torch.cuda.get_device_capability()[0]
    if kernel == ("sm90" if major == 9 else "mma"):
        q, k, v = make_qkv("gaussian", 2, 65, 300, dtype)
        same = same_bits(lib.attend("auto", q, k, v), lib.attend(kernel, q, k, v))
        report.check(kernel, f"the dispatcher's choice/{dtype}", same)
    if kernel != "mma":
        return
    value = seed(f"shapes/{dtype}")
    q, k, v = make_qkv("outlier", 3, 517, 1999, dtype)
    expected = lib.attend(kernel, q, k, v)
    for other in MMA_SHAPES:
        report.check(kernel, f"{other} equals {kernel}/{dtype}", same_bits(lib.attend(other, q, k, v), expected), seed=value)


def check_far_rows(q, k, v, lib, kernel, report, name, value, full):
    """Sampled rows of a long call: equal to short calls bitwise, and right against float64 in the first and the last head."""
    tokens = q.shape[1]
    for rows in (slice(0, 65), slice(tokens // 2, tokens // 2 + 33), slice(tokens - 259, tokens)):
        part = lib.attend(kernel, q[:, rows], k, v)
        if full is not None:
            report.check(kernel, f"{name} rows {rows.start}", same_bits(part, full[:, rows]), seed=value)
        for h in (0, q.shape[0] - 1):
            o_ref, _ = reference_attention(q[h : h + 1, rows], k[h : h + 1], v[h : h + 1])
            error = rel_rms(part[h : h + 1], o_ref)
            report.check(kernel, f"{name} rows {rows.start} head {h} error", error < 4e-3, seed=value, error=error)


def one_hot_value_is_read(q, k, v, lib, kernel, report, name, value):
    """All of V but its last row is zero: the output is p_last times that row, in every head."""
    saved = k[:, -1].clone()
    v.zero_()
    v[:, -1, :] = torch.arange(1, HEAD_DIM + 1, device="cuda").to(v.dtype) / 64
    k[:, -1] = 0.5 * q[:, -1]  # the last query prefers the last key
    scores = torch.stack([(q[h, -1].float() @ k[h].float().T) * HEAD_DIM**-0.5 for h in range(q.shape[0])])
    p_last = torch.softmax(scores.double(), -1)[:, -1]
    expected = p_last[:, None] * v[:, -1].double()
    got = lib.attend(kernel, q[:, -1:], k, v)[:, 0]
    error = rel_rms(got, expected)
    report.check(kernel, f"{name} last value row", error < 4e-3, seed=value, error=error, p_last=float(p_last.mean()))
    k[:, -1] = saved


def fill_normal(x):
    for rows in x.split(8192):
        rows.copy_(torch.randn(rows.shape, device="cuda", dtype=torch.float32))


def check_offsets(lib, kernels, report, which):
    """Lengths whose offsets pass 2^31 and 2^32 elements, as views of a fused QKV buffer and contiguous."""
    dtype = torch.bfloat16
    for tokens in [t for t in (99_866, 199_729) if t in which]:
        name = f"fused view, {tokens} rows"
        value = seed(name)
        buffer = torch.empty(tokens, FUSED_ROW, dtype=dtype, device="cuda")
        fill_normal(buffer)
        q, k, v = (x.unflatten(1, (FUSED_HEADS, HEAD_DIM)).transpose(0, 1) for x in buffer.chunk(3, 1))
        for kernel in kernels:
            full = lib.attend(kernel, q, k, v)
            check_far_rows(q, k, v, lib, kernel, report, name, value, full)
            del full
        for kernel in kernels:
            one_hot_value_is_read(q, k, v, lib, kernel, report, name, value)
        del buffer, q, k, v
        torch.cuda.empty_cache()
    if 299_594 in which:
        tokens = 299_594
        name = f"contiguous, {tokens} rows"
        value = seed(name)
        q, k, v = (torch.empty(FUSED_HEADS, tokens, HEAD_DIM, dtype=dtype, device="cuda") for _ in range(3))
        for x in (q, k, v):
            fill_normal(x.view(-1, HEAD_DIM * 64) if (x.numel() // HEAD_DIM) % 64 == 0 else x.flatten(0, 1))
        for kernel in kernels:
            full = lib.attend(kernel, q, k, v)
            check_far_rows(q, k, v, lib, kernel, report, name, value, full)
            del full
        for kernel in kernels:
            one_hot_value_is_read(q, k, v, lib, kernel, report, name, value)
        del q, k, v
        torch.cuda.empty_cache()


# ---- timing ----


def time_ms(fn, warm_up, repeats):
    for _ in range(warm_up):
        fn()
    times = []
    for _ in range(repeats):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        fn()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop))
    return times


def time_all(lib_by_name, tokens, repeats, peers, dtype=torch.bfloat16):
    """Rows of results for one length, 56 heads. Each subject runs in blocks of its own, after its own warm-up: these kernels move the
    card's clock, and one measured right after another would inherit it. Two rounds of blocks, the second in reverse order."""
    seed(f"time/{tokens}")
    q, k, v = make_qkv("gaussian", 1, tokens, tokens, dtype)
    q, k, v = (torch.cat([x[:, torch.randperm(tokens, device="cuda")] for _ in range(FUSED_HEADS)]) for x in (q, k, v))
    o = torch.empty(tokens, FUSED_HEADS, HEAD_DIM, dtype=dtype, device="cuda").transpose(0, 1)
    subjects = {f"{label}:{kernel}": (lambda lib=lib, kernel=kernel: lib.attend(kernel, q, k, v, o=o))
                for label, kernel, lib in lib_by_name}  # fmt: skip
    if "flash" in peers:
        subjects["torch flash"] = lambda: torch_attention(SDPBackend.FLASH_ATTENTION, q, k, v)
    if "cudnn" in peers:
        subjects["torch cudnn"] = lambda: torch_attention(SDPBackend.CUDNN_ATTENTION, q, k, v)
    times = {name: [] for name in subjects}
    warm_up = 1 if tokens > 100_000 else 4
    for order in (list(subjects), list(subjects)[::-1]):
        for name in order:
            times[name] += time_ms(subjects[name], warm_up, (repeats + 1) // 2)
    flop = 4.0 * tokens * tokens * FUSED_HEADS * HEAD_DIM
    rows = []
    for name, t in times.items():
        median = statistics.median(t)
        rows.append({"subject": name, "tokens": tokens, "heads": FUSED_HEADS, "dtype": str(dtype), "median_ms": median,
                     "min_ms": min(t), "max_ms": max(t), "runs": len(t), "tflops": flop / median / 1e9})  # fmt: skip
    by_name = {r["subject"]: r["median_ms"] for r in rows}
    for r in rows:
        for peer in ("torch flash", "torch cudnn"):
            if peer in by_name:
                r[f"x_{peer.split()[1]}"] = by_name[peer] / r["median_ms"]
        print(f"S={tokens:7d} {r['subject']:24s} {r['median_ms']:9.2f} ms [{r['min_ms']:.2f} {r['max_ms']:.2f}]"
              f" {r['tflops']:6.1f} TFLOP/s  x flash {r.get('x_flash', math.nan):.3f}"
              f"  x cudnn {r.get('x_cudnn', math.nan):.3f}", flush=True)  # fmt: skip
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", nargs="+", help="shared libraries; all are timed, all are checked")
    parser.add_argument("--kernels", default="sm90,mma")
    parser.add_argument("--checks", default="accuracy,chunks,poison,shapes", help="comma list, or none")
    parser.add_argument("--dtypes", default="bf16,f16")
    parser.add_argument("--offsets", default="", help="comma list of 99866, 199729, 299594")
    parser.add_argument("--times", default="", help="comma list of token counts")
    parser.add_argument("--repeats", type=int, default=6, help="timed runs of each subject, in two blocks")
    parser.add_argument("--peers", default="flash,cudnn")
    parser.add_argument("--out", default="")
    args = parser.parse_args()
    split = lambda text: [x for x in text.split(",") if x and x != "none"]  # noqa: E731

    kernels = split(args.kernels)
    dtypes = [{"bf16": torch.bfloat16, "f16": torch.float16}[d] for d in split(args.dtypes)]
    checks = {"accuracy": check_accuracy, "chunks": check_chunks, "poison": check_poison, "shapes": check_shapes_agree}
    report, timings, subjects = Report(), [], []
    started = time.time()
    for path in args.library:
        label = path.rsplit("/", 1)[-1].removesuffix(".so")
        lib = Library(path)
        before = report.failed
        for kernel in kernels:
            for dtype in dtypes:
                for check in split(args.checks):
                    try:
                        checks[check](lib, kernel, dtype, report)
                        torch.cuda.synchronize()
                    except Exception as e:  # noqa: BLE001
                        report.check(kernel, f"{check}/{dtype}", False, library=label, exception=str(e)[:300])
            subjects.append((label, kernel, lib))
        if args.offsets:
            check_offsets(lib, kernels, report, [int(x) for x in split(args.offsets)])
        print(f"{label}: {len(report.checks)} checks so far, {report.failed - before} failed, {time.time() - started:.0f} s", flush=True)
    for tokens in split(args.times):
        timings += time_all(subjects, int(tokens), args.repeats, split(args.peers))

    if args.out:
        smi = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,clocks.sm,power.draw", "--format=csv,noheader"],
                             capture_output=True, text=True)  # fmt: skip
        json.dump(
            {"device": torch.cuda.get_device_name(), "multiprocessors": torch.cuda.get_device_properties(0).multi_processor_count,
             "nvidia_smi": smi.stdout.strip(), "torch": torch.__version__, "cuda": torch.version.cuda,
             "cudnn": torch.backends.cudnn.version(), "command": " ".join(sys.argv), "checks": report.checks, "timings": timings},
            open(args.out, "w"), indent=1)  # fmt: skip
    print(f"{len(report.checks)} checks, {report.failed} failed, {time.time() - started:.0f} s")
    sys.exit(1 if report.failed else 0)


if __name__ == "__main__":
    main()
