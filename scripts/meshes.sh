#!/usr/bin/env bash
# scripts/meshes.sh [ALIQUOT]
# Prints the tables of docs/meshes.md in Markdown: the mesh that aliquot plan --mesh auto chooses for Llama 8B, 70B and
# 405B on 8 to 16,384 GPUs, and the simulated time of meshes that others have published. ALIQUOT is the path of the
# program (default: builds it).
called_from=$PWD
# shellcheck source=scripts/lib.sh
source "$(dirname "$0")/lib.sh"

case ${1:-} in
  --help | -h) usage && exit ;;
  '') build release aliquot_command || fail 1 "the build failed" && program=build/aliquot ;;
  *) program=$(cd "$called_from" && realpath "$1") ;;
esac

messages=$(mktemp)
trap 'rm -f "$messages"' EXIT

# best MODEL RANKS SEQUENCES OPTION...: prints cells of the fastest mesh, and the seconds that the search took.
best() {
  local model=$1 ranks=$2 sequences=$3 began=$EPOCHREALTIME
  shift 3
  # The exit code is 2 if no mesh fits.
  { "$program" plan --model "$model" --ranks "$ranks" --global-batch "$sequences" --machine dgx-h100 --mesh auto \
    --format csv "$@" 2> "$messages" || [ $? -eq 2 ] || fail 1 "$(cat "$messages")"; } | awk -F, -v seconds="$began" '
      NR == 1 { for (i = 1; i <= NF; ++i) at[$i] = i }
      NR == 2 {
        options = $at["options"]
        sub(/--mesh [^ ]* /, "", options)
        printf " %s | `%s` | %.1f | %.3g | %.0f | %s %.0f %%, waits %.0f %%, in nodes %.0f %%, between nodes %.0f %% |",
          $at["mesh"], options, $at["rank_bytes"] / 2 ^ 30, $at["step_seconds"],
          $at["tokens_per_second"] / '"$ranks"', "computation", 100 * $at["shares.compute"], 100 * $at["shares.waits"],
          100 * $at["shares.inside_node"], 100 * $at["shares.between_nodes"]
      }
      END { if (NR < 2) printf " none fits | | | | | |" }'
  awk -v began="$began" -v ended="$EPOCHREALTIME" 'BEGIN { printf " %.1f |\n", ended - began }'
}

head_of() { # FIRST COLUMNS...
  local column
  printf '| '
  for column in "$@" "mesh" "options" "GiB" "s/step" "tokens/s per GPU" "parts of the step" "s to search"; do
    printf '%s | ' "$column"
  done
  printf '\n|'
  for ((column = 0; column < $# + 7; ++column)); do printf ' --- |'; done
  printf '\n'
}

head_of model GPUs sequences
while read -r model ranks sequences; do
  printf '| %s | %s | %s |' "$model" "$ranks" "$sequences"
  best "$model" "$ranks" "$sequences"
done << 'END'
llama-8b 8 16
llama-8b 64 128
llama-8b 512 1024
llama-8b 16384 16384
llama-70b 8 16
llama-70b 64 128
llama-70b 512 1024
llama-70b 16384 16384
llama-405b 8 16
llama-405b 64 128
llama-405b 512 256
llama-405b 16384 2048
END

printf '\n'
head_of "published by" model GPUs sequences
while read -r source model ranks sequences pipeline tensor; do
  for options in "--pipeline $pipeline --tensor $tensor --replicas 1" ""; do
    printf '| %s | %s | %s | %s |' "${options:+$source}" "$model" "$ranks" "$sequences"
    # shellcheck disable=SC2086  # the options are words
    best "$model" "$ranks" "$sequences" $options
  done
done << 'END'
torchtitan llama-8b 8 16 1 1
torchtitan llama-8b 128 256 1 1
Megatron-Bridge llama-70b 64 128 8 4
torchtitan llama-70b 256 512 1 8
torchtitan llama-405b 512 256 8 8
Llama-3 llama-405b 8192 2048 16 8
Llama-3 llama-405b 16384 2048 16 8
END
