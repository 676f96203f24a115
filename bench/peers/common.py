"""What the scripts of this folder share: bit comparison, error, seeds, the list of checks, timing, the machine."""

import json
import pathlib
import statistics
import subprocess
import sys
import time
import zlib

try:
    import torch
except ImportError:
    sys.exit("bench/peers: PyTorch is missing, and with it every peer; `h3stream bench --device cuda:0` measures h3stream alone")

ROOT = pathlib.Path(__file__).resolve().parents[2]
SHAPES = {"qkv": (21504, 5376), "out": (5376, 7168), "fc1": (28672, 5376), "fc2": (5376, 14336)}  # n, k of a block's linears


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


def poisoned(*shape, dtype):
    """NaN everywhere: an element that nobody wrote shows."""
    return torch.full(shape, float("nan"), dtype=dtype, device="cuda")


def reference_attention(q, k, v, scale=128**-0.5):
    """float64, one head at a time. q, k, v [H, S, 128]; returns (o [H, Sq, 128], lse [H, Sq])."""
    outputs, lses = [], []
    for h in range(q.shape[0]):
        scores = (q[h].double() @ k[h].double().T) * scale
        lses.append(torch.logsumexp(scores, -1))
        outputs.append(torch.softmax(scores, -1) @ v[h].double())
    return torch.stack(outputs), torch.stack(lses)


def int8_data(m, n, k):
    """Codes as a quantiser makes them, normal with the largest near 127, and their scales."""
    x, w = ((torch.randn(r, k, device="cuda") * 30).round_().clamp_(-128, 127).to(torch.int8) for r in (m, n))
    return x, torch.rand(m, device="cuda") * 1e-2, w, torch.rand(n, device="cuda") * 1e-3


class Report:
    """Checks by name. A failed one is printed at once, does not stop the rest and makes the script exit with 1."""

    def __init__(self):
        self.checks, self.failed = [], 0

    def check(self, subject, name, ok, **facts):
        self.checks.append({"subject": subject, "check": name, "ok": bool(ok), **facts})
        self.failed += not ok
        if not ok:
            print(f"FAIL {subject} {name} {facts}", flush=True)

    def run(self, subject, name, fn):
        """fn(), an exception being a failed check."""
        try:
            fn()
            torch.cuda.synchronize()
        except Exception as e:  # noqa: BLE001
            self.check(subject, name, False, exception=str(e)[:400])


def time_ms(fn, warm_up_s, repeats):
    """Event times of `repeats` calls, after warm_up_s of calls: these kernels move the card's clock, which settles over a tenth of a
    second."""
    until = time.time() + warm_up_s
    while time.time() < until:
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


def time_in_blocks(subjects, orders, warm_up_s, repeats):
    """Milliseconds by subject. Each runs in blocks of its own; `orders` are the subjects of each round."""
    times = {name: [] for name in subjects}
    for order in orders:
        for name in order:
            times[name] += time_ms(subjects[name], warm_up_s, repeats)
    return times


def rotations(names, rounds):
    """Orders for time_in_blocks: forwards and backwards, each pair beginning further on, so that the heat that one subject leaves
    behind does not always meet the same next one."""
    orders = []
    for i in range(rounds):
        begin = (i // 2) * len(names) // max(1, rounds // 2)
        order = names[begin:] + names[:begin]
        orders.append(order[::-1] if i % 2 else order)
    return orders


def timing(case, subject, times, work, unit, **facts):
    """A row of the result. work: operations (TOP/s) or bytes (GB/s) of a call."""
    median = statistics.median(times)
    return {"case": case, "subject": subject, "median_ms": median, "min_ms": min(times), "max_ms": max(times), "runs": len(times),
            "rate": work / median / (1e9 if unit == "TOP/s" else 1e6), "unit": unit, **facts}  # fmt: skip


def gpu_state():
    """What nvidia-smi reads now, or why it does not."""
    fields = "driver_version,clocks.sm,clocks.mem,clocks.max.sm,power.draw,temperature.gpu"
    try:
        answer = subprocess.run(["nvidia-smi", f"--query-gpu={fields}", "--format=csv,noheader"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as e:
        return {"missing": f"nvidia-smi: {e}"}
    values = [x.strip() for x in answer.stdout.splitlines()[0].split(",")]
    return dict(zip(fields.split(","), values, strict=True))


def commit():
    answer = subprocess.run(["git", "-C", str(ROOT), "rev-parse", "--short", "HEAD"], capture_output=True, text=True)
    return answer.stdout.strip() or "unknown"


def environment(library, arguments, before):
    """Machine, versions and the command that repeats the run. `arguments`: of the parser, library and out left out of the command."""
    options = [x for name, value in vars(arguments).items() if name not in ("library", "out", "commit") for x in (f"--{name.replace('_', '-')}", str(value))]
    return {"command": " ".join([f"bench/peers/{pathlib.Path(sys.argv[0]).name}", *options]), "commit": arguments.commit or commit(),
            "device": torch.cuda.get_device_name(), "multiprocessors": torch.cuda.get_device_properties(0).multi_processor_count,
            "gpu_before": before, "gpu_after": gpu_state(), "h3stream": library.version(), "torch": torch.__version__,
            "cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version(), "python": sys.version.split()[0]}  # fmt: skip


def add_options(parser):
    parser.add_argument("--library", default=str(ROOT / "build/cuda/src/capi/libh3stream.so"), help="libh3stream.so (default: %(default)s)")
    parser.add_argument("--commit", default="", help="what the library was built from, when this folder is not its checkout")
    parser.add_argument("--out", default="", help="write the result to this file, JSON")


def finish(report, result, path):
    """Writes the result and exits, with 1 when a check failed."""
    if path:
        pathlib.Path(path).write_text(json.dumps(result, indent=1) + "\n")
    print(f"{len(report.checks)} checks, {report.failed} failed")
    sys.exit(1 if report.failed else 0)
