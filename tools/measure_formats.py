#!/usr/bin/env python3
"""What a weight format costs on a GPU: bytes of a checkpoint, rate of the linears, time of a block, with and without
a LoRA of every layer.

  tools/measure_formats.py --out FILE.json                    build/cuda-dev, rank 128
  tools/measure_formats.py --h3stream PROGRAM --out FILE.json another build

Each block is checked by `h3stream bench` before it is timed. About five seconds a format.
"""
import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FORMATS = ["int8_tensorwise", "asym_w4a8_int8", "convrot_w4a4", "float8_e4m3fn", "mxfp8", "nvfp4", "bf16"]


def output_of(command):
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    if run.returncode != 0:
        sys.exit(f"{' '.join(map(str, command))}: exit {run.returncode}: {run.stderr.strip()[-400:]}")
    return run.stdout


def checkpoint_bytes(program, name):
    """Of a whole checkpoint of this format, by the table of its tensors."""
    clip = ["--width", "1376", "--height", "768", "--frames", "90", "--gpu", "h200"]
    return json.loads(output_of([program, "plan", *clip, "--format", name, "--json"]))["model"]["bytes"]


def bench(program, name, rank, arguments):
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "bench.json"
        output_of([program, "bench", "--device", arguments.device, "--filter", "block", "--format", name, "--lora-rank",
                   str(rank), "--tokens", str(arguments.tokens), "--rounds", str(arguments.rounds), "--json", path])
        result = json.loads(path.read_text())
    if result["failed"]:
        sys.exit(f"{name}, rank {rank}: {result['failed']}")
    return result


def measure(program, name, arguments, machine):
    row = {"format": name, "checkpoint_bytes": checkpoint_bytes(program, name)}
    for key, rank in (("base", 0), ("lora", arguments.lora_rank)):
        result = bench(program, name, rank, arguments)
        machine.update({k: result[k] for k in ("device", "commit", "gpu_after")})
        parts = {part["name"]: part for part in result["rows"]}
        row[key] = {"block_ms": parts["total"]["rate"], "spread": parts["total"]["spread"],
                    "linears_tops": parts["linears with their quantisers"]["gops"] / 1e3,
                    "parts_ms": {k: part["rate"] for k, part in parts.items() if part["unit"] == "ms"}}
    print(f"{name:16} {row['checkpoint_bytes'] / 1e9:5.1f} GB  " + "  ".join(
        f"{key} {row[key]['block_ms']:6.1f} ms {row[key]['linears_tops']:5.0f} TOP/s" for key in ("base", "lora")), flush=True)
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--h3stream", default=str(ROOT / "build/cuda-dev/cli/h3stream"), help="program (default %(default)s)")
    parser.add_argument("--device", default="cuda:0", help="as of h3stream bench (default %(default)s)")
    parser.add_argument("--tokens", type=int, default=28931, help="tokens of the block (default %(default)s)")
    parser.add_argument("--lora-rank", type=int, default=128, help="rank of the LoRA, a multiple of 16 (default %(default)s)")
    parser.add_argument("--rounds", type=int, default=5, help="timed rounds, of which the median counts (default %(default)s)")
    parser.add_argument("--out", required=True, help="JSON file to write")
    arguments = parser.parse_args()
    machine = {}
    rows = [measure(arguments.h3stream, name, arguments, machine) for name in FORMATS]
    command = f"tools/measure_formats.py --tokens {arguments.tokens} --lora-rank {arguments.lora_rank} --rounds {arguments.rounds}"
    Path(arguments.out).write_text(json.dumps({"command": command, "tokens": arguments.tokens,
                                               "lora_rank": arguments.lora_rank, **machine, "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
