#!/usr/bin/env python3
"""h3stream's kernels beside the public ones on the same tensors in one run: checked first, then timed with CUDA events.

    bench/peers/peers.py --tokens 28931,217088 --rows 16384 --out result.json

Attention, 56 heads x 128, bf16: PyTorch flash, cuDNN, comfy-kitchen int8; h3stream sm_90a and mma.sync. Linears of a block: torch._int_mm,
cuBLAS bf16, comfy-kitchen int8_linear (rotation, quantiser and product); h3stream's quantiser, product and epilogue. A peer that is
missing is named and left out. Exits with 1 when a check fails; timings are made all the same.
"""

import argparse
import functools
import time

import common
import h3stream_c
import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

HEADS, HEAD_DIM = 56, 128
EXACT_ERROR = 4e-3  # P is rounded to bf16 (2^-9 a term, 2.3e-3 seen in float64 with that rounding alone) and so is O
INT8_ERROR = 0.05  # 8-bit codes of Q, K, V or P: a loose bound against nonsense; the error itself is in the result


def load_comfy():
    """(module, version) or (None, why)."""
    try:
        import comfy_kitchen
        from importlib.metadata import version

        return comfy_kitchen, version("comfy-kitchen")
    except Exception as e:  # noqa: BLE001: an extension that does not load is a missing peer too
        return None, f"{type(e).__name__}: {e}"


def torch_attention(backend, q, k, v):
    with sdpa_kernel(backend):
        return torch.nn.functional.scaled_dot_product_attention(q[None], k[None], v[None])[0]


def poison_free_memory(like):
    """Peers make their own outputs: the block they get next most likely holds these NaN."""
    del_me = torch.full_like(like, float("nan"), memory_format=torch.contiguous_format)
    del del_me


# ---- attention ----


def attention_subjects(fast, portable, comfy, q, k, v, o):
    subjects = {
        "h3stream sm_90a": lambda: fast.attention(q, k, v, o),
        "h3stream mma.sync": lambda: portable.attention(q, k, v, o),
        "torch flash": lambda: torch_attention(SDPBackend.FLASH_ATTENTION, q, k, v),
        "torch cudnn": lambda: torch_attention(SDPBackend.CUDNN_ATTENTION, q, k, v),
    }
    if torch.cuda.get_device_capability()[0] != 9:
        subjects["h3stream"] = subjects.pop("h3stream sm_90a")
    if comfy is not None and comfy.int8_attention_is_available(q.device):
        subjects["comfy-kitchen int8"] = lambda: comfy.int8_attention(q[None], k[None], v[None])[0]
    return subjects


def check_attention(subjects, q, k, v, o, report, value):
    """Every element written, sampled rows of all heads against float64. Drops a subject that cannot run; gives the times of the calls."""
    tokens = q.shape[1]
    rows = torch.tensor(sorted({0, 1, tokens // 3, tokens // 2, tokens - 2, tokens - 1}), device="cuda")
    reference, _ = common.reference_attention(q[:, rows], k, v)
    times, result = {}, None

    def call(name):
        nonlocal result
        result = subjects[name]()

    for name in list(subjects):
        o.fill_(float("nan"))
        poison_free_memory(o)
        try:
            times[name] = common.time_ms(lambda: call(name), 0, 1)  # noqa: B023
        except Exception as e:  # noqa: BLE001
            ours = name.startswith("h3stream")
            print(f"{name} cannot run at S={tokens}: {str(e)[:300]}", flush=True)
            if ours:
                report.check(name, f"attention S={tokens}", False, exception=str(e)[:300])
            del subjects[name]
            continue
        error = common.rel_rms(result[:, rows], reference)
        bound = INT8_ERROR if "int8" in name else EXACT_ERROR
        report.check(name, f"attention S={tokens}", error < bound and bool(torch.isfinite(result).all()), seed=value, error=error, bound=bound)
        result = None
    return times


def time_attention(fast, portable, comfy, tokens, report):
    value = common.seed(f"attention/{tokens}")
    q, k, v = (torch.randn(HEADS, tokens, HEAD_DIM, device="cuda", dtype=torch.bfloat16) for _ in range(3))
    o = torch.empty(tokens, HEADS, HEAD_DIM, device="cuda", dtype=torch.bfloat16).transpose(0, 1)
    subjects = attention_subjects(fast, portable, comfy, q, k, v, o)
    times = check_attention(subjects, q, k, v, o, report, value)
    torch.cuda.empty_cache()
    names = list(subjects)
    if tokens > 100_000:  # seconds a call, so the checked one counts; the slowest peers have no other
        again = [n for n in names if n not in ("torch flash", "comfy-kitchen int8")]
        for name, more in common.time_in_blocks({n: subjects[n] for n in again}, (again[::-1], again), 0, 1).items():
            times[name] += more
    else:
        times = common.time_in_blocks(subjects, common.rotations(names, 4), 0.2, 3)
    work = 4.0 * tokens * tokens * HEADS * HEAD_DIM
    rows = [common.timing(f"attention S={tokens}", name, t, work, "TOP/s", tokens=tokens, heads=HEADS) for name, t in times.items()]
    return add_ratios(rows, {"torch cudnn": "x_cudnn", "torch flash": "x_flash", "comfy-kitchen int8": "x_comfy"})


# ---- linears ----


def rotation(size=256):
    """The regular Hadamard matrix of ConvRot: a Kronecker power of one of order 4, orthogonal."""
    h4 = torch.tensor([[1, 1, 1, -1], [1, 1, -1, 1], [1, -1, 1, 1], [-1, 1, 1, 1]], dtype=torch.float64, device="cuda") / 2
    h = h4
    while h.shape[0] < size:
        h = torch.kron(h, h4)
    return h


def reference_linear(x, w, w_scale, swiglu):
    """What the quantised layer approximates: float64, activations rotated and not quantised."""
    x = x.double()
    if swiglu:
        gate, up = x.chunk(2, -1)
        x = torch.nn.functional.silu(gate) * up
    x = (x.unflatten(-1, (-1, 256)) @ rotation()).flatten(-2)
    return (x @ w.double().T) * w_scale.double()


class Int8Layer:
    """One quantised linear of a block: its input as the block has it, and everyone's way to the bf16 output."""

    def __init__(self, name, m):
        self.name, self.m, self.swiglu = name, m, name == "fc2"
        self.n, self.k = common.SHAPES[name]
        self.seed = common.seed(f"int8/{name}")
        self.x = torch.randn(m, self.k * (2 if self.swiglu else 1), device="cuda", dtype=torch.bfloat16)
        _, _, self.w, self.w_scale = common.int8_data(1, self.n, self.k)
        self.codes = torch.empty(m, self.k, dtype=torch.int8, device="cuda")
        self.scale = torch.empty(m, device="cuda")
        self.y = common.poisoned(m, self.n, dtype=torch.bfloat16)
        self.sums = torch.empty(m, self.n, dtype=torch.int32, device="cuda")

    def quantize(self, context):
        (context.swiglu_quantize_rows if self.swiglu else context.quantize_rows)(self.x, self.codes, self.scale)

    def product(self, context):
        return context.linear_int8(self.codes, self.scale, self.w, self.w_scale, self.y)

    def ours(self, context):
        self.quantize(context)
        return self.product(context)

    def int_mm(self):
        return torch._int_mm(self.codes, self.w.T, out=self.sums)

    def comfy(self, comfy):
        return comfy.int8_linear(self.x, self.w, self.w_scale, out_dtype=torch.bfloat16, convrot=True, convrot_groupsize=256,
                                 input_act="swiglu" if self.swiglu else None)  # fmt: skip

    def subjects(self, fast, portable, comfy):
        subjects = {"torch._int_mm": self.int_mm, "h3stream quantise + linear": functools.partial(self.ours, fast),
                    "h3stream linear": functools.partial(self.product, fast),
                    "h3stream mma.sync quantise + linear": functools.partial(self.ours, portable)}  # fmt: skip
        if comfy is not None:
            subjects["comfy-kitchen int8_linear"] = functools.partial(self.comfy, comfy)
        return subjects

    def check(self, fast, portable, comfy, report):
        rows = torch.tensor([0, 1, self.m // 2, self.m - 1], device="cuda")
        reference = reference_linear(self.x[rows], self.w, self.w_scale, self.swiglu)
        outputs = {}
        for label, context in (("h3stream", fast), ("h3stream mma.sync", portable)):
            self.y.fill_(float("nan"))
            self.codes.fill_(-128)
            self.scale.fill_(float("nan"))
            outputs[label] = self.ours(context).clone()
        # The product is exact and the epilogue three roundings: bits of _int_mm with the same scales.
        expected = torch.cat([((s.float() * c[:, None]) * self.w_scale).bfloat16()
                              for s, c in zip(self.int_mm().split(2048), self.scale.split(2048), strict=True)])  # fmt: skip
        for label, y in outputs.items():
            report.check(label, f"int8 {self.name} equals _int_mm with the epilogue", common.same_bits(y, expected), seed=self.seed)
        if comfy is not None:
            poison_free_memory(self.y)
            outputs["comfy-kitchen"] = self.comfy(comfy)
        for label, y in outputs.items():
            error = common.rel_rms(y[rows], reference)
            # A code is a step of max / 127, about 1 % of a normal row's RMS.
            report.check(label, f"int8 {self.name} error", error < 0.02 and bool(torch.isfinite(y).all()), seed=self.seed, error=error)


def time_int8(fast, portable, comfy, name, m, report):
    layer = Int8Layer(name, m)
    try:
        layer.check(fast, portable, comfy, report)
    except Exception as e:  # noqa: BLE001
        report.check("int8", name, False, exception=str(e)[:300])
    rows = time_linear(f"int8 {name}", layer.subjects(fast, portable, comfy), 2.0 * m * layer.n * layer.k,
                       {"torch._int_mm": "x_int_mm", "comfy-kitchen int8_linear": "x_comfy"}, m)  # fmt: skip
    moved = layer.x.numel() * 2.0 + layer.codes.numel() + 4.0 * m
    return rows + time_linear(f"quantise {name}", {"h3stream": functools.partial(layer.quantize, fast)}, moved, {}, m, "GB/s")


def time_float(fast, portable, name, shape, dtype, m, report):
    """bf16: the tensor cores' own order of sums, beside cuBLAS. float32: no TF32 on either side."""
    n, k = shape
    case = f"{'bf16' if dtype == torch.bfloat16 else 'fp32'} {name}"
    value = common.seed(case)
    x, w = (torch.randn(r, k, device="cuda", dtype=dtype) for r in (m, n))
    y, y_torch = common.poisoned(m, n, dtype=dtype), common.poisoned(m, n, dtype=dtype)
    subjects = {"cuBLAS": lambda: torch.mm(x, w.T, out=y_torch), "h3stream": lambda: fast.linear(x, w, y)}
    if dtype == torch.bfloat16:
        subjects["h3stream mma.sync"] = lambda: portable.linear(x, w, y)
    rows = torch.tensor([0, 1, m // 2, m - 1], device="cuda")
    reference = x[rows].double() @ w.double().T
    # One rounding of the sum, 2^-9 relative; float32 sums of k terms in blocks, below sqrt(k) 2^-24.
    bound = 2.0**-9 if dtype == torch.bfloat16 else k**0.5 * 2.0**-24
    for label, fn in subjects.items():
        y.fill_(float("nan"))
        result = fn()
        error = common.rel_rms(result[rows], reference)
        report.check(label, case, error < bound and bool(torch.isfinite(result).all()), seed=value, error=error, bound=bound)
    return time_linear(case, subjects, 2.0 * m * n * k, {"cuBLAS": "x_cublas"}, m)


def time_linear(case, subjects, work, peers, m, unit="TOP/s"):
    times = common.time_in_blocks(subjects, common.rotations(list(subjects), 4), 0.08, 4)
    return add_ratios([common.timing(f"{case} M={m}", name, t, work, unit) for name, t in times.items()], peers)


def add_ratios(rows, peers):
    """x_peer: how many times as fast as that peer in this run."""
    by_name = {row["subject"]: row["median_ms"] for row in rows}
    for row in rows:
        row |= {key: by_name[peer] / row["median_ms"] for peer, key in peers.items() if peer in by_name}
        ratios = "  ".join(f"{key} {row[key]:.3f}" for key in peers.values() if key in row)
        print(f"{row['case']:22s} {row['subject']:36s} {row['median_ms']:9.3f} ms [{row['min_ms']:.3f} {row['max_ms']:.3f}]"
              f" {row['rate']:7.1f} {row['unit']}  {ratios}", flush=True)  # fmt: skip
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    common.add_options(parser)
    parser.add_argument("--tokens", default="28931,217088", help="comma list of attention's lengths, or none (default: %(default)s)")
    parser.add_argument("--rows", type=int, default=16384, help="M of the linears, 0: none (default: %(default)s)")
    args = parser.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    started, before = time.time(), common.gpu_state()
    library = h3stream_c.Library(args.library)
    stream = torch.cuda.current_stream().cuda_stream
    fast, portable = (h3stream_c.Context(library, "cuda:0", kernels, stream) for kernels in ("fast", "portable"))
    comfy, comfy_version = load_comfy()
    if comfy is None:
        print(f"comfy-kitchen is missing ({comfy_version}); the rest goes on")
    report, rows = common.Report(), []
    if args.rows:
        for name in common.SHAPES:
            rows += time_int8(fast, portable, comfy, name, args.rows, report)
            rows += time_float(fast, portable, name, common.SHAPES[name], torch.bfloat16, args.rows, report)
            torch.cuda.empty_cache()
        for name, shape in {"video head": (96, 5376), "audio head": (32, 5376), "patches": (5376, 96)}.items():
            rows += time_float(fast, portable, name, shape, torch.float32, args.rows, report)
    for tokens in (int(t) for t in args.tokens.split(",") if t != "none"):
        rows += time_attention(fast, portable, comfy, tokens, report)
        torch.cuda.empty_cache()
    result = common.environment(library, args, before)
    result |= {"context": fast.describe(), "comfy_kitchen": comfy_version if comfy else {"missing": comfy_version},
               "seconds": time.time() - started, "checks": report.checks, "timings": rows}  # fmt: skip
    common.finish(report, result, args.out)


if __name__ == "__main__":
    main()
