#!/usr/bin/env bash
# tests/docs/guide_test.sh GUIDE HEADERS LIBRARIES: compiles and runs every listing of a guide. Its cpp listings, one after the
# other, are a program; a diff listing changes the program; a text listing is what the program prints; a sh listing that
# runs ./program says how it is started from then on. With GUIDE_SHOW=1 it shows what is printed instead of comparing. GUIDE_FLAGS
# are more words for the compiler.
# shellcheck source=tests/scripts/expect.sh
source "$(dirname "$0")/../scripts/expect.sh"
guide=$1 headers=$(realpath "$2") libraries=$(realpath "$3")
export OMP_NUM_THREADS=1
program=$scratch/program.cpp
: >"$program"
run="./program"
read -ra more <<<"${GUIDE_FLAGS:-}"
outputs=0

# Listings as files: NUMBER.KIND
awk -v to="$scratch" '
/^```/ && !inside { inside = 1; kind = substr($0, 4); file = sprintf("%s/%03d.%s", to, ++listings, kind); printf "" > file; next }
/^```/ { inside = 0; close(file); next }
inside { print > file }' "$guide"

# printed LISTING: builds the program, runs it, and compares.
printed() {
  if [[ $run == *mpirun* ]] && ! { command -v mpirun >/dev/null && ldd "$libraries/libaliquot.so" | grep libmpi >"$scratch/mpi"; }; then
    echo "not run, there is no mpirun, or the build is without MPI: $run" && return
  fi
  ${CXX:-c++} -std=c++20 -O2 -Wall -Wextra -Werror -ffp-contract=off -I"$headers" "$program" -L"$libraries" -laliquot \
    "-Wl,-rpath,$libraries" "${more[@]}" -o "$scratch/program" || return 1
  (cd "$scratch" && bash -c "$run") >"$scratch/output" 2>&1 || { cat "$scratch/output" && return 1; }
  if [ -n "${GUIDE_SHOW:-}" ]; then cat "$scratch/output" && return; fi
  diff "$1" "$scratch/output"
}

for listing in "$scratch"/[0-9][0-9][0-9].*; do
  case $listing in
    *.cpp) cat "$listing" >>"$program" && echo >>"$program" ;;
    *.diff)
      awk -f "$(dirname "$0")/apply_diff.awk" "$program" "$listing" >"$scratch/changed" || { echo "$guide: $(head -n 3 "$listing")" && exit 1; }
      mv "$scratch/changed" "$program"
      ;;
    *.sh) if grep -q '[.]/program' "$listing"; then run=$(cat "$listing"); fi ;;
    *.text)
      outputs=$((outputs + 1))
      printed "$listing" || { echo "$guide: output $outputs is not what is printed" && failures=$((failures + 1)); }
      ;;
  esac
done
if [ "$outputs" -lt 2 ]; then echo "$guide: no listing was run" && failures=$((failures + 1)); fi
exit $((failures > 0))
