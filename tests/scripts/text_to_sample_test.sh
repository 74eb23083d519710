#!/usr/bin/env bash
# text_to_sample_test.sh PROGRAM: runs scripts/text_to_sample.sh with few steps.
# shellcheck source=tests/scripts/expect.sh
source "$(dirname "$0")/expect.sh"
ALIQUOT_PROGRAM=$(realpath "$1")
export ALIQUOT_PROGRAM OMP_NUM_THREADS=1
script=$top/scripts/text_to_sample.sh
cd "$scratch"

# A text of three words, which a model learns within few steps.
for _ in $(seq 2000); do printf 'red fox runs\n'; done >text.txt
expect pass "red fox runs
red fox runs
red fox runs" "$script" --steps 60 --out small --prompt 'red' text.txt
for file in small/tokens.h5 small/model/tokenizer.json; do
  if [ ! -f "$file" ]; then echo "$file is missing" && failures=$((failures + 1)); fi
done

# The default text, for one step.
expect pass "sample --checkpoint" "$script" --steps 1 --out default
expect fail "default exists: remove it" "$script" --out default
expect fail "nothing.txt: there is no such file" "$script" nothing.txt
expect fail "unknown option --step" "$script" --step 3
expect fail "--steps needs a value" "$script" --steps
exit $((failures > 0))
