#!/usr/bin/env bash
# install_test.sh CMAKE BUILD CC: installs the C library to a folder of its own, and builds and runs the example
# against it, by pkg-config and by find_package.
set -euo pipefail
cmake=$1 build=$2 cc=$3 here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$cmake" --install "$build" --component capi --prefix "$work/prefix" >/dev/null
libraries=$(dirname "$(find "$work/prefix" -name h3stream.pc)")/..

export PKG_CONFIG_PATH=$libraries/pkgconfig
"$cc" -std=c11 -Wall -Wextra -Wpedantic -Werror "$here/example.c" -o "$work/by_pkg_config" \
  $(pkg-config --cflags --libs h3stream) -Wl,-rpath,"$libraries"
[ "$("$work/by_pkg_config")" = "0.0 1.0" ]

mkdir "$work/project"
cp "$here/example.c" "$work/project"
cat >"$work/project/CMakeLists.txt" <<'EOF'
cmake_minimum_required(VERSION 3.25)
project(example LANGUAGES C)
find_package(h3stream 0.1 REQUIRED)
add_executable(by_cmake example.c)
target_link_libraries(by_cmake PRIVATE h3stream::h3stream)
EOF
"$cmake" -S "$work/project" -B "$work/out" -DCMAKE_PREFIX_PATH="$work/prefix" -DCMAKE_C_COMPILER="$cc" >/dev/null
"$cmake" --build "$work/out" >/dev/null
[ "$("$work/out/by_cmake")" = "0.0 1.0" ]
echo "installed, found by pkg-config and by CMake, and it runs"
