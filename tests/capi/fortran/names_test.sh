#!/usr/bin/env bash
# tests/capi/fortran/names_test.sh TREE: checks that module aliquot_c binds every function of <aliquot/c.h>, with the
# same arguments.
set -euo pipefail
cd "$1"

# Prints "name argument argument ..." for each function of the header, except the deprecated one.
in_header() {
  sed -E 's|/\*([^*]\|\*[^/])*\*/||g; s|/\*.*||; s|^ \*.*||; /^#/d; /^typedef/d' include/aliquot/c.h |
    tr -s ' \n' '  ' | grep -oE '(int|void|const char\*) aliquot_[a-z_]+\([^;{}]*\);' |
    sed -E 's/^(int|void|const char\*) //; s/\(void\)/()/; s/[(,]([^(,)]*[ *])?([a-z_]+)/ \2/g; s/\(?\);$//' |
    grep -v '^aliquot_pass_over ' | LC_ALL=C sort
}

in_module() {
  tr -s ' &\n' '  ' <capi/fortran/aliquot_c.f90 | grep -oE "aliquot_c_[a-z_]+\([a-z_, ]*\) bind\(C, name='[a-z_]+'\)" |
    sed -E "s/^aliquot_c_[a-z_]+\(([a-z_, ]*)\) bind\(C, name='([a-z_]+)'\)/\2 \1/; s/,//g; s/ +$//" | LC_ALL=C sort
}

if [ "$(in_header | wc -l)" -lt 50 ]; then echo "found only $(in_header | wc -l) functions in c.h" && exit 1; fi
diff <(in_header) <(in_module) || { echo "< is only in include/aliquot/c.h, > is only in capi/fortran" && exit 1; }
