#!/usr/bin/env bash
# Checks the arguments that train.sh passes to the command: its defaults, unless the user or a file sets them.
# shellcheck source=tests/scripts/expect.sh
source "$(dirname "$0")/expect.sh"

# A tree with the real script. Each program it calls is replaced by one that prints its arguments.
mkdir -p "$scratch/scripts" "$scratch/build" "$scratch/bin"
cp "$top"/scripts/{train,lib}.sh "$scratch/scripts/"
printf '#!/bin/sh\n' | tee "$scratch/scripts/setup.sh" "$scratch/bin/cmake" "$scratch/bin/ninja" >/dev/null
printf '#!/bin/sh\necho "called: $*."\n' >"$scratch/build/aliquot"
chmod +x "$scratch"/{scripts/setup.sh,bin/cmake,bin/ninja,build/aliquot}
PATH=$scratch/bin:$PATH

train=$scratch/scripts/train.sh
expect pass "called: train --zero-stage 3 --ranks 2." "$train"
expect pass "called: train --ranks 2 --zero-stage 1 --lr 1." "$train" --zero-stage 1 --lr 1
expect pass "called: train --zero-stage 3 --ranks=4." "$train" --ranks=4
expect pass "called: train --ranks 2 --deepspeed d.json." "$train" --deepspeed d.json
expect pass "called: train --config run.ini." "$train" --config run.ini
printf '#!/bin/sh\nexit 1\n' >"$scratch/bin/ninja"
expect fail "has no target aliquot_command" "$train"
exit $((failures > 0))
