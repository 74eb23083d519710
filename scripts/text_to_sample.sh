#!/usr/bin/env bash
# scripts/text_to_sample.sh [--steps N] [--out DIR] [--prompt TEXT] [FILE...]
# Learns a tokenizer from the text of the files, trains a small GPT-2 on it, and prints a text that the model generates.
# Without files, the text is this project's documentation. Installs missing packages and builds the command first.
#   --steps N      steps of training (default: 1000, about a minute on two cores)
#   --out DIR      directory for tokens and checkpoints, which must not exist (default: runs/text)
#   --prompt TEXT  the beginning of the generated text (default: "Each rank")
# If ALIQUOT_PROGRAM is set, it is the aliquot command, and nothing is installed or built.
# shellcheck source=scripts/lib.sh
folder=$PWD
source "$(dirname "$0")/lib.sh"

# absolute PATH: prints the path, which is relative to the folder in which the script was started.
absolute() { case $1 in /*) echo "$1" ;; *) echo "$folder/$1" ;; esac; }

steps=1000
out=
prompt='Each rank'
files=()
while [ $# -gt 0 ]; do
  case $1 in
    --help | -h) usage && exit ;;
    --steps | --out | --prompt)
      if [ $# -lt 2 ]; then fail 1 "$1 needs a value (see --help)"; fi
      printf -v "${1#--}" '%s' "$2"
      shift
      ;;
    --*) fail 1 "unknown option $1 (see --help)" ;;
    *) files+=("$(absolute "$1")") ;;
  esac
  shift
done
if [ "${#files[@]}" -eq 0 ]; then files=(README.md docs/*.md); fi
for file in "${files[@]}"; do
  if [ ! -f "$file" ]; then fail 1 "$file: there is no such file"; fi
done
if [ -n "$out" ]; then out=$(absolute "$out"); else out=runs/text; fi
if [ -e "$out" ]; then fail 1 "$out exists: remove it, or choose another directory with --out"; fi

if [ -n "${ALIQUOT_PROGRAM:-}" ]; then
  program=$(absolute "$ALIQUOT_PROGRAM")
else
  program=build/aliquot
  scripts/setup.sh
  build release aliquot_command
fi

# run COMMAND...: prints the command and runs it.
run() {
  printf '\n$'
  printf ' %q' "$@"
  printf '\n'
  "$@"
}

mkdir -p "$out"
run "$program" data "${files[@]}" --learn-tokenizer 1024 --out "$out/tokens.h5" --quiet
run "$program" train --data "$out/tokens.h5" --vocab 1024 --steps "$steps" --ranks 2 --zero-stage 3 \
  --sequence 64 --micro-batch 8 --lr 3e-3 --warmup "$((steps / 20))" --log-every "$((steps / 6 + 1))" \
  --checkpoint-dir "$out/model"
run "$program" sample --checkpoint "$out/model" --prompt "$prompt" --tokens 80 --temperature 0.6
