#!/usr/bin/env bash
# shared_memory_test.sh ALIQUOT: checks that other users cannot reach the memory of a run. A run must have no named file
# in /dev/shm or in the folder of offloaded data, and all its shared memory must be memfds of mode 0600. Files that Open
# MPI maps are in a separate folder, so that they can be distinguished. The mode of a mapping can only be read with the
# capability CAP_CHECKPOINT_RESTORE. Without it the test is skipped (77), after all other checks.
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

# begin PROCESSES COMMAND...: starts training with COMMAND and waits for its first checkpoint. Sets `ranks` to the ids
# of its processes and checks that there are PROCESSES of them.
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
  if [ ${#ranks[@]} -ne "$count" ]; then wrong "expected $count processes, found ${#ranks[@]}: $(cat "$scratch/log")"; fi
}

# shared PID: prints the address range and the path of each shared mapping of a process.
shared() { awk '$2 ~ /s$/ { path = $6; for (i = 7; i <= NF; ++i) path = path " " $i; print $1, path }' "/proc/$1/maps"; }

# is_private WHAT LINK: checks that the mode of the file to which LINK points is 600.
is_private() {
  local mode
  if ! mode=$(stat -L -c %a "$2" 2>/dev/null); then
    unread=$1
  elif [ "$mode" != 600 ]; then
    wrong "$1 has mode $mode, expected 600"
  fi
}

# check_process PID: checks the shared mappings and the open files of a process.
check_process() {
  local pid=$1 address path descriptor ours=0 offloaded=0
  while read -r address path; do
    case $path in
      "/memfd:aliquot (deleted)") ours=$((ours + 1)) && is_private "a memfd" "/proc/$pid/map_files/$address" ;;
      "$scratch/mpi/"*/pmix_dstor*) ;; # belongs to the launcher and holds no weights
      "$scratch/mpi/"*) is_private "Open MPI's ${path##*/}" "/proc/$pid/map_files/$address" ;;
      *) wrong "a named file is mapped as shared memory: $path" ;;
    esac
  done < <(shared "$pid")
  if [ $ours -lt "$least" ]; then wrong "$ours memfds are mapped, expected at least $least"; fi
  for descriptor in "/proc/$pid/fd/"*; do
    path=$(readlink "$descriptor" || true)
    if [[ $path = /dev/shm/* && $path != *"(deleted)" ]]; then wrong "a file in /dev/shm is open: $path"; fi
    if [[ $path = "$scratch/offload"* ]]; then offloaded=$((offloaded + 1)) && is_private "the file of offloaded data" "$descriptor"; fi
  done
  if [ $offloaded -eq 0 ]; then wrong "process $pid has no open file of offloaded data"; fi
}

# nothing_named: checks that no file has a name in /dev/shm or in the folder of offloaded data.
nothing_named() {
  local left
  if [ -n "$(shared_names)" ]; then wrong "names in /dev/shm: $(shared_names)"; fi
  left=$(find "$scratch/offload" -type f)
  if [ -n "$left" ]; then wrong "offloaded data has a named file: $left"; fi
}

# check_run WORLD LEAST_MEMFDS PROCESSES COMMAND...: starts training with COMMAND, which must start PROCESSES processes.
# Checks five times, while they train and save, that other users cannot reach their memory. Each process must map at
# least LEAST_MEMFDS memfds. Messages begin with WORLD.
check_run() {
  local world=$1 least=$2 ranks=() pid round
  shift 2
  begin "$@"
  for ((round = 0; round < 5; ++round)); do
    for pid in "${ranks[@]}"; do check_process "$pid"; done
    nothing_named
    sleep 0.2
  done
  end
  nothing_named
}

more=(--ranks 2)
check_run threads 0 1 "$aliquot"
more=()
if has_mpi "$aliquot"; then
  check_run mpi 2 2 mpirun -n 2 "$aliquot"
  export ALIQUOT_NODE_MEMORY=window
  check_run "mpi with windows" 0 2 mpirun -n 2 "$aliquot"
fi
if [ $failures -eq 0 ] && [ -n "$unread" ]; then
  echo "skipped: the mode of $unread cannot be read without CAP_CHECKPOINT_RESTORE"
  exit 77
fi
exit $((failures > 0))
