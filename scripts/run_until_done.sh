#!/usr/bin/env bash
# scripts/run_until_done.sh [OPTION...] -- COMMAND...
# Runs a training command again and again until it is done: after a crash it waits a little, longer each time, and starts it
# anew with --resume auto, on fewer ranks if there are fewer. {ranks} in the command stands for their number:
#
#   scripts/run_until_done.sh --ranks 8 --least 2 -- mpirun -n {ranks} build/aliquot train --global-batch 64 --checkpoint-dir runs/a
#
#   --ranks N          ranks to start with (1)
#   --least M          the fewest to go on with (N)
#   --available CMD    prints how many can be started now; asked before each start. Without it there are N, and half as many
#                      whenever two starts in a row ended without a new checkpoint, down to M
#   --tries K          gives up after so many failures in a row without a new checkpoint (5)
#   --wait S           seconds until the first restart; doubled at each failure in a row, to 5 minutes at most (1)
#   --again            a run that was asked to stop and saved (exit code 75) is started again too
#
# The command must say --checkpoint-dir. Where there may be fewer ranks than N, with --global-batch G only numbers of ranks that
# share it in whole micro-batches (--micro-batch, else the 4 of aliquot train) are used, so that every step takes the same batch on
# any of them, and with --reproducible only powers of two, so that it has the same bits; --replicas must divide them. Without
# --global-batch another number of ranks takes another batch, and that is said.
# Ends with the command's own code: 0 done; 75 asked to stop, and saved; 1 and 2 (wrong use, cannot be done here), 4 (not
# finite) and 5 (no checkpoint is good) come again however often it is tried, so they end it at once; any other when it gives up.
# SIGTERM, SIGINT, SIGUSR1 and SIGUSR2 are passed on, to launchers as SIGUSR1, which they hand to their ranks; nothing is
# started after one, but with --again after SIGUSR1 and SIGUSR2. Where a run crashed all the same, or was being waited for, SIGUSR1 and
# SIGUSR2 end with 75 if there is a checkpoint.
set -euo pipefail

say() { printf 'run_until_done.sh: %s\n' "$*" >&2; }
refuse() {
  say "$*"
  exit 1
}
whole() { # OPTION VALUE LEAST
  if [[ ! ${2:-} =~ ^[0-9]{1,6}$ ]] || [ "$2" -lt "$3" ]; then refuse "$1 takes a whole number from $3, not '${2:-}' (see --help)"; fi
}

ranks=1 least='' available='' tries=5 first_wait=1 again='' child='' asked=''
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  case $1 in
    --help | -h) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;;
    --ranks) whole "$1" "${2:-}" 1 && ranks=$2 && shift 2 ;;
    --least) whole "$1" "${2:-}" 1 && least=$2 && shift 2 ;;
    --tries) whole "$1" "${2:-}" 1 && tries=$2 && shift 2 ;;
    --wait) whole "$1" "${2:-}" 0 && first_wait=$2 && shift 2 ;;
    --available) available=${2:-} && shift 2 ;;
    --again) again=1 && shift ;;
    *) refuse "unknown option $1; the command comes after -- (see --help)" ;;
  esac
done
if [ "${1:-}" != -- ] || [ $# -lt 2 ]; then refuse "name a command after -- (see --help)"; fi
shift
command=("$@")
least=${least:-$ranks}

# word_after NAME: what the command says of that option; nothing if it does not.
word_after() {
  local i
  for ((i = 0; i < ${#command[@]}; ++i)); do
    case ${command[i]} in
      "$1") echo "${command[i + 1]:-}" && return ;;
      "$1="*) echo "${command[i]#*=}" && return ;;
    esac
  done
}
says() { [[ " ${command[*]} " = *" $1 "* || " ${command[*]} " = *" $1="* ]]; }

saved=$(word_after --checkpoint-dir)
global_batch=$(word_after --global-batch)
micro_batch=$(word_after --micro-batch)
accumulate=$(word_after --accumulate)
replicas=$(word_after --replicas)
if [ -z "$saved" ]; then refuse "the command says no --checkpoint-dir, so nothing could be gone on from"; fi
if ! says --resume; then command+=(--resume auto); fi
if [ "$least" -lt "$ranks" ] && [ -n "$global_batch" ] && [ -z "$micro_batch" ] && { says --deepspeed || says --config; }; then
  refuse "which numbers of ranks share --global-batch $global_batch depends on a file that is not read here: say --micro-batch in the command, or no --least"
fi
micro_batch=${micro_batch:-4} accumulate=${accumulate:-1} replicas=${replicas:-1}
for number in "${global_batch:-1}" "$micro_batch" "$accumulate" "$replicas"; do
  if [[ ! $number =~ ^[1-9][0-9]{0,8}$ ]]; then refuse "the command's --global-batch, --micro-batch, --accumulate and --replicas are whole numbers from 1, not '$number'"; fi
done
if [ "$(word_after --resume)" = none ]; then refuse "the command says --resume none, so it would begin anew each time"; fi

# The newest checkpoint's name: a start that leaves another one behind came further.
newest() { { find "$saved" -maxdepth 1 -name 'step-*' -printf '%f\n' 2>/dev/null || true; } | sort | tail -n 1; }

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

pass_on() {
  asked=$1
  local signal=$1
  case ${command[0]##*/} in mpirun | mpiexec | orterun | srun) signal=USR1 ;; esac
  if [ -n "$child" ]; then kill -s "$signal" "$child" 2>/dev/null || true; fi
}
for signal in TERM INT USR1 USR2; do
  # shellcheck disable=SC2064 # the signal's name is meant now
  trap "pass_on $signal" "$signal"
done

# rest SECONDS: in a way that a signal ends.
rest() {
  sleep "$1" &
  wait $! || true
}

# run COUNT: sets `status`.
run() {
  "${command[@]//'{ranks}'/$1}" &
  child=$!
  status=0
  wait "$child" || status=$?
  # A signal of ours ends the wait, not the command.
  while kill -0 "$child" 2>/dev/null; do
    status=0
    wait "$child" || status=$?
  done
  child=
}

# Whether somebody asked for an end, and not for another start.
told() { [[ $asked = TERM || $asked = INT ]] || [[ -n $asked && -z $again ]]; }
# What SIGUSR1 and SIGUSR2 ask for is an end that can be gone on from: by a scheduler that takes the machine away and queues the
# job again, for which an older checkpoint will do.
end_as_told() {
  if [[ $asked = USR* ]] && [ -n "$(newest)" ]; then exit 75; fi
  exit "$status"
}

wanted=$ranks failures=0 pause=$first_wait last_count=
while true; do
  if [ -n "$available" ]; then wanted=$(bash -c "$available") || refuse "--available failed: $available"; fi
  if [ -n "$available" ] && [[ ! $wanted =~ ^[0-9]{1,6}$ ]]; then refuse "--available is to print a number, not '$wanted'"; fi
  count=$(fitting $((wanted < ranks ? wanted : ranks)))
  if [ -z "$count" ]; then
    say "no number of ranks from $least to $((wanted < ranks ? wanted : ranks)) will do$(what_is_shared); gave up"
    exit 3
  fi
  before=$(newest)
  if [ -n "$last_count" ] && [ "$count" -ne "$last_count" ] && [ -z "$global_batch" ]; then
    say "$count ranks instead of $last_count, and the command says no --global-batch: a step may take another batch from here on"
  fi
  last_count=$count
  if [ "$failures" -gt 0 ]; then say "starting again on $count ranks, from ${before:-the beginning}"; fi
  run "$count"
  case $status in
    0 | 1 | 2 | 4 | 5) exit "$status" ;;
    75) if [ -z "$again" ] || told; then exit 75; fi ;;
    *) if told; then end_as_told; fi ;;
  esac
  asked=
  if [ $status -eq 75 ] || [ "$(newest)" != "$before" ]; then
    failures=0 pause=$first_wait
    if [ $status -eq 75 ]; then continue; fi
  fi
  failures=$((failures + 1))
  if [ $failures -ge "$tries" ]; then
    say "gave up after $failures failures in a row with no checkpoint newer than ${before:-the beginning}; the last ended with code $status"
    exit "$status"
  fi
  if [ -z "$available" ] && [ $failures -gt 1 ] && [ $((count / 2)) -ge "$least" ]; then wanted=$((count / 2)); fi
  say "code $status on $count ranks; the newest checkpoint is ${before:-none}$(if [ "$(newest)" != "$before" ]; then echo ", now $(newest)"; fi); waiting $pause s"
  rest "$pause"
  if told; then end_as_told; fi
  pause=$((pause * 2 < 300 ? pause * 2 : 300))
done
