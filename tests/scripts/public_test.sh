#!/usr/bin/env bash
# Tests every rule of check_public.sh with one violation in an otherwise valid tree.
# shellcheck source=tests/scripts/expect.sh
source "$(dirname "$0")/expect.sh"

# fresh: creates a small valid tree.
fresh() {
  rm -rf "${scratch:?}"/*
  mkdir -p "$scratch"/{kernels,engine,include/aliquot,cmake}
  printf '%s\n' '#include "engine/engine.h"' '#include <vector>' >"$scratch/include/aliquot/aliquot.h"
  printf '%s\n' '#include "kernels/stream.h"' >"$scratch/engine/engine.h"
  printf '%s\n' '#include "kernels/macros.h"' >"$scratch/kernels/stream.h"
  local header
  for header in engine/engine.h kernels/stream.h; do
    printf '%s\n' '#pragma GCC visibility push(default)' 'namespace aliquot {' '}' '#pragma GCC visibility pop' \
      >>"$scratch/$header"
  done
  echo '#define ALIQUOT_NOTHING' >"$scratch/kernels/macros.h"
  echo 'namespace aliquot {}' >"$scratch/engine/inside.h"
  printf 'set(aliquot_public_headers\n  kernels/macros.h kernels/stream.h\n  engine/engine.h)\n' \
    >"$scratch/cmake/AliquotPublicHeaders.cmake"
}

# rule pass|fail TEXT FILE LINE...: creates a fresh tree, appends the lines to FILE in it, and runs check_public.sh on
# it. The check must pass or fail, and its output must contain TEXT.
rule() {
  local wanted=$1 text=$2 file=$3
  shift 3
  fresh
  printf '%s\n' "$@" >>"$scratch/$file"
  expect "$wanted" "$text" "$top/scripts/check_public.sh" "$scratch"
}

rule pass "" engine/inside.h ''
rule fail "engine/inside.h: is included from include/aliquot/" kernels/macros.h '#include "engine/inside.h"'
rule fail "engine/other.h: is listed" cmake/AliquotPublicHeaders.cmake 'set(aliquot_public_headers engine/other.h)'
rule fail "engine/inside.h: exports its declarations" engine/inside.h '#pragma GCC visibility push(default)'
rule fail "kernels/macros.h: is a public header: put #pragma" kernels/macros.h 'namespace aliquot {'
exit $((failures > 0))
