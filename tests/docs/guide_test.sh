#!/usr/bin/env bash
# tests/docs/guide_test.sh GUIDE HEADERS LIBRARIES: compiles and runs every listing of a guide. The cpp listings
# together are a program. A diff listing changes the program. A text listing is the program's expected output. A sh
# listing that runs ./program sets the command line of later runs. GUIDE_SHOW=1 shows the output instead of comparing
# it. GUIDE_FLAGS adds compiler flags.
# shellcheck source=tests/scripts/expect.sh
source "$(dirname "$0")/../scripts/expect.sh"
guide=$1 headers=$(realpath "$2") libraries=$(realpath "$3")
export OMP_NUM_THREADS=1
program=$scratch/program.cpp
: >"$program"
run="./program"
read -ra more <<<"${GUIDE_FLAGS:-}"
outputs=0

# Writes each listing to a file NUMBER.KIND.
awk -v to="$scratch" '
/^```/ && !inside {
  inside = 1
  file = sprintf("%s/%03d.%s", to, ++listings, substr($0, 4))
  printf "" > file
  next
}
/^```/ { inside = 0; close(file); next }
inside { print > file }' "$guide"

# printed LISTING: builds and runs the program, and compares its output with the listing.
printed() {
  if [[ $run == *mpirun* ]] &&
    ! { command -v mpirun >/dev/null && ldd "$libraries/libaliquot.so" | grep libmpi >"$scratch/mpi"; }; then
    echo "skipped, because mpirun is missing or the build has no MPI: $run" && return
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
      awk -f "$(dirname "$0")/apply_diff.awk" "$program" "$listing" >"$scratch/changed" ||
        { echo "$guide: cannot apply the diff that begins $(head -n 3 "$listing")" && exit 1; }
      mv "$scratch/changed" "$program"
      ;;
    *.sh) if grep -q '[.]/program' "$listing"; then run=$(cat "$listing"); fi ;;
    *.text)
      outputs=$((outputs + 1))
      printed "$listing" ||
        { echo "$guide: the program's output differs from text listing $outputs" && failures=$((failures + 1)); }
      ;;
  esac
done
if [ "$outputs" -lt 2 ]; then
  echo "$guide: ran $outputs text listings, expected at least 2" && failures=$((failures + 1))
fi
exit $((failures > 0))
