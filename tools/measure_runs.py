#!/usr/bin/env python3
"""Measures the runs of the README's table on this machine and stores them in bench/results/runs-cpu.json.

Each job runs under several budgets or plans; "equal" compares the output files byte for byte with the job's first.
tools/tables.py puts them into the README. Needs the built program.
"""

import filecmp
import json
import os
import pathlib
import platform
import shlex
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
PROGRAM = "build/cpu/cli/h3stream"
RESULT = ROOT / "bench/results/runs-cpu.json"
FOLDER = "out/runs"

# name, synth arguments, inputs (text, latent t, h, w, audio steps), text width, steps, plans
JOBS = [
    ("small: 8 blocks, hidden 1024, int8", "--preset small --format int8", "40,12,24,42,67", 1024, 2,
     ["", "--vram 24MiB", "--vram 12MiB --ram 32MiB"]),
    ("real width: 2 blocks, hidden 5376, int8", "--preset real --layers 2 --refiner-layers 1 --format int8",
     "64,7,48,86,97", 5120, 1, ["", "--vram 512MiB", "--vram 160MiB"]),
]


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def measure(job):
    name, synth, sizes, text_dim, steps, plans = job
    model, inputs = f"{FOLDER}/model.safetensors", f"{FOLDER}/inputs.safetensors"
    subprocess.run([PROGRAM, "synth", *shlex.split(synth), "-o", model], check=True, cwd=ROOT)
    subprocess.run([sys.executable, "tools/make_inputs.py", "--synthetic", sizes, "--text-dim", str(text_dim),
                    "--seed", "1", "-o", inputs], check=True, cwd=ROOT)
    first = None
    for i, plan in enumerate(plans):
        output = f"{FOLDER}/out{i}.safetensors"
        command = f"{PROGRAM} run -m {model} -i {inputs} -o {output} --steps {steps} --seed 42 {plan}".strip()
        done = subprocess.run([*shlex.split(command), "--json"], check=True, cwd=ROOT, stdout=subprocess.PIPE)
        report = json.loads(done.stdout)
        first = first or output
        yield {"job": name, "tokens": report["tokens"], "budget": plan, "plan": report["plan"],
               "seconds_per_step": report["seconds_per_step"], "memory": report["memory"],
               "equal": filecmp.cmp(ROOT / first, ROOT / output, shallow=False), "synth": synth, "inputs": sizes,
               "command": command}


def main():
    (ROOT / FOLDER).mkdir(parents=True, exist_ok=True)
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, stdout=subprocess.PIPE, text=True)
    result = {"machine": f"{processor()}, {len(os.sched_getaffinity(0))} cores", "commit": commit.stdout.strip(),
              "command": "tools/measure_runs.py", "rows": [row for job in JOBS for row in measure(job)]}
    RESULT.parent.mkdir(parents=True, exist_ok=True)
    RESULT.write_text(json.dumps(result, indent=1) + "\n")


if __name__ == "__main__":
    main()
