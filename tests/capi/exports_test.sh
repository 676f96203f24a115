#!/usr/bin/env bash
# exports_test.sh NM LIBRARY: only h3s_* functions are visible, and every one the header declares.
set -euo pipefail
exported=$("$1" --dynamic --defined-only "$2" | awk '{print $NF}' | sed 's/@.*//' | sort)
declared=$(grep -o 'h3s_[a-z0-9_]*(' "$(dirname "$0")/../../include/h3stream/h3stream.h" | tr -d '(' | sort -u)
foreign=$(grep -v '^h3s_' <<<"$exported" || true)
[ -z "$foreign" ] || { echo "exported, and no h3s_ function:"; echo "$foreign"; exit 1; }
missing=$(comm -3 <(echo "$exported") <(echo "$declared"))
[ -z "$missing" ] || { echo "exported or declared, not both:"; echo "$missing"; exit 1; }
echo "$(wc -l <<<"$exported") functions"
