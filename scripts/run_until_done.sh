#!/usr/bin/env bash
# scripts/run_until_done.sh [OPTION...] -- COMMAND...
# Runs a training command until it is done. After a crash the script restarts the command with --resume auto, on fewer
# ranks if fewer are available. It waits longer after each failure in a row (--wait). It replaces {ranks} in the command
# by the number of ranks:
#
#   scripts/run_until_done.sh --ranks 8 --least 2 -- \
#     mpirun -n {ranks} build/aliquot train --global-batch 64 --checkpoint-dir runs/a
#
#   --ranks N              number of ranks at the start (1)
#   --least M              smallest number of ranks to continue with (N)
#   --available CMD        CMD prints the number of ranks that can start now. It runs before each start, and again while
#                          there are too few ranks, at most 20 x K times. Without CMD the number is N. It is then
#                          halved, down to M, whenever two starts in a row end without a new checkpoint
#   --available-within S   seconds after which CMD is treated as failed (60)
#   --tries K              give up after K failures in a row without a new checkpoint (5)
#   --wait S               seconds until the first restart, doubled at each failure in a row, at most 5 minutes (1, but
#                          0 after a run that saved a new checkpoint)
#   --replay-evict         if a replay (--replay-every of the command) decided that a rank computed wrong results,
#                          restart without its host. The command must have --metrics, from which the script reads the
#                          host. {evicted} in the command, and the environment variable ALIQUOT_EVICTED of the command
#                          and of CMD, become the names of all such hosts, with commas between them. At least one of
#                          them must use the names: srun --exclude={evicted}, or a CMD that writes a host file
#   --again                also restart a run that was asked to stop and saved (exit code 75). If the request did not
#                          come through this script and there is no new checkpoint, the exit counts as a failure
#
# The command must contain --checkpoint-dir. If fewer than N ranks are allowed and the command has --global-batch, the
# script uses only numbers of ranks that divide the batch into complete micro-batches (--micro-batch, default 4). Every
# step then has the same batch. With --reproducible it uses only powers of two, so that results have the same bits. The
# number must be a multiple of --pipeline x --replicas. These two stay as they are, so only shard groups become smaller.
# The batch is divided among the ranks of one pipeline stage. Without --global-batch the batch depends on the number of
# ranks, and the script prints a message when that number changes.
#
# Exit codes are the command's: 0 done; 75 stopped on request, after saving. Code 4 (a loss or gradient is not finite)
# ends the script at once, because it would recur. Codes 1 (usage), 2 (not possible here) and 5 (no valid checkpoint)
# end it at once only if no start has added a checkpoint; otherwise the cause may be temporary. All other codes lead to
# a restart, and are returned when the script gives up.
#
# SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 are forwarded. aliquot and launchers (mpirun, mpiexec, srun) receive
# SIGUSR1, every 3 s until they end, and launchers forward it to their ranks. A second SIGTERM, SIGINT or SIGHUP two
# seconds later also sends SIGTERM. SIGQUIT kills the command. After a signal nothing is restarted, except with --again
# after SIGUSR1 or SIGUSR2. If the run has crashed, or the script is waiting, SIGUSR1 and SIGUSR2 end the script, with
# exit code 75 if there is a checkpoint. The command has its own process group, so signals of a terminal or of timeout
# reach it only through this script. If this script dies, the command receives SIGTERM.
#
# mpirun (also mpiexec, orterun, prterun) of Open MPI may not end if all its ranks were killed while they started. If
# such a launcher still runs 20 s after its last rank on this host has ended, the script kills it (exit code 137). For
# this, the script needs ps.
set -euo pipefail

say() { printf 'run_until_done.sh: %s\n' "$*" >&2 || true; } # stderr may be a closed terminal
refuse() {
  say "$*"
  exit 1
}
# Numbers are decimal. Bash arithmetic would read 010 as eight and reject 08.
require_integer() { # OPTION VALUE LEAST
  if [[ ! ${2:-} =~ ^[0-9]{1,6}$ ]] || [ "$2" -lt "$3" ]; then
    refuse "invalid value '${2:-}' for $1: expected an integer from $3 to 999999 (see --help)"
  fi
}

ranks=1 least='' available='' within=60 tries=5 first_wait=1 wait_after_progress=0 again='' evicts=''
export ALIQUOT_EVICTED=''
# State that the signal handlers set. `ended` is TERM, INT, HUP or QUIT if that signal arrived. `paused` is USR1 or USR2
# if that signal arrived. `told_by` is the signal that was sent to the command. `first` is the time of the first TERM,
# INT or HUP. `insisted` is set if another TERM, INT or HUP arrived at least 2 s after the first.
ended='' paused='' told_by='' first='' insisted='' child=''
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  case $1 in
    --help | -h) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;;
    --ranks) require_integer "$1" "${2:-}" 1 && ranks=$((10#$2)) && shift 2 ;;
    --least) require_integer "$1" "${2:-}" 1 && least=$((10#$2)) && shift 2 ;;
    --tries) require_integer "$1" "${2:-}" 1 && tries=$((10#$2)) && shift 2 ;;
    --wait) require_integer "$1" "${2:-}" 0 && first_wait=$((10#$2)) wait_after_progress=$((10#$2)) && shift 2 ;;
    --available)
      available=${2:-}
      if [ -z "$available" ] || [ "$available" = -- ]; then
        refuse "missing value for --available: expected a command that prints a number of ranks (see --help)"
      fi
      shift 2
      ;;
    --available-within) require_integer "$1" "${2:-}" 1 && within=$((10#$2)) && shift 2 ;;
    --replay-evict) evicts=1 && shift ;;
    --again) again=1 && shift ;;
    *) refuse "unknown option $1: expected options, then -- and the command (see --help)" ;;
  esac
done
if [ "${1:-}" != -- ] || [ $# -lt 2 ]; then refuse "missing command: expected -- COMMAND... (see --help)"; fi
shift
command=("$@")
least=${least:-$ranks}

# option_value NAME: prints the value of the command's option, or nothing if it is absent. The last occurrence counts,
# as in aliquot.
option_value() {
  local i value=
  for ((i = 0; i < ${#command[@]}; ++i)); do
    case ${command[i]} in
      "$1") value=${command[i + 1]:-} ;;
      "$1="*) value=${command[i]#*=} ;;
    esac
  done
  echo "$value"
}
# has_option NAME: succeeds if the command contains the option.
has_option() { [[ " ${command[*]} " = *" $1 "* || " ${command[*]} " = *" $1="* ]]; }

saved=$(option_value --checkpoint-dir)
metrics=$(option_value --metrics)
if [ -n "$evicts" ] && [ -z "$metrics" ]; then
  refuse "--replay-evict reads the host at fault from the metrics: add --metrics FILE to the command"
fi
if [ -n "$evicts" ] && [ -z "$available" ] && [[ "${command[*]}" != *'{evicted}'* ]]; then
  refuse "--replay-evict needs {evicted} in the command, or --available, so that a restart avoids the host (see --help)"
fi
global_batch=$(option_value --global-batch)
micro_batch=$(option_value --micro-batch)
accumulate=$(option_value --accumulate)
replicas=$(option_value --replicas)
pipeline=$(option_value --pipeline)
if [ -z "$saved" ]; then
  refuse "the command has no --checkpoint-dir, so a restart could not resume: add --checkpoint-dir DIR"
fi
if ! has_option --resume; then command+=(--resume auto); fi
if [ "$least" -lt "$ranks" ] && [ -n "$global_batch" ] && [ -z "$micro_batch" ] &&
  { has_option --deepspeed || has_option --config; }; then
  refuse "cannot determine which numbers of ranks divide --global-batch $global_batch, because the micro-batch may be" \
    "in a configuration file, which this script does not read: add --micro-batch to the command, or omit --least"
fi
micro_batch=${micro_batch:-4} accumulate=${accumulate:-1} replicas=${replicas:-1} pipeline=${pipeline:-1}
for name in global_batch micro_batch accumulate replicas pipeline; do
  number=${!name:-1}
  if [[ ! $number =~ ^0*[1-9][0-9]{0,8}$ ]]; then
    refuse "invalid value '$number' for the command's --${name//_/-}: expected a positive integer"
  fi
  if [ -n "${!name}" ]; then printf -v "$name" %d "$((10#$number))"; fi
done
if [ "$(option_value --resume)" = none ]; then
  refuse "the command has --resume none, so each restart would begin from step 0: remove it"
fi

# Prints the checkpoints, oldest first. The inode distinguishes a checkpoint from an earlier one of the same name.
checkpoints() { { find -H "$saved" -maxdepth 1 -name 'step-*' -printf '%T@ %i %f\n' 2>/dev/null || true; } | sort -n; }
# Prints the last checkpoint that a start added, if it still exists, and otherwise the one with the latest date. A
# corrupt checkpoint may have a later step and remain in the folder, and a wrong clock may have dated a checkpoint in
# the future. So neither the step nor the date alone identifies the newest one.
newest() {
  local existing
  existing=$(checkpoints)
  if [ -n "$last_added" ] && grep -qxF -- "$last_added" <<<"$existing"; then
    echo "$last_added"
  else
    tail -n 1 <<<"$existing"
  fi
}
if ! find / -maxdepth 0 -printf '' 2>/dev/null; then
  refuse "find does not support -printf, which this script needs to identify checkpoints: install GNU findutils"
fi
# name_of CHECKPOINT WORDS: prints the checkpoint's name, or WORDS if CHECKPOINT is empty.
name_of() { if [ -n "$1" ]; then echo "${1##* }"; else echo "$2"; fi; }

# shellcheck source=scripts/run_until_done/ranks.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/run_until_done/ranks.sh"
# shellcheck source=scripts/run_until_done/launcher.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/run_until_done/launcher.sh"

# The signal that the command receives in place of any signal to this script. For aliquot and launchers it is SIGUSR1,
# so that they save. If it is empty, the command receives the same signal as this script.
sent=
for word in "${command[@]}"; do
  case ${word##*/} in
    aliquot | mpirun* | mpiexec* | orterun | prterun | srun) sent=USR1 && break ;;
    --checkpoint-dir*) break ;;
  esac
done
# A second signal interrupts a running trap of bash and the functions it called. So traps only set variables and forward
# the signal. run() forwards a signal that arrived before the command had started. A second SIGTERM, SIGINT or SIGHUP
# two seconds after the first also sends SIGTERM.
for signal in USR1 USR2; do
  # shellcheck disable=SC2064 # expands the names of the signals now
  trap "paused=$signal told_by=${sent:-$signal}; kill -s ${sent:-$signal} \"\$child\" 2>/dev/null || :" "$signal"
done
for signal in TERM INT HUP; do
  # shellcheck disable=SC2064
  trap "ended=$signal told_by=${sent:-$signal} first=\${first:-\$SECONDS}
    kill -s ${sent:-$signal} \"\$child\" 2>/dev/null || :
    [ \$((SECONDS - first)) -lt 2 ] || { insisted=1; kill -s TERM \"\$child\" 2>/dev/null || :; }" "$signal"
done
trap 'ended=QUIT told_by=KILL; kill -s KILL -- "-$child" 2>/dev/null || :' QUIT

# sleep_until_signal SECONDS: sleeps for SECONDS, or until this script receives a signal.
sleep_until_signal() {
  set +e
  sleep "$1" >/dev/null 2>&1 &
  wait $!
  kill $! 2>/dev/null
  set -e
}

own_name=$(cat /proc/$$/comm)
# Waits until the child has called exec. Before that it is a copy of this shell, which loses signals.
until_started() {
  local is round
  for ((round = 0; round < 300; ++round)); do
    read -r is 2>/dev/null <"/proc/$child/comm" || return 0
    if [ "$is" != "$own_name" ]; then return; fi
    sleep 0.01
  done
}

# If this script dies, the command receives SIGTERM. An unsupervised run would keep other runs out of its checkpoint
# directory.
with_parent=()
if command -v setpriv >/dev/null && setpriv --pdeathsig TERM true 2>/dev/null; then
  with_parent=(setpriv --pdeathsig TERM)
fi

# Sends the signal again unless the run ends within 3 s. A launcher loses the signal if it has no ranks yet, and aliquot
# accepts it repeatedly. run() does not repeat SIGTERM, or signals to unknown commands: those may treat a second signal
# as a more urgent request.
resend() {
  sleep 3 >/dev/null 2>&1 &
  if wait -n "$child" $!; then kill -s "$sent" "$child" 2>/dev/null; fi
  kill $! 2>/dev/null
}

# run COUNT: runs the command on COUNT ranks and sets `status`.
run() {
  set -m # gives the command its own process group
  local words=("${command[@]//'{ranks}'/$1}")
  "${with_parent[@]}" "${words[@]//'{evicted}'/$ALIQUOT_EVICTED}" </dev/null &
  child=$!
  set +m
  until_started
  local watcher=
  if [ "$sent" = USR1 ] && command -v ps >/dev/null; then
    watch_launcher "$child" &
    watcher=$!
    disown "$watcher" # bash prints no message when it is killed
  fi
  if [ -n "$ended$paused" ]; then kill -s "$told_by" "$child" 2>/dev/null || true; fi
  # A signal to this script interrupts `wait`, not the command. With set -e, two signals at once could end the script
  # here.
  set +e
  while kill -0 "$child" 2>/dev/null; do
    if [ -n "$ended$paused" ] && [ "$told_by" = "$sent" ] && [ -z "$insisted" ]; then resend; else wait "$child"; fi
  done
  wait "$child" # returns the exit code of the ended command
  status=$?
  if [ -n "$watcher" ]; then kill -s KILL "$watcher" 2>/dev/null; fi
  set -e
  child=
}

# If the last line of the metrics says that a replay decided that one host is at fault, adds the host to
# ALIQUOT_EVICTED.
evict() {
  local line hosts
  line=$(tail -n 1 "$metrics" 2>/dev/null | tr -d ' ') || true
  if [[ $line != '{"failure"'* ]] || [[ $line != *'"decided":true'* ]]; then return; fi
  hosts=$(sed -n 's/.*"hosts":\["\([^]"]*\)"\].*/\1/p' <<<"$line")
  if [ -z "$hosts" ] || [[ ,$ALIQUOT_EVICTED, = *,$hosts,* ]]; then return; fi
  ALIQUOT_EVICTED=${ALIQUOT_EVICTED:+$ALIQUOT_EVICTED,}$hosts
  say "host $hosts computed wrong results; starting again without it"
}

# Succeeds if a signal requested the end of the run without a restart.
end_requested() { [ -n "$ended" ] || { [ -n "$paused" ] && [ -z "$again" ]; }; }
# A scheduler sends SIGUSR1 or SIGUSR2 before it takes the machine away, and requeues the job if the exit code is 75.
# The code is 75 if any checkpoint exists, even if the last run did not save one.
end_on_request() {
  if [ -z "$ended" ] && [ -n "$(newest)" ]; then exit 75; fi
  exit "${status:-$((128 + $(kill -l "${ended:-$paused}")))}"
}

# wait_or_give_up WHY CODE: counts a failure and waits, longer after each failure in a row. After --tries failures in a
# row, exits with CODE instead.
wait_or_give_up() {
  failures=$((failures + 1))
  if [ $failures -ge "$tries" ]; then
    say "$1; gave up after $failures failures in a row with no checkpoint newer than" \
      "$(name_of "$(newest)" "the beginning")"
    exit "$2"
  fi
  pause_for "$1"
}

# wait_for_ranks WHY: prints the reason and waits, because a node takes minutes to restart. At call number --tries x 20
# in a row, ends the script instead.
wait_for_ranks() {
  asked_for_ranks=$((asked_for_ranks + 1))
  if [ $asked_for_ranks -ge $((tries * 20)) ]; then
    say "$1; gave up after running --available $asked_for_ranks times in a row"
    exit 3
  fi
  pause_for "$1"
}

# pause_for WHY: prints the reason and waits. Each call doubles the next wait, up to 5 minutes. After a wait of 0 s, the
# next one is that of --wait.
pause_for() {
  say "$1; waiting $pause s"
  sleep_until_signal "$pause"
  if end_requested; then end_on_request; fi
  if [ "$pause" -eq 0 ]; then pause=$first_wait; else pause=$((pause * 2 < 300 ? pause * 2 : 300)); fi
}

wanted=$ranks failures=0 asked_for_ranks=0 pause=$first_wait last_count='' status='' last_added=''
while true; do
  ask_available
  if end_requested; then end_on_request; fi
  if [ -n "$wrong" ]; then
    wait_for_ranks "$wrong"
    continue
  fi
  most=$((wanted < ranks ? wanted : ranks))
  count=$(largest_valid_count "$most")
  if [ -z "$count" ]; then
    nothing="no number of ranks from $least to $most is valid$(restrictions)"
    if [ -z "$available" ]; then say "$nothing; gave up" && exit 3; fi
    wait_for_ranks "$nothing"
    continue
  fi
  asked_for_ranks=0
  if [ -n "$last_count" ] && [ "$count" -ne "$last_count" ] && [ -z "$global_batch" ]; then
    say "$count ranks instead of $last_count, and the command has no --global-batch: the batch of a step may change"
  fi
  last_count=$count
  if [ "$failures" -gt 0 ]; then say "starting again on $count ranks, from $(name_of "$(newest)" "the beginning")"; fi
  before=$(checkpoints)
  if end_requested; then end_on_request; fi
  if [ -n "$again" ]; then paused=; fi # without --again, keeps a signal that arrived after the check
  run "$count"
  added=$(grep -vxF -f <(echo "$before") <<<"$(checkpoints)" || true)
  if [ -n "$added" ]; then last_added=${added##*$'\n'} failures=0 pause=$wait_after_progress; fi
  case $status in
    0 | 4) exit "$status" ;;
    1 | 2 | 5)
      if [ -z "$last_added" ]; then
        say "exit code $status, which a restart would not fix"
        exit "$status"
      fi
      ;;
    75) if [ -z "$again" ] || end_requested; then exit 75; fi ;;
  esac
  if end_requested; then end_on_request; fi
  if [ -n "$evicts" ] && [ "$status" -eq 3 ]; then evict; fi
  # A run that exited with 75 is restarted at once if it added a checkpoint, or if a signal to this script stopped it.
  # Any other exit with 75 counts as a failure. Without that, this script could restart the run forever.
  if [ "$status" -eq 75 ] && [ -n "$added$paused" ]; then continue; fi
  if [ -n "$again" ]; then paused=; fi
  if [ -z "$available" ] && [ $failures -gt 0 ] && [ -n "$(largest_valid_count $((count / 2)))" ]; then
    wanted=$((count / 2))
  fi
  wait_or_give_up "exit code $status on $count ranks; the newest checkpoint is $(name_of "$(newest)" none)" "$status"
done
