#!/usr/bin/env bash
# scripts/check.sh [--fix] [--tidy | --tidy-all]
# The house's rules, the same by hand and in CI: format, include directions, lengths, names of types, public headers and what
# docs/api.md says of them, nothing that ties the project to one
# machine, and shellcheck over the scripts. --fix formats in place. By hand alone, not in CI, because a source takes 10 to 30
# seconds: --tidy adds clang-tidy over the sources that differ from the branch main, --tidy-all over all of them.
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

# files PATTERN...: what git tracks or would add.
files() { git ls-files -co --exclude-standard --deduplicate -- "$@" | while read -r file; do if [ -f "$file" ]; then echo "$file"; fi; done; }

# rule NAME COMMAND...: runs it, and remembers the name if it fails.
rule() {
  local name=$1
  shift
  if "$@"; then echo "ok: $name"; else bad+=("$name"); fi
}

# need TOOL NAME: whether the tool is here; a rule that was not checked is said.
need() {
  if command -v "$1" >/dev/null; then return 0; fi
  echo "not checked: $2 ($1 is missing; scripts/setup.sh --dev installs it)"
  return 1
}

# Each file that is not formatted, with the first line that would change.
formatted() {
  local complaints
  if complaints=$(clang-format-14 --dry-run -Werror "$@" 2>&1); then return 0; fi
  awk -F: '!/: error: / { next } !seen[$1]++ { print $1 ":" $2 ": not formatted" }' <<<"$complaints"
  return 1
}

no_places() { ! git grep -nIE '(^|[^[:alnum:]_.])/([w]ork|[r]oot|[h]ome)/' -- . ':!scripts/check.sh'; }

# The sources that --tidy or --tidy-all means.
to_tidy() {
  local base
  if [ "$tidy" = all ]; then
    files '*.cpp'
  else
    base=$(git merge-base main HEAD) || fail 2 "there is no branch main to compare with; use --tidy-all"
    { git diff --name-only --diff-filter=d "$base" -- '*.cpp' && git ls-files -o --exclude-standard -- '*.cpp'; } | sort -u
  fi
}

run_tidy() {
  local chosen file compiled=()
  configure release
  chosen=$(to_tidy)
  # Without its flags, as a backend's that this build leaves out, a source cannot be read.
  for file in $chosen; do
    if grep -qF "\"file\": \"$PWD/$file\"" build/compile_commands.json; then compiled+=("$file"); else echo "not in this build: $file"; fi
  done
  printf '%s\n' "${compiled[@]}" | xargs -r -n 1 -P "$(job_count)" clang-tidy-14 --quiet --warnings-as-errors='*' -p build
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
rule "public headers" scripts/check_public.sh
rule "docs/api.md" scripts/check_api.sh
rule "no place but this tree" no_places
if need shellcheck "shell scripts"; then rule "shell scripts" shellcheck -x "${shell_scripts[@]}"; fi
if [ -n "$tidy" ] && need clang-tidy-14 clang-tidy; then rule clang-tidy run_tidy; fi

if [ ${#bad[@]} -gt 0 ]; then
  fixable=
  if [[ " ${bad[*]} " = *" format "* ]]; then fixable=" (scripts/check.sh --fix mends the format)"; fi
  printf -v names '%s, ' "${bad[@]}"
  fail 1 "broken: ${names%, }$fixable"
fi
