#!/usr/bin/env bash
# check_api.sh tells what docs/api.md lacks, has too much, or has with another default.
# shellcheck source=tests/scripts/expect.sh
source "$(dirname "$0")/expect.sh"

# judged FILE SED: the tree with that file changed.
# shellcheck disable=SC2317  # expect calls it
judged() {
  rm -rf "${scratch:?}"/*
  (cd "$top" && cp -r --parents docs/api.md include/aliquot/c.h sharding/world.h engine/{engine,options,plan/activations,plan/policy}.h \
    checkpoint/{background_saver,save,load}.h libtorch/sharded_module.h "$scratch")
  sed -i "$2" "$scratch/$1"
  "$top/scripts/check_api.sh" "$scratch"
}

expect pass "" judged docs/api.md ''
expect fail "> prefetch = 1" judged docs/api.md '/prefetch = 1/d'
expect fail "< prefetch = 2" judged docs/api.md 's/prefetch = 1/prefetch = 2/'
expect fail "> sparkle = 7" judged engine/options.h 's/^  int prefetch = 1;/&\n  int sparkle = 7;  \/\/ new/'
expect fail "> sparkle" judged engine/engine.h 's/^.*StepReport step();/&\n  void sparkle(int how);/'
expect fail "< sum" judged sharding/world.h 's/ sum(/ add_up(/'
expect fail "> aliquot_sparkle" judged include/aliquot/c.h 's/^int aliquot_micro_batch.*/&\nint aliquot_sparkle(void);/'
expect fail "< aliquot_nothing" judged docs/api.md 's/aliquot_micro_batch/aliquot_nothing/'
exit $((failures > 0))
