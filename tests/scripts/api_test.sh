#!/usr/bin/env bash
# Tests that check_api.sh reports names that docs/api.md lacks, superfluous names, and different defaults.
# shellcheck source=tests/scripts/expect.sh
source "$(dirname "$0")/expect.sh"

# check_edited FILE SED: copies the files that check_api.sh reads, edits FILE with the sed expression, and runs
# check_api.sh on the copy.
# shellcheck disable=SC2317  # expect calls it
check_edited() {
  rm -rf "${scratch:?}"/*
  (cd "$top" && cp -r --parents docs/api.md include/aliquot/c.h sharding/world.h \
    engine/{engine,options,plan/activations,plan/policy}.h \
    checkpoint/{background_saver,save,load}.h libtorch/sharded_module.h "$scratch")
  sed -i "$2" "$scratch/$1"
  "$top/scripts/check_api.sh" "$scratch"
}

expect pass "" check_edited docs/api.md ''
expect fail "> prefetch = 1" check_edited docs/api.md '/prefetch = 1/d'
expect fail "< prefetch = 2" check_edited docs/api.md 's/prefetch = 1/prefetch = 2/'
expect fail "> sparkle = 7" check_edited engine/options.h 's/^  int prefetch = 1;/&\n  int sparkle = 7;  \/\/ new/'
expect fail "> sparkle" check_edited engine/engine.h 's/^.*StepReport step();/&\n  void sparkle(int how);/'
expect fail "< sum" check_edited sharding/world.h 's/ sum(/ add_up(/'
expect fail "> aliquot_sparkle" check_edited include/aliquot/c.h \
  's/^int aliquot_micro_batch.*/&\nint aliquot_sparkle(void);/'
expect fail "< aliquot_nothing" check_edited docs/api.md 's/aliquot_micro_batch/aliquot_nothing/'
exit $((failures > 0))
