#!/usr/bin/env bash
# hardening_test.sh PROGRAM LIBRARY [PROBE]: that a release build's program and shared library are what
# cmake/AliquotHardening.cmake asks for, read from the files themselves. PROBE is hardening_probe.cpp's object, where the compiler
# knows fortified functions of level 3.
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
# has FILE WHAT PATTERN OPTIONS...: some line that readelf prints with the options.
has() {
  local file=$1 what=$2 pattern=$3
  shift 3
  if ! grep -Eq -- "$pattern" <<<"$(readelf -W "$@" "$file")"; then wrong "$file: $what"; fi
}
# lacks FILE WHAT PATTERN OPTIONS...
lacks() {
  local file=$1 what=$2 pattern=$3
  shift 3
  if grep -E -- "$pattern" <<<"$(readelf -W "$@" "$file")"; then wrong "$file: $what"; fi
}

# touches FILE: a large frame is touched page by page, so that none is jumped over. How that looks is known for two processors.
touches() {
  local touch
  case $(uname -m) in
    x86_64) touch='or[bwlq] +[$]0x0,\(%rsp\)' ;;
    aarch64) touch='str[[:space:]]+xzr, \[sp, #1024\]' ;;
    *) return ;;
  esac
  if ! objdump -d --no-show-raw-insn "$1" | grep -E -- "$touch" | awk 'END { exit NR == 0 }'; then wrong "$1: jumps over pages of its stack"; fi
}

for file in "$program" "$library"; do
  has "$file" "is loaded where the linker said, not where there is room" 'Type: +DYN' -h
  has "$file" "binds functions while it runs" 'BIND_NOW|FLAGS.* NOW' -d
  has "$file" "leaves the linker's tables writable" '^ +GNU_RELRO ' -l
  has "$file" "says nothing of its stack" '^ +GNU_STACK ' -l
  lacks "$file" "has a stack that can be run" '^ +GNU_STACK .* [R ][W ]E ' -l
  lacks "$file" "has memory that can be written and run" '^ +LOAD .* [R ]WE ' -l
  lacks "$file" "changes its code when it is loaded" 'TEXTREL' -d
  has "$file" "has no stack protector" ' __stack_chk_fail' --dyn-syms
  has "$file" "has no checked copies" ' __[a-z_]+_chk(@|$)' --dyn-syms
  touches "$file"
done
if [ -n "$probe" ]; then has "$probe" "a copy is not checked whose room is known only while it runs" ' __memcpy_chk' --syms; fi
has "$program" "is no position independent program" 'FLAGS_1.*PIE' -d
exit $((failures > 0))
