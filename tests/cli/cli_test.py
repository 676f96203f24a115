"""The h3stream program from outside: plans, shapes, settings, help, and what it refuses.

`run` under kill, interrupt and full disks: tests/sample/run_command_test.cc.
"""

import json
import os
import pathlib
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

PROGRAM = os.environ["H3STREAM"]
SOURCE = pathlib.Path(os.environ["H3S_SOURCE_DIR"])
GOLDEN = pathlib.Path(os.environ["H3S_GOLDEN_DIR"])
BAD_INPUT, IO_ERROR = 2, 4

sys.path.insert(0, str(SOURCE / "tools"))


def h3stream(*arguments, **options):
    return subprocess.run([PROGRAM, *map(str, arguments)], capture_output=True, text=True, timeout=300, **options)


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

    def test_help_has_units_and_defaults(self):
        text = h3stream("run", "--help").stdout
        for word in ("8GiB", "=simple", "=12", "=2048", "tokens"):
            self.assertIn(word, text)


class Refusals(Program):

    def test_garbage_budgets(self):
        for text in ("-1GiB", "0", "lots", "8XB", ""):
            result = h3stream(*self.run_args("garbage.safetensors", f"--vram={text}"))
            self.assertEqual(result.returncode, BAD_INPUT, text)

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


if __name__ == "__main__":
    unittest.main()
