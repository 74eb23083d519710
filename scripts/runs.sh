#!/usr/bin/env bash
# Helpers of the scripts and tests that start ranks and look at what they leave: sourced, never run.

# own_shared_memory WORDS...: begins the running script again, with these words, in a /dev/shm of its own, so that every name in
# it is of what the script starts. Where that is not allowed the script goes on. ALIQUOT_OWN_SHM says which: 1, or nothing. To be
# called before there is anything to clean up.
own_shared_memory() {
  local options
  if [ -n "${ALIQUOT_OWN_SHM+x}" ]; then return; fi
  export ALIQUOT_OWN_SHM=
  for options in -m -rm; do
    if ! unshare $options mount -t tmpfs none /dev/shm 2>/dev/null; then continue; fi
    # shellcheck disable=SC2016 # the inner shell's words
    ALIQUOT_OWN_SHM=1 exec unshare $options bash -c 'mount -t tmpfs none /dev/shm && exec "$@"' - "$(realpath "$0")" "$@"
  done
  echo "no /dev/shm of our own here: names in it may be anybody's and are not looked at, only what processes hold"
}

# shared_names: the names in /dev/shm, where they can be of nobody else.
shared_names() { if [ -n "$ALIQUOT_OWN_SHM" ]; then ls -A /dev/shm; fi; }

# has_mpi PROGRAM: mpirun is there, and the program was built for it.
has_mpi() { command -v mpirun >/dev/null && ! grep -q '^MPI *not in this build' <<<"$("$1" doctor)"; }
