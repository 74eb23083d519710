#!/usr/bin/env bash
# report_browser_test.sh ALIQUOT: opens the page of `aliquot report` in Chromium. The console must stay empty and the
# document must contain the curves. Skipped (77) if no browser is installed.
set -euo pipefail
aliquot=$1
browser=
for name in chromium chromium-browser google-chrome; do
  if command -v "$name" >/dev/null; then browser=$name; fi
done
if [ -z "$browser" ]; then
  echo "skipped: chromium is not installed (apt install chromium)"
  exit 77
fi
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
"$aliquot" train --ranks 2 --layers 1 --steps 5 --quiet --metrics "$scratch/run.jsonl"
"$aliquot" report "$scratch/run.jsonl" --out "$scratch/page.html"
"$browser" --headless --no-sandbox --disable-gpu --user-data-dir="$scratch/profile" --enable-logging=stderr \
  --dump-dom "file://$scratch/page.html" >"$scratch/dom.html" 2>"$scratch/log.txt"
if grep CONSOLE "$scratch/log.txt"; then
  echo "the browser's console printed the messages above: expected none"
  exit 1
fi
curves=$(grep -o 'data-series="[a-z_]*"' "$scratch/dom.html" | sort -u | wc -l)
charts=$(grep -c '<svg ' "$scratch/dom.html")
echo "$curves curves, $charts charts"
[ "$curves" -eq 4 ] && [ "$charts" -ge 8 ]
