#!/usr/bin/env bash
# Helpers for scripts and tests that start ranks, and check for leftover shared memory. Source this file; do not run it.

# own_shared_memory ARGUMENTS...: restarts the running script with these arguments in a private /dev/shm, so that all
# names in it belong to the script. If this is not permitted, the script continues with the /dev/shm of the machine.
# ALIQUOT_OWN_SHM is 1 if /dev/shm is private, and empty otherwise. Call it before anything needs cleanup.
own_shared_memory() {
  local options
  if [ -n "${ALIQUOT_OWN_SHM+x}" ]; then return; fi
  export ALIQUOT_OWN_SHM=
  for options in -m -rm; do
    if ! unshare $options mount -t tmpfs none /dev/shm 2>/dev/null; then continue; fi
    # shellcheck disable=SC2016 # the inner shell expands them
    ALIQUOT_OWN_SHM=1 exec unshare $options bash -c 'mount -t tmpfs none /dev/shm && exec "$@"' - \
      "$(realpath "$0")" "$@"
  done
  echo "cannot create a private /dev/shm: files there may belong to other programs, so only mapped files are checked"
}

# shared_names: prints the names in /dev/shm, if it is private.
shared_names() { if [ -n "$ALIQUOT_OWN_SHM" ]; then ls -A /dev/shm; fi; }

# has_mpi PROGRAM: succeeds if mpirun is installed and the program was built with MPI.
has_mpi() { command -v mpirun >/dev/null && ! grep -q '^MPI *not in this build' <<<"$("$1" doctor)"; }
