#!/usr/bin/env bash
# Tests that check_types.sh fails if two files define types of the same qualified name, and accepts other definitions.
# shellcheck source=tests/scripts/expect.sh
source "$(dirname "$0")/expect.sh"
mkdir -p "$scratch/kernels" "$scratch/engine"

# types pass|fail TEXT: runs check_types.sh on a tree with two files. kernels/wait.h defines a::Wait, and standard input
# is engine/other.cpp. The check must pass or fail, and print TEXT.
types() {
  printf 'namespace a {\nstruct Wait {\n  int member;\n};\n}  // namespace a\n' >"$scratch/kernels/wait.h"
  cat >"$scratch/engine/other.cpp"
  expect "$1" "$2" "$top/scripts/check_types.sh" "$scratch"
}

types fail "kernels/wait.h:2: a::Wait is also defined in engine/other.cpp" \
  < <(printf 'namespace a {\nclass Wait final : public Other {\n};\n}\n')
types fail "a::Wait" \
  < <(printf 'namespace a {\nenum class Wait : int { kOne };\nenum class Wait : int {\n};\n}\n')
types fail "a::Wait" \
  < <(printf 'namespace a {\nnamespace {\nint x;\n}  // namespace\nstruct alignas(64) Wait {\n};\n}\n')
types pass "" < <(printf 'namespace a {\nnamespace {\nstruct Wait {\n};\n}  // namespace\n}\n')
types pass "" < <(printf 'namespace b {\nstruct Wait {\n};\n}\n')
types pass "" < <(printf 'namespace a {\nstruct Wait;\nstruct Waits {\n};\n  struct Wait {\n};\n}\n')
exit $((failures > 0))
