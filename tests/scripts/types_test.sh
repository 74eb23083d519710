#!/usr/bin/env bash
# check_types.sh finds two types of one name, and no more than that.
# shellcheck source=tests/scripts/expect.sh
source "$(dirname "$0")/expect.sh"
mkdir -p "$scratch/kernels" "$scratch/engine"

# types pass|fail TEXT: judges a tree with one type, and beside it the source that is standard input.
types() {
  printf 'namespace a {\nstruct Wait {\n  int member;\n};\n}  // namespace a\n' >"$scratch/kernels/wait.h"
  cat >"$scratch/engine/other.cpp"
  expect "$1" "$2" "$top/scripts/check_types.sh" "$scratch"
}

types fail "kernels/wait.h:2: a::Wait is the name of a type in engine/other.cpp too" < <(printf 'namespace a {\nclass Wait final : public Other {\n};\n}\n')
types fail "a::Wait" < <(printf 'namespace a {\nenum class Wait : int { kOne };\nenum class Wait : int {\n};\n}\n')
types fail "a::Wait" < <(printf 'namespace a {\nnamespace {\nint x;\n}  // namespace\nstruct alignas(64) Wait {\n};\n}\n')
types pass "" < <(printf 'namespace a {\nnamespace {\nstruct Wait {\n};\n}  // namespace\n}\n')
types pass "" < <(printf 'namespace b {\nstruct Wait {\n};\n}\n')
types pass "" < <(printf 'namespace a {\nstruct Wait;\nstruct Waits {\n};\n  struct Wait {\n};\n}\n')
exit $((failures > 0))
