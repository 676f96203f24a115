#!/usr/bin/env python3
"""Checks h3stream's linear layers and quantisers on the present GPU: error, slices of rows and columns at real widths, far offsets.

    bench/peers/linear_check.py --checks tensor,int8,fma,quantize,far

Bit equality with the CPU's definitions is the part of tests/backend_cuda. Exits with 1 when any check fails. bench/peers/peers.py has the
times.
"""

import argparse
import itertools
import time

import common
import h3stream_c
import torch
import torch.nn.functional as F
from common import SHAPES, Report, int8_data, rel_rms, same_bits, seed

ROW_PICKS = (1, 2, 31, 32, 33, 63, 64, 65, 127, 128, 129, 255, 256, 257, 300, 1000, 2049, 4096, 4097)


class Linears:
    """The kernels by name, with outputs made when none are given."""

    def __init__(self, contexts):
        self.contexts = contexts

    def linear(self, x, w, bias=None, y=None, kernel="fast", y_dtype=torch.bfloat16):
        y = common.poisoned(x.shape[0], w.shape[0], dtype=y_dtype) if y is None else y
        return self.contexts[kernel].linear(x, w, y, bias)

    def linear_int8(self, x, x_scale, w, w_scale, kernel="fast"):
        y = common.poisoned(x.shape[0], w.shape[0], dtype=torch.bfloat16)
        return self.contexts[kernel].linear_int8(x, x_scale, w, w_scale, y)

    def quantize(self, x, group, swiglu=False):
        m, k = x.shape[0], x.shape[1] // (2 if swiglu else 1)
        codes, scale = torch.empty(m, k, dtype=torch.int8, device=x.device), torch.empty(m, device=x.device)
        context = self.contexts["fast"]
        return (context.swiglu_quantize_rows if swiglu else context.quantize_rows)(x, codes, scale, group)


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
    column, row = slice(n // 2, min(n, n // 2 + 128)), slice(m // 2, m // 2 + 33)
    report.check(subject, f"{name} row and column slice", same_bits(run(row, column), full[row, column]), seed=value)


def check_tensor(lib, label, report):
    for dtype, kernel in itertools.product((torch.bfloat16, torch.float16), ("fast", "portable")):
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
        for kernel in ("fast", "portable"):
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


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    common.add_options(parser)
    parser.add_argument("--checks", default="tensor,int8,fma,quantize", help="comma list of these and far")
    args = parser.parse_args()
    checks = {"tensor": check_tensor, "int8": check_int8, "fma": check_fma, "quantize": check_quantize, "far": check_far_rows}
    report, started, before = Report(), time.time(), common.gpu_state()
    library = h3stream_c.Library(args.library)
    stream = torch.cuda.current_stream().cuda_stream
    linears = Linears({name: h3stream_c.Context(library, "cuda:0", name, stream) for name in ("fast", "portable")})
    for name in args.checks.split(","):
        report.run(name, name, lambda: checks[name](linears, "linear", report))  # noqa: B023
        torch.cuda.empty_cache()
    result = common.environment(library, args, before) | {"seconds": time.time() - started, "checks": report.checks}
    common.finish(report, result, args.out)


if __name__ == "__main__":
    main()
