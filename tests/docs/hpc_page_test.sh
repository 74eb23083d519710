#!/usr/bin/env bash
# tests/docs/hpc_page_test.sh PAGE SOURCES EXAMPLES [MPIEXEC]: checks that each line of a cpp or fortran listing of the
# page is in one of the example programs of its language in the folder SOURCES. Runs the two commands of the page with
# the programs in the folder EXAMPLES, and compares their outputs with the text listings.
# shellcheck source=tests/scripts/expect.sh
source "$(dirname "$0")/../scripts/expect.sh"
page=$1 sources=$2 examples=$3 mpiexec=${4:-}

# listing_lines KIND: prints the lines of all listings of this kind.
listing_lines() { awk -v kind="$1" '/^```/ { inside = !inside && substr($0, 4) == kind; next } inside' "$page"; }

# listed KIND FILES...: checks that each line of these listings is in one of the files.
listed() {
  local kind=$1 line count=0
  shift
  while IFS= read -r line; do
    count=$((count + 1))
    if ! grep -qxF -e "$line" "$@"; then
      echo "$page: no example contains the line: $line" && failures=$((failures + 1))
    fi
  done < <(listing_lines "$kind")
  if [ "$count" -lt 5 ]; then echo "$page: $count lines of $kind" && failures=$((failures + 1)); fi
}

# printed NUMBER COMMAND...: compares the output of the command with text listing NUMBER.
printed() {
  local number=$1
  shift
  "$@" >"$scratch/output" || { echo "failed: $*" && failures=$((failures + 1)); }
  diff <(awk -v number="$number" '/^```text/ { inside = ++listings == number; next } /^```/ { inside = 0 } inside' "$page") \
    "$scratch/output" ||
    { echo "$page: text listing $number differs from the output of: $*" && failures=$((failures + 1)); }
}

listed cpp "$sources"/*.cpp
listed fortran "$sources"/*.f90
printed 2 "$examples/surrogate" 3 100
if [ -n "$mpiexec" ] && [ -x "$examples/surrogate_mpi" ]; then
  printed 1 "$mpiexec" -n 4 --oversubscribe "$examples/surrogate_mpi" 100
fi
exit $((failures > 0))
