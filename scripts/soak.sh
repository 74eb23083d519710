#!/usr/bin/env bash
# scripts/soak.sh [MINUTES] [BUILD]
# Trains for so many minutes (30) under scripts/run_until_done.sh, by turns with ranks that are threads and under mpirun, and
# in each turn first disturbs it every few seconds (a rank or all killed, SIGUSR1, SIGTERM, another number of ranks) and then
# leaves it alone. It saves every few steps and keeps three checkpoints. Meanwhile the descriptors, threads and memory of each
# process, files in /dev/shm and in the temporary folder, and the size of the checkpoints are written down; what grew is said
# at the end, with exit code 1, and all of it drawn. BUILD is a folder that is built already; without it build/ is made.
# What was seen lies in BUILD/soak-MINUTES: processes.csv, folders.csv, events.csv, soak.svg, log. A soak that shows nothing fails too: each
# kind of disturbance must have come, a process of each world lived long enough to be judged, and each turn saved something new.
# shellcheck source=scripts/runs.sh
source "$(dirname "$0")/runs.sh"
own_shared_memory "$@"
# shellcheck source=scripts/lib.sh
source "$(dirname "$0")/lib.sh"

minutes=30
case ${1:-} in
  --help | -h) usage && exit ;;
  '') ;;
  *[!0-9]* | 0) fail 1 "the minutes are no number: $1 (see --help)" ;;
  *) minutes=$1 ;;
esac
folder=${2:-build}
if [ -z "${2:-}" ]; then build release aliquot_command soak_report >/dev/null || fail 1 "the build failed"; fi
folder=$(realpath "$folder")
program=$folder/aliquot
reporter=$folder/tests/apps/soak_report
for file in "$program" "$reporter"; do
  if [ ! -x "$file" ]; then fail 1 "$file is not built"; fi
done

results=$folder/soak-$minutes
rm -rf "$results"
mkdir -p "$results/temporary" "$results/saved"
saved=$results/saved
# Open MPI's own files of shared memory lie apart, so that what is in /dev/shm is ours.
scratch=$(mktemp -d)
mkdir "$scratch/mpi"
export TMPDIR=$results/temporary OMPI_MCA_orte_tmpdir_base=$scratch/mpi OMPI_MCA_btl_vader_backing_directory=$scratch/mpi
export OMP_NUM_THREADS=1
supervisor='' turn='' starts=0 disturbed=0 kills=0 asks=0 resizes=0 ranks=2

train=("$program" train --quiet --layers 2 --width 64 --heads 4 --sequence 32 --micro-batch 1 --global-batch 12 --threads 1
  --steps 100000000 --schedule constant --checkpoint-dir "$saved" --checkpoint-every 20 --keep 3 --check-every 50 --zero-stage 2 --timeout 60)
worlds=(threads)
if has_mpi "$program"; then worlds=(mpi threads); else echo "no mpirun here, or a build without MPI: ranks are threads alone"; fi

now() { echo $((($(date +%s%N) - began) / 100000000)); } # tenths of a second
seconds() { echo "$(($1 / 10)).$(($1 % 10))"; }
event() { echo "$(seconds "$(now)"),$*" >>"$results/events.csv"; }
# count_of WORDS...: how many files find finds; some go while it looks.
count_of() { { find "$@" 2>/dev/null || true; } | wc -l; }
newest() { { find -H "$saved" -maxdepth 1 -name 'step-*' -printf '%f\n' 2>/dev/null || true; } | sort | tail -n 1; }

# ranks_there: the processes of the program that train into our folder.
ranks_there() {
  local pid
  for pid in $(pgrep -f -- "--checkpoint-dir $saved" || true); do
    if [ "$(readlink "/proc/$pid/exe")" = "$program" ]; then echo "$pid"; fi
  done
}

# shared_files PROCESS...: names in /dev/shm, and pieces of it that the processes map.
shared_files() {
  local pid file count
  count=$(shared_names | wc -l)
  for pid in "$@"; do
    # A process that is gone has no maps.
    file=$(grep -cs ' /dev/shm/' "/proc/$pid/maps") || true
    count=$((count + ${file:-0}))
  done
  echo "$count"
}

# sample: a line for each process, and one for the folders. A process that ends meanwhile has none.
sample() {
  local at pid birth held threads memory there kept size
  at=$(seconds "$(now)")
  there=$(ranks_there)
  for pid in $there; do
    held=$(count_of "/proc/$pid/fd" -mindepth 1)
    # Numbers of processes come again: with when it began, in the kernel's ticks, one is told from another.
    birth=$(sed -n 's/.*) //p' "/proc/$pid/stat" 2>/dev/null | cut -d ' ' -f 20) || continue
    threads=$(awk '/^Threads:/ { print $2 }' "/proc/$pid/status" 2>/dev/null) || continue
    # Not the pages of files: the system drops those that lie idle and reads them again, and they are no memory that is held.
    memory=$(awk '/^(Pss_Anon|Pss_Shmem|SwapPss):/ { sum += $2 } END { if (NR) print sum }' "/proc/$pid/smaps_rollup" 2>/dev/null) || continue
    if [ -n "$memory" ] && [ "$held" -gt 0 ]; then echo "$at,$pid.$birth,$turn,$held,$threads,$memory" >>"$results/processes.csv"; fi
  done
  kept=$(count_of "$saved" -maxdepth 1 -name 'step-*')
  size=$(du -sk "$saved" 2>/dev/null | cut -f 1) || true
  # shellcheck disable=SC2086 # words
  echo "$at,$(count_of "$TMPDIR" -type f),$(shared_files $there),$kept,${size:-0}" >>"$results/folders.csv"
}

start() {
  local launch=("${train[@]}" --ranks '{ranks}')
  if [ "$turn" = mpi ]; then launch=(mpirun -n '{ranks}' "${train[@]}"); fi
  scripts/run_until_done.sh --ranks 4 --least 1 --available "cat $results/available" --tries 20 --wait 0 --again -- \
    "${launch[@]}" >>"$results/log" 2>&1 &
  supervisor=$!
  starts=$((starts + 1))
}

# stop: asks the supervisor to end what it runs, which saves.
stop() {
  local status=0
  kill -s TERM "$supervisor" 2>/dev/null || true
  wait "$supervisor" || status=$?
  supervisor=
  # A kill may have come just before, so that there was nothing left to ask.
  case $status in 3 | 75 | 137 | 138 | 143) ;; *) fail 1 "the supervisor ended with code $status: $results/log" ;; esac
}

disturb() {
  local there
  mapfile -t there < <(ranks_there)
  if [ ${#there[@]} -eq 0 ]; then return; fi
  # By turns, so that a short soak has each of them.
  case $((disturbed++ % 5)) in
    0) kill -s KILL "${there[RANDOM % ${#there[@]}]}" 2>/dev/null && event "kill of a rank" && kills=$((kills + 1)) ;;
    1) kill -s USR1 "$supervisor" && event USR1 && asks=$((asks + 1)) ;;
    2) kill -s KILL "${there[@]}" 2>/dev/null && event "kill of all ranks" && kills=$((kills + 1)) ;;
    3) event TERM && stop && start && asks=$((asks + 1)) ;;
    4)
      ranks=$((1 + (ranks + RANDOM % 3) % 4)) # never the same
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

# Turns, an even number: where each ends and until when it is disturbed, in tenths of a second. A short soak disturbs the first half of
# each; a long one has two that are disturbed throughout and two of twice that length that are hardly, so that a process lives long
# enough for a slow leak to show.
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
      fail 1 "the supervisor gave up at $(seconds "$(now)") s: $results/log"
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
  if [[ ! $(newest) > $before ]]; then fail 1 "the turn of $turn until $(seconds "$(now)") s came no further than ${before:-nothing}: $results/log"; fi
done
if [ -n "$(ranks_there)" ]; then fail 1 "processes are left: $(ranks_there)"; fi
sample

"$program" checkpoint verify "$saved" >"$results/verified" || fail 1 "what was saved is not valid: $results/verified"
echo "$minutes minutes, $kills kills, $asks signals, $resizes other numbers of ranks; the newest checkpoint is $(newest)"
status=0
"$reporter" "$results" || status=$?
rm -rf "$saved"
echo "$results/soak.svg"
case $status in
  0) echo "nothing grew" ;;
  *) fail 1 "something grew, or too little was seen (above)" ;;
esac
