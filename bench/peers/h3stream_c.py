"""The C library (include/h3stream/h3stream.h) for PyTorch tensors, by ctypes. Needs nothing but the library itself."""

import ctypes

F32, BF16, F16 = range(3)
DTYPES = {"torch.float32": F32, "torch.bfloat16": BF16, "torch.float16": F16}
KERNELS = {"fast": 0, "portable": 1, "reference": 2}
HEAD_DIM = 128

_p, _i64, _i32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32


def _params(name, *fields):
    """A params struct: `fields` are (type, "name name ...") in the order of the header, after its size."""
    layout = [("size", ctypes.c_size_t)] + [(n, kind) for kind, names in fields for n in names.split()]
    return type(name, (ctypes.Structure,), {"_fields_": layout})


ContextParams = _params("h3s_context_params", (ctypes.c_char_p, "device"), (_i32, "num_threads kernels use_stream"), (_p, "stream"))
AttentionParams = _params(
    "h3s_attention_params", (_i32, "dtype"), (ctypes.c_float, "scale"), (_p, "q k v o lse"), (_i64, "heads q_tokens kv_tokens"),
    (_i64, "q_head_stride q_token_stride k_head_stride k_token_stride"),
    (_i64, "v_head_stride v_token_stride o_head_stride o_token_stride"))  # fmt: skip
LinearParams = _params(
    "h3s_linear_params", (_i32, "x_dtype w_dtype y_dtype"), (_p, "x w bias y"), (_i64, "m n k x_stride y_stride"))
LinearInt8Params = _params(
    "h3s_linear_int8_params", (_i32, "y_dtype"), (_p, "x x_scale w w_scale bias y"), (_i64, "m n k y_stride"))
QuantizeRowsParams = _params(
    "h3s_quantize_rows_params", (_i32, "dtype"), (_p, "x"), (_i64, "rotate_group"), (_p, "codes scale"), (_i64, "m k x_stride"))
SwigluQuantizeRowsParams = _params(
    "h3s_swiglu_quantize_rows_params", (_i32, "dtype"), (_p, "gate_up"), (_i64, "rotate_group"), (_p, "codes scale"), (_i64, "m k"))


def _pointer(tensor):
    return None if tensor is None else tensor.data_ptr()


def _dtype(tensor):
    return DTYPES[str(tensor.dtype)]


class Library:
    def __init__(self, path):
        self.lib = ctypes.CDLL(str(path))
        for name in ("h3s_version", "h3s_last_error", "h3s_context_describe", "h3s_context_kernels"):
            getattr(self.lib, name).restype = ctypes.c_char_p
        for name in ("h3s_last_error", "h3s_context_describe", "h3s_context_kernels", "h3s_context_destroy", "h3s_context_synchronize"):
            getattr(self.lib, name).argtypes = [_p]

    def version(self):
        return self.lib.h3s_version().decode()

    def params(self, kind, **values):
        """A params struct with its defaults, and `values` over them."""
        params = kind()
        init = getattr(self.lib, f"{kind.__name__}_init")
        self.require(init(ctypes.byref(params), ctypes.c_size_t(ctypes.sizeof(params))), None)
        for name, value in values.items():
            setattr(params, name, value)
        return params

    def require(self, status, context):
        if status != 0:
            raise RuntimeError(self.lib.h3s_last_error(context).decode())


class Context:
    """Ops on a device; on a GPU on `stream`, a cudaStream_t as an integer (0: CUDA's default stream)."""

    def __init__(self, library, device="auto", kernels="fast", stream=None):
        self.library, self.handle = library, _p()
        where = library.params(ContextParams, device=device.encode(), kernels=KERNELS[kernels])
        if stream is not None:
            where.use_stream, where.stream = 1, stream
        library.require(library.lib.h3s_context_create(ctypes.byref(where), ctypes.byref(self.handle)), None)

    def __del__(self):
        if self.handle:
            self.library.lib.h3s_context_destroy(self.handle)

    def describe(self):
        return self.library.lib.h3s_context_describe(self.handle).decode()

    def kernels(self):
        return self.library.lib.h3s_context_kernels(self.handle).decode()

    def synchronize(self):
        self.library.require(self.library.lib.h3s_context_synchronize(self.handle), self.handle)

    def call(self, kind, **values):
        params = self.library.params(kind, **values)
        op = getattr(self.library.lib, kind.__name__.removesuffix("_params"))
        self.library.require(op(self.handle, ctypes.byref(params)), self.handle)

    def attention(self, q, k, v, o, lse=None, scale=HEAD_DIM**-0.5):
        """q, k, v, o: [H, S, 128] views of any strides; o is returned."""
        strides = {f"{name}_{axis}_stride": x.stride(dim) for name, x in zip("qkvo", (q, k, v, o), strict=True)
                   for dim, axis in enumerate(("head", "token"))}  # fmt: skip
        self.call(AttentionParams, dtype=_dtype(q), scale=scale, q=_pointer(q), k=_pointer(k), v=_pointer(v), o=_pointer(o),
                  lse=_pointer(lse), heads=q.shape[0], q_tokens=q.shape[1], kv_tokens=k.shape[1], **strides)  # fmt: skip
        return o

    def linear(self, x, w, y, bias=None):
        """x [m, k], w [n, k], y [m, n]; rows of x and y may be strided. y is returned."""
        self.call(LinearParams, x_dtype=_dtype(x), w_dtype=_dtype(w), y_dtype=_dtype(y), x=_pointer(x), w=_pointer(w), y=_pointer(y),
                  bias=_pointer(bias), m=x.shape[0], n=w.shape[0], k=w.shape[1], x_stride=x.stride(0), y_stride=y.stride(0))  # fmt: skip
        return y

    def linear_int8(self, x, x_scale, w, w_scale, y, bias=None):
        """x [m, k] and w [n, k]: int8 codes, dense; y [m, n]. y is returned."""
        self.call(LinearInt8Params, y_dtype=_dtype(y), x=_pointer(x), x_scale=_pointer(x_scale), w=_pointer(w), w_scale=_pointer(w_scale),
                  bias=_pointer(bias), y=_pointer(y), m=x.shape[0], n=w.shape[0], k=w.shape[1], y_stride=y.stride(0))  # fmt: skip
        return y

    def quantize_rows(self, x, codes, scale, group=256):
        self.call(QuantizeRowsParams, dtype=_dtype(x), x=_pointer(x), x_stride=x.stride(0), rotate_group=group, codes=_pointer(codes),
                  scale=_pointer(scale), m=x.shape[0], k=x.shape[1])  # fmt: skip
        return codes, scale

    def swiglu_quantize_rows(self, gate_up, codes, scale, group=256):
        self.call(SwigluQuantizeRowsParams, dtype=_dtype(gate_up), gate_up=_pointer(gate_up), rotate_group=group, codes=_pointer(codes),
                  scale=_pointer(scale), m=gate_up.shape[0], k=gate_up.shape[1] // 2)  # fmt: skip
        return codes, scale
