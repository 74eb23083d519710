#!/usr/bin/env bash
# Ends an MPI launcher that does not end after its ranks. Sourced by scripts/run_until_done.sh.

hung_after=20 # seconds without ranks

# rank_exists LAUNCHER NAME: succeeds if a child process of the launcher is a rank. The command line of a rank contains
# --checkpoint-dir. Connections to other hosts (ssh, srun) do not contain it. A child that has not yet called exec has
# the command line of the launcher, but also its name, and is therefore not counted.
rank_exists() {
  local state name arguments
  while read -r state name arguments; do
    if [[ $state != Z* && $name != "$2" && $arguments = *--checkpoint-dir* ]]; then return 0; fi
  done < <(ps -o stat=,comm=,args= --ppid "$1" 2>/dev/null)
  return 1
}

# watch_launcher LAUNCHER: kills the launcher if it still runs 20 s after its last rank on this host has ended. mpirun
# of Open MPI may wait forever if all its ranks were killed while they connected to it. This function returns when the
# launcher or this script has ended. It ignores signals, because they may be sent to the process group of this script.
watch_launcher() {
  local name had_ranks='' half_seconds=0 without=0
  trap '' TERM INT HUP USR1 USR2
  # Checks often at first, because the first ranks may end soon after they started. Counts checks, because the clock
  # also advances while a machine or this script is stopped.
  local interval=1
  while sleep "$((interval / 2)).$((interval % 2 * 5))" >/dev/null 2>&1 && kill -0 $$ 2>/dev/null &&
    read -r name 2>/dev/null <"/proc/$1/comm"; do
    half_seconds=$((half_seconds + interval))
    if [ $half_seconds -ge 20 ]; then interval=4; fi
    case $name in mpirun | mpiexec | orterun | prterun) ;; *) continue ;; esac
    if rank_exists "$1" "$name"; then
      had_ranks=1 without=0
      continue
    fi
    without=$((without + interval))
    if [ -n "$had_ranks" ] && [ $without -gt $((2 * hung_after)) ]; then
      say "$name still runs $hung_after s after its last rank on this host has ended; killing it"
      kill -s KILL -- "-$1" 2>/dev/null
      return
    fi
  done
}
