#!/bin/sh
# A job of some thousand tokens inside budgets that make it run flat and by head groups; the same program takes a
# million on a GPU. Arguments: h3stream, long_job, make_inputs.py, the Python to run it with.
set -eu
h3stream=$1 long_job=$2 make_inputs=$3 python=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$h3stream" synth --preset small --layers 2 --refiner-layers 1 --format int8 --threads 2 -o "$work/model" >/dev/null
inputs() {
  "$python" "$make_inputs" --text-dim 1024 --seed 1 --synthetic "$2" -o "$work/$1"
}
inputs short 20,7,12,14,31
inputs long 100,38,14,14,40

# expect CODE TEXT ARGS...: exit code, and a text among the output and the result.
expect() {
  code=$1 text=$2
  shift 2
  got=0
  "$long_job" -m "$work/model" -i "$work/long" --short-inputs "$work/short" --json "$work/json" "$@" \
    >"$work/output" 2>&1 || got=$?
  cat "$work/json" >>"$work/output" 2>/dev/null || true
  if [ "$got" -ne "$code" ] || ! grep -q -- "$text" "$work/output"; then
    echo "FAILED: $*: exit code $got, expected $code and \"$text\":" >&2
    cat "$work/output" >&2
    exit 1
  fi
}

expect 0 '"sees_a_wrong_row": true' --vram 48MiB --check-memory 3MiB
expect 0 '"plan": "head-groups g=1 ' --vram 24MiB --check-memory 8MiB
expect 0 '"plan": "flat' --vram 14MiB
expect 2 'the smallest budgets that work' --vram 1MiB
