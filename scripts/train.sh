#!/usr/bin/env bash
# scripts/train.sh [ARGUMENTS OF aliquot train]
# Installs missing packages, builds the command, and trains. Defaults: GPT-2 nano at ZeRO stage 3 on 2 ranks. With
# --config, neither default of this script applies. With --deepspeed, the default ZeRO stage does not apply.
# shellcheck source=scripts/lib.sh
source "$(dirname "$0")/lib.sh"

# given OPTION: succeeds if the user's arguments contain the option.
arguments=("$@")
given() {
  local argument
  for argument in "${arguments[@]}"; do
    if [[ $argument = "$1" || $argument = "$1="* ]]; then return 0; fi
  done
  return 1
}

defaults=()
if ! given --config; then
  if ! given --zero-stage && ! given --deepspeed; then defaults+=(--zero-stage 3); fi
  if ! given --ranks; then defaults+=(--ranks 2); fi
fi

scripts/setup.sh
configure release
if ! has_target release aliquot_command; then fail 2 "this build has no target aliquot_command"; fi
cmake --build --preset release -j "$(job_count)" --target aliquot_command
exec build/aliquot train "${defaults[@]}" "$@"
