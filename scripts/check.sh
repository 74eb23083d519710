#!/usr/bin/env bash
# scripts/check.sh [--fix] [--tidy | --tidy-all]
# Runs the project's checks, as CI does: format, include directions, lengths, names of types, public headers and their
# description in docs/api.md and docs/api/, environment variables in docs/environment.md, text, absence of
# machine-specific paths, scripts (shellcheck).
#   --fix       formats files in place
#   --tidy      adds clang-tidy over the sources that differ from branch main (10 to 30 seconds per source; not in CI)
#   --tidy-all  adds clang-tidy over all sources
# scripts/setup.sh --dev installs the tools.
# shellcheck source=scripts/lib.sh
source "$(dirname "$0")/lib.sh"

fix=
tidy=
for argument in "$@"; do
  case $argument in
    --fix) fix=1 ;;
    --tidy) tidy=changed ;;
    --tidy-all) tidy=all ;;
    --help | -h) usage && exit ;;
    *) fail 1 "unknown option $argument (see --help)" ;;
  esac
done
bad=()

# files PATTERN...: prints the existing files that match and that git tracks or does not ignore.
files() {
  git ls-files -co --exclude-standard --deduplicate -- "$@" | while read -r file; do
    if [ -f "$file" ]; then echo "$file"; fi
  done
}

# rule NAME COMMAND...: runs the command, and adds NAME to `bad` if it fails.
rule() {
  local name=$1
  shift
  if "$@"; then echo "ok: $name"; else bad+=("$name"); fi
}

# need TOOL NAME: succeeds if the tool is installed; otherwise prints that the rule was not checked.
need() {
  if command -v "$1" >/dev/null; then return 0; fi
  echo "not checked: $2 ($1 is missing; scripts/setup.sh --dev installs it)"
  return 1
}

# Prints each unformatted file with the first line that would change.
formatted() {
  local findings
  if findings=$(clang-format-14 --dry-run -Werror "$@" 2>&1); then return 0; fi
  awk -F: '!/: error: / { next } !seen[$1]++ { print $1 ":" $2 ": not formatted" }' <<<"$findings"
  return 1
}

# Fails if a tracked file contains an absolute path of a developer's machine.
no_places() { ! git grep -nIE '(^|[^[:alnum:]_.])/([w]ork|[r]oot|[h]ome)/' -- . ':!scripts/check.sh'; }

# Prints the sources that --tidy or --tidy-all selects.
to_tidy() {
  local base
  if [ "$tidy" = all ]; then
    files '*.cpp'
  else
    base=$(git merge-base main HEAD) || fail 2 "cannot compare with branch main, which does not exist: use --tidy-all"
    { git diff --name-only --diff-filter=d "$base" -- '*.cpp' &&
      git ls-files -o --exclude-standard -- '*.cpp'; } | sort -u
  fi
}

run_tidy() {
  local chosen file compiled=()
  configure release
  chosen=$(to_tidy)
  # clang-tidy needs compile flags. Sources of a backend that this build does not include have none.
  for file in $chosen; do
    if grep -qF "\"file\": \"$PWD/$file\"" build/compile_commands.json; then
      compiled+=("$file")
    else
      echo "not in this build: $file"
    fi
  done
  # clang cannot read the precompiled headers of GCC.
  mkdir -p build/tidy
  sed 's/ -include [^ ]*cmake_pch.hxx / /' build/compile_commands.json >build/tidy/compile_commands.json
  printf '%s\n' "${compiled[@]}" |
    xargs -r -n 1 -P "$(job_count)" clang-tidy-14 --quiet --warnings-as-errors='*' -p build/tidy
}

mapfile -t sources < <(files '*.h' '*.c' '*.cpp' '*.cu' '*.cuh')
mapfile -t shell_scripts < <(files '*.sh' .ci/run)
if need clang-format-14 format; then
  if [ -n "$fix" ]; then clang-format-14 -i "${sources[@]}"; fi
  rule format formatted "${sources[@]}"
fi
rule "include directions" scripts/check_layers.sh
rule lengths scripts/check_lengths.sh
rule "names of types" scripts/check_types.sh
rule text scripts/check_text.sh
rule "public headers" scripts/check_public.sh
rule "docs/api.md" scripts/check_api.sh
if command -v python3 >/dev/null; then
  rule docs/api scripts/api_pages.py --check
else
  echo "not checked: docs/api (python3 is missing)"
fi
rule "docs/environment.md" scripts/check_environment.sh
rule "no absolute paths" no_places
if need shellcheck "shell scripts"; then rule "shell scripts" shellcheck -x "${shell_scripts[@]}"; fi
if [ -n "$tidy" ] && need clang-tidy-14 clang-tidy; then rule clang-tidy run_tidy; fi

if [ ${#bad[@]} -gt 0 ]; then
  fixable=
  if [[ " ${bad[*]} " = *" format "* ]]; then fixable=" (scripts/check.sh --fix formats the files)"; fi
  printf -v names '%s, ' "${bad[@]}"
  fail 1 "failed: ${names%, }$fixable"
fi
