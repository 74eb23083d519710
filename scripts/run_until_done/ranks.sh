#!/usr/bin/env bash
# How many ranks there are, and how many of them the command can be split over: sourced by scripts/run_until_done.sh, by whose words.
# shellcheck disable=SC2154 # they are set there

# shares COUNT: the command can be split over so many ranks, with the batch that it says.
shares() {
  if [ $(($1 % replicas)) -ne 0 ]; then return 1; fi
  if says --reproducible && [ $(($1 & ($1 - 1))) -ne 0 ]; then return 1; fi
  if [ -z "$global_batch" ]; then return; fi
  local at_once=$(($1 * micro_batch))
  [ $((global_batch % at_once)) -eq 0 ] && { [ "$accumulate" -eq 1 ] || [ $((at_once * accumulate)) -eq "$global_batch" ]; }
}

# fitting COUNT: the most ranks up to that many that will do. Where there is no choice the command itself knows best, and says so.
fitting() {
  local count=$1
  if [ "$least" -eq "$ranks" ] && [ "$count" -eq "$ranks" ]; then echo "$count" && return; fi
  for (( ; count >= least; --count)); do
    if shares "$count"; then echo "$count" && return; fi
  done
}

# What would have to be shared, for the sentence that nothing will do.
what_is_shared() {
  if [ -n "$global_batch" ]; then echo -n " for --global-batch $global_batch in micro-batches of $micro_batch"; fi
  if [ "$accumulate" -ne 1 ]; then echo -n ", --accumulate $accumulate"; fi
  if [ "$replicas" -ne 1 ]; then echo -n ", --replicas $replicas"; fi
  if says --reproducible; then echo -n ", --reproducible"; fi
}

# count_available: sets `wanted` to what --available prints, and `wrong` where it fails. A signal ends the wait for it, and so does the
# end of its time: one that hangs, as ssh to a node that is gone may, would say nothing for ever.
count_available() {
  local counting output began=$SECONDS
  exec {output}< <(exec timeout -k 5 "$within" bash -c "$available" </dev/null)
  counting=$!
  set +e
  while kill -0 "$counting" 2>/dev/null && ! told; do wait "$counting"; done
  if told; then
    kill "$counting" 2>/dev/null
  elif ! wait "$counting"; then
    wrong="--available failed: $available"
    if [ $((SECONDS - began)) -ge "$within" ]; then wrong="--available took longer than $within s (--available-within): $available"; fi
  else
    read -r -d '' -t 1 wanted <&"$output" # not for ever: somebody whom it left behind may hold the other end
  fi
  set -e
  exec {output}<&-
}

# ask_available: sets `wanted`, and `wrong` where it cannot be told.
ask_available() {
  wrong=
  if [ -z "$available" ]; then return; fi
  count_available
  if told; then return; fi
  if [ -z "$wrong" ] && [[ ! $wanted =~ ^[0-9]{1,6}$ ]]; then wrong="--available is to print a number, not '$wanted'"; fi
  if [ -n "$wrong" ] && [ -z "$status" ]; then refuse "$wrong"; fi
  if [ -z "$wrong" ]; then wanted=$((10#$wanted)); fi
}
