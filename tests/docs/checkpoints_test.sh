#!/usr/bin/env bash
# tests/docs/checkpoints_test.sh PROGRAM PAGE SCRIPT: runs the commands of the page about checkpoints and its Python
# listing, with a tiny model. SCRIPT reads checkpoints without Aliquot: its checksums and digest must be those of
# Aliquot. Exit code 77: python3 is missing, or h5py is missing and everything that does not need it passed.
# shellcheck source=tests/scripts/expect.sh
source "$(dirname "$0")/../scripts/expect.sh"
program=$(realpath "$1") page=$(realpath "$2") script=$(realpath "$3")
export OMP_NUM_THREADS=1
mkdir -p "$scratch/build" "$scratch/apps/examples"
ln -s "$program" "$scratch/build/aliquot"
ln -s "$script" "$scratch/apps/examples/read_checkpoint.py"
cd "$scratch"
if ! python=$(command -v python3); then
  echo "skipped, because python3 is missing"
  exit 77
fi
needs_h5py='read_checkpoint.py [^-]'
has_h5py=
if "$python" -c 'import h5py' 2>/dev/null; then has_h5py=1; fi

# The log of `aliquot train` has the digest that the script must print.
commands=0
while IFS= read -r command; do
  if [[ $command =~ $needs_h5py ]] && [ -z "$has_h5py" ]; then continue; fi
  commands=$((commands + 1))
  case $command in
    *aliquot\ train\ *) command+=" --layers 1 --width 16 --heads 2 --context 16 --micro-batch 1 --threads 1" ;;
    apps/examples/*) command="'$python' $command" ;;
  esac
  if ! bash -c "$command" </dev/null >"$scratch/log" 2>&1; then
    echo "$page: this command failed: $command" && tail -n 20 "$scratch/log" && failures=$((failures + 1))
  fi
  case $command in *aliquot\ train*--steps\ 20*) cp "$scratch/log" "$scratch/train.log" ;; esac
done < <(sed -nE '/^    (build\/aliquot|apps\/examples\/)/{
  s/ +# .*//
  s/^ +//
  p
}' "$page")
if [ "$commands" -lt 7 ]; then echo "ran $commands commands, expected at least 7" && failures=$((failures + 1)); fi

digest=$(grep -oE '[0-9a-f]{64}' train.log | head -n 1)
expect pass "digest ${digest:-missing}" "$python" "$script" --verify runs/nano/step-00000020
expect pass "$digest" build/aliquot checkpoint show runs/nano/step-00000020

if [ -n "$has_h5py" ]; then
  awk '/^```python/ { inside = 1; next } /^```/ { inside = 0 } inside' "$page" >listing.py
  expect pass "float32 (" "$python" listing.py
  # The script finds the tensors that Aliquot lists.
  "$python" "$script" runs/nano/step-00000010 | awk '/^(parameters|optimizer)\// { print $1 }' | LC_ALL=C sort >h5py.txt
  grep -oE '"path":"[^"]*"' runs/nano/step-00000010/manifest.json | cut -d'"' -f4 | LC_ALL=C sort >manifest.txt
  expect pass "" diff h5py.txt manifest.txt
fi

# Each byte belongs to a checksum.
copy=damaged/step-00000010
mkdir damaged
cp -r runs/nano/step-00000010 damaged
printf '\001' | dd of=$copy/state.h5 bs=1 seek=$(($(stat -c %s $copy/state.h5) - 1)) conv=notrunc status=none
expect fail "do not match their CRC-32C" "$python" "$script" --verify $copy
cp runs/nano/step-00000010/state.h5 $copy
sed -i 's/"step":10/"step":11/' $copy/manifest.json
expect fail "does not match its SHA-256" "$python" "$script" --verify $copy

if [ "$failures" -gt 0 ]; then exit 1; fi
if [ -z "$has_h5py" ]; then echo "skipped: what needs h5py (pip install h5py)" && exit 77; fi
