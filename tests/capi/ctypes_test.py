#!/usr/bin/env python3
"""ctypes_test.py LIBRARY: the Python face of bench/peers on the CPU: its structs are those of the header, or these numbers are wrong."""

import pathlib
import sys

import numpy as np

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "bench/peers"))
sys.dont_write_bytecode = True
import h3stream_c  # noqa: E402


class Tensor:
    """What h3stream_c asks of a tensor, on a NumPy array."""

    def __init__(self, array):
        self.array, self.shape, self.dtype = array, array.shape, {np.dtype("float32"): "torch.float32"}.get(array.dtype)

    def data_ptr(self):
        return self.array.ctypes.data

    def stride(self, dim):
        return self.array.strides[dim] // self.array.itemsize


def normal(*shape):
    return np.random.default_rng(len(shape)).standard_normal(shape).astype(np.float32)


def nan(*shape):
    return np.full(shape, np.nan, np.float32)


def check_attention(context):
    heads, queries, keys, width = 2, 3, 70, 128
    q, k, v = (normal(n, heads, width) * s for n, s in ((queries, 1), (keys, 0.5), (keys, 2)))
    o, lse = nan(queries, heads, width), nan(heads, queries)
    q, k, v, o = (x.transpose(1, 0, 2) for x in (q, k, v, o))
    context.attention(*(Tensor(x) for x in (q, k, v, o, lse)))
    p = np.exp(np.einsum("hid,hjd->hij", q, k) * width**-0.5)
    assert np.allclose(o, np.einsum("hij,hjd->hid", p, v) / p.sum(-1, keepdims=True), atol=1e-5)
    assert np.allclose(lse, np.log(p.sum(-1)), atol=1e-5)


def check_linear(context):
    x, w, bias, y = normal(5, 80)[:, :64], normal(7, 64), normal(7), nan(5, 9)[:, :7]
    context.linear(Tensor(x), Tensor(w), Tensor(y), Tensor(bias))
    assert np.allclose(y, x @ w.T + bias, atol=1e-5)


def check_quantized(context):
    x, w, w_scale, y = normal(5, 64), np.arange(7 * 64, dtype=np.int64).reshape(7, 64) % 255 - 127, normal(7), nan(5, 7)
    codes, scale, w = np.zeros((5, 64), np.int8), nan(5), w.astype(np.int8)
    context.quantize_rows(Tensor(x), Tensor(codes), Tensor(scale), group=0)
    assert np.allclose(codes * scale[:, None], x, atol=0.02 * np.abs(x).max())
    context.linear_int8(*(Tensor(a) for a in (codes, scale, w, w_scale, y)))
    assert np.allclose(y, (codes.astype(np.int64) @ w.T.astype(np.int64)) * scale[:, None] * w_scale, rtol=1e-6)
    gate_up = normal(5, 128)
    context.swiglu_quantize_rows(Tensor(gate_up), Tensor(codes), Tensor(scale), group=0)
    gate, up = gate_up[:, :64], gate_up[:, 64:]
    act = gate / (1 + np.exp(-gate)) * up
    assert np.allclose(codes * scale[:, None], act, atol=0.02 * np.abs(act).max())


def check_errors(library, context):
    for expected, fn in (("expected auto, cpu or cuda:N", lambda: h3stream_c.Context(library, "gpu")),
                         ("the CPU runs on no stream", lambda: h3stream_c.Context(library, "cpu", stream=0)),
                         ("power of 4", lambda: context.quantize_rows(*(Tensor(nan(4, 4)) for _ in range(3)), group=3))):  # fmt: skip
        try:
            fn()
        except RuntimeError as e:
            assert expected in str(e), e
        else:
            raise AssertionError(f"not refused: {expected}")


def main():
    library = h3stream_c.Library(sys.argv[1])
    context = h3stream_c.Context(library, "cpu")
    assert context.kernels() == "cpu" and context.describe().startswith("cpu (")
    check_attention(context)
    check_linear(context)
    check_quantized(context)
    check_errors(library, context)
    context.synchronize()


main()
