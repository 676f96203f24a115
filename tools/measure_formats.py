#!/usr/bin/env python3
"""One block of real width in every weight format on a GPU, with and without a LoRA, its weights on the device or streamed.

  tools/measure_formats.py --out bench/results/formats-h200.json

Each format gets a synthetic checkpoint of two blocks; a step of the two is timed at 28,931 tokens, int8 and asym_w4a8_int8 also at
217,088. Outputs of one format must be equal whatever the placement. Needs a built program and 20 GiB of disk.
tools/tables.py puts the result into docs/weight-formats.md. Exits with 1 when a run failed or bits differ.
"""

import argparse
import concurrent.futures
import hashlib
import json
import os
import pathlib
import random
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
FORMATS = ["bf16", "int8", "asym_w4a8_int8", "convrot_w4a4", "float8_e4m3fn", "float8_e5m2", "mxfp8", "nvfp4"]
LAYERS, RANK = 2, 128
SHAPES = {"attn.qkv_proj": (21504, 5376), "attn.out_proj": (5376, 7168), "mlp.fc1": (28672, 5376), "mlp.fc2": (5376, 14336)}
CLIPS = {"short": "499,27,48,86,284", "long": "1124,207,48,86,1170"}  # 28,931 and 217,088 tokens
PLACES = {"on the device": f"--schedule resident --resident-blocks {LAYERS}", "streamed": "--schedule resident --resident-blocks 0 --weight-slots 2"}
CHUNKS = {"short": "--q-chunk 16384 --kv-chunk 8192 --mlp-chunk 8192 --head-chunk 8192",
          "long": "--q-chunk 16896 --kv-chunk 8448 --mlp-chunk 8448 --head-chunk 8448"}  # fmt: skip


def random_bf16(random, count, exponent):
    """`count` numbers of both signs, their magnitudes spread over 2^exponent to 2^(exponent + 2)."""
    high = (exponent + 127) >> 1  # of sign, eight exponent bits (the last one in the low byte), seven of the mantissa
    data = bytearray(2 * count)
    data[0::2] = random.randbytes(count)
    data[1::2] = random.randbytes(count).translate(bytes(high | (i & 0x80) for i in range(256)))
    return bytes(data)


def write_lora(path):
    """A safetensors file with A and B of every linear of the blocks, bf16, random, of a size that matters."""
    header, tensors, offset, rng = {}, [], 0, random.Random(1)
    for block in range(LAYERS):
        for layer, (n, k) in SHAPES.items():
            for name, shape in (("lora_A", (RANK, k)), ("lora_B", (n, RANK))):
                tensors.append(random_bf16(rng, shape[0] * shape[1], -7))
                header[f"diffusion_model.blocks.{block}.{layer}.{name}.weight"] = {
                    "dtype": "BF16", "shape": list(shape), "data_offsets": [offset, offset + len(tensors[-1])]}  # fmt: skip
                offset += len(tensors[-1])
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + b"".join(tensors))


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--h3stream", default=str(ROOT / "build/cuda/cli/h3stream"), help="program (default %(default)s)")
    parser.add_argument("--device", default="cuda:0", help="default %(default)s")
    parser.add_argument("--formats", default=",".join(FORMATS), help="comma list (default: all)")
    parser.add_argument("--folder", default=str(ROOT / "out/formats"), help="for checkpoints and outputs (default %(default)s)")
    parser.add_argument("--commit", default="", help="of the program (default: of this checkout)")
    parser.add_argument("--synth-jobs", type=int, default=4, help="checkpoints made at a time (default %(default)s)")
    parser.add_argument("--out", required=True, help="JSON to write; written again after every run")
    args = parser.parse_args()
    folder = pathlib.Path(args.folder)
    folder.mkdir(parents=True, exist_ok=True)
    formats = args.formats.split(",")

    def synth(name):
        model = folder / f"{name}.safetensors"
        threads = str(max(1, os.cpu_count() // args.synth_jobs))
        if not model.exists():
            subprocess.run([args.h3stream, "synth", "--preset", "real", "--layers", str(LAYERS), "--refiner-layers", "1", "--format", name,
                            "--threads", threads, "-o", str(model)], check=True, capture_output=True)  # fmt: skip
        return model

    with concurrent.futures.ThreadPoolExecutor(args.synth_jobs) as pool:
        models = dict(zip(formats, pool.map(synth, formats)))
    for clip, sizes in CLIPS.items():
        subprocess.run([sys.executable, str(ROOT / "tools/make_inputs.py"), "--synthetic", sizes, "--text-dim", "5120", "--seed", "1", "-o",
                        str(folder / f"{clip}.safetensors")], check=True)  # fmt: skip
    write_lora(folder / "lora.safetensors")
    commit = args.commit or subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    result = {"command": f"tools/measure_formats.py --formats {args.formats}", "commit": commit, "layers": LAYERS, "lora_rank": RANK, "rows": []}
    digests, failed = {}, False

    def measure(name, clip, place, lora, steps):
        nonlocal failed
        output = folder / "output.safetensors"
        output.unlink(missing_ok=True)
        command = [args.h3stream, "run", "--device", args.device, "-m", str(models[name]), "-i", str(folder / f"{clip}.safetensors"), "-o",
                   str(output), "--steps", str(steps), "--seed", "42", "--json", *PLACES[place].split(), *CHUNKS[clip].split()]  # fmt: skip
        done = subprocess.run(command + (["--lora", str(folder / "lora.safetensors")] if lora else []), capture_output=True, text=True)
        if done.returncode != 0:
            failed = True
            print(f"{name}, {clip}, {place}, lora {lora}: {done.stderr.strip().splitlines()[-1:]}", flush=True)
            return
        report = json.loads(done.stdout)
        digest = hashlib.sha256(output.read_bytes()).hexdigest()
        equal = digests.setdefault((name, clip, lora), digest) == digest
        failed |= not equal
        memory = report["memory"]
        weights = sum(h["bytes"] for h in memory["device"]["holders"] if "weights" in h["what"])
        result["device"] = report["device"]
        result["rows"].append({"format": name, "tokens": report["tokens"], "place": place, "lora": lora, "steps": steps, "equal": equal,
                               "file_bytes": models[name].stat().st_size, "weight_bytes_on_device": weights,
                               "device_peak_bytes": memory["device"]["peak_bytes"], "seconds_per_step": report["seconds_per_step"]})  # fmt: skip
        pathlib.Path(args.out).write_text(json.dumps(result, indent=1) + "\n")
        print(f"{name}, {report['tokens']:,} tokens, {place}, lora {lora}: {report['seconds_per_step']:.3f} s a step of {LAYERS} blocks"
              f"{'' if equal else ', BITS DIFFER'}", flush=True)  # fmt: skip

    for name in formats:
        for place in PLACES:
            measure(name, "short", place, lora=False, steps=4)
        measure(name, "short", "on the device", lora=True, steps=4)
    for name in ("int8", "asym_w4a8_int8"):
        if name in formats:
            measure(name, "long", "streamed", lora=False, steps=2)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
