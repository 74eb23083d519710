#!/usr/bin/env bash
# scripts/soak.sh [MINUTES] [BUILD]
# scripts/soak.sh --effective [ARGUMENTS]: runs scripts/effective_time.py, which measures how much of the time makes
# progress while ranks are killed, and the cost of each part of a restart.
#
# Trains for MINUTES (30) under scripts/run_until_done.sh, alternately with thread ranks and under mpirun. In the first
# part of each period, a disturbance occurs every few seconds: it kills one rank or all ranks, sends SIGUSR1 or SIGTERM,
# or changes the number of ranks. The rest of the period is undisturbed. The run saves every few steps and keeps three
# checkpoints. The script samples the descriptors, threads and memory of each process, the files in /dev/shm and in the
# temporary folder, and the size of the checkpoints. Exit code 1, with a report: a quantity grew; a kind of disturbance
# did not happen; no process of a world lived long enough to be judged; or a period saved no new checkpoint. BUILD is an
# existing build folder (default: builds build/). Results are in BUILD/soak-MINUTES: processes.csv, folders.csv,
# events.csv, soak.svg, log.
if [ "${1:-}" = --effective ]; then
  shift
  exec "$(dirname "$(readlink -f "$0")")/effective_time.py" "$@"
fi
# shellcheck source=scripts/runs.sh
source "$(dirname "$0")/runs.sh"
own_shared_memory "$@"
# shellcheck source=scripts/lib.sh
source "$(dirname "$0")/lib.sh"

minutes=30
case ${1:-} in
  --help | -h) usage && exit ;;
  '') ;;
  *[!0-9]* | 0) fail 1 "invalid number of minutes '$1': expected a positive integer (see --help)" ;;
  *) minutes=$1 ;;
esac
folder=${2:-build}
if [ -z "${2:-}" ]; then build release aliquot_command soak_report >/dev/null || fail 1 "the build failed"; fi
folder=$(realpath "$folder")
program=$folder/aliquot
reporter=$folder/tests/apps/soak_report
for file in "$program" "$reporter"; do
  if [ ! -x "$file" ]; then fail 1 "$file does not exist: build it, or omit the build folder"; fi
done

results=$folder/soak-$minutes
rm -rf "$results"
mkdir -p "$results/temporary" "$results/saved"
saved=$results/saved
# Open MPI's shared memory files are elsewhere, so that all files in /dev/shm belong to aliquot.
scratch=$(mktemp -d)
mkdir "$scratch/mpi"
export TMPDIR=$results/temporary
export OMPI_MCA_orte_tmpdir_base=$scratch/mpi OMPI_MCA_btl_vader_backing_directory=$scratch/mpi
export OMP_NUM_THREADS=1
supervisor='' turn='' starts=0 disturbed=0 kills=0 asks=0 resizes=0 ranks=2

train=("$program" train --quiet --layers 2 --width 64 --heads 4 --sequence 32 --micro-batch 1 --global-batch 12
  --threads 1 --steps 100000000 --schedule constant --checkpoint-dir "$saved" --checkpoint-every 20 --keep 3
  --check-every 50 --zero-stage 2 --timeout 60)
worlds=(threads)
if has_mpi "$program"; then
  worlds=(mpi threads)
else
  echo "no mpirun, or a build without MPI: all ranks are threads"
fi

now() { echo $((($(date +%s%N) - began) / 100000000)); } # tenths of a second
seconds() { echo "$(($1 / 10)).$(($1 % 10))"; }
event() { echo "$(seconds "$(now)"),$*" >>"$results/events.csv"; }
# count_of ARGUMENTS...: prints the number of files that find lists. A file that disappears meanwhile is not an error.
count_of() { { find "$@" 2>/dev/null || true; } | wc -l; }
newest() { { find -H "$saved" -maxdepth 1 -name 'step-*' -printf '%f\n' 2>/dev/null || true; } | sort | tail -n 1; }

# running_processes: prints the ids of the program's processes that save in this run's folder.
running_processes() {
  local pid
  for pid in $(pgrep -f -- "--checkpoint-dir $saved" || true); do
    if [ "$(readlink "/proc/$pid/exe")" = "$program" ]; then echo "$pid"; fi
  done
}

# shared_files PROCESS...: prints the number of names in /dev/shm, plus the number of mappings of such files in the
# processes.
shared_files() {
  local pid file count
  count=$(shared_names | wc -l)
  for pid in "$@"; do
    # A terminated process has no maps.
    file=$(grep -cs ' /dev/shm/' "/proc/$pid/maps") || true
    count=$((count + ${file:-0}))
  done
  echo "$count"
}

# sample: writes a line for each process and one for the folders. Omits processes that end meanwhile.
sample() {
  local at pid birth held threads memory pids kept size
  at=$(seconds "$(now)")
  pids=$(running_processes)
  for pid in $pids; do
    held=$(count_of "/proc/$pid/fd" -mindepth 1)
    # Process ids are reused; the start time in kernel ticks distinguishes them.
    birth=$(sed -n 's/.*) //p' "/proc/$pid/stat" 2>/dev/null | cut -d ' ' -f 20) || continue
    threads=$(awk '/^Threads:/ { print $2 }' "/proc/$pid/status" 2>/dev/null) || continue
    # Excludes file-backed pages: the kernel can drop and reread them, so they are not a leak.
    memory=$(awk '/^(Pss_Anon|Pss_Shmem|SwapPss):/ { sum += $2 } END { if (NR) print sum }' \
      "/proc/$pid/smaps_rollup" 2>/dev/null) || continue
    if [ -n "$memory" ] && [ "$held" -gt 0 ]; then
      echo "$at,$pid.$birth,$turn,$held,$threads,$memory" >>"$results/processes.csv"
    fi
  done
  kept=$(count_of "$saved" -maxdepth 1 -name 'step-*')
  size=$(du -sk "$saved" 2>/dev/null | cut -f 1) || true
  # shellcheck disable=SC2086 # splits the process ids
  echo "$at,$(count_of "$TMPDIR" -type f),$(shared_files $pids),$kept,${size:-0}" >>"$results/folders.csv"
}

start() {
  local launch=("${train[@]}" --ranks '{ranks}')
  if [ "$turn" = mpi ]; then launch=(mpirun -n '{ranks}' "${train[@]}"); fi
  scripts/run_until_done.sh --ranks 4 --least 1 --available "cat $results/available" --tries 20 --wait 0 --again -- \
    "${launch[@]}" >>"$results/log" 2>&1 &
  supervisor=$!
  starts=$((starts + 1))
}

# stop: signals the supervisor to end its run, which saves first.
stop() {
  local status=0
  kill -s TERM "$supervisor" 2>/dev/null || true
  wait "$supervisor" || status=$?
  supervisor=
  # A kill may have ended the run just before, so that no process was left to signal.
  case $status in
    3 | 75 | 137 | 138 | 143) ;;
    *) fail 1 "run_until_done.sh exited with unexpected code $status (see $results/log)" ;;
  esac
}

disturb() {
  local pids
  mapfile -t pids < <(running_processes)
  if [ ${#pids[@]} -eq 0 ]; then return; fi
  # Cycles through the kinds of disturbance, so that a short soak includes each kind.
  case $((disturbed++ % 5)) in
    0) kill -s KILL "${pids[RANDOM % ${#pids[@]}]}" 2>/dev/null && event "kill of a rank" && kills=$((kills + 1)) ;;
    1) kill -s USR1 "$supervisor" && event USR1 && asks=$((asks + 1)) ;;
    2) kill -s KILL "${pids[@]}" 2>/dev/null && event "kill of all ranks" && kills=$((kills + 1)) ;;
    3) event TERM && stop && start && asks=$((asks + 1)) ;;
    4)
      ranks=$((1 + (ranks + RANDOM % 3) % 4)) # always a different number
      echo $ranks >"$results/available"
      kill -s USR1 "$supervisor" && event "$ranks ranks" && resizes=$((resizes + 1))
      ;;
  esac || true
}

finish() {
  if [ -n "$supervisor" ]; then kill -s TERM "$supervisor" 2>/dev/null || true; fi
  rm -rf "$scratch"
}
trap finish EXIT
echo $ranks >"$results/available"
echo "seconds,process,world,descriptors,threads,memory KiB" >"$results/processes.csv"
echo "seconds,temporary files,shared files,checkpoints,checkpoint KiB" >"$results/folders.csv"
echo "seconds,event" >"$results/events.csv"

# `ends` has the end of each period, and `calms` the time when its disturbances stop, in tenths of a second. The number
# of periods is even, because threads and MPI alternate. A soak of less than 10 minutes has two periods, and disturbs
# the first half of each. A longer soak has four periods. It disturbs the first two except in their last 20 s. The last
# two are twice as long, and it disturbs only their first 20 s. A process then lives long enough to show a slow leak.
whole=$((minutes * 600))
if [ "$minutes" -lt 10 ]; then
  ends=($((whole / 2)) "$whole") calms=($((whole / 4)) $((whole * 3 / 4)))
else
  ends=($((whole / 6)) $((whole / 3)) $((whole * 2 / 3)) "$whole")
  calms=($((whole / 6 - 200)) $((whole / 3 - 200)) $((whole / 3 + 200)) $((whole * 2 / 3 + 200)))
fi
began=$(date +%s%N)
next=20
for number in "${!ends[@]}"; do
  turn=${worlds[number % ${#worlds[@]}]}
  event "$turn"
  before=$(newest)
  start
  while [ "$(now)" -lt "${ends[number]}" ]; do
    if ! kill -0 "$supervisor" 2>/dev/null; then
      tail -n 20 "$results/log" >&2
      fail 1 "run_until_done.sh gave up at $(seconds "$(now)") s (see $results/log)"
    fi
    at=$(now)
    if [ "$at" -lt "${calms[number]}" ] && [ "$at" -ge $next ]; then
      disturb
      next=$(($(now) + 10 + RANDOM % 15))
    fi
    sample
    sleep 0.4
  done
  stop
  if [[ ! $(newest) > $before ]]; then
    fail 1 "the period of $turn until $(seconds "$(now)") s saved no checkpoint after ${before:-the start}:" \
      "see $results/log"
  fi
done
if [ -n "$(running_processes)" ]; then fail 1 "processes still run after the end: $(running_processes)"; fi
sample

"$program" checkpoint verify "$saved" >"$results/verified" ||
  fail 1 "a saved checkpoint is not valid (see $results/verified)"
echo "$minutes minutes, $kills kills, $asks signals, $resizes changes of the number of ranks;" \
  "the newest checkpoint is $(newest)"
status=0
"$reporter" "$results" || status=$?
rm -rf "$saved"
echo "$results/soak.svg"
case $status in
  0) echo "no measured quantity grew" ;;
  *) fail 1 "a measured quantity grew, or there were too few samples or disturbances (see above)" ;;
esac
