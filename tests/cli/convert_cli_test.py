"""`h3stream convert` from outside: what it writes and prints, what it refuses, memory, disk and interruption."""

import json
import os
import pathlib
import resource
import shutil
import signal
import subprocess
import time
import unittest

from cli_test import BAD_INPUT, IO_ERROR, PROGRAM, Program, h3stream, read_header, write_file

MIB = 1 << 20


class Converter(Program):
    PRESET = "tiny"

    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.plain = cls.folder / "plain.safetensors"
        assert h3stream("synth", "--preset", cls.PRESET, "-o", cls.plain).returncode == 0

    def convert(self, output, *arguments, model=None, **options):
        return h3stream("convert", "-m", model or self.plain, "-o", self.folder / output, *arguments, **options)

    def files(self):
        return sorted(path.name for path in self.folder.iterdir())


class Conversions(Converter):

    def test_equals_what_synth_writes_and_runs(self):
        result = self.convert("int8.safetensors", "--format", "int8", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn("ETA", result.stderr)
        report = json.loads(result.stdout)
        self.assertEqual(report["linears"]["int8_tensorwise"], 12)
        self.assertEqual(report["requantised"], 0)
        header, data = read_header(self.folder / "int8.safetensors")
        expected, expected_data = read_header(self.model)
        header.pop("__metadata__"), expected.pop("__metadata__")
        self.assertEqual(header, expected)
        self.assertEqual(data, expected_data)
        self.assertEqual(report["bytes"], len(data))
        run = h3stream(*self.run_args("run.safetensors", model=self.folder / "int8.safetensors"))
        self.assertEqual(run.returncode, 0, run.stderr)

    def test_mixtures(self):
        result = self.convert("mixed.safetensors", "--recipe", "int8", "--layers", "blocks.0.*=bf16",
                              "--layers", "blocks.2.mlp.*=nvfp4", "--json")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(json.loads(result.stdout)["linears"],
                         {"bf16": 5 + 5, "fp16": 3, "fp32": 4, "int8_tensorwise": 6, "nvfp4": 2})
        again = self.convert("decoded.safetensors", "--format", "bf16", "--json", model=self.folder / "mixed.safetensors")
        self.assertNotIn("nvfp4", json.loads(again.stdout)["linears"])
        warned = self.convert("twice.safetensors", "--format", "nvfp4", model=self.model)
        self.assertIn("12 linears are quantised already", warned.stderr)

    def test_nothing_is_replaced_unasked(self):
        output = self.folder / "kept.safetensors"
        output.write_text("mine")
        self.assert_refused(self.convert("kept.safetensors", "--format", "int8"), BAD_INPUT, output, "--force")
        self.assertEqual(output.read_text(), "mine")
        self.assertEqual(self.convert("kept.safetensors", "--format", "int8", "--force").returncode, 0)
        self.assertEqual(h3stream("inspect", output).returncode, 0)
        self.assert_refused(self.convert("plain.safetensors", "--format", "int8", "--force"), BAD_INPUT, "reads it")
        self.assert_refused(self.convert("new.index.json", "--format", "int8"), BAD_INPUT, "that of an index")
        before = self.files()
        dry = self.convert("dry.safetensors", "--format", "int8", "--dry-run")
        self.assertIn("not written", dry.stdout)
        self.assertEqual(self.files(), before)

    def test_shards_are_never_replaced(self):
        header, data = read_header(self.plain)
        header.pop("__metadata__", None)
        folder = self.folder / "shards"
        folder.mkdir()
        index, names = {}, ("part-1.safetensors", "part-2.safetensors")
        for name, keys in zip(names, (sorted(header)[::2], sorted(header)[1::2])):
            part, bytes_ = {}, b""
            for key in keys:
                begin, end = header[key]["data_offsets"]
                part[key] = {**header[key], "data_offsets": [len(bytes_), len(bytes_) + end - begin]}
                bytes_ += data[begin:end]
                index[key] = name
            write_file(folder / name, part, bytes_)
        model = folder / "model.safetensors.index.json"
        model.write_text(json.dumps({"weight_map": index}))
        (folder / "link.safetensors").symlink_to(folder / names[0])
        held = {path: path.read_bytes() for path in folder.iterdir()}
        for name in (*names, "link.safetensors"):  # of what is read
            self.assert_refused(self.convert(f"shards/{name}", "--format", "int8", "--force", model=model), BAD_INPUT,
                                name, "reads it")
        self.assert_refused(self.convert(f"shards/{names[1]}", "--format", "int8", "--force"), BAD_INPUT,  # of another
                            names[1], "a part of", model)
        self.assertEqual({path: path.read_bytes() for path in folder.iterdir()}, held)
        result = self.convert("shards/new.safetensors", "--format", "int8", model=model)
        self.assertEqual(result.returncode, 0, result.stderr)
        shutil.rmtree(folder)

    def test_a_failed_conversion_keeps_what_was_there(self):
        output = self.folder / "mine.safetensors"
        output.write_text("mine")
        bad = self.folder / "bad.safetensors"
        self.assertEqual(h3stream("synth", "--preset", "tiny", "--format", "float8_e4m3fn", "-o", bad).returncode, 0)
        header, data = read_header(bad)
        end = header["blocks.2.mlp.fc2.weight"]["data_offsets"][1]  # the last linear that is written
        write_file(bad, header, data[:end - 1] + b"\x7f" + data[end:])
        before = self.files()
        self.assert_refused(self.convert(output.name, "--format", "int8", "--force", model=bad), BAD_INPUT,
                            "blocks.2.mlp.fc2.weight", "no finite number")

        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (MIB, MIB))
        self.assert_refused(self.convert(output.name, "--format", "int8", "--force", preexec_fn=limit,
                                         restore_signals=False), IO_ERROR, output)
        self.assertEqual(output.read_text(), "mine")
        self.assertEqual(self.files(), before)
        output.unlink(), bad.unlink()

    def test_refusals(self):
        before = self.files()
        for arguments, words in (([], ["nothing to do"]),
                                 (["--format", "awq_w4a16"], ["--format"]),
                                 (["--format", "int8", "--recipe", "int8"], ["--recipe", "--format"]),
                                 (["--recipe", "q4"], ["--recipe"]),
                                 (["--layers", "blocks.*"], ["PATTERN=FORMAT"]),
                                 (["--layers", "block.*=int8"], ["no layer", "block.*"]),
                                 (["--layers", "final_layer.video_out=int8"], ["fp32 island"]),
                                 (["--layers", "audio_patch_proj=nvfp4"], ["audio_patch_proj"]),
                                 (["--format", "int8", "--qkv", "reversed"], ["--qkv"]),
                                 (["--format", "int8", "--threads", 0], ["--threads"])):
            self.assert_refused(self.convert("refused.safetensors", *arguments), BAD_INPUT, *words)
        self.assert_refused(self.convert("none/x.safetensors", "--format", "int8"), IO_ERROR, "x.safetensors")
        self.assert_refused(self.convert("x", "--format", "int8", model=self.folder / "none"), IO_ERROR, "none")
        gguf = self.folder / "model.gguf"
        gguf.write_bytes(b"GGUF\x03\0\0\0" + bytes(64))
        self.assert_refused(self.convert("x", "--format", "int8", model=gguf), BAD_INPUT, gguf, "GGUF", "safetensors")
        gguf.unlink()
        self.assertEqual(self.files(), before)

    def test_help_states_memory_units_and_defaults(self):
        text = h3stream("convert", "--help").stdout
        for words in ("5 MiB of memory a thread and 24 MiB beside", "contiguous", "gate-first", "1 to 256=2",
                      "w4a8-int8-refiner", "asym_w4a8_int8"):
            self.assertIn(words, text)


class Inspections(Converter):
    def lora(self, name, *layers):
        header, data = {}, b""
        for layer in layers:
            for half, shape in (("lora_A", [4, 256]), ("lora_B", [768, 4])):
                size = 2 * shape[0] * shape[1]
                header[f"diffusion_model.{layer}.{half}.weight"] = {
                    "dtype": "BF16", "shape": shape, "data_offsets": [len(data), len(data) + size]}
                data += b"\x00\x3c" * (size // 2)
        write_file(self.folder / name, header, data)
        return self.folder / name

    def test_loras(self):
        some = self.lora("some.safetensors", "blocks.0.attn.qkv_proj", "blocks.9.attn.qkv_proj")
        report = json.loads(h3stream("inspect", self.model, "--lora", f"{some}:0.5", "--json").stdout)["loras"][0]
        self.assertEqual((report["applied"], report["total"], report["strength"]), (1, 2, 0.5))
        self.assertEqual(report["skipped"][0]["key"], "diffusion_model.blocks.9.attn.qkv_proj")
        self.assertIn("1 of 2 applied", h3stream("inspect", self.model, "--lora", some).stdout)
        none = self.lora("none.safetensors", "blocks.9.attn.qkv_proj")
        self.assert_refused(h3stream("inspect", self.model, "--lora", none), BAD_INPUT, none, "nothing of this LoRA applies")

    def test_weight_bytes_are_those_of_the_plan(self):
        weights = json.loads(h3stream("inspect", self.model, "--json").stdout)["weights"]
        plan = json.loads(h3stream("plan", "-m", self.model, "--width", 160, "--height", 96, "--frames", 22, "--gpu",
                                   "rtx4090", "--json").stdout)
        holders = {holder["what"]: holder["bytes"] for holder in plan["memory"]["device"]["holders"]}
        self.assertEqual(weights["resident_bytes"], holders["weights outside blocks"])
        self.assertEqual(weights["block_bytes"], 3 * weights["largest_block_bytes"])
        self.assertEqual(holders["weights of resident blocks"] % weights["largest_block_bytes"], 0)
        self.assertEqual(weights["text_bytes"], holders["text projection"] + holders["streamed weights"])


class LargeConversions(Converter):
    """Of a file many times as large as the memory a conversion may have."""

    PRESET = "small"

    def test_memory_is_what_help_says(self):
        if b"__sanitizer" in pathlib.Path(PROGRAM).read_bytes():
            self.skipTest("a sanitizer needs memory of its own")

        def limit():
            bytes_ = (24 + 2 * 5) * MIB  # anonymous memory, stacks included
            resource.setrlimit(resource.RLIMIT_DATA, (bytes_, bytes_))
        self.assertGreater(self.plain.stat().st_size, 8 * 34 * MIB)
        for extra in (["--format", "int8"], ["--format", "nvfp4"], ["--format", "asym_w4a8_int8"], ["--format", "fp32"]):
            result = self.convert("bounded.safetensors", *extra, "--threads", 2, "--force", preexec_fn=limit)
            self.assertEqual(result.returncode, 0, result.stderr)
        (self.folder / "bounded.safetensors").unlink()

    def test_an_interrupted_conversion_leaves_nothing(self):
        before = self.files()
        for number in (signal.SIGINT, signal.SIGTERM):
            process = subprocess.Popen([PROGRAM, "convert", "-m", self.plain, "-o", self.folder / "stopped", "--format",
                                        "asym_w4a8_int8"], stderr=subprocess.PIPE, text=True)
            while self.files() == before and process.poll() is None:
                time.sleep(0.01)
            process.send_signal(number)
            _, stderr = process.communicate(timeout=60)
            self.assertEqual(process.returncode, 128 + number, stderr)
            self.assertIn("nothing was written", stderr)
            self.assertEqual(self.files(), before)

    def test_a_disk_that_is_too_small(self):
        """Refused before any work."""
        before = self.files()

        def limit():
            resource.setrlimit(resource.RLIMIT_FSIZE, (100 * MIB, 100 * MIB))
        result = self.convert("large", "--format", "int8", preexec_fn=limit, restore_signals=False)
        self.assert_refused(result, IO_ERROR, "large", "reserve")
        self.assertNotIn("ETA", result.stderr)
        self.assertEqual(self.files(), before)


if __name__ == "__main__":
    unittest.main()
