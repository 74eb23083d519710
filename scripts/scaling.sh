#!/usr/bin/env bash
# scripts/scaling.sh [ALIQUOT]
# Writes docs/scaling.md: the memory of a rank that aliquot plan reports for models of 7, 70, 405 and 1,000 billion
# parameters. The tables cover 1 to 16,384 ranks in nodes of 8, all ZeRO stages, and one replica per node. ALIQUOT is
# the path of the program (default: builds it).
called_from=$PWD
# shellcheck source=scripts/lib.sh
source "$(dirname "$0")/lib.sh"

case ${1:-} in
  --help | -h) usage && exit ;;
  '') build release aliquot_command || fail 1 "the build failed" && program=build/aliquot ;;
  *) program=$(cd "$called_from" && realpath "$1") ;;
esac
ranks_list="1 8 64 512 4096 16384"

# peak PARAMS UNITS RANKS OPTION...: prints the planned peak memory of a rank in GiB.
peak() {
  local params=$1 units=$2 ranks=$3
  shift 3
  "$program" plan --params "$params" --units "$units" --ranks "$ranks" --precision bf16 --format csv "$@" |
    awk -F, 'NR == 1 { for (i = 1; i <= NF; ++i) if ($i == "memory.peak") at = i }
      NR > 1 { printf " %.5g |", $at / 2 ^ 30 }'
}

table() { # NAME PARAMS UNITS
  printf '\n## %s\n\n' "$1"
  echo -n "| ranks | ZeRO stage 0 | ZeRO stage 1 | ZeRO stage 2 | ZeRO stage 3 | ZeRO stage 3, one replica per node "
  echo "| ZeRO stage 3, 8 bits between nodes |"
  echo "| --- | --- | --- | --- | --- | --- | --- |"
  local ranks
  for ranks in $ranks_list; do
    printf '| %s |' "$ranks"
    peak "$2" "$3" "$ranks" --stages all
    if [ "$ranks" -gt 8 ]; then
      peak "$2" "$3" "$ranks" --replicas $((ranks / 8))
      peak "$2" "$3" "$ranks" --quantize both
    else
      printf ' | |'
    fi
    echo
  done
}

{
  cat <<'TEXT'
# Memory at scale

The tables show the planned peak memory of a rank in GiB. `scripts/scaling.sh` writes this page with `aliquot plan`. In
measured runs, planned and measured memory were equal to the byte.

- `--params` specifies the models. It defines only the number of parameters, so the tables do not include activations.
- Precision: bf16 with split masters, fp32 gradients, AdamW in fp32.
- Nodes have 8 ranks.
- One replica per node: each node shards one replica, so more nodes do not reduce the memory of a rank.
- 8 bits between nodes (`--quantize both`): each node holds the encoded weights and the error-feedback residuals of the
  gradients, sharded over its ranks.
TEXT
  table "7 billion parameters, 32 units" 7b 32
  table "70 billion parameters, 80 units" 70b 80
  table "405 billion parameters, 126 units" 405b 126
  table "1,000 billion parameters, 128 units" 1000b 128
} >build/scaling.md
mv build/scaling.md docs/scaling.md
echo "written to docs/scaling.md"
