#!/usr/bin/env bash
# hardening_test.sh PROGRAM LIBRARY [PROBE]: checks in the binaries that a release build's program and shared library
# are hardened as cmake/AliquotHardening.cmake requests. PROBE is the object of hardening_probe.cpp, if the compiler
# supports fortified functions of level 3.
set -euo pipefail
program=$1 library=$2 probe=${3:-} failures=0
for tool in readelf objdump; do
  if ! command -v $tool >/dev/null; then
    echo "skipped: $tool is missing"
    exit 77
  fi
done

wrong() {
  echo "$*"
  failures=$((failures + 1))
}
# has FILE MESSAGE PATTERN OPTIONS...: reports MESSAGE if no line of readelf's output with these options matches.
has() {
  local file=$1 what=$2 pattern=$3
  shift 3
  if ! grep -Eq -- "$pattern" <<<"$(readelf -W "$@" "$file")"; then wrong "$file: $what"; fi
}
# lacks FILE MESSAGE PATTERN OPTIONS...: reports MESSAGE if a line of readelf's output with these options matches.
lacks() {
  local file=$1 what=$2 pattern=$3
  shift 3
  if grep -E -- "$pattern" <<<"$(readelf -W "$@" "$file")"; then wrong "$file: $what"; fi
}

# touches FILE: checks that the code touches large stack frames page by page, so that it does not skip a guard page.
# Supports x86-64 and arm64.
touches() {
  local touch
  case $(uname -m) in
    x86_64) touch='or[bwlq] +[$]0x0,\(%rsp\)' ;;
    aarch64) touch='str[[:space:]]+xzr, \[sp, #1024\]' ;;
    *) return ;;
  esac
  if ! objdump -d --no-show-raw-insn "$1" | grep -E -- "$touch" | awk 'END { exit NR == 0 }'; then
    wrong "$1: large stack frames are not probed (-fstack-clash-protection)"
  fi
}

for file in "$program" "$library"; do
  has "$file" "is not position independent" 'Type: +DYN' -h
  has "$file" "binds functions lazily" 'BIND_NOW|FLAGS.* NOW' -d
  has "$file" "has no RELRO segment, so relocation tables stay writable" '^ +GNU_RELRO ' -l
  has "$file" "has no GNU_STACK header" '^ +GNU_STACK ' -l
  lacks "$file" "has an executable stack" '^ +GNU_STACK .* [R ][W ]E ' -l
  lacks "$file" "has a segment that is writable and executable" '^ +LOAD .* [R ]WE ' -l
  lacks "$file" "has text relocations" 'TEXTREL' -d
  has "$file" "has no stack protector" ' __stack_chk_fail' --dyn-syms
  has "$file" "has no fortified functions" ' __[a-z_]+_chk(@|$)' --dyn-syms
  touches "$file"
done
if [ -n "$probe" ]; then
  has "$probe" "memcpy to a buffer of run-time size is not fortified" ' __memcpy_chk' --syms
fi
has "$program" "is not a position-independent executable" 'FLAGS_1.*PIE' -d
exit $((failures > 0))
