#!/usr/bin/env python3
"""Calibrates a GPU, runs jobs of real width under budgets, and stores what was planned beside what happened.

  tools/measure_budgets.py --out bench/results/budgets-h200.json                    ten blocks, every job
  tools/measure_budgets.py --jobs long-8,short-2 --folder /tmp/budgets --out r.json

Needs a built program, Python with numpy, 5 GiB of disk. tools/tables.py puts the result into docs/hardware.md. Exits with 1
when a run failed, two runs of one clip differ, or a budget was exceeded by what the driver reports.
"""

import argparse
import hashlib
import json
import os
import pathlib
import subprocess
import sys
import time

ROOT = pathlib.Path(__file__).resolve().parent.parent
# text tokens, latent frames, height, width, audio steps: 702, 238 and 118 frames of 1376 x 768; 41 of 672 x 384
CLIPS = {"long": "1124,207,48,86,1170", "mid": "500,72,48,86,405", "short": "500,37,48,86,207", "tiny": "100,12,24,42,60"}
# name, clip, steps, arguments. The first of a clip is what the others are compared with.
RAM = "--ram 11GiB"
JOBS = [
    ("long-resident", "long", 1, "--schedule resident --q-chunk 16896 --kv-chunk 8448 --mlp-chunk 8448 --head-chunk 8448"),
    ("long-16", "long", 2, f"--vram 16GiB {RAM}"),
    ("long-8", "long", 1, f"--vram 8GiB {RAM}"),
    ("long-6", "long", 1, f"--vram 6GiB {RAM}"),
    ("long-4", "long", 1, f"--vram 4GiB {RAM}"),
    ("mid-free", "mid", 3, ""),
    ("mid-3", "mid", 3, "--vram 3GiB"),
    ("short-free", "short", 3, ""),
    ("short-2", "short", 3, "--vram 2GiB"),
    ("tiny-free", "tiny", 8, ""),
    ("tiny-1.7", "tiny", 8, "--vram 1700MiB"),
]


def run(command, **options):
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, **options).stdout


def row_of(name, clip, steps, arguments, report, digest):
    memory, seen = report["memory"], report["seen"]
    return {"job": name, "clip": CLIPS[clip], "steps": steps, "arguments": arguments, "tokens": report["tokens"], "plan": report["plan"],
            "planned_seconds": report["planned_seconds"], "seconds": report["seconds"],
            "planned_seconds_per_step": report["planned_seconds_per_step"], "seconds_per_step": report["seconds_per_step"],
            "memory": {space: {key: memory[space][key] for key in ("budget_bytes", "planned_bytes", "peak_bytes") if key in memory[space]}
                       for space in ("device", "pinned", "host")},
            "seen": seen, "planned_traffic_bytes": report["planned_traffic_bytes"],
            "traffic_bytes": sum(report["traffic_per_step"][way] for way in ("to_device_bytes", "from_device_bytes")),
            "output_sha256": digest}  # fmt: skip


def driver_bytes(row):
    """What the driver reports for this process, or for the card where it does not say; on a CPU what is booked."""
    seen = row["seen"]
    return seen.get("device_bytes") or seen.get("device_used_bytes") or row["memory"]["device"]["peak_bytes"]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--h3stream", default=str(ROOT / "build/cuda/cli/h3stream"), help="program (default %(default)s)")
    parser.add_argument("--device", default="cuda:0", help="default %(default)s")
    parser.add_argument("--layers", type=int, default=10, help="blocks of real width (default %(default)s)")
    parser.add_argument("--jobs", default=",".join(job[0] for job in JOBS), help="comma list (default: all)")
    parser.add_argument("--folder", default=str(ROOT / "out/budgets"), help="for the checkpoint and outputs (default %(default)s)")
    parser.add_argument("--commit", default="", help="of the program (default: of this checkout)")
    parser.add_argument("--out", required=True, help="JSON to write; written again after every job")
    args = parser.parse_args()
    chosen = args.jobs.split(",")
    unknown = set(chosen) - {job[0] for job in JOBS}
    if unknown:
        parser.error(f"no such job: {', '.join(sorted(unknown))}; there are {', '.join(job[0] for job in JOBS)}")
    folder = pathlib.Path(args.folder)
    folder.mkdir(parents=True, exist_ok=True)
    calibration, model = folder / "calibration.json", folder / f"model{args.layers}.safetensors"
    run([args.h3stream, "calibrate", "--device", args.device, "--out", str(calibration)])
    if not model.exists():
        run([args.h3stream, "synth", "--preset", "real", "--layers", str(args.layers), "--format", "int8", "--threads",
             str(os.cpu_count()), "-o", str(model)], stderr=subprocess.DEVNULL)  # fmt: skip
    commit = args.commit or run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT).strip()
    result = {"command": f"tools/measure_budgets.py --layers {args.layers} --jobs {args.jobs}", "commit": commit, "layers": args.layers,
              "calibration": json.loads(calibration.read_text()), "rows": []}  # fmt: skip
    first, failed = {}, False
    for name, clip, steps, arguments in JOBS:
        if name not in chosen:
            continue
        inputs, output = folder / f"{clip}.safetensors", folder / f"{name}.out.safetensors"
        if not inputs.exists():
            run([sys.executable, str(ROOT / "tools/make_inputs.py"), "--synthetic", CLIPS[clip], "--text-dim", "5120", "--seed", "1",
                 "-o", str(inputs)])  # fmt: skip
        begin = time.time()
        done = subprocess.run([args.h3stream, "run", "--device", args.device, "--calibration", str(calibration), "-m", str(model), "-i",
                               str(inputs), "-o", str(output), "--steps", str(steps), "--seed", "42", "--json", *arguments.split()],
                              capture_output=True, text=True)  # fmt: skip
        if done.returncode != 0:
            failed = True
            print(f"{name}: {done.stderr.strip().splitlines()[-1:]}", flush=True)
            continue
        report = json.loads(done.stdout)
        row = row_of(name, clip, steps, arguments, report, hashlib.sha256(output.read_bytes()).hexdigest())
        result["device"] = report["device"]
        result["rows"].append(row)
        pathlib.Path(args.out).write_text(json.dumps(result, indent=1) + "\n")
        equal = first.setdefault(clip, row["output_sha256"]) == row["output_sha256"]
        budget = row["memory"]["device"].get("budget_bytes")
        within = budget is None or driver_bytes(row) <= budget
        failed |= not (equal and within)
        print(f"{name}: {row['tokens']:,} tokens, {row['plan']}: planned {row['planned_seconds']:.3f} s, took {row['seconds']:.3f} s "
              f"({row['planned_seconds'] / row['seconds'] - 1:+.1%}), {row['seconds_per_step']:.3f} s/step, driver "
              f"{driver_bytes(row) / 2**30:.3f} GiB{'' if within else ' OVER BUDGET'}, {row['traffic_bytes'] / 1e9:.1f} GB/step"
              f"{'' if equal else ', BITS DIFFER'} [{time.time() - begin:.0f} s]", flush=True)  # fmt: skip
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
