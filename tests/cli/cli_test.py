"""The h3stream program from outside: plans, shapes, settings, help, and what it refuses.

`run` under kill, interrupt and full disks: tests/sample/run_command_test.cc.
"""

import json
import os
import pathlib
import resource
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

PROGRAM = os.environ["H3STREAM"]
SOURCE = pathlib.Path(os.environ["H3S_SOURCE_DIR"])
GOLDEN = pathlib.Path(os.environ["H3S_GOLDEN_DIR"])
BAD_INPUT, OVER_BUDGET, IO_ERROR = 2, 3, 4

sys.path.insert(0, str(SOURCE / "tools"))


def h3stream(*arguments, **options):
    for stream in ("stdout", "stderr"):
        options.setdefault(stream, subprocess.PIPE)
    return subprocess.run([PROGRAM, *map(str, arguments)], text=True, errors="replace", timeout=300, **options)


def h3stream_closing(redirections, *arguments):
    """Under a shell's redirections, for instance "2>&-"."""
    return subprocess.run(["sh", "-c", f'exec "$@" {redirections}', "sh", PROGRAM, *map(str, arguments)],
                          timeout=300).returncode


def broken_pipe():
    """A pipe's write end whose reader has left."""
    reader, writer = os.pipe()
    os.close(reader)
    return writer


def read_header(path):
    data = pathlib.Path(path).read_bytes()
    size = struct.unpack("<Q", data[:8])[0]
    return json.loads(data[8:8 + size]), data[8 + size:]


def write_file(path, header, data):
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    pathlib.Path(path).write_bytes(struct.pack("<Q", len(text)) + text + data)


class Program(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="h3s-cli-"))
        cls.model = cls.folder / "model.safetensors"
        cls.inputs = cls.folder / "inputs.safetensors"
        assert h3stream("synth", "--preset", "tiny", "--format", "int8", "-o", cls.model).returncode == 0
        cls.make_inputs("11,5,6,10,13", cls.inputs)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    @classmethod
    def make_inputs(cls, sizes, path):
        subprocess.run([sys.executable, SOURCE / "tools/make_inputs.py", "--synthetic", sizes, "--text-dim", "128",
                        "--seed", "3", "-o", path], check=True)

    def run_args(self, output, *extra, inputs=None, model=None, steps=4, seed=42):
        return ["run", "-m", model or self.model, "-i", inputs or self.inputs, "-o", self.folder / output,
                "--seed", seed, "--steps", steps, *extra]

    def assert_refused(self, result, code, *words):
        """Exit code, and one line on stderr that holds every word."""
        self.assertEqual(result.returncode, code, result.stderr)
        lines = [line for line in result.stderr.splitlines() if line.startswith("h3stream: ")]
        self.assertEqual(len(lines), 1, result.stderr)
        for word in words:
            self.assertIn(str(word), lines[0])


class Loras(Program):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.hidden, cls.inner = read_header(cls.model)[0]["blocks.0.attn.out_proj.weight"]["shape"]

    def make_lora(self, name, module="diffusion_model.blocks.0.attn.out_proj", rank=2, extra=()):
        """Ones: every output gets the sum of its inputs, a hundredth of it."""
        tensors = [(f"{module}.lora_A.weight", [rank, self.inner], 1.0), (f"{module}.lora_B.weight", [self.hidden, rank], 0.01),
                   *extra]
        header, data = {}, b""
        for key, shape, value in tensors:
            count = 1
            for size in shape:
                count *= size
            header[key] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + 4 * count]}
            data += struct.pack("<f", value) * count
        path = self.folder / name
        write_file(path, header, data)
        return path

    def output(self, *extra):
        result = h3stream(*self.run_args("lora-out.safetensors", *extra, steps=1))
        self.assertEqual(result.returncode, 0, result.stderr)
        header, data = read_header(self.folder / "lora-out.safetensors")
        return data, header["__metadata__"], result.stderr

    def test_runs_say_what_was_applied_and_go_back_to_the_base(self):
        lora = self.make_lora("one.safetensors", extra=[("some.other", [1], 0.0)])
        base, _, _ = self.output()
        with_lora, metadata, said = self.output("--lora", lora)
        self.assertIn("1 of 2 applied, strength 1; not: some.other (no part of a LoRA that is known)", said)
        self.assertEqual(metadata["lora_mode"], "runtime")
        self.assertEqual(json.loads(metadata["loras"])[0]["strength"], 1)
        half, _, said = self.output("--lora", f"{lora}:0.5")
        self.assertIn("strength 0.5", said)
        merged, metadata, _ = self.output("--lora", lora, "--lora-mode", "merge")
        self.assertEqual(metadata["lora_mode"], "merge")
        zero, _, _ = self.output("--lora", lora, "--lora", f"{lora}:-1")
        self.assertEqual(len({base, with_lora, half, merged}), 4)
        self.assertEqual(self.output()[0], base)
        self.assertNotEqual(zero, with_lora)
        self.assertEqual(self.output("--lora", lora, "--schedule", "flat", "--head-group", "1", "--kv-chunk", "7")[0],
                         with_lora)

    def test_the_report_has_what_was_applied(self):
        lora = self.make_lora("one.safetensors", extra=[("some.other", [1], 0.0)])
        result = h3stream(*self.run_args("lora-out.safetensors", "--lora", f"{lora}:0.25", "--json", steps=1))
        self.assertEqual(json.loads(result.stdout)["loras"],
                         [{"path": str(lora), "strength": 0.25, "applied": 1, "total": 2,
                           "skipped": [{"key": "some.other", "reason": "no part of a LoRA that is known"}]}])

    def test_a_colon_in_a_name(self):
        lora = self.make_lora("a:b.safetensors")
        self.assertIn("strength 1", self.output("--lora", lora)[2])
        self.assertIn("strength -2", self.output("--lora", f"{lora}:-2")[2])
        number = self.make_lora("c:2")
        self.assertIn("strength 1", self.output("--lora", number)[2])
        self.assertIn("strength 3", self.output("--lora", f"{number}:+3")[2])

    def test_refusals(self):
        other = self.make_lora("other.safetensors", "diffusion_model.blocks.99.attn.out_proj")
        dora = self.make_lora("dora.safetensors", extra=[("diffusion_model.blocks.0.attn.out_proj.dora_scale", [1], 1.0)])
        good = self.make_lora("good.safetensors")
        for option, words in ((other, ["other.safetensors", "nothing of this LoRA applies"]),
                              (dora, ["dora.safetensors", "dora_scale", "DoRA"]), (self.folder / "none.safetensors", ["none.safetensors", "no such file"]),
                              *((f"{good}:{text}", [f"{good}:{text}: ", "finite number", f'got "{text}"'])
                                for text in ("1e99", "x", "", "nan", "-inf", "0.5x", " 1", "1,5"))):
            result = h3stream(*self.run_args("lora-out.safetensors", "--lora", option))
            self.assert_refused(result, IO_ERROR if "none" in str(option) else BAD_INPUT, "--lora ", *words)
        result = h3stream(*self.run_args("good.safetensors", "--lora", good))
        self.assert_refused(result, BAD_INPUT, "cannot be the output of a run that reads it")

    def test_plan_and_verify_take_them(self):
        lora = self.make_lora("planned.safetensors", rank=64)
        clip = ["plan", "-m", self.model, "--width", "64", "--height", "64", "--frames", "5", "--gpu", "cpu", "--json"]
        base, with_lora = (json.loads(h3stream(*clip, *extra).stdout) for extra in ([], ["--lora", lora]))
        self.assertNotEqual(base, with_lora)
        result = h3stream("verify", "--model", self.model, "--plans", "few", "--lora", lora)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("1 of 1 applied", result.stderr)
        self.assert_refused(h3stream("verify", "--golden", self.model, "--lora", lora), BAD_INPUT, "--lora needs --model")


class Runs(Program):
    def test_equal_files_under_every_plan(self):
        plans = [[], ["--schedule", "resident"], ["--schedule", "flat", "--head-group", "1", "--q-chunk", "63"],
                 ["--schedule", "head-groups", "--kv-chunk", "1"], ["--threads", "1"], ["--vram", "4MiB"],
                 ["--min-tokens", "5000", "--schedule", "flat"]]
        contents = set()
        for i, plan in enumerate(plans):
            result = h3stream(*self.run_args(f"plan{i}.safetensors", *plan))
            self.assertEqual(result.returncode, 0, result.stderr)
            contents.add((self.folder / f"plan{i}.safetensors").read_bytes())
        self.assertEqual(len(contents), 1)

    def test_smallest_shapes(self):
        for sizes in ("1,1,1,1,1", "3,1,5,7,1", "2,3,7,9,2"):
            path = self.folder / "odd.safetensors"
            self.make_inputs(sizes, path)
            result = h3stream(*self.run_args("odd-out.safetensors", inputs=path))
            self.assertEqual(result.returncode, 0, result.stderr)
            header, _ = read_header(self.folder / "odd-out.safetensors")
            self.assertEqual(header["video"]["shape"][2:], list(map(int, sizes.split(",")))[1:4])

    def test_schedulers_and_compute_types_differ(self):
        contents = set()
        for seed, extra in ((42, ["--scheduler", "beta"]), (42, ["--scheduler", "linear_quadratic"]),
                            (42, ["--compute", "fp32"]), (42, ["--shift-video", "6"]), (42, ["--shift-audio", "6"]),
                            (43, [])):
            result = h3stream(*self.run_args("variant.safetensors", *extra, seed=seed))
            self.assertEqual(result.returncode, 0, result.stderr)
            contents.add((self.folder / "variant.safetensors").read_bytes())
        self.assertEqual(len(contents), 6)

    def test_a_trace_has_every_buffer_and_its_peaks_are_the_reports(self):
        path = self.folder / "trace.json"
        result = h3stream(*self.run_args("traced.safetensors", "--schedule", "flat", "--head-group", "1", "--q-chunk",
                                         "64", "--kv-chunk", "64", "--mlp-chunk", "64", "--trace", path, "--json"))
        self.assertEqual(result.returncode, 0, result.stderr)
        report = json.loads(result.stdout)
        events = json.loads(path.read_text())["traceEvents"]
        times = [e["ts"] for e in events if e["ph"] in "bC"]
        self.assertEqual(times, sorted(times))
        for space in ("device", "pinned", "host"):
            live, peak = {}, 0
            for event in events:
                if event.get("cat") != space:
                    continue
                if event["ph"] == "e":
                    del live[event["id"]]
                    continue
                args = event["args"]
                begin = args["arena_offset"]
                if begin is not None:
                    end = begin + args["occupied_bytes"]
                    self.assertFalse([o for o in live.values() if o[0] is not None and o[0] < end and begin < o[1]],
                                     f"{event['name']} lies over another buffer")
                    live[event["id"]] = (begin, end)
                else:
                    live[event["id"]] = (None, args["occupied_bytes"])
                peak = max(peak, sum(end - (start or 0) for start, end in live.values()))
            self.assertEqual(live, {}, "never released")
            counters = [e["args"]["held"] for e in events if e["ph"] == "C" and e["name"] == f"{space} bytes"]
            self.assertEqual(max(counters), peak)
            self.assertEqual(report["memory"][space]["peak_bytes"], peak)
        spans = [e["name"] for e in events if e["ph"] == "X"]
        for op in ("attention", "linear_int8", "copy"):
            self.assertIn(op, spans)

    def test_what_the_kernel_sees_is_what_the_books_say(self):
        result = h3stream(*self.run_args("seen.safetensors", "--device", "cpu", "--json"))
        run = json.loads(result.stdout)
        seen, booked = run["seen"], sum(run["memory"][space]["peak_bytes"] for space in ("device", "pinned", "host"))
        slack = 32 << 20  # stacks, the C++ heap, pages the kernel has not counted yet
        self.assertGreaterEqual(seen["anonymous_bytes"], seen["program_bytes"])
        self.assertLessEqual(seen["anonymous_bytes"], seen["program_bytes"] + booked + slack)
        self.assertGreaterEqual(seen["anonymous_bytes"], booked / 2)  # the rest may never have been touched

    def test_traffic_is_what_the_schedule_moves(self):
        result = h3stream(*self.run_args("traffic.safetensors", "--schedule", "flat", "--head-group", "1", "--json"))
        report = json.loads(result.stdout)
        self.assertEqual(report["dials"], report["effective_dials"])
        lines = {line["what"]: line for line in report["traffic_per_step"]["of"]}
        # tiny: hidden 256, 2 heads, 3 blocks, bf16. O out and in once a block; x in once a group and once for the MLP,
        # out once; the embedding writes x, the heads read the two target segments.
        tokens, blocks, heads, hidden = report["tokens"], 3, 2, 256
        o, x = lines["O (attention output)"], lines["x (residual stream)"]
        self.assertEqual(o["from_device_bytes"], blocks * tokens * heads * 128 * 2)
        self.assertEqual(o["to_device_bytes"], o["from_device_bytes"])
        self.assertEqual(x["from_device_bytes"], (blocks + 1) * tokens * hidden * 2)
        text = 11
        self.assertEqual(x["to_device_bytes"], (blocks * (heads + 1) * tokens + tokens - text) * hidden * 2)
        self.assertEqual(report["traffic_per_step"]["to_device_bytes"],
                         sum(line["to_device_bytes"] for line in lines.values()))

    def test_help_has_units_and_defaults(self):
        text = h3stream("run", "--help").stdout
        for word in ("8GiB", "=simple", "=12", "=2048", "tokens"):
            self.assertIn(word, text)


class Dials(Program):
    def said(self, *extra):
        result = h3stream(*self.run_args("dials.safetensors", *extra, steps=1))
        self.assertEqual(result.returncode, 0, result.stderr)
        return result.stderr

    def test_those_that_do_nothing_are_told(self):
        for arguments, lines in (
                (["--schedule", "resident", "--project-ahead", "--head-group", "2", "--keep-projection-input"],
                 ["--project-ahead has no effect with --schedule resident", "--head-group has no effect with --schedule resident",
                  "--keep-projection-input has no effect with --schedule resident"]),
                (["--schedule", "head-groups", "--project-ahead"], ["--project-ahead has no effect with --schedule head-groups"]),
                (["--schedule", "flat", "--head-group", "99"], ["--head-group 99: the model has"]),
                (["--schedule", "flat", "--resident-blocks", "99"], ["--resident-blocks 99: the model has"]),
                (["--schedule", "flat", "--weight-slots", "2", "--device", "cpu"], ["--weight-slots has no effect on the CPU"])):
            said = self.said(*arguments)
            for line in lines:
                self.assertEqual(said.count(line), 1, said)
        for arguments in (["--schedule", "flat", "--project-ahead", "--head-group", "1", "--keep-projection-input"],
                          ["--schedule", "resident"], []):
            said = self.said(*arguments)
            self.assertNotIn("has no effect", said)
            self.assertNotIn("the model has", said)


class Refusals(Program):
    def test_resuming_nothing_says_what_to_do(self):
        self.assert_refused(h3stream(*self.run_args("nothing.safetensors", "--resume")), IO_ERROR, "nothing.state.safetensors",
                            "no state to resume from", "run without --resume")

    def test_a_given_schedule_is_refused_with_its_own_budgets(self):
        refused = h3stream(*self.run_args("refused.safetensors", "--schedule", "resident", "--vram", "1MiB"))
        self.assert_refused(refused, OVER_BUDGET, "the smallest budgets that work with --schedule resident: --vram ",
                            "without --schedule: --vram ")
        with_schedule, without = (int(part.split("--vram ", 1)[1].split(" ")[0]) for part in
                                  refused.stderr.split("without --schedule"))
        self.assertLess(without, with_schedule)
        smallest = [word for word in refused.stderr.split("--schedule resident: ", 1)[1].split(";")[0].split() if "=" in word]
        chunks = {key: value for key, value in (word.split("=") for word in smallest)}
        dials = [argument for key, flag in (("q", "--q-chunk"), ("kv", "--kv-chunk"), ("mlp", "--mlp-chunk"), ("head", "--head-chunk"))
                 for argument in (flag, chunks[key])]
        for budget, code in ((with_schedule, 0), (with_schedule - 1, OVER_BUDGET)):
            result = h3stream(*self.run_args("refused.safetensors", "--schedule", "resident", *dials, "--vram", str(budget)))
            self.assertEqual(result.returncode, code, result.stderr)
        self.assertIn(f"needs {with_schedule} B of device", result.stderr)
        self.assertIn(f"the budgets are {with_schedule - 1} B", result.stderr)


    def test_garbage_budgets(self):
        for text in ("-1GiB", "0", "0GiB", "lots", "8XB", "8 GiB x", "GiB", "nan", "inf", "1e30GiB", "0x10"):
            for option in ("--vram", "--ram"):
                result = h3stream(*self.run_args("garbage.safetensors", f"{option}={text}"))
                self.assert_refused(result, BAD_INPUT, option, f'"{text}"', "size above 0")
        for option in ("--vram=", "--ram="):
            self.assert_refused(h3stream(*self.run_args("garbage.safetensors", option)), BAD_INPUT, option[:-1])

    def test_a_budget_below_need_is_refused_before_anything_of_size_is_allocated(self):
        inputs = self.folder / "large.safetensors"
        self.make_inputs("11,60,96,172,13", inputs)  # 0.2 GB of latents, 0.25 million tokens
        for option in ("--vram", "--ram"):
            command = [PROGRAM, *self.run_args("refused.safetensors", option, "1MiB", inputs=inputs)]
            with subprocess.Popen(list(map(str, command)), stderr=subprocess.PIPE, text=True) as process:
                text = process.stderr.read()
                _, status, usage = os.wait4(process.pid, 0)
                process.returncode = os.waitstatus_to_exitcode(status)
            self.assertEqual(process.returncode, OVER_BUDGET, text)
            self.assertEqual(text.count("\n"), 1, text)
            self.assertIn("the smallest budgets that work: --vram", text)
            self.assertLess(usage.ru_maxrss << 10, 100 << 20, option)

    def test_a_zero_filled_tail_is_warned_of(self):
        header, data = read_header(self.model)
        _, end = header["blocks.1.mlp.fc1.weight"]["data_offsets"]
        damaged = self.folder / "damaged.safetensors"
        write_file(damaged, header, data[:end - 8192] + bytes(8192) + data[end:])
        result = h3stream(*self.run_args("damaged-out.safetensors", model=damaged, steps=1))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("1 tensors end in a page of zeros", result.stderr)
        self.assertIn("blocks.1.mlp.fc1.weight", result.stderr)
        self.assertNotIn("seem", result.stderr)

    def test_a_checkpoint_larger_than_memory_is_warned_of_once(self):
        path = self.folder / "vast.safetensors"
        shutil.copy(self.model, path)
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
        try:
            os.truncate(path, path.stat().st_size + memory)  # a hole: no disk
        except OSError as error:
            self.skipTest(f"a file larger than memory: {error}")
        plain = h3stream(*self.run_args("plain.safetensors", steps=2))
        vast = h3stream(*self.run_args("vast_out.safetensors", "--allow-trailing-bytes", model=path, steps=2))
        path.unlink()
        self.assertEqual(vast.returncode, 0, vast.stderr)
        self.assertEqual(plain.stderr.count("larger than the memory"), 0, plain.stderr)
        self.assertEqual(vast.stderr.count("larger than the memory of this machine"), 1, vast.stderr)

    def test_missing_files(self):
        self.assert_refused(h3stream(*self.run_args("x", model=self.folder / "no.safetensors")), IO_ERROR, "no.safetensors")
        self.assert_refused(h3stream(*self.run_args("x", inputs=self.folder / "no.safetensors")), IO_ERROR, "no.safetensors")

    def test_truncated_model(self):
        data = self.model.read_bytes()
        for cut, words in ((1, ["1 byte"]), (len(data) - 100, [])):
            path = self.folder / "cut.safetensors"
            path.write_bytes(data[:len(data) - cut])
            self.assert_refused(h3stream(*self.run_args("x", model=path)), BAD_INPUT, path, *words)

    def test_model_without_a_key_or_scale(self):
        header, data = read_header(self.model)
        for key in ("blocks.1.mlp.fc2.weight", "blocks.0.attn.qkv_proj.weight_scale", "final_layer.norm.weight"):
            changed = dict(header)
            changed[key + "_renamed"] = changed.pop(key)
            path = self.folder / "renamed.safetensors"
            write_file(path, changed, data)
            self.assert_refused(h3stream(*self.run_args("x", model=path)), BAD_INPUT, path, key)

    def test_inputs_with_nan(self):
        header, data = read_header(self.inputs)
        key = next(k for k, v in header.items() if k != "__metadata__" and v["dtype"] == "F32")
        begin = header[key]["data_offsets"][0]
        path = self.folder / "nan.safetensors"
        write_file(path, header, data[:begin] + struct.pack("<f", float("nan")) + data[begin + 4:])
        self.assert_refused(h3stream(*self.run_args("x", inputs=path)), BAD_INPUT, path, key)

    def test_a_reference_file_with_one_wrong_value_fails(self):
        source = GOLDEN / "curve.bf16.t2va.fp32.safetensors"
        if not source.exists():
            self.skipTest(f"{source} is not there")
        header, data = read_header(source)
        begin = header["block1"]["data_offsets"][0]
        path = self.folder / "tampered.safetensors"
        write_file(path, header, data[:begin] + struct.pack("<f", 3.0) + data[begin + 4:])
        result = h3stream("verify", "--plans", "few", "--golden", path, "--json")
        self.assertEqual(result.returncode, 1)
        failed = [c["name"] for f in json.loads(result.stdout)["files"] for c in f["checks"] if not c["ok"]]
        self.assertEqual(failed, ["block1"])

    def test_usage_errors(self):
        for arguments in ([], ["run"], ["nonsense"], ["verify"], self.run_args("x", steps=0), ["inspect"],
                          self.run_args("x", "--q-chunk", "-1", "--schedule", "flat"),
                          self.run_args("x", "--denoise", "1.5"), self.run_args("x", "--scheduler", "magic")):
            self.assertEqual(h3stream(*arguments).returncode, BAD_INPUT, arguments)

    def test_inspect_says_why_a_file_does_not_load(self):
        path = self.folder / "pointer.safetensors"
        path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
        result = h3stream("inspect", path)
        self.assertEqual(result.returncode, BAD_INPUT)
        self.assertIn("Git LFS", result.stdout + result.stderr)


class Files(Program):
    """Paths that the run must not write, and streams that cannot be written."""

    def test_the_state_file_may_not_be_read_by_the_run(self):
        path = self.folder / "victim.state.safetensors"
        for option, source in (("model", self.model), ("inputs", self.inputs)):
            shutil.copyfile(source, path)
            result = h3stream(*self.run_args("victim.safetensors", **{option: path}))
            self.assert_refused(result, BAD_INPUT, path, "state file")
            self.assertEqual(path.read_bytes(), source.read_bytes())
        link = self.folder / "victim.safetensors"
        link.symlink_to(self.model)
        self.assert_refused(h3stream(*self.run_args(link)), BAD_INPUT, link, self.model)
        path.unlink()
        link.unlink()

    def test_the_trace_may_not_replace_a_file_of_the_run(self):
        for victim in (self.model, self.inputs, self.folder / "x.safetensors"):
            self.assert_refused(h3stream(*self.run_args("x.safetensors", "--trace", victim)), BAD_INPUT, victim, "trace")
        self.assert_refused(h3stream(*self.run_args("x.safetensors", "--trace", self.folder / "no/dir")), IO_ERROR, "no/dir")

    def test_outputs_that_cannot_be_written(self):
        (self.folder / "directory").mkdir()
        (self.folder / "other.state.safetensors").mkdir()
        for output, code in (("directory", IO_ERROR), ("other.safetensors", IO_ERROR), ("n" * 230, BAD_INPUT),
                             ("n" * 300, BAD_INPUT), ("no/folder/x", IO_ERROR)):
            result = h3stream(*self.run_args(output))
            self.assert_refused(result, code)
            self.assertNotIn("step ", result.stderr)
        self.assert_refused(h3stream("run", "-m", self.model, "-i", self.inputs, "-o", ""), BAD_INPUT, "--output")

    def test_a_stderr_that_cannot_be_written_harms_nothing(self):
        def output(name):
            return (self.folder / name).read_bytes()
        self.assertEqual(h3stream(*self.run_args("plain.safetensors")).returncode, 0)
        with open("/dev/full", "w") as full:
            self.assertEqual(h3stream(*self.run_args("full.safetensors"), stderr=full).returncode, 0)
        writer = broken_pipe()
        self.assertEqual(h3stream(*self.run_args("pipe.safetensors"), stderr=writer).returncode, 0)
        os.close(writer)
        self.assertEqual(h3stream_closing("2>&- >/dev/null", *self.run_args("closed.safetensors")), 0)
        self.assertEqual(h3stream_closing("<&- 2>&- >&-", *self.run_args("all.safetensors")), IO_ERROR)
        for name in ("full", "pipe", "closed", "all"):
            self.assertEqual(output(f"{name}.safetensors"), output("plain.safetensors"), name)

    def test_a_stdout_that_cannot_be_written_is_an_error(self):
        for arguments in (["--version"], ["--help"], ["inspect", self.model], ["inspect", "--formats", "--json"],
                          self.run_args("lost.safetensors")):
            with open("/dev/full", "w") as full:
                self.assert_refused(h3stream(*arguments, stdout=full), IO_ERROR, "stdout")
            writer = broken_pipe()
            self.assert_refused(h3stream(*arguments, stdout=writer), IO_ERROR, "stdout")
            os.close(writer)
            self.assertEqual(h3stream_closing(">&- 2>/dev/null", *arguments), IO_ERROR)

    def test_paths_that_are_no_text(self):
        name = os.fsdecode(b"\xff.safetensors")
        result = h3stream(*self.run_args(name, "--json"))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertTrue(json.loads(result.stdout)["output"].endswith("\ufffd.safetensors"))
        self.assert_refused(h3stream("inspect", self.folder / "two\nlines\x1b[31m"), IO_ERROR, "two\\nlines\\x1b")

    def test_what_the_file_system_refuses_is_an_io_error(self):
        loop = self.folder / "loop"
        loop.symlink_to(loop)
        for path in (loop, self.folder / ("n" * 300)):
            self.assert_refused(h3stream("verify", "--golden", path), IO_ERROR)

    def test_no_memory_left_is_one_line(self):
        if b"__sanitizer" in pathlib.Path(PROGRAM).read_bytes():
            self.skipTest("a sanitizer needs the address space")
        limit = 4 << 30
        result = h3stream("verify", "--model", self.model, "--device", "cpu", "--text-len", 1 << 24,
                          preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
        self.assert_refused(result, OVER_BUDGET, "memory")

    def test_bench_results(self):
        fifo, text = self.folder / "fifo", self.folder / "text"
        os.mkfifo(fifo)
        for content in ("", "not JSON", "[]", "{}", '{"rows": 3}', json.dumps(["x"])):
            text.write_text(content)
            self.assert_refused(h3stream("bench", "--show", text), BAD_INPUT, text)
        self.assert_refused(h3stream("bench", "--show", fifo), BAD_INPUT, fifo)
        self.assert_refused(h3stream("bench", "--show", self.folder), BAD_INPUT, self.folder)
        self.assert_refused(h3stream("bench", "--show", self.folder / "none"), IO_ERROR, "none")
        result = h3stream("bench", "--json", self.folder / "no/folder/x", "--rounds", "1000")
        self.assert_refused(result, IO_ERROR, "no/folder/x")

    def test_bench_of_a_block(self):
        if b"__sanitizer" in pathlib.Path(PROGRAM).read_bytes():
            self.skipTest("the plain loops that check it would take minutes")
        path = self.folder / "bench.json"
        result = h3stream("bench", "--device", "cpu", "--filter", "block", "--tokens", 16, "--rounds", 3, "--json", path)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(h3stream("bench", "--show", path).stdout, result.stdout)
        rows = {row["name"]: row for row in json.loads(path.read_text())["rows"]}
        for part in ("attention", "qkv_proj", "out_proj", "fc1", "fc2", "rms_norm", "quantize_rows", "qkv_norm_rope",
                     "swiglu_quantize_rows"):
            self.assertGreater(rows[part]["rate"], 0, part)
        self.assertGreaterEqual(rows["total, of attention + linears"]["rate"],
                                rows["total, of attention + linears with their quantisers"]["rate"])
        for option, value in (("--device", "gpu"), ("--device", "cuda:99"), ("--tokens", 7), ("--tokens", "nan"), ("--tokens", ""),
                              ("--m", 0), ("--filter", "x")):
            self.assert_refused(h3stream("bench", "--rounds", 1, option, value), BAD_INPUT)


class Values(Program):
    """Option values that no option may take, and those of a seed."""

    def test_numbers_that_are_not_finite_or_out_of_range(self):
        for option in ("--shift-audio", "--shift-video", "--denoise", "--visual-cond-noise-aug",
                       "--audio-cond-noise-aug"):
            for text in ("nan", "inf", "-1", "2e6", "1e999", "", "x", "-nan"):
                self.assert_refused(h3stream(*self.run_args("x", f"{option}={text}")), BAD_INPUT, option)
        self.assert_refused(h3stream(*self.run_args("x", "--shift-audio", "1e-44")), BAD_INPUT, "shifts")
        for text in ("nan", "-0.1", "inf"):
            self.assert_refused(h3stream("verify", "--model", self.model, f"--sigma={text}"), BAD_INPUT, "--sigma")

    def test_whole_numbers_that_do_not_fit(self):
        for option in ("--q-chunk", "--kv-chunk", "--mlp-chunk", "--head-chunk", "--min-tokens", "--head-group",
                       "--threads", "--steps"):
            for text in ("99999999999999999999", "-1", "1.5", "nan", ""):
                result = h3stream(*self.run_args("x", "--schedule", "flat", f"{option}={text}"))
                self.assert_refused(result, BAD_INPUT, option)
        for option in ("--text-len", "--latent-t", "--latent-h", "--latent-w", "--audio-t"):
            for text in ("99999999999999999999", "20000000", "0", ""):
                self.assert_refused(h3stream("verify", "--model", self.model, f"{option}={text}"), BAD_INPUT, option)
        self.assert_refused(h3stream("verify", "--model", self.model, "--latent-t", 65536, "--latent-h", 65536,
                                     "--latent-w", 65536), BAD_INPUT, "latents")

    def test_given_but_empty(self):
        for option in ("--vram", "--ram", "--device", "--schedule", "--seed"):
            self.assert_refused(h3stream(*self.run_args("x", option, "")), BAD_INPUT, option)
        for option in ("--hidden", "--layers", "--seed", "-o", "--threads"):
            self.assert_refused(h3stream("synth", "-o", self.folder / "synth", option, ""), BAD_INPUT)
        self.assertFalse((self.folder / "synth").exists())
        for arguments in (["verify", "--model", ""], ["verify", "--golden", ""], ["bench", "--show", ""],
                          ["bench", "--json", ""], ["inspect", ""]):
            self.assert_refused(h3stream(*arguments), BAD_INPUT)

    def test_seeds(self):
        for seed, value in (("-1", 2**64 - 1), (2**64 - 1, 2**64 - 1), (-2**63, 2**63), (0, 0)):
            result = h3stream(*self.run_args("seed.safetensors", "--json", seed=seed, steps=1))
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(json.loads(result.stdout)["settings"]["seed"], str(value))
        for seed in (2**64, -2**63 - 1, "1e3", "0x10", "1.0", "x", ""):
            self.assert_refused(h3stream(*self.run_args("x", seed=seed)), BAD_INPUT, "--seed")
            self.assert_refused(h3stream("synth", "-o", self.folder / "synth", "--seed", seed), BAD_INPUT, "--seed")


class Plans(Program):
    """`plan` and `calibrate`."""

    CLIP = ["--width", 1376, "--height", 768, "--frames", 702]

    def plan(self, *arguments):
        result = h3stream("plan", *arguments, "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        return json.loads(result.stdout)

    def test_one_screen(self):
        result = h3stream("plan", *self.CLIP, "--gpu", "rtx4090", "--vram", "16GiB", "--ram", "32GiB", "--steps", 8)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertLessEqual(len(result.stdout.splitlines()), 24)
        for word in ("216464 tokens", "s/step, 8 steps", "rates estimated", "of 16.00 GiB", "of 32.00 GiB", "runner-up",
                     "card that does this", "clip here", "attention"):
            self.assertIn(word, result.stdout)
        self.assertIn("rates measured", h3stream("plan", *self.CLIP, "--gpu", "h200").stdout)

    def test_json_adds_up(self):
        report = self.plan(*self.CLIP, "--gpu", "rtx3060", "--steps", 8)
        self.assertEqual(report["clip"]["tokens"], 216464)
        self.assertAlmostEqual(sum(stage["seconds"] for stage in report["stages"].values()), report["seconds_per_step"])
        self.assertAlmostEqual(report["total_seconds"], report["setup_seconds"] + 8 * report["seconds_per_step"])
        device = report["memory"]["device"]
        self.assertLessEqual(device["planned_bytes"], device["budget_bytes"])
        self.assertEqual(sum(holder["bytes"] for holder in device["holders"]), device["planned_bytes"])

    def test_more_memory_is_never_slower(self):
        seconds = [self.plan(*self.CLIP, "--gpu", "h200", "--vram", f"{gib}GiB")["seconds_per_step"]
                   for gib in (3, 4, 6, 8, 16, 64)]
        for less, more in zip(seconds, seconds[1:]):
            self.assertLessEqual(more, less * 1.006)

    def test_is_what_run_plans(self):
        inputs = self.folder / "clip.safetensors"
        self.make_inputs("11,7,6,10,37", inputs)
        clip = ["--width", 160, "--height", 96, "--frames", 22, "--text-tokens", 11, "-m", self.model, "--gpu", "cpu"]
        for budgets in ([], ["--vram", "4MiB"], ["--vram", "4MiB", "--ram", "3MiB"]):
            planned = self.plan(*clip, *budgets)
            result = h3stream(*self.run_args("planned.safetensors", "--device", "cpu", "--json", *budgets, inputs=inputs))
            self.assertEqual(result.returncode, 0, result.stderr)
            run = json.loads(result.stdout)
            self.assertEqual(planned["plan"], run["plan"])
            self.assertEqual(planned["clip"]["tokens"], run["tokens"])
            for space in ("device", "pinned", "host"):
                self.assertEqual(planned["memory"][space]["planned_bytes"], run["memory"][space]["planned_bytes"], space)
                self.assertEqual(run["memory"][space]["peak_bytes"], run["memory"][space]["planned_bytes"], space)

    def test_refusals(self):
        def refused(code, *arguments):
            self.assert_refused(h3stream("plan", *arguments[:-1]), code, arguments[-1])
        for text in ("-1GiB", "0", "lots", "8XB", "nan", "1e30GiB"):
            for option in ("--vram", "--ram"):
                refused(BAD_INPUT, *self.CLIP, f"{option}={text}", text)
        refused(BAD_INPUT, *self.CLIP, "--gpu", "rtx9090", "rtx4090")
        refused(BAD_INPUT, *self.CLIP, "--gpu", "", "--gpu")
        refused(BAD_INPUT, *self.CLIP, "--model", self.model, "--format", "int8", "--format")
        refused(BAD_INPUT, *self.CLIP, "--model", self.model, "--form", "full", "--form")
        refused(BAD_INPUT, *self.CLIP, "--gpu", "rtx4090", "--calibration", "x.json", "another")
        refused(BAD_INPUT, *self.CLIP, "--format", "int4", "--format")
        refused(BAD_INPUT, "--width", 1376, "--height", 768, "--frames")
        refused(BAD_INPUT, "--width", 1375, "--height", 768, "--frames", 5, "width")
        refused(BAD_INPUT, "--width", 1376, "--height", 768, "--frames", 0, "--frames")
        refused(BAD_INPUT, *self.CLIP, "--audio-seconds", -1, "--audio-seconds")
        refused(BAD_INPUT, *self.CLIP, "--refs", "image=63x64", "reference width")
        refused(BAD_INPUT, *self.CLIP, "--steps", 0, "--steps")
        refused(IO_ERROR, *self.CLIP, "--model", self.folder / "none", "none")
        refused(OVER_BUDGET, *self.CLIP, "--gpu", "rtx2060", "--vram", "300MiB", "driver's context alone takes 576.00 MiB")
        refused(OVER_BUDGET, *self.CLIP, "--gpu", "h200", "--vram", "1GiB", "smallest budgets that work: --vram")
        refused(OVER_BUDGET, *self.CLIP, "--gpu", "h200", "--ram", "1MiB", "--ram")

    def test_a_smallest_budget_works_and_one_byte_less_does_not(self):
        clip = [*self.CLIP, "--gpu", "rtx3060", "--ram", "32GiB"]
        message = h3stream("plan", *clip, "--vram", "1MiB").stderr
        smallest = int(message.split("--vram ")[1].split()[0])
        self.assertLessEqual(self.plan(*clip, "--vram", smallest)["memory"]["device"]["planned_bytes"], smallest)
        self.assertEqual(h3stream("plan", *clip, "--vram", smallest - 1).returncode, OVER_BUDGET)

    def test_calibrations(self):
        cache = self.folder / "cache"
        environment = dict(os.environ, XDG_CACHE_HOME=str(cache))
        stored = cache / "h3stream" / "calibration-cpu.json"
        clip = ["plan", "--width", 160, "--height", 96, "--frames", 22, "--gpu", "cpu"]
        self.assertIn("rates estimated", h3stream(*clip, env=environment).stdout)
        result = h3stream("calibrate", "--device", "cpu", "--read", self.model, env=environment)
        self.assert_refused(result, BAD_INPUT, self.model, "16.00 MiB")
        self.assertFalse(stored.exists())
        result = h3stream("calibrate", "--device", "cpu", env=environment)
        self.assertEqual(result.returncode, 0, result.stderr)
        for word in ("int8 linear", "attention", "row ops", "copies"):
            self.assertIn(word, result.stdout)
        self.assertIn("rates measured", h3stream(*clip, env=environment).stdout)
        measured = h3stream(*self.run_args("calibrated.safetensors", "--device", "cpu", "--json"), env=environment)
        self.assertEqual(measured.returncode, 0, measured.stderr)
        # The default one is ignored when it is broken, a named one is not.
        stored.write_text('{"h3stream_calibration": 1}')
        result = h3stream(*clip, env=environment)
        self.assertIn("rates estimated", result.stdout)
        self.assertIn("ignored", result.stderr)
        for arguments in ([*clip, "--calibration", stored],
                          self.run_args("x", "--device", "cpu", "--calibration", stored)):
            self.assert_refused(h3stream(*arguments, env=environment), BAD_INPUT, stored, "device", "missing")
        self.assert_refused(h3stream(*clip, "--calibration", self.folder / "none"), IO_ERROR, "none")
        self.assert_refused(h3stream("calibrate", "--device", "cpu", "--out", self.folder / "no/x"), IO_ERROR, "no/x")
        self.assert_refused(h3stream("calibrate", "--device", "cuda:99"), BAD_INPUT, "cuda:99")


if __name__ == "__main__":
    unittest.main()
