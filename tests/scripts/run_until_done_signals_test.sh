#!/usr/bin/env bash
# run_until_done_signals_test.sh ALIQUOT: checks that scripts/run_until_done.sh obeys signals at any time in a run.
# shellcheck source=tests/scripts/supervised.sh
source "$(dirname "$0")/supervised.sh"
aliquot=$1
for tool in pgrep pkill; do command -v $tool >/dev/null || { echo "$tool is missing: install procps" && exit 1; }; done

# After a signal the supervisor starts nothing, even if the run crashes on the signal or no run exists at that time.
# asked SIGNAL CODE CHECKPOINT: checks that the supervisor exits with CODE if a run crashes on the signal, and if the
# signal arrives while the supervisor waits to restart. CHECKPOINT exists from the start. It may be empty.
asked() {
  local status supervisor
  for when in running waiting; do
    rm -rf "$saved" "$scratch/starts" "$scratch/log"
    if [ -n "$3" ]; then mkdir -p "$saved/$3"; fi
    status=0
    "${supervise[@]}" --wait 60 -- "$scratch/crash.sh" "$scratch" $when --checkpoint-dir "$saved" >"$scratch/log" 2>&1 &
    supervisor=$!
    for ((round = 0; round < 300; ++round)); do
      if [ $when = running ] && [ -e "$scratch/starts" ]; then break; fi
      if grep -qs "waiting 60 s" "$scratch/log"; then break; fi
      sleep 0.1
    done
    kill -s "$1" $supervisor || true
    wait $supervisor || status=$?
    if [ $status -ne "$2" ] || [ "$(wc -l <"$scratch/starts")" -ne 1 ]; then
      echo "SIG$1 while $when: exit code $status, expected $2, after $(wc -l <"$scratch/starts") starts"
      cat "$scratch/log"
      failures=$((failures + 1))
    fi
  done
}
cat >"$scratch/crash.sh" <<'CRASH'
#!/usr/bin/env bash
# Crashes when asked to stop, or at once.
trap 'exit 3' TERM USR1
echo start >>"$1/starts"
if [ "$2" = running ]; then while true; do sleep 0.1; done; fi
exit 3
CRASH
chmod +x "$scratch/crash.sh"
asked TERM 3 step-01
asked USR1 75 step-01
asked USR1 3 ""

cat >"$scratch/once_more.sh" <<'MORE'
#!/usr/bin/env bash
if [ -e "$2/step-02" ]; then exit 0; fi
mkdir -p "$2/step-02"
exit 3
MORE
chmod +x "$scratch/once_more.sh"

# A signal during the count of available ranks prevents the start, and does not wait for the count.
rm -rf "$saved" "$scratch/starts"
status=0
"${supervise[@]}" --available "touch $scratch/counting; sleep 100; echo 1" -- \
  "$scratch/play.sh" "$scratch" --checkpoint-dir "$saved" 1 >"$scratch/log" 2>&1 &
supervisor=$!
for ((round = 0; round < 300; ++round)); do if [ -e "$scratch/counting" ]; then break; fi; sleep 0.1; done
asked_at=$SECONDS
kill $supervisor
wait $supervisor || status=$?
if [ $status -ne 143 ] || [ -e "$scratch/starts" ] || [ $((SECONDS - asked_at)) -ge 30 ]; then
  echo "SIGTERM while --available ran: exit code $status after $((SECONDS - asked_at)) s; expected 143 within 30 s"
  cat "$scratch/log"
  failures=$((failures + 1))
fi
for ((round = 0; round < 300; ++round)); do
  if ! pgrep -f "touch $scratch/counting" >/dev/null; then break; fi
  sleep 0.1
done
if [ $round -eq 300 ]; then echo "the command of --available still runs after SIGTERM" && failures=$((failures + 1)); fi

# A launcher loses SIGUSR1 if its ranks have not started, so the supervisor repeats it. It does not repeat SIGTERM,
# which launchers treat as more urgent the second time.
mkdir "$scratch/launcher"
cat >"$scratch/launcher/mpirun" <<'LAUNCHER'
#!/bin/bash
# A stand-in for mpirun: mpirun FOLDER --checkpoint-dir SAVED SIGNAL. It counts how often SIGNAL arrives.
# It exits with 75 at the second SIGUSR1, or 5 s after the first SIGTERM if no second one arrived.
heard=0 last=
trap '' USR1 # bash merges signals that arrive at once
trap 'heard=$((heard + 1))' "$4"
touch "$1/launched"
for ((round = 0; round < 600; ++round)); do
  sleep 0.1
  if [ "$4" = USR1 ] && [ $heard -ge 2 ]; then exit 75; fi
  if [ "$4" = TERM ] && [ $heard -ge 1 ]; then last=${last:-$((round + 50))}; fi
  if [ "$round" = "$last" ]; then exit $((heard == 1 ? 75 : 9)); fi
done
exit 9
LAUNCHER
chmod +x "$scratch/launcher/mpirun"
# launched EXPECTED SIGNAL [SECONDS SIGNAL]: sends the first SIGNAL to the supervisor and, after SECONDS, the second.
# Checks that the launcher received the signal EXPECTED: twice if it is USR1, once if it is TERM.
launched() {
  local status=0 supervisor
  rm -rf "$saved" "$scratch/launched"
  "${supervise[@]}" -- "$scratch/launcher/mpirun" "$scratch" --checkpoint-dir "$saved" "$1" >"$scratch/log" 2>&1 &
  supervisor=$!
  for ((round = 0; round < 300; ++round)); do if [ -e "$scratch/launched" ]; then break; fi; sleep 0.1; done
  sleep 1 # a signal during the start of the command is always sent twice
  kill -s "$2" $supervisor
  if [ $# -gt 2 ]; then sleep "$3" && kill -s "$4" $supervisor; fi
  wait $supervisor || status=$?
  if [ $status -ne 75 ]; then
    echo "SIG$2 to a launcher without ranks, which expects SIG$1: exit code $status, expected 75" && cat "$scratch/log"
    failures=$((failures + 1))
  fi
}
launched USR1 USR1
launched TERM HUP 2.1 TERM
if has_mpi "$aliquot"; then
  for after in 0.1 0.3; do
    rm -rf "$saved"
    status=0
    "${supervise[@]}" -- mpirun -n 2 "$aliquot" train --quiet --layers 1 --width 32 --sequence 32 --threads 1 \
      --steps 1000000 --checkpoint-dir "$saved" >"$scratch/log" 2>&1 &
    supervisor=$!
    for ((round = 0; round < 300; ++round)); do
      if pgrep -f "^mpirun .*$saved" >/dev/null; then break; fi
      sleep 0.1
    done
    sleep $after
    kill -s USR1 $supervisor
    for ((round = 0; round < 300; ++round)); do
      if ! kill -0 $supervisor 2>/dev/null; then break; fi
      sleep 0.1
    done
    if [ $round -eq 300 ]; then
      echo "SIGUSR1 $after s after mpirun's start was lost" && cat "$scratch/log"
      failures=$((failures + 1))
      kill -s QUIT $supervisor
    fi
    wait $supervisor || status=$?
  done
fi

# A signal during the start of a run is not lost, although a shell starts the run. The checkpoint folder may be a
# symbolic link.
mkdir -p "$scratch/slow" "$scratch/real"
ln -sfn "$scratch/real" "$scratch/link"
printf '#!/usr/bin/env bash\nsleep 0.2\nexec %s "$@"\n' "$(command -v find)" >"$scratch/slow/find"
chmod +x "$scratch/slow/find"
cat >"$scratch/asked.sh" <<'ASKED'
#!/usr/bin/env bash
# Runs until asked to stop.
trap 'exit 75' TERM USR1
mkdir -p "$2/step-01"
for ((round = 0; round < 100; ++round)); do sleep 0.1; done
exit 9
ASKED
chmod +x "$scratch/asked.sh"
for after in 0.25 0.45 0.55 0.65 0.85; do
  status=0
  PATH=$scratch/slow:$PATH "${supervise[@]}" -- "$scratch/asked.sh" --checkpoint-dir "$scratch/link" \
    >"$scratch/log" 2>&1 &
  supervisor=$!
  sleep $after
  kill -s USR1 $supervisor
  wait $supervisor || status=$?
  if [ $status -ne 75 ] && [ $status -ne 138 ]; then
    echo "SIGUSR1 $after s after the start: code $status" && cat "$scratch/log"
    failures=$((failures + 1))
  fi
done
ends 0 "the newest checkpoint is step-02" "${supervise[@]}" -- "$scratch/once_more.sh" --checkpoint-dir "$scratch/link"

# Signals reach the run: it saves, and the supervisor starts nothing after it.
# stopped SIGNAL [--group|--all] COMMAND...: sends the signal to the supervisor; with --group also to its process group,
# as a terminal or timeout does; with --all also to every rank, as systemd does.
stopped() {
  local signal=$1 status=0 whom=
  shift
  if [[ $1 = --* ]]; then whom=$1 && shift; fi
  rm -rf "$saved"
  # Without job control, background commands ignore SIGINT and share the process group of the shell.
  set -m
  "${supervise[@]}" -- "$@" --steps 1000000 --checkpoint-dir "$saved" >"$scratch/log" 2>&1 &
  local supervisor=$!
  set +m
  for ((round = 0; round < 300; ++round)); do
    if compgen -G "$saved/step-*" >/dev/null; then break; fi
    sleep 0.1
  done
  kill -s "$signal" $supervisor || true
  if [ "$whom" = --group ]; then kill -s "$signal" -- "-$supervisor" || true; fi
  if [ "$whom" = --all ]; then pkill -"$signal" -f -- "^$aliquot train .*$saved" || true; fi
  wait $supervisor || status=$?
  if [ $status -ne 75 ]; then
    echo "SIG$signal ended $* with exit code $status, expected 75" && cat "$scratch/log"
    failures=$((failures + 1))
  fi
  if pgrep -f -- "$saved" >/dev/null; then
    echo "a process still runs after SIG$signal" && failures=$((failures + 1))
  fi
}
small=("$aliquot" train --quiet --layers 1 --width 32 --sequence 32 --threads 1 --checkpoint-every 20)
stopped TERM "${small[@]}"
stopped USR1 "${small[@]}"
stopped INT --group "${small[@]}"
stopped TERM --group "${small[@]}"
stopped HUP "${small[@]}"
stopped TERM --all "${small[@]}"
stopped USR1 --group env LANG=C "${small[@]}"
if has_mpi "$aliquot"; then
  stopped TERM mpirun -n 2 "${small[@]}"
  stopped INT --group mpirun -n 2 "${small[@]}"
fi
exit $((failures > 0))
