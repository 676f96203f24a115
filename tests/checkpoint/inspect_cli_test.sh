#!/bin/sh
# synth and inspect end to end: exit codes, and data on stdout apart from logs on stderr. Argument: the program.
set -eu
program=$1
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

fail() {
  echo "FAILED: $1" >&2
  exit 1
}

# expect CODE TEXT ARGS...: runs the program; stdout and stderr together must hold TEXT.
expect() {
  code=$1 text=$2
  shift 2
  got=0
  "$program" "$@" >"$work/output" 2>&1 || got=$?
  [ "$got" -eq "$code" ] || fail "$* gave exit code $got, expected $code: $(cat "$work/output")"
  grep -q -- "$text" "$work/output" || fail "$* did not print \"$text\": $(cat "$work/output")"
}

model=$work/model.safetensors
expect 0 "model.safetensors" synth -o "$model" --format int8 --form full
expect 0 "^loads" inspect "$model"
expect 0 '"loads": true' inspect "$model" --json
expect 0 "int8_tensorwise *I8" inspect --formats
[ "$("$program" synth -o "$model" 2>/dev/null)" = "$model" ] || fail "stdout of synth holds more than the path"

head -c 1000000 "$model" >"$work/cut.safetensors"
expect 2 "cut.safetensors: .*truncated" inspect "$work/cut.safetensors"
printf tail >>"$model"
expect 2 "4 bytes follow the last tensor" inspect "$model"
expect 0 "^loads" inspect "$model" --allow-trailing-bytes
expect 4 "No such file" inspect "$work/absent"
expect 4 "No such file" synth -o "$work/absent/model"
expect 2 "hidden must be" synth -o "$model" --hidden 0
expect 2 "required" inspect
