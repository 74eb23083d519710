#!/usr/bin/env bash
# report_browser_test.sh ALIQUOT: the page in a real browser, where there is one: no complaint in its console, and the
# curves in what it made of the page.
set -euo pipefail
aliquot=$1
browser=
for name in chromium chromium-browser google-chrome; do
  if command -v "$name" >/dev/null; then browser=$name; fi
done
if [ -z "$browser" ]; then
  echo "skipped: no chromium here (apt install chromium)"
  exit 77
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$aliquot" train --ranks 2 --layers 1 --steps 5 --quiet --metrics "$scratch/run.jsonl"
"$aliquot" report "$scratch/run.jsonl" --out "$scratch/page.html"
"$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$scratch/profile" --enable-logging=stderr \
  --dump-dom "file://$scratch/page.html" >"$scratch/dom.html" 2>"$scratch/log.txt"
if grep CONSOLE "$scratch/log.txt"; then
  echo "the console complains"
  exit 1
fi
curves=$(grep -o 'data-series="[a-z_]*"' "$scratch/dom.html" | sort -u | wc -l)
charts=$(grep -c '<svg ' "$scratch/dom.html")
echo "$curves curves, $charts charts"
[ "$curves" -eq 4 ] && [ "$charts" -ge 8 ]
