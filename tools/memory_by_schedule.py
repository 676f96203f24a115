#!/usr/bin/env python3
"""Peak bytes by schedule and length, as runs measure them: one step of a synthetic network per row.

Writes bench/results/memory-by-schedule.json; tools/tables.py puts it into docs/memory.md. Needs the built program and
out/quickstart/model.safetensors (tools/quickstart makes both).
"""

import json
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = ROOT / "build/cpu/cli/h3stream"
MODEL = ROOT / "out/quickstart/model.safetensors"
RESULT = ROOT / "bench/results/memory-by-schedule.json"
CHUNKS = ["--q-chunk", "256", "--kv-chunk", "256", "--mlp-chunk", "256", "--head-chunk", "256"]
SCHEDULES = [("resident", []), ("head-groups", ["--head-group", "2"]), ("flat", ["--head-group", "2"])]
LATENT_FRAMES = [4, 8, 16, 32]


def run(frames, schedule, arguments, folder):
    inputs = folder / f"inputs-{frames}.safetensors"
    subprocess.run([sys.executable, ROOT / "tools/make_inputs.py", "--synthetic", f"40,{frames},24,42,67",
                    "--text-dim", "1024", "--seed", "1", "-o", inputs], check=True)
    command = [PROGRAM, "run", "-m", MODEL, "-i", inputs, "-o", folder / "memory.safetensors", "--steps", "1",
               "--schedule", schedule, *arguments, *CHUNKS, "--json"]
    report = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL).stdout)
    return {"tokens": report["tokens"], "schedule": schedule, "plan": report["plan"],
            **{f"{space}_{key}": report["memory"][space][f"{key}_bytes"]
               for space in ("device", "pinned", "host") for key in ("planned", "peak")}}


def main():
    folder = ROOT / "out/memory"
    folder.mkdir(parents=True, exist_ok=True)
    rows = [run(frames, schedule, arguments, folder) for schedule, arguments in SCHEDULES for frames in LATENT_FRAMES]
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps({"command": "tools/memory_by_schedule.py", "rows": rows}, indent=1) + "\n")


if __name__ == "__main__":
    main()
