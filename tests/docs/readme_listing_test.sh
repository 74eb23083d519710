#!/usr/bin/env bash
# tests/docs/readme_listing_test.sh PAGE HEADERS LIBRARIES: compiles the C++ listing of the page with a small model, and
# runs the program. The model has the members that the listing uses.
# shellcheck source=tests/scripts/expect.sh
source "$(dirname "$0")/../scripts/expect.sh"
page=$1 headers=$(realpath "$2") libraries=$(realpath "$3")

cat >"$scratch/model.h" <<'END'
#include <aliquot/aliquot.h>
#include <array>
#include <cstdio>
#include <string>

struct Layer {
  std::string name;
  int64_t out = 8, in = 8;
  float *weight = nullptr, *weight_gradient = nullptr, *bias = nullptr, *bias_gradient = nullptr;
};

struct Model {
  std::array<Layer, 2> layers{Layer{"a"}, Layer{"b"}};
  int uses = 0;
  void load_batch(int, int, int) {}
  void forward(int layer) { uses += layers[layer].weight[0] + layers[layer].bias[0] > 1 ? 1 : 0; }
  void backward(int layer) { layers[layer].weight_gradient[0] += 1, layers[layer].bias_gradient[7] += 1; }
  ~Model() { std::printf("%d uses\n", uses); }
};

inline void initial_values(const aliquot::ParameterSpec&, int64_t, std::span<float> values) {
  for (float& value : values) value = 1;
}
END
awk '/^```cpp/ { inside = 1; next } /^```/ { inside = 0 } inside' "$page" >"$scratch/program.cpp"
${CXX:-c++} -std=c++20 -O1 -Wall -Wextra -Werror -include "$scratch/model.h" -I"$headers" "$scratch/program.cpp" \
  -L"$libraries" -laliquot "-Wl,-rpath,$libraries" -o "$scratch/program"
# Two ranks open two units in each of 100 forward passes.
expect pass $'200 uses\n200 uses' "$scratch/program"
# An error in the options becomes the exit code of the program.
sed -i 's/zero_stage = 3/zero_stage = 7/' "$scratch/program.cpp"
${CXX:-c++} -std=c++20 -O1 -include "$scratch/model.h" -I"$headers" "$scratch/program.cpp" -L"$libraries" -laliquot \
  "-Wl,-rpath,$libraries" -o "$scratch/program"
code=0
"$scratch/program" >"$scratch/output" 2>&1 || code=$?
if [ "$code" -ne 1 ]; then
  echo "expected exit code 1 from an invalid option, got $code" && cat "$scratch/output" && failures=$((failures + 1))
fi
exit $((failures > 0))
