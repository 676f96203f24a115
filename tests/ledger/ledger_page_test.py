"""The ledger's page in a browser: the numbers it shows are those of the JSONL file. Skipped without Chromium."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import browser

PROGRAM = os.environ["H3STREAM"]
SOURCE = pathlib.Path(os.environ["H3S_SOURCE_DIR"])
CHROMIUM = browser.find()
SERIES = {"planned": "planned_device_bytes", "held": "device_bytes", "pinned": "pinned_bytes", "host": "host_bytes",
          "RSS anonymous": "rss_anon_bytes", "RSS file": "rss_file_bytes"}


def h3stream(*arguments):
    subprocess.run([PROGRAM, *map(str, arguments)], check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, timeout=300)


def lines_of(folder, kind="phase"):
    lines = map(json.loads, (folder / "ledger.jsonl").read_text().splitlines())
    return [line for line in lines if line["type"] == kind]


@unittest.skipUnless(CHROMIUM, "there is no chromium to look at the page with (Debian: apt install chromium)")
class Page(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = pathlib.Path(tempfile.mkdtemp(prefix="h3s-page-"))
        model, inputs = cls.folder / "model.safetensors", cls.folder / "inputs.safetensors"
        h3stream("synth", "--preset", "tiny", "--format", "int8", "-o", model)
        subprocess.run([sys.executable, SOURCE / "tools/make_inputs.py", "--synthetic", "11,5,6,10,13", "--text-dim", "128",
                        "--seed", "3", "-o", inputs], check=True)
        cls.run_folder = cls.folder / "run"
        h3stream("run", "-m", model, "-i", inputs, "-o", cls.folder / "out.safetensors", "--device", "cpu", "--steps", 3,
                 "--seed", 1, "--schedule", "flat", "--vram", "64MiB", "--ledger", cls.run_folder)
        cls.lines = lines_of(cls.run_folder)
        cls.browser = browser.Browser(CHROMIUM)

    @classmethod
    def tearDownClass(cls):
        cls.browser.close()
        shutil.rmtree(cls.folder)

    def open(self, folder=None, fragment=""):
        self.browser.open((folder or self.run_folder).joinpath("index.html").as_uri() + fragment)

    def show(self, expression):
        return self.browser.evaluate(expression)

    def table(self):
        return self.show("[...document.querySelectorAll('#table tbody tr')].map(tr => Object.fromEntries([...tr.cells]"
                         ".map(td => [td.dataset.column, td.dataset.value])))")

    def legend(self, figure):
        return dict(self.show(f"[...document.querySelectorAll('#{figure} [data-series]')]"
                              ".map(b => [b.dataset.series, b.dataset.value])"))

    def assert_same(self, shown, line):
        for column, text in shown.items():
            self.assertEqual(None if text == "null" else text if column == "phase" else json.loads(text), line[column], column)

    def test_asks_for_nothing_and_fails_nowhere(self):
        self.open()
        urls = [request["request"]["url"] for request in self.browser.of_method("Network.requestWillBeSent")]
        self.assertEqual([url for url in urls if url != "about:blank"], [(self.run_folder / "index.html").as_uri()])
        self.assertEqual(self.browser.of_method("Runtime.exceptionThrown"), [])
        self.assertEqual([e for e in self.browser.of_method("Log.entryAdded") if e["entry"]["level"] == "error"], [])

    def test_the_table_holds_every_line(self):
        self.open()
        shown = self.table()
        self.assertEqual(len(shown), len(self.lines))
        for row, line in zip(shown, self.lines):
            self.assert_same(row, line)

    def test_bytes_are_written_in_their_unit(self):
        self.open()
        units = {"B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30}
        for text, value in self.show("[...document.querySelectorAll('#table td[data-column$=_bytes]')]"
                                     ".map(td => [td.textContent, Number(td.dataset.value)])"):
            number, unit = text.split()
            self.assertAlmostEqual(float(number) * units[unit], value, delta=0.006 * value)

    def test_the_tiles_are_the_report(self):
        self.open()
        tiles = dict(self.show("[...document.querySelectorAll('[data-tile]')].map(dd => [dd.dataset.tile, dd.dataset.value])"))
        report = json.loads(subprocess.run([PROGRAM, "report", self.run_folder, "--json"], check=True,
                                           stdout=subprocess.PIPE).stdout)["runs"][0]
        self.assertAlmostEqual(float(tiles["step_seconds"]), report["step_seconds"], places=9)
        self.assertAlmostEqual(float(tiles["block_seconds"]), report["block_seconds"], places=9)
        self.assertEqual(int(tiles["device_peak"]), report["device_peak_bytes"])
        self.assertEqual(int(tiles["ram_peak"]), report["pinned_peak_bytes"] + report["host_peak_bytes"])
        self.assertEqual(int(tiles["rss_anon"]), report["rss_anon_bytes"])
        self.assertEqual(tiles["within_plan"], "true")

    def test_the_pointer_reads_the_line_below_it(self):
        self.open()
        plot = self.show("(() => { const p = timeline.charts[0].plot, b = p.svg.getBoundingClientRect();"
                         "return {x: b.x, y: b.y, left: p.left, right: p.right, x0: p.x0, x1: p.x1}; })()")
        for fraction in (0.02, 0.3, 0.55, 0.98):
            at_ms = plot["x0"] + fraction * (plot["x1"] - plot["x0"])
            self.browser.move_mouse(plot["x"] + plot["left"] + fraction * (plot["right"] - plot["left"]), plot["y"] + 60)
            shown = {**self.legend("device-figure"), **self.legend("host-figure")}
            wall_ms = self.show("timeline.rows[timeline.at].wall_end_ms")
            line = next(line for line in self.lines if line["wall_end_ms"] == wall_ms)
            pixel_ms = (plot["x1"] - plot["x0"]) / (plot["right"] - plot["left"])
            below = [next(l["wall_end_ms"] for l in self.lines if l["wall_end_ms"] >= at_ms + shift)
                     for shift in (-pixel_ms, pixel_ms)]  # the pointer stands on a pixel
            self.assertTrue(below[0] <= wall_ms <= below[1], (below, wall_ms))
            for name, field in SERIES.items():
                self.assertEqual(int(shown[name]), line[field], name)
            moment = self.show("document.getElementById('moment').textContent")
            self.assertIn(f"step {line['step']}" if line["step"] > 0 else "before the steps", moment)
            if line["block"] is not None:
                self.assertIn(f"block {line['block']}", moment)

    def test_the_arrow_keys_read_the_lines_in_turn(self):
        self.open()
        self.show("timeline.charts[1].plot.svg.focus()")
        self.browser.press("Home")
        for line in self.lines[:5]:
            shown = self.legend("host-figure")
            self.assertEqual(int(shown["pinned"]), line["pinned_bytes"])
            self.assertEqual(self.show("timeline.rows[timeline.at].wall_end_ms"), line["wall_end_ms"])
            self.browser.press("ArrowRight")

    def test_lines_are_drawn_at_their_bytes(self):
        self.open()
        header = lines_of(self.run_folder, "header")[0]
        for css, value in (("planned", header["planned_bytes"]["device"]), ("device", self.lines[-1]["device_bytes"])):
            path, bottom, top, most = self.show(
                f"(() => {{ const p = timeline.charts[0].plot; return [p.svg.querySelector('.stroke.{css}').getAttribute('d'),"
                "p.bottom, p.top, p.yMost]; })()")
            last_y = float(re.findall(r"(?:V|,)([\d.]+)", path)[-1])
            self.assertAlmostEqual((bottom - last_y) / (bottom - top) * most, value, delta=most / (bottom - top))

    def test_a_step_and_a_block_are_chosen(self):
        self.open()
        self.show("(() => { const s = document.getElementById('step'); s.value = '2'; s.dispatchEvent(new Event('change')); })()")
        self.show("(() => { const s = document.getElementById('block'); s.value = '1'; s.dispatchEvent(new Event('change')); })()")
        chosen = [line for line in self.lines if (line["step"], line["block"]) == (2, 1)]
        shown = self.table()
        self.assertEqual(len(shown), 3)
        for row, line in zip(shown, chosen):
            self.assert_same(row, line)
        bars = self.legend("bars-figure")
        for line in chosen:
            self.assertEqual(float(bars[line["phase"]]), line["device_ms"])
        self.assertEqual(self.show("location.hash"), "#step=2&block=1")
        self.open(fragment="#step=2&block=1")
        self.assertEqual(self.table(), shown)
        self.open(fragment="#step=99&block=x")
        self.assertEqual(len(self.table()), len(self.lines))

    def test_shares_are_sums_of_the_lines(self):
        self.open()
        for phase, text in self.legend("shares-figure").items():
            self.assertAlmostEqual(float(text), sum(l["device_ms"] for l in self.lines if l["phase"] == phase), places=6)

    def test_light_and_dark(self):
        background = "getComputedStyle(document.body).backgroundColor"
        colours = {}
        for scheme in ("light", "dark"):
            self.browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
            self.open()
            colours[scheme] = self.show(background)
        self.show("document.getElementById('theme').click()")
        self.assertEqual(self.show(background), colours["light"])
        self.assertNotEqual(colours["light"], colours["dark"])

    def test_everything_has_a_name(self):
        self.open()
        self.assertNotEqual(self.show("document.title"), "")
        self.assertEqual(self.show("document.documentElement.lang"), "en")
        self.assertTrue(self.show("[...document.querySelectorAll('svg[role=img]')].every(s => s.getAttribute('aria-label'))"))
        self.assertTrue(self.show("[...document.querySelectorAll('th')].every(th => th.scope === 'col')"))
        self.assertTrue(self.show("[...document.querySelectorAll('select')].every(s => s.labels.length === 1)"))

    def test_fifty_blocks_of_twenty_steps_stay_readable(self):
        folder = self.folder / "large"
        folder.mkdir()
        header = lines_of(self.run_folder, "header")[0]
        header.update(blocks=50, steps=20)
        pattern, now = self.lines[2:5], 0.0  # a block's kv, attn, mlp
        with open(folder / "ledger.jsonl", "w") as file:
            file.write(json.dumps(header) + "\n")
            for step in range(1, 21):
                for block in range(50):
                    for line in pattern:
                        times = {"begin_ms": now, "end_ms": now + 1000, "wall_begin_ms": now, "wall_end_ms": now + 1000}
                        file.write(json.dumps({**line, **times, "step": step, "block": block, "device_ms": 1000.0}) + "\n")
                        now += 1000
        h3stream("report", folder, "--page")
        self.open(folder)
        self.assertEqual(self.browser.of_method("Runtime.exceptionThrown"), [])
        self.assertEqual(self.show("ledger.rows.length"), 3000)
        self.assertLessEqual(len(self.table()), 600)
        self.assertIn("2,400 more", self.show("document.getElementById('table-note').textContent"))
        longest = self.show("Math.max(...[...document.querySelectorAll('path')].map(p => p.getAttribute('d').length))")
        self.assertLess(longest, 60000)  # two points a half pixel
        overlaps = self.show(
            "(() => { const boxes = [...document.querySelectorAll('#device-figure text, #bars-figure text')]"
            ".map(t => t.getBoundingClientRect()); return boxes.some((a, i) => boxes.slice(i + 1).some(b =>"
            "a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom)); })()")
        self.assertFalse(overlaps, "labels cover each other")
        self.assertLess(self.show("(() => { const t = performance.now(); draw(); return performance.now() - t; })()"), 2000)


if __name__ == "__main__":
    unittest.main()
