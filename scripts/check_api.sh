#!/usr/bin/env bash
# scripts/check_api.sh [TREE]
# Checks that docs/api.md lists exactly what the public headers declare: public functions of classes, fields of structs
# with their defaults, and functions of the C interface. TREE is the root of the tree (default: this repository).
set -euo pipefail
cd "${1:-$(dirname "$0")/..}"
bad=0

# functions CLASS HEADER: prints the public functions except constructors, operators, deprecated names and engine-only
# functions.
functions() {
  awk -v class="$1" '
    $1 == "class" && $2 == class { inside = 1; public = 0 }
    /^ public:/ { public = 1 }
    /^ private:/ { public = 0 }
    /^};/ { inside = 0 }
    inside && public && !/deprecated/ && /^  [^ \/}]/ && match($0, /[A-Za-z_~]+\(/) {
      print substr($0, RSTART, RLENGTH - 1)
    }' "$2" |
    grep -vE "^~|^$1$|^operator|^progress_publisher$|^with_flight_recorder$|^flight$" | LC_ALL=C sort -u
}

# fields STRUCT HEADER: prints each field as "name = default", or as its name alone if it has no default.
fields() {
  awk -v struct="$1" '
    $1 == "struct" && $2 == struct { inside = 1; text = ""; next }
    /^};/ { inside = 0 }
    inside && /^ *friend / { text = ""; next }
    inside && /[)] const/ { text = ""; next }
    inside { sub(/[ \t]*\/\/.*/, ""); text = text " " $0 }
    inside && /;$/ { print text; text = "" }' "$2" |
    sed -E 's/^ +//; s/ +/ /g; s/^([^=]*[ >*])?([a-z_0-9]+)( = .*)?;$/\2\3/' | LC_ALL=C sort
}

# documented SECTION: prints the first column of the table in this section of docs/api.md, without the arguments of
# functions.
documented() {
  awk -v section="### $1" '$0 == section { inside = 1; next } /^##/ { inside = 0 } inside && /^\| `/' docs/api.md |
    sed -E 's/^[|] .([^\x60]*).*/\1/; /=/!s/\(.*//' | LC_ALL=C sort -u
}

# same SECTION: compares the names on standard input with the names in this section of docs/api.md.
same() {
  local difference
  if ! difference=$(diff <(documented "$1") -); then
    printf '%s: < is only in docs/api.md, > is only in the header\n%s\n' "$1" "$difference"
    bad=1
  fi
}

same World < <(functions World sharding/world.h)
same Engine < <(functions Engine engine/engine.h)
same Unit < <(functions Unit engine/engine.h)
same BackgroundSaver < <(functions BackgroundSaver checkpoint/background_saver.h)
same WorldOptions < <(fields WorldOptions sharding/world.h)
same EngineOptions < <(fields EngineOptions engine/options.h)
same UseActivations < <(fields UseActivations engine/plan/activations.h)
same UseMemory < <(fields UseMemory engine/plan/activations.h)
same ParameterOptions < <(fields ParameterOptions engine/options.h)
same StepReport < <(fields StepReport engine/options.h)
same Precision < <(fields Precision engine/plan/policy.h)
same SaveOptions < <(fields SaveOptions checkpoint/save.h)
same LoadOptions < <(fields LoadOptions checkpoint/load.h)
same ShardOptions < <(fields ShardOptions libtorch/sharded_module.h)
same C < <(sed -nE 's/^[a-z].*[ *](aliquot_[a-z_]+)\(.*/\1/p' include/aliquot/c.h | grep -vE '^typedef|^aliquot_pass_over$' |
  LC_ALL=C sort -u)
exit $bad
