#!/usr/bin/env bash
# Tests that the number of parallel compilers and tests depends on the machine, not on OMP_NUM_THREADS.
# shellcheck source=tests/scripts/expect.sh
source "$(dirname "$0")/expect.sh"

cores=$(env -u OMP_NUM_THREADS -u OMP_THREAD_LIMIT nproc)
for told in 1 97; do
  expect pass "cores=$cores." \
    env OMP_NUM_THREADS=$told bash -c "source '$top/scripts/lib.sh' && echo \"cores=\$(core_count).\""
done
expect pass "jobs=5." \
  env CMAKE_BUILD_PARALLEL_LEVEL=5 bash -c "source '$top/scripts/lib.sh' && echo \"jobs=\$(job_count).\""
exit $((failures > 0))
