#!/usr/bin/env bash
# tests/docs/documented_commands_test.sh PROGRAM PAGE...: runs the listed commands of each page that plan, that print
# completions and manual pages, and that set which lines a run prints. Runs train a tiny model.
# shellcheck source=tests/scripts/expect.sh
source "$(dirname "$0")/../scripts/expect.sh"
program=$(realpath "$1")
shift
export OMP_NUM_THREADS=1
mkdir -p "$scratch/place/build"
ln -s "$program" "$scratch/place/build/aliquot"

commands=0
for page in "$@"; do
  while IFS= read -r command; do
    commands=$((commands + 1))
    case $command in
      build/aliquot\ train\ *) command+=" --layers 1 --width 16 --heads 2 --context 16 --micro-batch 1 --threads 1" ;;
    esac
    if ! (cd "$scratch/place" && bash -c "$command") >"$scratch/log" 2>&1; then
      echo "$page: this command failed: $command" && tail -n 20 "$scratch/log" && failures=$((failures + 1))
    fi
  done < <(sed -nE '/^    (source <\()?build\/aliquot (plan|completion|man|train .*--(log-every|metrics-every|stop-after)) /{
    s/ +# .*//
    s/^ +//
    p
  }' "$page")
done
if [ "$commands" -lt 10 ]; then echo "ran $commands commands, expected at least 10" && failures=$((failures + 1)); fi
exit $((failures > 0))
