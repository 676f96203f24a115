"""`run --ledger` and `report` from outside: files, refusals, kills, equal bits."""

import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

PROGRAM = os.environ["H3STREAM"]
SOURCE = pathlib.Path(os.environ["H3S_SOURCE_DIR"])
BAD_INPUT, IO_ERROR = 2, 4


def h3stream(*arguments):
    return subprocess.run([PROGRAM, *map(str, arguments)], text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          timeout=300)


def lines_of(folder):
    return [json.loads(line) for line in (folder / "ledger.jsonl").read_text().splitlines()]


class Ledgers(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="h3s-ledger-"))
        cls.model, cls.inputs = cls.folder / "model.safetensors", cls.folder / "inputs.safetensors"
        assert h3stream("synth", "--preset", "tiny", "--format", "int8", "-o", cls.model).returncode == 0
        subprocess.run([sys.executable, SOURCE / "tools/make_inputs.py", "--synthetic", "11,5,6,10,13", "--text-dim", "128",
                        "--seed", "3", "-o", cls.inputs], check=True)

    @classmethod
    def tearDownClass(cls):
        shutil.rmtree(cls.folder)

    def arguments(self, name, *extra, steps=3, ledger=None):
        """A run to NAME.safetensors, its ledger in NAME unless said otherwise."""
        return ["run", "-m", self.model, "-i", self.inputs, "-o", self.folder / f"{name}.safetensors", "--device", "cpu",
                "--steps", steps, "--seed", 42, "--ledger", self.folder / name if ledger is None else ledger, *extra]

    def assert_refused(self, result, code, *words):
        self.assertEqual(result.returncode, code, result.stderr)
        lines = [line for line in result.stderr.splitlines() if line.startswith("h3stream: ")]
        self.assertEqual(len(lines), 1, result.stderr)
        for word in words:
            self.assertIn(str(word), lines[0])

    def test_a_run_and_its_report_agree(self):
        result = h3stream(*self.arguments("whole", "--schedule", "flat", "--head-group", 1, "--vram", "64MiB", "--json"))
        self.assertEqual(result.returncode, 0, result.stderr)
        run = json.loads(result.stdout)
        lines = lines_of(self.folder / "whole")
        header, phases, close = lines[0], [l for l in lines if l["type"] == "phase"], lines[-1]
        self.assertEqual((header["type"], close["type"], close["outcome"]), ("header", "close", "done"))
        self.assertEqual(header["settings"], run["settings"])
        self.assertEqual(header["device_budget_bytes"], 64 << 20)
        self.assertIsNone(header["ram_budget_bytes"])
        blocks = header["blocks"]
        self.assertEqual(len(phases), 1 + 3 * (2 + 3 * blocks))
        for space in ("device", "pinned", "host"):
            self.assertEqual(header["planned_bytes"][space], run["memory"][space]["planned_bytes"])
            self.assertEqual(close["peak_bytes"][space], run["memory"][space]["peak_bytes"])
            for line in phases:
                self.assertLessEqual(line[f"{space}_bytes"], line[f"{space}_peak_bytes"])
                self.assertLessEqual(line[f"{space}_peak_bytes"], header["planned_bytes"][space])
        report = json.loads(h3stream("report", self.folder / "whole", "--json").stdout)["runs"][0]
        self.assertEqual(report["header"], header)
        self.assertTrue(report["within_plan"])
        self.assertEqual(report["device_peak_bytes"], close["peak_bytes"]["device"])
        steps = [(next(l for l in phases if l["step"] == s and l["phase"] == "embed")["begin_ms"],
                  next(l for l in phases if l["step"] == s and l["phase"] == "final")["end_ms"]) for s in (1, 2, 3)]
        self.assertAlmostEqual(report["step_seconds"], sum(end - begin for begin, end in steps) / 3e3, places=6)
        self.assertAlmostEqual(sum(report[f"{p}_share"] for p in ("text", "embed", "kv", "attn", "mlp", "final")), 1)
        text = h3stream("report", self.folder / "whole").stdout
        for word in ("done", "held", "s/step", "attn", header["plan"]):
            self.assertIn(word, text)

    def test_the_bits_do_not_depend_on_it(self):
        self.assertEqual(h3stream(*self.arguments("with")).returncode, 0)
        without = [a for a in self.arguments("without") if a not in ("--ledger", self.folder / "without")]
        self.assertEqual(h3stream(*without).returncode, 0)
        self.assertFalse((self.folder / "without").exists())
        self.assertEqual((self.folder / "with.safetensors").read_bytes(),
                         (self.folder / "without.safetensors").read_bytes())

    def test_two_runs_are_compared(self):
        for name, plan in (("first", []), ("second", ["--schedule", "flat"])):
            self.assertEqual(h3stream(*self.arguments(name, *plan)).returncode, 0)
        result = h3stream("report", self.folder / "first", self.folder / "second")
        self.assertEqual(result.returncode, 0, result.stderr)
        row = next(line for line in result.stdout.splitlines() if line.startswith("pinned peak"))
        runs = json.loads(h3stream("report", self.folder / "first", self.folder / "second", "--json").stdout)["runs"]
        ratio = runs[1]["pinned_peak_bytes"] / runs[0]["pinned_peak_bytes"]
        self.assertIn(f"{ratio:.3f}x", row)

    def test_nothing_is_written_over_and_nothing_computed(self):
        self.assertEqual(h3stream(*self.arguments("once")).returncode, 0)
        before = (self.folder / "once/ledger.jsonl").read_bytes()
        (self.folder / "file").write_text("mine")
        (self.folder / "site").mkdir()
        (self.folder / "site/index.html").write_text("mine")
        for name, code, word in (("once", BAD_INPUT, "index.html"), ("file", BAD_INPUT, "file"),
                                 ("site", BAD_INPUT, "index.html"), ("no/parent", IO_ERROR, "no/parent")):
            result = h3stream(*self.arguments("x", ledger=self.folder / name))
            self.assert_refused(result, code, word)
            self.assertNotIn("step ", result.stderr)
        self.assert_refused(h3stream(*self.arguments("x", ledger="")), BAD_INPUT, "--ledger")
        self.assertEqual((self.folder / "once/ledger.jsonl").read_bytes(), before)
        self.assertEqual((self.folder / "site/index.html").read_text(), "mine")
        self.assertFalse((self.folder / "site/ledger.jsonl").exists())

    def test_a_refused_run_makes_no_folder(self):
        self.assertEqual(h3stream(*self.arguments("refused", "--vram", "1kB")).returncode, 3)
        self.assertFalse((self.folder / "refused").exists())

    def stop_after_a_step(self, name, how, *extra, ledger=None):
        """Runs, sends the signal `how` when a step is in the ledger; returns its folder."""
        folder = ledger or self.folder / name
        process = subprocess.Popen([PROGRAM, *map(str, self.arguments(name, *extra, steps=2000, ledger=ledger))],
                                   stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        deadline = time.monotonic() + 60
        while process.poll() is None and time.monotonic() < deadline:
            if (folder / "ledger.jsonl").exists() and '"final"' in (folder / "ledger.jsonl").read_text():
                break
            time.sleep(0.005)
        process.send_signal(how)
        process.wait()
        return folder

    def test_a_killed_run_leaves_a_ledger(self):
        folder = self.stop_after_a_step("killed", signal.SIGKILL)
        result = h3stream("report", folder, "--json", "--page")
        self.assertEqual(result.returncode, 0, result.stderr)
        report = json.loads(result.stdout)["runs"][0]
        self.assertIn("no closing line", report["outcome"])
        self.assertGreaterEqual(report["steps"], 1)
        self.assertIn("no closing line", (folder / "index.html").read_text())

    def test_an_interrupted_run_says_so_and_goes_on_in_another_folder(self):
        folder = self.stop_after_a_step("interrupted", signal.SIGINT)
        lines = lines_of(folder)
        self.assertEqual(lines[-1]["outcome"], "interrupted")
        self.assertIn("interrupted", (folder / "index.html").read_text())
        steps_done = lines[-1]["steps_done"]
        resumed = lines_of(self.stop_after_a_step("interrupted", signal.SIGINT, "--resume", ledger=self.folder / "resumed"))
        self.assertEqual(resumed[0]["first_step"], steps_done)
        self.assertEqual(next(l for l in resumed if l["type"] == "phase" and l["step"] > 0)["step"], steps_done + 1)

    def test_reports_that_cannot_be_made(self):
        self.assert_refused(h3stream("report", self.folder / "none"), IO_ERROR, "none")
        (self.folder / "bad").mkdir(exist_ok=True)
        for text in ("", "{}\n", "x\n", "[]\n", '{"type": "header"}\n', "{\n"):
            (self.folder / "bad/ledger.jsonl").write_text(text)
            self.assert_refused(h3stream("report", self.folder / "bad"), BAD_INPUT, "bad/ledger.jsonl")
        for arguments in ([], [""], ["a", "b", "c"]):
            self.assertEqual(h3stream("report", *arguments).returncode, BAD_INPUT)


if __name__ == "__main__":
    unittest.main()
