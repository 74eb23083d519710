// The loops of a pretended GPU: the host's plain ones, in the stream's order.
#include <vector>

#include "kernels/device_cuda.h"
#include "kernels/encoding_host.h"
#include "kernels/host_loops.h"
#include "kernels/kernels.h"
#include "tests/support/pretended_cuda.h"

namespace aliquot {
namespace {

const HostLoops& loops() { return host_loops(Isa::kPlain); }

void copy(Stream& stream, void* to, const void* from, int64_t size_bytes) {
  pretended::launch(cuda_stream(stream), [=] { loops().copy(to, from, size_bytes); });
}

void fill(Stream& stream, void* to, DType dtype, float value, int64_t count) {
  pretended::launch(cuda_stream(stream), [=] { loops().fill(to, dtype, value, count); });
}

void sum_tree(Stream& stream, const TreeSum& sum) {
  // The bases are taken at the call, as a launch takes its arguments.
  TreeSum taken = sum;
  pretended::launch(cuda_stream(stream), [taken, bases = std::vector(sum.bases.begin(), sum.bases.end())]() mutable {
    taken.bases = bases;
    loops().sum_tree(taken, 0, taken.count);
  });
}

void cast(Stream& stream, void* to, DType to_dtype, const void* from, DType from_dtype, int64_t count) {
  pretended::launch(cuda_stream(stream), [=] { loops().cast(to, to_dtype, from, from_dtype, count); });
}

void encode(Stream& stream, const Encode& what) {
  pretended::launch(cuda_stream(stream), [what] { encode_blocks(what, 0, what.part_count * what.count); });
}

void decode(Stream& stream, const Decode& what) {
  pretended::launch(cuda_stream(stream), [what] { decode_blocks(what, 0, what.part_count * what.count); });
}

}  // namespace

const Kernels& cuda_kernels() {
  static const Kernels kernels = [] {
    Kernels table{};
    table.copy = copy;
    table.fill = fill;
    table.sum_tree = sum_tree;
    table.cast = cast;
    table.encode = encode;
    table.decode = decode;
    return table;
  }();
  return kernels;
}

}  // namespace aliquot
