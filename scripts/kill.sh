#!/usr/bin/env bash
# scripts/kill.sh [KILLS]
# Starts a program that saves checkpoints, and kills it at a random moment, KILLS times (1000). In half of these runs,
# the program saves in the background. Checks that no completed checkpoint is lost and that no incomplete checkpoint is
# visible. Appends its counts to build/kills.txt and prints the totals of that file.
# shellcheck source=scripts/lib.sh
source "$(dirname "$0")/lib.sh"

kills=1000
case ${1:-} in
  --help | -h) usage && exit ;;
  '') ;;
  *[!0-9]*) fail 1 "invalid number of kills '$1': expected an integer (see --help)" ;;
  *) kills=$1 ;;
esac

build release checkpoint_kill_test >/dev/null || fail 1 "the build failed"
ALIQUOT_KILLS=$(((kills + 1) / 2)) build/tests/checkpoint/checkpoint_kill_test | tee build/kills.log |
  grep -E ' kills, ' || true
if ! grep -q '\[  PASSED  \] 2 tests' build/kills.log; then
  fail 1 "a completed checkpoint was lost, or an incomplete one was visible (see build/kills.log)"
fi
grep -E ' kills, ' build/kills.log >>build/kills.txt
awk '{ kills += $1; half += $3 }
  END { printf "in total %d kills, %d of them during a save; no checkpoint lost\n", kills, half }' build/kills.txt
