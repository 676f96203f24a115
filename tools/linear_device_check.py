#!/usr/bin/env python3
"""Checks the CUDA linear layers and quantisers on the present GPU, then times them beside PyTorch's own, in one run.

    linear_device_check.py LIBRARY [LIBRARY ...] --rows 16384 --out results.json

LIBRARY is the shared library built from src/backend/cuda/{linear*,quantize*,swiglu_quantize*}, base/dtype.cc and tools/linear_entry.cc. All are
timed, all are checked. Bit equality with the CPU definitions is tests/linear_cuda_test.cc's part; here are slices of rows and columns
at real widths, far offsets, and times. Exits with 1 when any check fails; timings are made all the same. Needs PyTorch with CUDA.
"""

import argparse
import ctypes
import json
import statistics
import subprocess
import sys
import time
import zlib

import torch
import torch.nn.functional as F

DTYPES = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2, torch.int8: 0}
KERNELS = {"auto": 0, "sm90": 1, "mma": 2, "fma": 3}
SHAPES = {"qkv": (21504, 5376), "out": (5376, 7168), "fc1": (28672, 5376), "fc2": (5376, 14336)}  # n, k
ROW_PICKS = (1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 300, 1000, 2049, 4096, 4097)


class LinearCall(ctypes.Structure):
    _fields_ = (
        [(n, ctypes.c_void_p) for n in ("x", "w", "x_scale", "w_scale", "bias", "y")]
        + [(n, ctypes.c_int64) for n in ("m", "n", "k", "x_stride", "y_stride")]
        + [(n, ctypes.c_int32) for n in ("x_dtype", "w_dtype", "y_dtype", "kernel")]
    )


class QuantizeCall(ctypes.Structure):
    _fields_ = (
        [(n, ctypes.c_void_p) for n in ("x", "codes", "scale")]
        + [(n, ctypes.c_int64) for n in ("m", "k", "x_stride", "group")]
        + [(n, ctypes.c_int32) for n in ("dtype", "swiglu")]
    )


def pointer(x):
    return None if x is None else x.data_ptr()


class Library:
    def __init__(self, path):
        self.lib = ctypes.CDLL(path)
        self.lib.linear_last_error.restype = ctypes.c_char_p

    def call(self, name, arguments):
        stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
        if getattr(self.lib, name)(ctypes.byref(arguments), stream) != 0:
            raise RuntimeError(self.lib.linear_last_error().decode())

    def linear(self, x, w, bias=None, y=None, kernel="auto", y_dtype=torch.bfloat16):
        m, n, k = x.shape[0], w.shape[0], w.shape[1]
        if y is None:
            y = torch.full((m, n), float("nan"), dtype=y_dtype, device=x.device)
        self.call("linear_call", LinearCall(
            pointer(x), pointer(w), None, None, pointer(bias), pointer(y), m, n, k, x.stride(0), y.stride(0),
            DTYPES[x.dtype], DTYPES[w.dtype], DTYPES[y.dtype], KERNELS[kernel]))  # fmt: skip
        return y

    def linear_int8(self, x, x_scale, w, w_scale, bias=None, y=None, kernel="auto", y_dtype=torch.bfloat16):
        m, n, k = x.shape[0], w.shape[0], w.shape[1]
        if y is None:
            y = torch.full((m, n), float("nan"), dtype=y_dtype, device=x.device)
        self.call("linear_int8_call", LinearCall(
            pointer(x), pointer(w), pointer(x_scale), pointer(w_scale), pointer(bias), pointer(y), m, n, k, k, y.stride(0),
            0, 0, DTYPES[y.dtype], KERNELS[kernel]))  # fmt: skip
        return y

    def quantize(self, x, group, swiglu=False, codes=None, scale=None):
        m, k = x.shape[0], x.shape[1] // (2 if swiglu else 1)
        codes = torch.empty(m, k, dtype=torch.int8, device=x.device) if codes is None else codes
        scale = torch.empty(m, device=x.device) if scale is None else scale
        self.call("quantize_call", QuantizeCall(
            pointer(x), pointer(codes), pointer(scale), m, k, x.stride(0), group, DTYPES[x.dtype], int(swiglu)))  # fmt: skip
        return codes, scale


def bits(x):
    return x.contiguous().view({1: torch.int8, 2: torch.int16, 4: torch.int32}[x.element_size()])


def same_bits(a, b):
    return torch.equal(bits(a), bits(b))


def rel_rms(x, reference):
    x, reference = x.double(), reference.double()
    return float(((x - reference).square().mean() / reference.square().mean()).sqrt())


def seed(name):
    value = zlib.crc32(name.encode())
    torch.manual_seed(value)
    return value


def int8_data(m, n, k):
    """Codes as a quantiser makes them: normal, the largest near 127."""
    x, w = ((torch.randn(r, k, device="cuda") * 30).round_().clamp_(-128, 127).to(torch.int8) for r in (m, n))
    return x, torch.rand(m, device="cuda") * 1e-2, w, torch.rand(n, device="cuda") * 1e-3


class Report:
    def __init__(self):
        self.checks, self.failed = [], 0

    def check(self, subject, name, ok, **details):
        self.checks.append({"subject": subject, "name": name, "ok": bool(ok), **details})
        if not ok:
            self.failed += 1
            print(f"FAIL {subject} {name} {details}", flush=True)


# ---- checks ----


def check_slices(run, m, n, full, report, subject, name, value, picks=ROW_PICKS):
    """run(rows, columns) gives the result of slices; full is the result of everything."""
    bad = []
    for rows in [p for p in picks if p <= m]:
        for start in {0, (m - rows) // 2, m - rows}:
            if not same_bits(run(slice(start, start + rows), slice(0, n)), full[start : start + rows]):
                bad.append((rows, start))
    report.check(subject, f"{name} row slices", not bad, seed=value, bad=bad[:6])
    bad = []
    for first, last in ((0, 128), (128, 256), (n - 128, n), (128, 512), (64, 264), (0, n - 8)):
        if 0 <= first < last <= n and not same_bits(run(slice(0, m), slice(first, last)), full[:, first:last]):
            bad.append((first, last))
    report.check(subject, f"{name} column slices", not bad, seed=value, bad=bad)
    column, row = slice(128, 256), slice(m // 2, m // 2 + 33)
    report.check(subject, f"{name} row and column slice", same_bits(run(row, column), full[row, column]), seed=value)


def check_tensor(lib, label, report):
    for dtype in (torch.bfloat16, torch.float16):
        for kernel in ("sm90", "mma"):
            for n, k, y_dtype in ((1280, 5376, dtype), (776, 2056, torch.float32)):
                name = f"{kernel}/{dtype}/{n}x{k}"
                value = seed(name)
                m = 4097
                # Rows and columns of very different size, so that an order of addition that moved would show.
                x = torch.randn(m, k, device="cuda") * torch.exp(2 * torch.randn(1, k, device="cuda"))
                x, w = x.to(dtype), (torch.randn(n, k, device="cuda") * 0.1).to(dtype)
                full = lib.linear(x, w, kernel=kernel, y_dtype=y_dtype)
                report.check(label, f"{name} two runs", same_bits(full, lib.linear(x, w, kernel=kernel, y_dtype=y_dtype)), seed=value)
                reference = x.double() @ w.double().T
                error, peer = rel_rms(full, reference), rel_rms(F.linear(x, w), reference)
                ok = error <= 1.05 * peer + (1e-6 if y_dtype == torch.float32 else 0)
                report.check(label, f"{name} error", ok, seed=value, error=error, torch_error=peer)
                run = lambda r, c: lib.linear(x[r], w[c], kernel=kernel, y_dtype=y_dtype)  # noqa: E731, B023
                check_slices(run, m, n, full, report, label, name, value)
                # A slice of a wider buffer, input and output.
                wide = torch.full((m, k + 64), float("nan"), dtype=dtype, device="cuda")
                wide[:, :k] = x
                out = torch.full((m, n + 24), 7.0, dtype=y_dtype, device="cuda")
                lib.linear(wide[:, :k], w, y=out[:, :n], kernel=kernel)
                report.check(label, f"{name} strided", same_bits(out[:, :n], full) and bool((out[:, n:] == 7).all()), seed=value)


def int8_reference(x, x_scale, w, w_scale, dtype):
    acc = torch._int_mm(x, w.T)
    return ((acc.float() * x_scale[:, None]) * w_scale[None, :]).to(dtype)


def check_int8(lib, label, report):
    for name, (n, k) in SHAPES.items():
        value = seed(name)
        m = 4097 if name == "qkv" else 1024
        x, x_scale, w, w_scale = int8_data(m, n, k)
        full = None
        for kernel in ("sm90", "mma"):
            got = lib.linear_int8(x, x_scale, w, w_scale, kernel=kernel)
            expected = torch.cat([int8_reference(x[i : i + 1024], x_scale[i : i + 1024], w, w_scale, got.dtype)
                                  for i in range(0, m - m % 8, 1024)])  # fmt: skip
            report.check(label, f"int8 {kernel} {name} equals _int_mm and epilogue", same_bits(got[: len(expected)], expected), seed=value)
            report.check(label, f"int8 {kernel} {name} same for all", full is None or same_bits(got, full), seed=value)
            full = got
        if name in ("qkv", "fc2"):
            run = lambda r, c: lib.linear_int8(x[r], x_scale[r], w[c], w_scale[c])  # noqa: E731, B023
            check_slices(run, m, n, full, report, label, f"int8 {name}", value)


def check_fma(lib, label, report):
    for (m, n, k), x_dtype, w_dtype in (((4097, 96, 5376), torch.float32, torch.float32), ((1030, 5376, 96), torch.float32, torch.bfloat16),
                                        ((4, 9676, 2688), torch.float32, torch.bfloat16), ((300, 264, 520), torch.bfloat16, torch.float32)):  # fmt: skip
        value = seed(f"fma/{m}/{n}/{k}")
        x, w = torch.randn(m, k, device="cuda").to(x_dtype), torch.randn(n, k, device="cuda").to(w_dtype)
        full = lib.linear(x, w, y_dtype=torch.float32)
        error = rel_rms(full, x.double() @ w.double().T)
        report.check(label, f"fma {m}x{n}x{k} error", error < 1e-6, seed=value, error=error)
        run = lambda r, c: lib.linear(x[r], w[c], y_dtype=torch.float32)  # noqa: E731, B023
        check_slices(run, m, n, full, report, label, f"fma {m}x{n}x{k}", value, picks=(1, 2, 3, 4, 5, 33, 127, 1000))


def check_quantize(lib, label, report):
    for swiglu, k in ((False, 5376), (False, 7168), (True, 14336)):
        value = seed(f"quantize/{k}")
        x = (3 * torch.randn(4097, k * (2 if swiglu else 1), device="cuda")).bfloat16()
        codes, scale = lib.quantize(x, 256, swiglu)
        bad = []
        for rows in ROW_PICKS:
            start = 4097 - rows
            part = lib.quantize(x[start:], 256, swiglu)
            if not (same_bits(part[0], codes[start:]) and same_bits(part[1], scale[start:])):
                bad.append(rows)
        report.check(label, f"quantize swiglu={swiglu} k={k} row slices", not bad, seed=value, bad=bad)


def check_far_rows(lib, label, report, rows=217_088):
    """Offsets past 2^32 elements: y of qkv and the input of the fc2 quantiser."""
    value = seed("far rows")
    n, k = SHAPES["qkv"]
    x, x_scale, w, w_scale = int8_data(1, n, k)
    x = torch.randint(-128, 128, (rows, k), dtype=torch.int8, device="cuda")
    x_scale = torch.rand(rows, device="cuda")
    full = lib.linear_int8(x, x_scale, w, w_scale)
    for start in (0, 99_800, rows - 300):
        part = slice(start, start + 300)
        report.check(label, f"int8 far rows {start}", same_bits(lib.linear_int8(x[part], x_scale[part], w, w_scale), full[part]), seed=value)
    del full, x
    gate_up = torch.randn(8192, 2 * 14336, device="cuda").bfloat16().repeat(rows // 8192 + 1, 1)[:rows]
    codes, scale = lib.quantize(gate_up, 256, True)
    start = rows - 300
    part = lib.quantize(gate_up[start:].clone(), 256, True)
    report.check(label, "swiglu far rows", same_bits(part[0], codes[start:]) and same_bits(part[1], scale[start:]), seed=value)
    del gate_up, codes
    n, k = SHAPES["qkv"]
    x = torch.randn(8192, k, device="cuda").bfloat16().repeat(rows // 8192 + 1, 1)[:rows]
    w = torch.randn(n, k, device="cuda").bfloat16()
    full = lib.linear(x, w)
    report.check(label, "bf16 far rows", same_bits(lib.linear(x[start:].clone(), w), full[start:]), seed=value)
    torch.cuda.empty_cache()


# ---- timing ----


def time_ms(fn, warm_up_s, repeats):
    """Runs fn for warm_up_s first: these kernels move the card's clock, which settles over a tenth of a second."""
    fn()
    torch.cuda.synchronize()
    until = time.time() + warm_up_s
    while time.time() < until:
        for _ in range(3):
            fn()
        torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        start, stop = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        start.record()
        fn()
        stop.record()
        stop.synchronize()
        times.append(start.elapsed_time(stop))
    return times


def time_all(name, subjects, peer, repeats, work, unit, rows_out, warm_up_s=0.03):
    """Each subject in blocks of its own, after its own warm-up; three rounds, the second in reverse order. work: operations or bytes."""
    times = {s: [] for s in subjects}
    names = list(subjects)
    for order in (names, names[::-1], names[len(names) // 2 :] + names[: len(names) // 2]):
        for s in order:
            times[s] += time_ms(subjects[s], warm_up_s, (repeats + 2) // 3)
    medians = {s: statistics.median(t) for s, t in times.items()}
    for s, t in times.items():
        row = {"case": name, "subject": s, "median_ms": medians[s], "min_ms": min(t), "max_ms": max(t), "runs": len(t),
               unit: work / medians[s] / (1e9 if unit == "tops" else 1e6)}  # fmt: skip
        if peer in medians:
            row["x_peer"] = medians[peer] / medians[s]
        rows_out.append(row)
        print(f"{name:24s} {s:26s} {row['median_ms']:9.4f} ms [{row['min_ms']:.4f} {row['max_ms']:.4f}] {row[unit]:8.1f} {unit}"
              f"  x {row.get('x_peer', float('nan')):.3f}", flush=True)  # fmt: skip


def time_matrices(libs, m, repeats, rows_out, mma):
    for name, (n, k) in SHAPES.items():
        seed(f"time/{name}")
        x, x_scale, w, w_scale = int8_data(m, n, k)
        y, acc = torch.empty(m, n, dtype=torch.bfloat16, device="cuda"), torch.empty(m, n, dtype=torch.int32, device="cuda")
        subjects = {"torch._int_mm": lambda: torch._int_mm(x, w.T, out=acc)}
        for label, lib in libs:
            subjects[f"{label} sm90"] = lambda lib=lib: lib.linear_int8(x, x_scale, w, w_scale, y=y, kernel="sm90")
        if mma:
            subjects[f"{libs[0][0]} mma"] = lambda: libs[0][1].linear_int8(x, x_scale, w, w_scale, y=y, kernel="mma")
            source = torch.randn(m, k * (2 if name == "fc2" else 1), device="cuda").bfloat16()
            codes, scale = torch.empty_like(x), torch.empty_like(x_scale)

            def quantize_too(lib=libs[0][1], source=source, swiglu=name == "fc2"):
                lib.quantize(source, 256, swiglu, codes, scale)
                lib.linear_int8(codes, scale, w, w_scale, y=y, kernel="sm90")

            subjects[f"{libs[0][0]} quantize + sm90"] = quantize_too
        time_all(f"int8 {name}", subjects, "torch._int_mm", repeats, 2.0 * m * n * k, "tops", rows_out, 0.12)
        del x, w, acc
        x, w = torch.randn(m, k, device="cuda").bfloat16(), torch.randn(n, k, device="cuda").bfloat16()
        subjects = {"torch bf16": lambda: torch.mm(x, w.T, out=y)}
        for label, lib in libs:
            subjects[f"{label} sm90"] = lambda lib=lib: lib.linear(x, w, y=y, kernel="sm90")
        if mma:
            subjects[f"{libs[0][0]} mma"] = lambda: libs[0][1].linear(x, w, y=y, kernel="mma")
        time_all(f"bf16 {name}", subjects, "torch bf16", repeats, 2.0 * m * n * k, "tops", rows_out, 0.12)


def time_slices(lib, m, repeats, rows_out):
    """One head's q, k or v."""
    n, k = 128, 5376
    x, x_scale, w, w_scale = int8_data(m, n, k)
    y = torch.empty(m, n, dtype=torch.bfloat16, device="cuda")
    time_all("int8 one head, n=128", {"ours": lambda: lib.linear_int8(x, x_scale, w, w_scale, y=y)}, "", repeats, 2.0 * m * n * k, "tops", rows_out)
    x, w = torch.randn(m, k, device="cuda").bfloat16(), torch.randn(n, k, device="cuda").bfloat16()
    time_all("bf16 one head, n=128", {"ours": lambda: lib.linear(x, w, y=y), "torch bf16": lambda: torch.mm(x, w.T, out=y)}, "torch bf16", repeats,
             2.0 * m * n * k, "tops", rows_out)  # fmt: skip


def time_fp32(lib, m, repeats, rows_out):
    torch.backends.cuda.matmul.allow_tf32 = False
    for name, rows, n, k in (("head", m, 96, 5376), ("head 32", m, 32, 5376), ("patch", m, 5376, 96)):
        x, w = torch.randn(rows, k, device="cuda"), torch.randn(n, k, device="cuda")
        y = torch.empty(rows, n, device="cuda")
        subjects = {"ours": lambda: lib.linear(x, w, y=y), "torch fp32": lambda: torch.mm(x, w.T, out=y)}
        time_all(f"fp32 {name}", subjects, "torch fp32", repeats, 2.0 * rows * n * k, "tops", rows_out)
    for rows, n, k in ((1, 96768, 2688), (4, 96768, 2688), (4, 96768, 8)):
        x, w = torch.randn(rows, k, device="cuda"), torch.randn(n, k, device="cuda").bfloat16()
        y = torch.empty(rows, n, device="cuda")
        time_all(f"adaln m={rows} k={k}", {"ours": lambda: lib.linear(x, w, y=y)}, "", repeats, 2.0 * n * k + 4.0 * rows * n, "GB/s", rows_out)


def time_quantize(libs, m, repeats, rows_out):
    big = torch.empty(1 << 30, dtype=torch.int8, device="cuda")
    target = torch.empty_like(big)
    time_all("copy 1 GiB", {"torch copy": lambda: target.copy_(big)}, "", repeats, 2.0 * (1 << 30), "GB/s", rows_out)
    del big, target
    for name, swiglu, k, group, dtype in (
        ("5376", False, 5376, 256, torch.bfloat16), ("5376 unrotated", False, 5376, 0, torch.bfloat16), ("7168", False, 7168, 256, torch.bfloat16),
        ("5376 f32", False, 5376, 256, torch.float32), ("swiglu 14336", True, 14336, 256, torch.bfloat16)):  # fmt: skip
        columns = k * (2 if swiglu else 1)
        x = torch.randn(m, columns, device="cuda").to(dtype)
        codes, scale = torch.empty(m, k, dtype=torch.int8, device="cuda"), torch.empty(m, device="cuda")
        subjects = {f"{label}": (lambda lib=lib: lib.quantize(x, group, swiglu, codes, scale)) for label, lib in libs}
        time_all(f"quantize {name}", subjects, "", repeats, float(m) * (columns * x.element_size() + k), "GB/s", rows_out)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("library", nargs="+")
    parser.add_argument("--checks", default="tensor,int8,fma,quantize", help="comma list of these and far, or none")
    parser.add_argument("--times", default="matrices,slices,fp32,quantize", help="comma list, or none")
    parser.add_argument("--rows", type=int, default=16384)
    parser.add_argument("--repeats", type=int, default=12, help="timed runs of each subject, in three blocks")
    parser.add_argument("--mma", action="store_true", help="time the portable kernels too")
    parser.add_argument("--out", default="")
    args = parser.parse_args()
    checks = {"tensor": check_tensor, "int8": check_int8, "fma": check_fma, "quantize": check_quantize, "far": check_far_rows}
    report, rows, started = Report(), [], time.time()
    libs = [(path.rsplit("/", 1)[-1].removesuffix(".so"), Library(path)) for path in args.library]
    for label, lib in libs:
        for name in [c for c in args.checks.split(",") if c in checks]:
            try:
                checks[name](lib, label, report)
                torch.cuda.synchronize()
            except Exception as e:  # noqa: BLE001
                report.check(label, name, False, exception=str(e)[:400])
            print(f"{label} {name}: {len(report.checks)} checks, {report.failed} failed, {time.time() - started:.0f} s", flush=True)
            torch.cuda.empty_cache()
    times = args.times.split(",")
    if "matrices" in times:
        time_matrices(libs, args.rows, args.repeats, rows, args.mma)
    if "slices" in times:
        time_slices(libs[0][1], args.rows, args.repeats, rows)
    if "fp32" in times:
        time_fp32(libs[0][1], args.rows, args.repeats, rows)
    if "quantize" in times:
        time_quantize(libs, args.rows, args.repeats, rows)
    if args.out:
        smi = subprocess.run(["nvidia-smi", "--query-gpu=name,driver_version,clocks.sm,power.draw", "--format=csv,noheader"],
                             capture_output=True, text=True)  # fmt: skip
        json.dump(
            {"device": torch.cuda.get_device_name(), "multiprocessors": torch.cuda.get_device_properties(0).multi_processor_count,
             "nvidia_smi": smi.stdout.strip(), "torch": torch.__version__, "cuda": torch.version.cuda, "command": " ".join(sys.argv),
             "checks": report.checks, "timings": rows},
            open(args.out, "w"), indent=1)  # fmt: skip
    print(f"{len(report.checks)} checks, {report.failed} failed, {time.time() - started:.0f} s")
    sys.exit(1 if report.failed else 0)


if __name__ == "__main__":
    main()
