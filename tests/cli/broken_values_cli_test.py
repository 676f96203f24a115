"""Weights that hold no numbers: `run` ends with an error and writes nothing, wherever they lie."""

import json
import struct
import unittest

from cli_test import BAD_INPUT, Program, h3stream, read_header, write_file

FORMATS = ("bf16", "int8", "asym_w4a8_int8", "float8_e4m3fn", "float8_e5m2", "mxfp8", "nvfp4")


def patched(header, data, key, at, value):
    """The tensor's bytes from `at` on replaced."""
    begin = header[key]["data_offsets"][0] + at
    return data[:begin] + value + data[begin + len(value):]


class BrokenValues(Program):
    def model_in(self, name):
        path = self.folder / f"{name}.safetensors"
        if not path.exists():
            self.assertEqual(h3stream("synth", "--preset", "tiny", "--format", name, "-o", path).returncode, 0)
        return path

    def broken(self, name, key, at, value):
        header, data = read_header(self.model_in(name))
        path = self.folder / "broken.safetensors"
        write_file(path, header, patched(header, data, key, at, value))
        return path

    def refuse_to_run(self, model, *words, extra=()):
        output = self.folder / "refused.safetensors"
        result = h3stream(*self.run_args(output.name, *extra, model=model, steps=1))
        self.assert_refused(result, BAD_INPUT, *words)
        self.assertFalse(output.exists())

    def test_small_tensors_are_refused_when_opened(self):
        nan = struct.pack("<f", float("nan"))[2:]  # as bf16
        for name in FORMATS:
            for key in ("blocks.1.norm2.weight", "token_refiner.final_norm.weight"):
                with self.subTest(format=name, key=key):
                    model = self.broken(name, key, 6, nan)
                    self.refuse_to_run(model, model, key, "value 3 is nan")
                    report = h3stream("inspect", model, "--json")
                    self.assertEqual(report.returncode, BAD_INPUT)
                    self.assertIn(key, json.loads(report.stdout)["refusal"])
                    self.assertIn(f"1 tensors hold NaN or infinity: {key}",
                                  [finding["text"] for finding in json.loads(report.stdout)["findings"]])

    # Codes are not looked at one by one: what they make shows in the latents.
    def test_codes_that_are_no_numbers_reach_the_latents(self):
        for name in ("float8_e4m3fn", "float8_e5m2", "mxfp8"):
            for layer in ("attn.qkv_proj", "attn.out_proj", "mlp.fc1", "mlp.fc2"):
                with self.subTest(format=name, layer=layer):
                    self.refuse_to_run(self.broken(name, f"blocks.1.{layer}.weight", 100, b"\x7f"), "latents",
                                       "not finite")

    def test_nothing_is_merged_into_such_codes(self):
        rows, columns = read_header(self.model)[0]["blocks.1.attn.out_proj.weight"]["shape"]
        lora, header, data = self.folder / "lora.safetensors", {}, b""
        for half, shape in (("A", [2, columns]), ("B", [rows, 2])):
            size = 4 * shape[0] * shape[1]
            header[f"diffusion_model.blocks.1.attn.out_proj.lora_{half}.weight"] = {
                "dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + size]}
            data += struct.pack("<f", 0.01) * (size // 4)
        write_file(lora, header, data)
        for name in ("float8_e4m3fn", "mxfp8"):
            with self.subTest(format=name):
                model = self.broken(name, "blocks.1.attn.out_proj.weight", 3 * columns + 5, b"\xff")
                self.refuse_to_run(model, "blocks.1.attn.out_proj.weight", "row 3", "is not finite",
                                   extra=["--lora", lora, "--lora-mode", "merge"])


if __name__ == "__main__":
    unittest.main()
