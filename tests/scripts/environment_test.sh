#!/usr/bin/env bash
# Tests that check_environment.sh reports variables that docs/environment.md lacks, and variables that nothing reads.
# shellcheck source=tests/scripts/expect.sh
source "$(dirname "$0")/expect.sh"

folders=(apps bench capi checkpoint engine kernels libtorch optim sharding tests)
for folder in "${folders[@]}"; do mkdir -p "$scratch/$folder" && touch "$scratch/$folder/empty.cpp"; done
mkdir -p "$scratch/docs" "$scratch/scripts"
cat >"$scratch/docs/environment.md" <<'END'
| variable | value |
| --- | --- |
| `ALIQUOT_FAULT` | text |
| `PMI_RANK`, `PMI_SIZE` | an integer |
| `OUT` | a directory |
| `ALIQUOT_KILLS` | an integer |
END
echo 'const char* text = std::getenv("ALIQUOT_FAULT");' >"$scratch/kernels/a.cpp"
echo 'for (const char* name : {"PMI_RANK", "PMI_SIZE"}) std::getenv(name);' >"$scratch/sharding/a.cpp"
# shellcheck disable=SC2016
echo 'out=${OUT:-build}' >"$scratch/scripts/a.sh"
# shellcheck disable=SC2016
echo 'echo "$ALIQUOT_KILLS"' >"$scratch/tests/a.sh"

# check_edited FILE SED: runs check_environment.sh on a copy of the tree in which FILE is edited.
# shellcheck disable=SC2317  # expect calls it
check_edited() {
  rm -rf "$scratch.copy"
  cp -r "$scratch" "$scratch.copy"
  sed -i "$2" "$scratch.copy/$1"
  local status=0
  "$top/scripts/check_environment.sh" "$scratch.copy" || status=$?
  rm -rf "$scratch.copy"
  return "$status"
}

expect pass "" check_edited docs/environment.md ''
expect fail "lacks the variable ALIQUOT_FAULT" check_edited docs/environment.md /FAULT/d
expect fail "lacks the variable PMI_SIZE" check_edited docs/environment.md 's/, .PMI_SIZE.//'
expect fail "lacks the variable OUT" check_edited docs/environment.md /OUT/d
expect fail "lacks the variable ALIQUOT_KILLS" check_edited docs/environment.md /KILLS/d
expect fail "lists PMI_SIZE, which no source or script contains" check_edited sharding/a.cpp 's/, "PMI_SIZE"//'
exit $((failures > 0))
