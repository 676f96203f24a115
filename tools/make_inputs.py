#!/usr/bin/env python3
"""Writes the inputs file of `h3stream run` from numpy arrays, or a synthetic one for trying out.

Keys, shapes and units: docs/inputs.md. Needs numpy; `--synthetic` needs nothing but Python.

  make_inputs.py --text text.npy --latent-size 37,48,86 --audio-steps 207 -o inputs.safetensors
  make_inputs.py --text text.npy ... --keyframe 0=first.npy --keyframe 344=last.npz -o inputs.safetensors
  make_inputs.py --synthetic 20,5,6,10,13 --text-dim 128 --seed 1 -o inputs.safetensors
"""

import argparse
import contextlib
import json
import os
import random
import struct
import sys
import zipfile

MAX_COUNT = 1 << 31  # as the reader has it
MAX_SYNTHETIC = 1 << 28  # values: a minute or more of a plain Python loop
DTYPE_NAMES = {"<f4": "F32", "<f2": "F16", "<i8": "I64"}


def write_safetensors(path, tensors, metadata):
    """tensors: {name: (dtype name, shape, bytes)}. The file appears whole or not at all."""
    header, offset = {"__metadata__": metadata}, 0
    for name, (dtype, shape, data) in tensors.items():
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": [offset, offset + len(data)]}
        offset += len(data)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    temporary = f"{path}.{os.getpid()}.tmp"
    try:
        with open(temporary, "wb") as file:
            file.write(struct.pack("<Q", len(text)))
            file.write(text)
            for _, _, data in tensors.values():
                file.write(data)
        os.replace(temporary, path)
    except OSError:
        with contextlib.suppress(OSError):
            os.remove(temporary)
        raise


def encode(array):
    """A numpy array as (dtype name, shape, bytes); float64 is narrowed to float32."""
    import numpy

    if array.dtype == numpy.float64:
        array = array.astype(numpy.float32)
    array = numpy.ascontiguousarray(array.astype(array.dtype.newbyteorder("<")))
    if array.dtype.str not in DTYPE_NAMES:
        sys.exit(f"make_inputs: expected float16, float32, float64 or int64, got {array.dtype}")
    return DTYPE_NAMES[array.dtype.str], array.shape, array.tobytes()


def load(path, name):
    """The array of a .npy file, or the array called `name` (or the only one) of a .npz file."""
    import numpy

    loaded = numpy.load(path, allow_pickle=False)
    if not hasattr(loaded, "files"):
        return loaded
    if name in loaded.files:
        return loaded[name]
    if len(loaded.files) == 1:
        return loaded[loaded.files[0]]
    sys.exit(f"make_inputs: {path}: expected an array called {name!r}, found {loaded.files}")


class Inputs:
    """Collects tensors and the description of a file."""

    def __init__(self, latent_t, latent_h, latent_w, audio_t):
        self.tensors = {}
        self.about = {"version": 1, "latent_t": latent_t, "latent_h": latent_h, "latent_w": latent_w,
                      "audio_t": audio_t}

    def add(self, key, path, name):
        self.tensors[key] = encode(load(path, name))

    def add_condition(self, group, entry, latent=None, audio=None):
        entries = self.about.setdefault(group + "s", [])
        key = f"{group}.{len(entries)}"
        entries.append(entry)
        if latent:
            self.add(f"{key}.latent", latent, "latent")
        if audio:
            self.add(f"{key}.audio", audio, "audio")

    def write(self, path):
        write_safetensors(path, self.tensors, {"h3s_inputs": json.dumps(self.about)})


def whole_number(text, what, low=1):
    text = text.strip()
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and low <= int(text) <= MAX_COUNT):
        sys.exit(f"make_inputs: expected {what}, a whole number from {low} to {MAX_COUNT}, got {text!r}")
    return int(text)


def whole_numbers(text, count, what):
    parts = text.split(",")
    if len(parts) != count:
        sys.exit(f"make_inputs: expected {what}, got {text!r}")
    return [whole_number(p, what) for p in parts]


def split_pair(text, what):
    """"A=B" or "A=B,C" as (A, B, C or None)."""
    left, equals, right = text.partition("=")
    if not equals or not left or not right.strip(","):
        sys.exit(f"make_inputs: expected {what}, got {text!r}")
    first, _, second = right.partition(",")
    return left, first or None, second or None


def from_arrays(args):
    if not args.latent_size or not args.audio_steps:
        sys.exit("make_inputs: --latent-size and --audio-steps are needed")
    inputs = Inputs(*whole_numbers(args.latent_size, 3, "--latent-size FRAMES,HEIGHT,WIDTH"),
                    whole_number(args.audio_steps, "--audio-steps"))
    inputs.add("text", args.text, "text")
    if args.tags:
        inputs.add("text_token_tags", args.tags, "tags")
    for text in args.keyframe:
        frame, latent, audio = split_pair(text, "--keyframe FRAME=LATENT[,AUDIO]")
        inputs.add_condition("keyframe", {"frame": whole_number(frame, "the FRAME of --keyframe", low=0)}, latent, audio)
    for text in args.reference:
        kind, first, second = split_pair(text, "--reference KIND=FILE[,AUDIO]")
        latent, audio = (None, first) if kind == "audio" else (first, second)
        inputs.add_condition("reference", {"kind": kind}, latent, audio)
    if args.initial:
        for name, path in zip(("video", "audio"), args.initial):
            inputs.add(f"initial.{name}", path, name)
    return inputs


def synthetic(args):
    """Text states with the spread of real ones (about unit variance), the same for the same seed everywhere."""
    for name in ("latent_size", "audio_steps", "tags", "keyframe", "reference", "initial"):
        if getattr(args, name):
            sys.exit(f"make_inputs: --{name.replace('_', '-')} belongs to --text, not to --synthetic")
    text_len, *sizes = whole_numbers(args.synthetic, 5, "--synthetic TEXT,FRAMES,HEIGHT,WIDTH,AUDIO")
    inputs = Inputs(*sizes)
    generator = random.Random(args.seed)
    text_dim = whole_number(args.text_dim, "--text-dim")
    count = text_len * text_dim
    if count > MAX_SYNTHETIC:
        sys.exit(f"make_inputs: expected at most {MAX_SYNTHETIC} text values, got {text_len} x {text_dim}")
    values = [generator.uniform(-1.7320508, 1.7320508) for _ in range(count)]
    inputs.tensors["text"] = ("F32", (text_len, text_dim), struct.pack(f"<{count}f", *values))
    return inputs


def parse_arguments():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    source = parser.add_mutually_exclusive_group(required=True)
    source.add_argument("--text", metavar="FILE", help="text states [tokens, width] or [1, tokens, width]")
    source.add_argument("--synthetic", metavar="TEXT,FRAMES,HEIGHT,WIDTH,AUDIO",
                        help="random text states: tokens, then the latent sizes")
    parser.add_argument("--latent-size", metavar="FRAMES,HEIGHT,WIDTH", help="latent size of the video to make")
    parser.add_argument("--audio-steps", metavar="STEPS", help="latent steps of the audio to make, 40 a second")
    parser.add_argument("--tags", metavar="FILE", help="one int64 tag a text token: 1 text, 0 picture")
    parser.add_argument("--keyframe", action="append", default=[], metavar="FRAME=LATENT[,AUDIO]",
                        help="a picture or clip at a pixel frame of the target; empty LATENT for sound alone")
    parser.add_argument("--reference", action="append", default=[], metavar="KIND=FILE[,AUDIO]",
                        help="image=LATENT, video=LATENT[,AUDIO] or audio=AUDIO")
    parser.add_argument("--initial", nargs=2, metavar=("VIDEO", "AUDIO"), help="latents to start from, denoise < 1")
    parser.add_argument("--text-dim", metavar="WIDTH", default="5120", help="width of synthetic text states (5120)")
    parser.add_argument("--seed", type=int, default=0, help="seed of synthetic text states (0)")
    parser.add_argument("-o", "--output", required=True, metavar="FILE")
    return parser.parse_args()


def main():
    args = parse_arguments()
    try:
        inputs = from_arrays(args) if args.synthetic is None else synthetic(args)
        inputs.write(args.output)
    except ImportError:
        sys.exit("make_inputs: numpy is needed to read arrays (pip install numpy); --synthetic works without it")
    except MemoryError:
        sys.exit("make_inputs: out of memory")
    except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
        sys.exit("make_inputs: " + " ".join(str(error).split()))


if __name__ == "__main__":
    main()
