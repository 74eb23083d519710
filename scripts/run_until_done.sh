#!/usr/bin/env bash
# scripts/run_until_done.sh [OPTION...] -- COMMAND...
# Runs a training command again and again until it is done: after a crash it waits a little, longer each time, and starts it
# anew with --resume auto, on fewer ranks if there are fewer. {ranks} in the command stands for their number:
#
#   scripts/run_until_done.sh --ranks 8 --least 2 -- mpirun -n {ranks} build/aliquot train --global-batch 64 --checkpoint-dir runs/a
#
#   --ranks N          ranks to start with (1)
#   --least M          the fewest to go on with (N)
#   --available CMD    prints how many can be started now; asked before each start, and again later where they are too few, 20 x K
#                      times at most. Without it there are N, and half as many whenever two starts in a row ended without a new
#                      checkpoint, down to M
#   --available-within S
#                      seconds that CMD may take (60): one that hangs has failed
#   --tries K          gives up after so many failures in a row without a new checkpoint (5)
#   --wait S           seconds until the first restart; doubled at each failure in a row, to 5 minutes at most (1)
#   --again            a run that was asked to stop and saved (exit code 75) is started again too; where nobody asked it through here
#                      and there is no new checkpoint, that is a failure like others
#
# The command must say --checkpoint-dir. Where there may be fewer ranks than N, with --global-batch G only numbers of ranks that
# share it in whole micro-batches (--micro-batch, else the 4 of aliquot train) are used, so that every step takes the same batch on
# any of them, and with --reproducible only powers of two, so that it has the same bits; --replicas must divide them. Without
# --global-batch another number of ranks takes another batch, and that is said.
# Ends with the command's own code: 0 done; 75 asked to stop, and saved; 4 (not finite) comes again however often it is tried, so
# it ends at once, and so do 1 and 2 (wrong use, cannot be done here) and 5 (no checkpoint is good) until a start has left a
# checkpoint: what worked once may be mended by itself. Any other code when it gives up.
# SIGTERM, SIGINT, SIGHUP, SIGUSR1 and SIGUSR2 are passed on, to aliquot and to launchers (mpirun, mpiexec, srun) as SIGUSR1, which
# they hand to their ranks, and again every 3 s until they end; a second SIGTERM, SIGINT or SIGHUP two seconds later as SIGTERM too.
# SIGQUIT kills the command. After a signal nothing is started, but with --again after SIGUSR1 and SIGUSR2. The command has a process
# group of its own, so that what a terminal or timeout sends to all reaches it through here alone; that its supervisor died it is told
# by SIGTERM. Where a run crashed all the same, or was being waited for, SIGUSR1 and SIGUSR2 end with 75 if there is a checkpoint.
set -euo pipefail

say() { printf 'run_until_done.sh: %s\n' "$*" >&2 || true; } # a terminal may be gone
refuse() {
  say "$*"
  exit 1
}
# Numbers are decimal: to bash's arithmetic 010 is eight, and 08 none.
whole() { # OPTION VALUE LEAST
  if [[ ! ${2:-} =~ ^[0-9]{1,6}$ ]] || [ "$2" -lt "$3" ]; then refuse "$1 takes a whole number from $3, not '${2:-}' (see --help)"; fi
}

ranks=1 least='' available='' within=60 tries=5 first_wait=1 again=''
# What signals ask for: an end, or an end that can be gone on from; by which the command is told, and whether somebody insists.
ended='' paused='' told_by='' first='' insisted='' child=''
while [ $# -gt 0 ] && [ "$1" != -- ]; do
  case $1 in
    --help | -h) sed -n '2,/^[^#]/s/^# \{0,1\}//p' "$0" && exit ;;
    --ranks) whole "$1" "${2:-}" 1 && ranks=$((10#$2)) && shift 2 ;;
    --least) whole "$1" "${2:-}" 1 && least=$((10#$2)) && shift 2 ;;
    --tries) whole "$1" "${2:-}" 1 && tries=$((10#$2)) && shift 2 ;;
    --wait) whole "$1" "${2:-}" 0 && first_wait=$((10#$2)) && shift 2 ;;
    --available)
      available=${2:-}
      if [ -z "$available" ] || [ "$available" = -- ]; then refuse "--available takes a command that prints a number (see --help)"; fi
      shift 2
      ;;
    --available-within) whole "$1" "${2:-}" 1 && within=$((10#$2)) && shift 2 ;;
    --again) again=1 && shift ;;
    *) refuse "unknown option $1; the command comes after -- (see --help)" ;;
  esac
done
if [ "${1:-}" != -- ] || [ $# -lt 2 ]; then refuse "name a command after -- (see --help)"; fi
shift
command=("$@")
least=${least:-$ranks}

# word_after NAME: what the command says of that option, the last time as aliquot takes it; nothing if it does not.
word_after() {
  local i said=
  for ((i = 0; i < ${#command[@]}; ++i)); do
    case ${command[i]} in
      "$1") said=${command[i + 1]:-} ;;
      "$1="*) said=${command[i]#*=} ;;
    esac
  done
  echo "$said"
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
for name in global_batch micro_batch accumulate replicas; do
  number=${!name:-1}
  if [[ ! $number =~ ^0*[1-9][0-9]{0,8}$ ]]; then refuse "the command's --global-batch, --micro-batch, --accumulate and --replicas are whole numbers from 1, not '$number'"; fi
  if [ -n "${!name}" ]; then printf -v "$name" %d "$((10#$number))"; fi
done
if [ "$(word_after --resume)" = none ]; then refuse "the command says --resume none, so it would begin anew each time"; fi

# The checkpoints by their dates, with what tells each from one of that name before.
checkpoints() { { find -H "$saved" -maxdepth 1 -name 'step-*' -printf '%T@ %i %f\n' 2>/dev/null || true; } | sort -n; }
# The last one that a start left which came further; until then, or if it is gone, that of the latest date. Its step may be less than
# that of one that is no good, which stays where it is; and its date less than that of one from when the clock was ahead.
newest() {
  local there
  there=$(checkpoints)
  if [ -n "$came" ] && grep -qxF -- "$came" <<<"$there"; then echo "$came"; else tail -n 1 <<<"$there"; fi
}
# name_of CHECKPOINT WORDS: its name; where there is none, the words.
if ! find / -maxdepth 0 -printf '' 2>/dev/null; then refuse "this machine's find has no -printf, by which checkpoints are told apart: install GNU findutils"; fi
name_of() { if [ -n "$1" ]; then echo "${1##* }"; else echo "$2"; fi; }

# shellcheck source=scripts/run_until_done/ranks.sh
source "$(dirname "$(readlink -f "${BASH_SOURCE[0]}")")/run_until_done/ranks.sh"

# What the command is told by: aliquot and launchers by the signal that saves.
sent=
for word in "${command[@]}"; do
  case ${word##*/} in
    aliquot | mpirun* | mpiexec* | orterun | prterun | srun) sent=USR1 && break ;;
    --checkpoint-dir*) break ;;
  esac
done
# A second signal ends a trap of bash's in its middle, and what it called: so there is next to nothing in one. A run that is just
# starting is told once it is there. Who insists, two seconds later, is passed on as such.
for signal in USR1 USR2; do
  # shellcheck disable=SC2064 # the signals' names are meant now
  trap "paused=$signal told_by=${sent:-$signal}; kill -s ${sent:-$signal} \"\$child\" 2>/dev/null || :" "$signal"
done
for signal in TERM INT HUP; do
  # shellcheck disable=SC2064
  trap "ended=$signal told_by=${sent:-$signal} first=\${first:-\$SECONDS}; kill -s ${sent:-$signal} \"\$child\" 2>/dev/null || :
    [ \$((SECONDS - first)) -lt 2 ] || { insisted=1; kill -s TERM \"\$child\" 2>/dev/null || :; }" "$signal"
done
trap 'ended=QUIT told_by=KILL; kill -s KILL -- "-$child" 2>/dev/null || :' QUIT

# rest SECONDS: in a way that a signal ends.
rest() {
  set +e
  sleep "$1" >/dev/null 2>&1 &
  wait $!
  kill $! 2>/dev/null
  set -e
}

own_name=$(cat /proc/$$/comm)
# Until the child is the command, and not a shell about to be it, which swallows signals.
until_started() {
  local is round
  for ((round = 0; round < 300; ++round)); do
    read -r is 2>/dev/null <"/proc/$child/comm" || return 0
    if [ "$is" != "$own_name" ]; then return; fi
    sleep 0.01
  done
}

# Who loses its supervisor, killed say, is asked to end: a run that nobody knows of would keep others out of its directory.
with_parent=()
if command -v setpriv >/dev/null && setpriv --pdeathsig TERM true 2>/dev/null; then with_parent=(setpriv --pdeathsig TERM); fi

# A launcher that has no ranks yet hands the signal that saves to none, so it comes again until the run has ended: aliquot takes it as
# often as it likes. Not what insists, nor what is sent to commands that are not known: the second would weigh more.
ask_again() {
  sleep 3 >/dev/null 2>&1 &
  if wait -n "$child" $!; then kill -s "$sent" "$child" 2>/dev/null; fi
  kill $! 2>/dev/null
}

# run COUNT: sets `status`.
run() {
  set -m # a group of its own
  "${with_parent[@]}" "${command[@]//'{ranks}'/$1}" </dev/null &
  child=$!
  set +m
  until_started
  if [ -n "$ended$paused" ]; then kill -s "$told_by" "$child" 2>/dev/null || true; fi
  # A signal of ours ends the wait, not the command; two at once leave bash in doubt whether failing is allowed here.
  set +e
  while kill -0 "$child" 2>/dev/null; do
    if [ -n "$ended$paused" ] && [ "$told_by" = "$sent" ] && [ -z "$insisted" ]; then ask_again; else wait "$child"; fi
  done
  wait "$child" # says once more how it ended
  status=$?
  set -e
  child=
}

# Whether somebody asked for an end, and not for another start.
told() { [ -n "$ended" ] || { [ -n "$paused" ] && [ -z "$again" ]; }; }
# What SIGUSR1 and SIGUSR2 ask for is an end that can be gone on from: by a scheduler that takes the machine away and queues the
# job again, for which an older checkpoint will do.
end_as_told() {
  if [ -z "$ended" ] && [ -n "$(newest)" ]; then exit 75; fi
  exit "${status:-$((128 + $(kill -l "${ended:-$paused}")))}"
}

# fail_once WHY CODE: waits, longer each time, or gives up.
fail_once() {
  failures=$((failures + 1))
  if [ $failures -ge "$tries" ]; then
    say "$1; gave up after $failures failures in a row with no checkpoint newer than $(name_of "$(newest)" "the beginning")"
    exit "$2"
  fi
  pause_for "$1"
}

# wait_for_ranks WHY: there may be enough later; a node takes minutes to come back.
wait_for_ranks() {
  asked_for_ranks=$((asked_for_ranks + 1))
  if [ $asked_for_ranks -ge $((tries * 20)) ]; then say "$1; gave up after it was asked $asked_for_ranks times in a row" && exit 3; fi
  pause_for "$1"
}

# pause_for WHY
pause_for() {
  say "$1; waiting $pause s"
  rest "$pause"
  if told; then end_as_told; fi
  pause=$((pause * 2 < 300 ? pause * 2 : 300))
}

wanted=$ranks failures=0 asked_for_ranks=0 pause=$first_wait last_count='' status='' came=''
while true; do
  ask_available
  if told; then end_as_told; fi
  if [ -n "$wrong" ]; then
    wait_for_ranks "$wrong"
    continue
  fi
  most=$((wanted < ranks ? wanted : ranks))
  count=$(fitting "$most")
  if [ -z "$count" ]; then
    nothing="no number of ranks from $least to $most will do$(what_is_shared)"
    if [ -z "$available" ]; then say "$nothing; gave up" && exit 3; fi
    wait_for_ranks "$nothing"
    continue
  fi
  asked_for_ranks=0
  if [ -n "$last_count" ] && [ "$count" -ne "$last_count" ] && [ -z "$global_batch" ]; then
    say "$count ranks instead of $last_count, and the command says no --global-batch: a step may take another batch from here on"
  fi
  last_count=$count
  if [ "$failures" -gt 0 ]; then say "starting again on $count ranks, from $(name_of "$(newest)" "the beginning")"; fi
  before=$(checkpoints)
  if told; then end_as_told; fi
  if [ -n "$again" ]; then paused=; fi # without --again one that comes just now is not to be forgotten
  run "$count"
  added=$(grep -vxF -f <(echo "$before") <<<"$(checkpoints)" || true)
  if [ -n "$added" ]; then came=${added##*$'\n'} failures=0 pause=$first_wait; fi
  case $status in
    0 | 4) exit "$status" ;;
    1 | 2 | 5) if [ -z "$came" ]; then say "code $status, which another try would not mend" && exit "$status"; fi ;;
    75) if [ -z "$again" ] || told; then exit 75; fi ;;
  esac
  if told; then end_as_told; fi
  # Who saves when it is asked through here is started again at once; one that says so by itself, and saved nothing, may do so for ever.
  if [ "$status" -eq 75 ] && [ -n "$added$paused" ]; then continue; fi
  if [ -n "$again" ]; then paused=; fi
  if [ -z "$available" ] && [ $failures -gt 0 ] && [ -n "$(fitting $((count / 2)))" ]; then wanted=$((count / 2)); fi
  fail_once "code $status on $count ranks; the newest checkpoint is $(name_of "$(newest)" none)" "$status"
done
