#!/usr/bin/env bash
# Tests that slowest.awk prints the ten slowest tests of ctest's output, slowest first.
# shellcheck source=tests/scripts/expect.sh
source "$(dirname "$0")/expect.sh"

{
  echo "      Start  1: board_test"
  for number in $(seq 1 12); do
    echo "$number/12 Test  #$number: test_$number ........   Passed    $((number * 7 % 13)).25 sec"
  done
  echo "13/13 Test #13: failing_test ......***Failed   40.50 sec"
  echo "Total Test time (real) =  99.00 sec"
} >"$scratch/log"
awk -f "$top/scripts/slowest.awk" "$scratch/log" >"$scratch/slowest"
expect pass "The slowest tests, in seconds:" head -n 1 "$scratch/slowest"
expect pass "     40.5 failing_test" sed -n 2p "$scratch/slowest"
expect pass "     12.2 test_11" sed -n 3p "$scratch/slowest"
expect pass "      4.2 test_8" sed -n 11p "$scratch/slowest"
expect pass 11 bash -c "wc -l <$scratch/slowest"
exit $((failures > 0))
