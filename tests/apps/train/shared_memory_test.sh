#!/usr/bin/env bash
# shared_memory_test.sh ALIQUOT: what others on the machine could reach of a run while it goes on: no name in /dev/shm or in
# the folder of what is offloaded, every piece of shared memory a memfd of mode 0600. What Open MPI maps is its own affair: it
# gets a folder of its own here, so that the two are told apart by place. Skipped (77) where a process may not look at the mode of
# what it maps, which takes a privilege (CAP_CHECKPOINT_RESTORE), once all else was looked at.
# shellcheck source=scripts/runs.sh
source "$(dirname "$0")/../../../scripts/runs.sh"
own_shared_memory "$@"
# shellcheck source=tests/scripts/expect.sh
source "$(dirname "$0")/../../scripts/expect.sh"
aliquot=$(realpath "$1")
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_rmaps_base_oversubscribe=1
export OMPI_MCA_orte_tmpdir_base=$scratch/mpi OMPI_MCA_btl_vader_backing_directory=$scratch/mpi OMPI_MCA_osc_sm_backing_directory=$scratch/mpi
mkdir "$scratch/mpi" "$scratch/offload"
launched='' unread=''
end() {
  if [ -z "$launched" ]; then return; fi
  kill -s USR1 "$launched" 2>/dev/null || true
  wait "$launched" || true
  launched=''
}
trap 'end; rm -rf "$scratch"' EXIT

wrong() {
  echo "$world: $*"
  failures=$((failures + 1))
}

# begin RANKS COMMAND...: sets `ranks` to the processes, once all of them train.
begin() {
  local count=$1 saved=$scratch/saved pid round
  shift
  rm -rf "$saved"
  "$@" train --quiet --layers 2 --width 64 --sequence 32 --threads 1 --steps 100000000 --schedule constant \
    --checkpoint-dir "$saved" --checkpoint-every 50 --offload "disk:$scratch/offload" "${more[@]}" >"$scratch/log" 2>&1 &
  launched=$!
  for ((round = 0; round < 600; ++round)); do
    if compgen -G "$saved/step-*" >/dev/null; then break; fi
    sleep 0.1
  done
  ranks=()
  for pid in $(pgrep -f -- "--checkpoint-dir $saved"); do
    if [ "$(readlink "/proc/$pid/exe")" = "$aliquot" ]; then ranks+=("$pid"); fi
  done
  if [ ${#ranks[@]} -ne "$count" ]; then wrong "${#ranks[@]} processes, not $count: $(cat "$scratch/log")"; fi
}

# shared PID: address and path of what it maps as shared.
shared() { awk '$2 ~ /s$/ { path = $6; for (i = 7; i <= NF; ++i) path = path " " $i; print $1, path }' "/proc/$1/maps"; }

# is_private WHAT LINK: neither the group nor others may open what the link leads to.
is_private() {
  local mode
  if ! mode=$(stat -L -c %a "$2" 2>/dev/null); then
    unread=$1
  elif [ "$mode" != 600 ]; then
    wrong "$1 has mode $mode"
  fi
}

look_at() {
  local pid=$1 address path descriptor ours=0 offloaded=0
  while read -r address path; do
    case $path in
      "/memfd:aliquot (deleted)") ours=$((ours + 1)) && is_private "a memfd" "/proc/$pid/map_files/$address" ;;
      "$scratch/mpi/"*/pmix_dstor*) ;; # of the launcher, which puts no weights there
      "$scratch/mpi/"*) is_private "Open MPI's ${path##*/}" "/proc/$pid/map_files/$address" ;;
      *) wrong "shared memory that others may reach: $path" ;;
    esac
  done < <(shared "$pid")
  if [ $ours -lt "$least" ]; then wrong "$ours memfds are mapped, and at least $least should be"; fi
  for descriptor in "/proc/$pid/fd/"*; do
    path=$(readlink "$descriptor" || true)
    if [[ $path = /dev/shm/* && $path != *"(deleted)" ]]; then wrong "a file in /dev/shm is open: $path"; fi
    if [[ $path = "$scratch/offload"* ]]; then offloaded=$((offloaded + 1)) && is_private "what is offloaded" "$descriptor"; fi
  done
  if [ $offloaded -eq 0 ]; then wrong "process $pid holds nothing that is offloaded"; fi
}

nothing_named() {
  local left
  if [ -n "$(shared_names)" ]; then wrong "names in /dev/shm: $(shared_names)"; fi
  left=$(find "$scratch/offload" -type f)
  if [ -n "$left" ]; then wrong "what is offloaded has a name: $left"; fi
}

# look NAME LEAST_MEMFDS RANKS COMMAND...
look() {
  local world=$1 least=$2 ranks=() pid round
  shift 2
  begin "$@"
  # Saves and prunes go on meanwhile.
  for ((round = 0; round < 5; ++round)); do
    for pid in "${ranks[@]}"; do look_at "$pid"; done
    nothing_named
    sleep 0.2
  done
  end
  nothing_named
}

more=(--ranks 2)
look threads 0 1 "$aliquot"
more=()
if has_mpi "$aliquot"; then
  look mpi 2 2 mpirun -n 2 "$aliquot"
  export ALIQUOT_NODE_MEMORY=window
  look "mpi with windows" 0 2 mpirun -n 2 "$aliquot"
fi
if [ $failures -eq 0 ] && [ -n "$unread" ]; then
  echo "skipped: the mode of $unread cannot be looked at here"
  exit 77
fi
exit $((failures > 0))
