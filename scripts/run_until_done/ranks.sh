#!/usr/bin/env bash
# Counts the available ranks, and selects a number of ranks that divides the batch. Sourced by
# scripts/run_until_done.sh, which sets the variables.
# shellcheck disable=SC2154 # run_until_done.sh sets them

# is_valid_count COUNT: succeeds if the command can run on COUNT ranks. COUNT must be a multiple of --pipeline x
# --replicas. The number of ranks in a pipeline stage must divide --global-batch into complete micro-batches, and with
# --reproducible must be a power of two. --accumulate A above 1 requires exactly A micro-batches per rank.
is_valid_count() {
  if [ $(($1 % (pipeline * replicas))) -ne 0 ]; then return 1; fi
  local stage=$(($1 / pipeline))
  if has_option --reproducible && [ $((stage & (stage - 1))) -ne 0 ]; then return 1; fi
  if [ -z "$global_batch" ]; then return; fi
  local at_once=$((stage * micro_batch))
  if [ $((global_batch % at_once)) -ne 0 ]; then return 1; fi
  [ "$accumulate" -eq 1 ] || [ $((at_once * accumulate)) -eq "$global_batch" ]
}

# largest_valid_count COUNT: prints the largest valid number of ranks from --least to COUNT, or nothing. If --least
# equals --ranks, it prints that number without checking it: the command itself reports an invalid number of ranks.
largest_valid_count() {
  local count=$1
  if [ "$least" -eq "$ranks" ] && [ "$count" -eq "$ranks" ]; then echo "$count" && return; fi
  for (( ; count >= least; --count)); do
    if is_valid_count "$count"; then echo "$count" && return; fi
  done
}

# Prints the options that restrict the number of ranks, for the error message.
restrictions() {
  if [ -n "$global_batch" ]; then echo -n " for --global-batch $global_batch in micro-batches of $micro_batch"; fi
  if [ "$accumulate" -ne 1 ]; then echo -n ", --accumulate $accumulate"; fi
  if [ "$replicas" -ne 1 ]; then echo -n ", --replicas $replicas"; fi
  if [ "$pipeline" -ne 1 ]; then echo -n ", --pipeline $pipeline"; fi
  if has_option --reproducible; then echo -n ", --reproducible"; fi
}

# count_available: runs the command of --available. Sets `wanted` to its output, or `wrong` to the reason of its
# failure. A signal, or the time --available-within, ends the wait, because the command may hang, for example in ssh to
# a failed node.
count_available() {
  local counting output began=$SECONDS
  exec {output}< <(exec timeout -k 5 "$within" bash -c "$available" </dev/null)
  counting=$!
  set +e
  while kill -0 "$counting" 2>/dev/null && ! end_requested; do wait "$counting"; done
  if end_requested; then
    kill "$counting" 2>/dev/null
  elif ! wait "$counting"; then
    wrong="--available failed: $available"
    if [ $((SECONDS - began)) -ge "$within" ]; then
      wrong="--available took longer than $within s (--available-within): $available"
    fi
  else
    read -r -d '' -t 1 wanted <&"$output" # a background process may keep the pipe open
  fi
  set -e
  exec {output}<&-
}

# ask_available: updates `wanted`, the number of ranks that can start now, if --available was given. If its command
# fails or prints no number, sets `wrong` to the error message, or ends the script if nothing was started before.
ask_available() {
  wrong=
  if [ -z "$available" ]; then return; fi
  count_available
  if end_requested; then return; fi
  if [ -z "$wrong" ] && [[ ! $wanted =~ ^[0-9]{1,6}$ ]]; then
    wrong="--available printed '$wanted': expected a number of ranks"
  fi
  if [ -n "$wrong" ] && [ -z "$status" ]; then refuse "$wrong"; fi
  if [ -z "$wrong" ]; then wanted=$((10#$wanted)); fi
}
