#!/usr/bin/env bash
# tests/docs/fine_tuning_test.sh PROGRAM PAGE...: runs the commands of each page that use Hugging Face weights or their
# checkpoints: the listed lines that begin with build/aliquot and name hf, tuned, own or runs/. Each section of a page
# runs in a directory of its own, with a small model and a tokenizer in hf, unless the section creates hf, with tokens
# in tokens.bin, web.bin and books.bin, and with texts in the files that the commands name.
# shellcheck source=tests/scripts/expect.sh
source "$(dirname "$0")/../scripts/expect.sh"
program=$(realpath "$1")
shift
export OMP_NUM_THREADS=1

# A model with the variations of Qwen3.
cat >"$scratch/config.json" <<'END'
{"model_type": "qwen3", "num_hidden_layers": 4, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2,
 "head_dim": 12, "intermediate_size": 48, "max_position_embeddings": 64, "vocab_size": 1280, "use_sliding_window": true,
 "sliding_window": 8, "max_window_layers": 2, "tie_word_embeddings": false}
END
printf '%4000s' '' | sed 's/  /a\x00/g' >"$scratch/tokens.bin"
"$program" train --quiet --threads 1 --steps 1 --micro-batch 1 --model "$scratch/config.json" \
  --checkpoint-dir "$scratch/first" >"$scratch/log"
"$program" checkpoint export "$scratch/first" --out "$scratch/hf" >>"$scratch/log"
cp "$(dirname "$(realpath "$0")")/../apps/text/tokenizers/gpt2.json" "$scratch/hf/tokenizer.json"

# text_files DIRECTORY: writes texts, JSON lines, and prompts with answers, of several hundred documents.
text_files() {
  mkdir -p "$1/books" "$1/corpus"
  for file in "$1/book.txt" "$1/books/book.txt"; do seq -s ' ' 4000 >"$file"; done
  for number in $(seq 300); do
    echo "{\"question\": \"Which number follows $number?\", \"answer\": \"$((number + 1)) follows.\"}"
  done >"$1/chats.jsonl"
  for file in "$1/web.jsonl.gz" "$1/corpus/web.jsonl.gz"; do
    for document in $(seq 500); do echo "{\"text\": \"$(seq -s ' ' "$document" $((document + 40)))\"}"; done | gzip >"$file"
  done
}
text_files "$scratch/texts"

# Writes the commands of each section to a file NUMBER.sh.
sections() {
  rm -f "$scratch"/[0-9]*.sh
  awk -v to="$scratch" '
    /^#/ { ++section }
    /^    build\/aliquot / && /(^|[ \/])(hf|tuned|own|runs\/[a-z]+)([ \/.]|$)/ {
      sub(/ +# .*/, "")
      print > sprintf("%s/%03d.sh", to, section)
    }' "$1"
}

for page in "$@"; do
  sections "$page"
  commands=0
  for section in "$scratch"/[0-9]*.sh; do
    [ -e "$section" ] || continue
    place=$scratch/place
    rm -rf "$place"
    mkdir -p "$place/build"
    ln -s "$program" "$place/build/aliquot"
    for name in tokens web books; do cp "$scratch/tokens.bin" "$place/$name.bin"; done
    cp -r "$scratch/texts/." "$place"
    if ! grep -m 1 -w hf "$section" | grep -q -e '--out hf'; then cp -r "$scratch/hf" "$place"; fi
    while IFS= read -r command; do
      commands=$((commands + 1))
      if ! (cd "$place" && bash -c "$command") >"$scratch/log" 2>&1; then
        echo "$page: this command failed: $command" && tail -n 20 "$scratch/log" && failures=$((failures + 1))
      fi
    done <"$section"
  done
  echo "$(basename "$page"): ran $commands commands"
  if [ "$commands" -eq 0 ]; then echo "$page: found no command" && failures=$((failures + 1)); fi
done
exit $((failures > 0))
