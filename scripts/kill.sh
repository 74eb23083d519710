#!/usr/bin/env bash
# scripts/kill.sh [KILLS]
# Kills a run that saves checkpoints again and again, at random moments, half of the times while it saves in the background,
# so often (1000): no checkpoint that was promised may be lost, and none be seen half written. Adds what it did to
# build/kills.txt and says how many kills there were in all.
# shellcheck source=scripts/lib.sh
source "$(dirname "$0")/lib.sh"

kills=1000
case ${1:-} in
  --help | -h) usage && exit ;;
  '') ;;
  *[!0-9]*) fail 1 "the number of kills is no number: $1 (see --help)" ;;
  *) kills=$1 ;;
esac

build release checkpoint_kill_test >/dev/null || fail 1 "the build failed"
ALIQUOT_KILLS=$(((kills + 1) / 2)) build/tests/checkpoint/checkpoint_kill_test | tee build/kills.log |
  grep -E ' kills, ' || true
if ! grep -q '\[  PASSED  \] 2 tests' build/kills.log; then fail 1 "a checkpoint was lost, or seen half written: build/kills.log"; fi
grep -E ' kills, ' build/kills.log >>build/kills.txt
awk '{ kills += $1; half += $3 } END { printf "in all %d kills, %d with a save half done, nothing lost\n", kills, half }' build/kills.txt
