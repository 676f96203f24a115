#!/usr/bin/env python3
"""Puts the tables of stored results into the documents: no figure is typed. Needs the built program.

  tools/tables.py            rewrites what lies between the markers `<!-- NAME -->` and `<!-- end NAME -->`
  tools/tables.py --check    fails when a document does not hold what bench/results says
"""

import argparse
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent
RESULTS = ROOT / "bench/results"


def size(count):
    return f"{count / 2**20:,.0f} MiB" if count < 2**30 else f"{count / 2**30:,.2f} GiB"


def markdown(header, rows):
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)


def runs():
    result = json.loads((RESULTS / "runs-cpu.json").read_text())
    rows = []
    for row in result["rows"]:
        memory = row["memory"]
        host = memory["pinned"]["peak_bytes"] + memory["host"]["peak_bytes"]
        rows.append([row["job"], f"{row['tokens']:,}", row["budget"] or "none", row["plan"].split(" head=")[0],
                     size(memory["device"]["peak_bytes"]), size(host), f"{row['seconds_per_step']:.1f}",
                     "yes" if row["equal"] else "NO"])
    note = f"Measured on {result['machine']} at {result['commit']} by `{result['command']}`; equal: byte for byte to the first row."
    return markdown(["clip", "tokens", "budget", "plan chosen", "device peak", "host peak", "s/step", "equal?"],
                    rows) + "\n\n" + note


def memory():
    rows, previous = [], None
    for row in json.loads((RESULTS / "memory-by-schedule.json").read_text())["rows"]:
        growth = "-"
        if previous and previous["schedule"] == row["schedule"]:
            growth = f"{(row['device_peak'] - previous['device_peak']) / (row['tokens'] - previous['tokens']):,.1f}"
        rows.append([row["schedule"], *(f"{row[key]:,}" for key in ("tokens", "device_peak", "pinned_peak", "host_peak")),
                     growth])
        previous = row
    return markdown(["schedule", "tokens", "device peak, B", "pinned peak, B", "host peak, B", "device B a token more"],
                    rows)


def bench(name):
    """The program prints its own results."""
    command = [ROOT / "build/cpu/cli/h3stream", "bench", "--show", RESULTS / name]
    return lambda: subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout.strip()


def times(value, peer):
    return f"{value[peer]:.2f}" if peer in value else "-"


def measured(result):
    """Device, clocks and command below a table."""
    before, after = result["gpu_before"], result["gpu_after"]
    clocks = f"SM clock {after['clocks.sm']} and {after['power.draw']} at its end" if "clocks.sm" in after else after["missing"]
    return (f"{result['device']}, driver {before.get('driver_version', 'unknown')}, {clocks}; torch {result['torch']}, cuDNN {result['cudnn']}, "
            f"comfy-kitchen {result['comfy_kitchen']}; commit {result['commit']}; `{result['command']}`.")


def attention_h200():
    results = [json.loads((RESULTS / f"peers-{tokens}-h200.json").read_text()) for tokens in (28931, 217088)]
    rows = [[f"{t['tokens']:,}", t["subject"], f"{t['median_ms']:,.1f}", t["runs"], f"{t['rate']:.0f}",
             *(times(t, peer) for peer in ("x_cudnn", "x_flash", "x_comfy"))]
            for result in results for t in result["timings"] if "tokens" in t]
    head = ["tokens", "kernel", "ms", "calls", "TOP/s", "x cuDNN", "x flash", "x comfy int8"]
    return "\n\n".join([markdown(head, rows), *map(measured, results)])


def linear_h200():
    result = json.loads((RESULTS / "peers-28931-h200.json").read_text())
    rows = [[t["case"], t["subject"], f"{t['median_ms']:.3f}", f"{t['rate']:,.0f} {t['unit']}",
             *(times(t, peer) for peer in ("x_int_mm", "x_comfy", "x_cublas"))]
            for t in result["timings"] if "tokens" not in t]
    return markdown(["case", "kernel", "ms", "rate", "x _int_mm", "x comfy", "x cuBLAS"], rows)


def linear_add_h200():
    result = json.loads((RESULTS / "linear-add-h200.json").read_text())
    rows = [[f"N {r['n']:,} rank {r['k']}", f"{r['linear_mma_ms']:.3f}", f"{r['linear_add_ms']:.3f}",
             f"{100 * r['copy_ms'] / r['linear_add_ms']:.0f} %"] for r in result["rows"]]
    return markdown(["y [16384, N] +=", "linear_mma, ms", "linear_add, ms", "of the copy rate"], rows) + (
        f"\n\n{result['device']}, commit {result['commit']}; {result['method']}.")


def device_rows(group):
    """Rows of a group of `h3stream bench` on the GPU, with the share of its copy."""
    def render():
        result = json.loads((RESULTS / "bench-h200.json").read_text())
        rows = [[r["name"], r["shape"], f"{r['median_ms']:.3f}", f"{r['rate']:,.0f} {r['unit']}", f"{100 * r['ratio']:.0f} %"]
                for r in result["rows"] if r["group"] == group]
        state = result["gpu_after"]
        note = f"{result['device']}, driver {state.get('driver', 'unknown')}; commit {result['commit']}; `{result['command']}`."
        return markdown(["op", "shape", "ms", "rate", "of the copy rate"], rows) + "\n\n" + note
    return render


def block_h200():
    short, long = (json.loads((RESULTS / f"{name}-h200.json").read_text()) for name in ("bench", "block-217088"))
    by_name = [{r["name"]: r for r in result["rows"] if r["group"] == "block"} for result in (short, long)]

    def cells(row):
        if row["unit"] == "%":
            return [f"{row['rate']:.1f} %", ""]
        work = f", {row['gops'] / 1e3:,.0f} TOP/s" if "gops" in row else ""
        return [f"{row['rate']:,.2f} ms", f"{100 * row['share']:.1f} %{work}"]

    rows = [[name, *cells(row), *cells(by_name[1][name])] for name, row in by_name[0].items()]
    tokens = [next(iter(x.values()))["shape"].removeprefix("tokens ") for x in by_name]
    heads = [x for n in tokens for x in (f"{int(n):,} tokens", "share")]
    note = "; ".join(f"`{x['command']}` at {x['commit']}, {n['total']['plan']}" for x, n in zip((short, long), by_name))
    return markdown(["part", *heads], rows) + "\n\n" + note + "."


def blocks_h200():
    rows = json.loads((RESULTS / "fifty-blocks-h200.json").read_text())["rows"]
    resident = rows[0]["seconds_per_step"]
    return markdown(["plan", "tokens", "s/step of 50 blocks", "x resident", "device peak", "pinned peak", "output equal"],
                    [[row["plan"], f"{row['tokens']:,}", f"{row['seconds_per_step']:.1f}",
                      f"{row['seconds_per_step'] / resident:.3f}",
                      size(row["peak_device_bytes"]),
                      size(row["peak_pinned_bytes"]),
                      "yes" if row["output_sha256"] == rows[0]["output_sha256"] else "no"] for row in rows])


def budgets_h200():
    result = json.loads((RESULTS / "budgets-h200.json").read_text())
    rows, first = [], {}
    for row in result["rows"]:
        memory, seen = row["memory"], row["seen"]
        base = first.setdefault(row["clip"], row)
        driver = seen.get("device_bytes") or seen["device_used_bytes"]
        resident = seen["anonymous_bytes"] + memory["pinned"]["peak_bytes"]
        rows.append([f"{row['tokens']:,}", budget_of(row["arguments"]), row["plan"].split(" q=")[0], size(memory["device"]["planned_bytes"]), size(driver),
                     size(resident), f"{row['traffic_bytes'] / 1e9:,.1f}", f"{row['seconds_per_step']:.3f}",
                     f"{row['seconds_per_step'] / base['seconds_per_step']:.3f}", row["steps"],
                     f"{row['planned_seconds']:.2f}", f"{row['seconds']:.2f}", f"{100 * (row['planned_seconds'] / row['seconds'] - 1):+.1f} %",
                     "yes" if row["output_sha256"] == base["output_sha256"] else "NO"])
    commits = sorted({row["commit"] for row in result["rows"]}) if "commit" in result["rows"][0] else [result["commit"]]
    note = f"{result['device']}, {result['layers']} blocks of real width, int8; `{result['command']}` at {', '.join(commits)}."
    return markdown(["tokens", "budget", "schedule", "device planned", "driver's peak", "RSS + pinned", "GB a step", "s/step", "x first",
                     "steps", "planned, s", "took, s", "error", "equal"], rows) + "\n\n" + note


def million_h200():
    result = json.loads((RESULTS / "million-h200.json").read_text())
    rows = []
    for job in result["jobs"]:
        memory, check, blocks = job["memory"], job["check"], [block["seconds"] for block in job["blocks"]]
        pull, alone = check["pull_of_leaving_out_an_eighth_of_the_keys"], job["attention_alone_seconds_per_block"]
        rows.append([f"{job['tokens']:,}", job["plan"].split(" q=")[0], size(memory["device"]["planned_bytes"]), size(job["seen"]["device_bytes"]),
                     size(memory["pinned"]["peak_bytes"]), f"{(job['to_device_bytes'] + job['from_device_bytes']) / 1e9:,.1f}",
                     f"{job['planned_seconds_per_step']:.2f}", f"{job['seconds_per_step']:.2f}", ", ".join(f"{s:.2f}" for s in blocks), f"{alone:.2f}",
                     f"{max(blocks) / alone:.3f}", f"{100 * check['error']['worst']:.2f} % of {100 * check['bound']:.2f} %",
                     f"{pull['value']:+.3f} ± {pull['standard_error']:.3f}"])
    short = result["short_job"]
    note = (f"{result['device']}, {result['blocks_of_the_model']} blocks of real width, int8, at {result['commit']}; bound: twice the worst row of "
            f"{short['tokens']} recomputed in full, {100 * short['error']['worst']:.2f} %; `{result['command']}`.")
    return markdown(["tokens", "schedule", "device planned", "driver's peak", "pinned", "GB a step", "s/step planned", "s/step", "s of each block",
                     "attention alone, s/block", "worst block / attention", "worst row's error", "pull of missing keys"], rows) + "\n\n" + note


def formats_h200():
    result = json.loads((RESULTS / "formats-h200.json").read_text())
    base = result["rows"][0]["base"]["block_ms"]
    rows = [[row["format"], f"{row['checkpoint_bytes'] / 1e9:.1f}", f"{row['base']['linears_tops']:,.0f}", f"{row['base']['block_ms']:.1f}",
             f"{row['base']['block_ms'] / base:.2f}", f"{row['lora']['linears_tops']:,.0f}", f"{row['lora']['block_ms']:.1f}",
             f"{row['lora']['block_ms'] / row['base']['block_ms']:.2f}"] for row in result["rows"]]
    head = ["format", "checkpoint, GB", "linears, TOP/s", "a block, ms", "x int8", "linears with LoRA, TOP/s", "a block, ms", "x without"]
    state = result["gpu_after"]
    return markdown(head, rows) + (f"\n\n{result['device']}, driver {state.get('driver', 'unknown')}, {result['tokens']:,} tokens, "
                                   f"LoRA of rank {result['lora_rank']}; commit {result['commit']}; `{result['command']}`.")


def w4a8_steps_h200():
    result = json.loads((RESULTS / "w4a8-steps-h200.json").read_text())
    base = result["rows"][0]["step_seconds"]
    rows = [[row["format"], f"{row['step_seconds']:.3f}", f"{row['step_seconds'] / base:.3f}"] for row in result["rows"]]
    return markdown(["format", "a step of two streamed blocks, s", "x int8"], rows) + (
        f"\n\n{result['device']}, {result['tokens']:,} tokens; commit {result['commit']}; `{result['command']}`, {result['note']}.")


def merge():
    result = json.loads((RESULTS / "merge-cpu.json").read_text())
    by_format = {}
    for row in result["rows"]:
        by_format.setdefault(row["format"], {})[row["rank"]] = row
    rows = [[name, f"{ranks[128]['load_seconds']:.2f}", *(f"{ranks[rank]['merged_load_seconds']:.2f}" for rank in (16, 128)),
             f"{ranks[128]['product_operations'] / ranks[128]['peak_operations_per_second']:.2f}",
             size(ranks[128]["merge_memory_bytes"])] for name, ranks in by_format.items()]
    note = f"Seconds, {result['machine']}, at {result['commit']} by `{result['command']}`."
    return markdown(["format", "without LoRA", "rank 16", "rank 128", "its products at the machine's peak", "booked for 16 threads"],
                    rows) + "\n\n" + note


def budget_of(arguments):
    words = arguments.split()
    return words[words.index("--vram") + 1] if "--vram" in words else "none, resident" if "resident" in words else "none"


TABLES = [("README.md", "runs", runs), ("docs/memory.md", "memory", memory), ("docs/lora.md", "merge", merge),
          ("docs/hardware.md", "attention-h200", attention_h200), ("docs/hardware.md", "linear-h200", linear_h200),
          ("docs/hardware.md", "rows-h200", device_rows("rows")), ("docs/hardware.md", "block-h200", block_h200),
          ("docs/hardware.md", "blocks-h200", blocks_h200), ("docs/hardware.md", "budgets-h200", budgets_h200),
          ("docs/hardware.md", "million-h200", million_h200),
          ("docs/hardware.md", "linear-add-h200", linear_add_h200),
          ("docs/weight-formats.md", "formats-h200", formats_h200),
          ("docs/weight-formats.md", "w4a8-steps-h200", w4a8_steps_h200),
          ("docs/cpu-backend.md", "bench-1core", bench("cpu-zen5-1core.json")),
          ("docs/cpu-backend.md", "bench-1core-haswell", bench("cpu-zen5-1core-openblas-haswell.json")),
          ("docs/cpu-backend.md", "bench-2core", bench("cpu-zen5-2core.json"))]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="change nothing, fail on a difference")
    check = parser.parse_args().check
    for document, name, render in TABLES:
        path = ROOT / document
        text = path.read_text()
        pattern = re.compile(rf"(<!-- {name} -->\n).*?(<!-- end {name} -->)", re.DOTALL)
        if not pattern.search(text):
            sys.exit(f"tables: {document} has no markers for \"{name}\"")
        updated = pattern.sub(lambda m: m[1] + render() + "\n" + m[2], text)
        if check and updated != text:
            sys.exit(f"tables: {document} does not hold what bench/results says; run tools/tables.py")
        if not check:
            path.write_text(updated)


if __name__ == "__main__":
    main()
