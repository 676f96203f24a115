#!/usr/bin/env python3
"""Measures how long a block of real width takes to load with a LoRA merged into its four large layers.

Writes bench/results/merge-cpu.json; tools/tables.py puts it into docs/lora.md. Needs the built program and 2 GB of
disk; nothing else should be running.
"""

import json
import os
import pathlib
import random
import struct
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent
FOLDER = ROOT / "out/merge"
RESULT = ROOT / "bench/results/merge-cpu.json"
FORMATS = ["bf16", "int8", "float8_e4m3fn", "mxfp8", "nvfp4", "convrot_w4a4", "asym_w4a8_int8"]
LAYERS = {"attn.qkv_proj": (21504, 5376), "attn.out_proj": (5376, 7168), "mlp.fc1": (28672, 5376), "mlp.fc2": (5376, 14336)}


def bf16(count, source):
    """Numbers of magnitude 2^-7 to 2^-6 of either sign."""
    data = bytearray(2 * count)
    data[0::2] = source.randbytes(count)
    data[1::2] = source.randbytes(count).translate(bytes([0x3C] * 128 + [0xBC] * 128))
    return bytes(data)


def write_lora(path, rank):
    source, header, blobs, at = random.Random(1), {}, [], 0
    for layer, (n, k) in LAYERS.items():
        for part, shape in (("lora_A", [rank, k]), ("lora_B", [n, rank])):
            blobs.append(bf16(shape[0] * shape[1], source))
            header[f"diffusion_model.blocks.0.{layer}.{part}.weight"] = {
                "dtype": "BF16", "shape": shape, "data_offsets": [at, at + len(blobs[-1])]}
            at += len(blobs[-1])
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def processor():
    lines = pathlib.Path("/proc/cpuinfo").read_text().splitlines()
    return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))


def main():
    FOLDER.mkdir(parents=True, exist_ok=True)
    loras = {rank: FOLDER / f"rank{rank}.safetensors" for rank in (16, 128)}
    for rank, path in loras.items():
        write_lora(path, rank)
    rows = []
    for name in FORMATS:
        model = FOLDER / "model.safetensors"
        subprocess.run([ROOT / "build/cpu/cli/h3stream", "synth", "--preset", "real", "--layers", "1", "--refiner-layers", "1",
                        "--format", name, "-o", model], check=True)
        for rank, path in loras.items():
            done = subprocess.run([ROOT / "build/cpu/bench/merge_bench", model, path], check=True, stdout=subprocess.PIPE)
            rows.append({"rank": rank, **json.loads(done.stdout)})
            print(rows[-1], flush=True)
        model.unlink()
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], check=True, cwd=ROOT, stdout=subprocess.PIPE, text=True)
    result = {"command": "tools/measure_merge.py", "machine": f"{processor()}, {os.cpu_count()} cores",
              "commit": commit.stdout.strip(), "rows": rows}
    RESULT.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
