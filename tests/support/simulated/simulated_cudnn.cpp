#include "tests/support/simulated/simulated_cudnn.h"

#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <vector>

#include "apps/models/cuda/fused_attention_cuda.h"
#include "kernels/device/device_cuda.h"
#include "kernels/formats/element.h"
#include "tests/support/simulated/simulated_cuda.h"

namespace aliquot {
namespace {

std::atomic<int64_t> planned{0}, enqueued{0};

/// A tensor in 16 bits.
struct Tensor {
  void* data;
  const AttentionTensor& place;
  DType type;

  uint16_t& at(int64_t batch, int64_t head, int64_t position, int64_t element) const {
    const auto& s = place.strides;
    return static_cast<uint16_t*>(data)[batch * s[0] + head * s[1] + position * s[2] + element * s[3]];
  }
  double load(int64_t batch, int64_t head, int64_t position, int64_t element) const {
    const uint16_t bits = at(batch, head, position, element);
    return type == DType::kFloat16 ? fp16_to_float(bits) : bf16_to_float(bits);
  }
  void store(int64_t batch, int64_t head, int64_t position, int64_t element, double value) const {
    const auto rounded = static_cast<float>(value);
    at(batch, head, position, element) = type == DType::kFloat16 ? float_to_fp16(rounded) : float_to_bf16(rounded);
  }
};

void require_aligned(const void* address) {
  if (reinterpret_cast<uintptr_t>(address) % 16 != 0) throw std::logic_error("cuDNN reads 16 bytes at a time");
}

/// The passes of one call, for one sequence and one head of queries at a time.
class PlainAttention {
 public:
  PlainAttention(const FusedAttentionProblem& problem, const FusedAttentionArrays& arrays) : p_(problem), a_(arrays) {}

  void forward() const {
    const Tensor to = tensor(a_.output, p_.output);
    for_each_query([&](int64_t b, int64_t h, int64_t query) {
      const std::vector<double> scores = scores_of(b, h, query);
      double most = -std::numeric_limits<double>::infinity(), total = 0;
      for (const double score : scores) most = std::max(most, score);
      for (const double score : scores) total += std::exp(score - most);
      const double log_sum = most + std::log(total);
      log_sum_at(b, h, query) = static_cast<float>(log_sum);
      for (int64_t e = 0; e < p_.values.extents[3]; ++e) {
        double sum = 0;
        for (int64_t key = first_key(query); key <= query; ++key)
          sum += std::exp(scores[index(query, key)] - log_sum) * values().load(b, group(h), key, e);
        to.store(b, h, query, e, sum);
      }
    });
  }

  void backward() const {
    std::vector<double> d_queries(count(p_.queries)), d_keys(count(p_.keys)), d_values(count(p_.values));
    const Tensor output = tensor(a_.output, p_.output), from = tensor(a_.output_gradient, p_.output);
    for_each_query([&](int64_t b, int64_t h, int64_t query) {
      const std::vector<double> scores = scores_of(b, h, query);
      double delta = 0;
      for (int64_t e = 0; e < width(); ++e) delta += from.load(b, h, query, e) * output.load(b, h, query, e);
      for (int64_t key = first_key(query); key <= query; ++key) {
        const double probability = std::exp(scores[index(query, key)] - log_sum_at(b, h, query));
        double slope = 0;
        for (int64_t e = 0; e < width(); ++e) slope += from.load(b, h, query, e) * values().load(b, group(h), key, e);
        const double gradient = probability * (slope - delta) * p_.scale;
        for (int64_t e = 0; e < width(); ++e) {
          d_queries[dense(p_.queries, b, h, query, e)] += gradient * keys().load(b, group(h), key, e);
          d_keys[dense(p_.keys, b, group(h), key, e)] += gradient * queries().load(b, h, query, e);
          d_values[dense(p_.values, b, group(h), key, e)] += probability * from.load(b, h, query, e);
        }
      }
    });
    store(d_queries, tensor(a_.query_gradient, p_.queries));
    store(d_keys, tensor(a_.key_gradient, p_.keys));
    store(d_values, tensor(a_.value_gradient, p_.values));
  }

 private:
  Tensor tensor(const void* data, const AttentionTensor& place) const {
    return {const_cast<void*>(data), place, p_.type};
  }
  Tensor queries() const { return tensor(a_.queries, p_.queries); }
  Tensor keys() const { return tensor(a_.keys, p_.keys); }
  Tensor values() const { return tensor(a_.values, p_.values); }
  int64_t width() const { return p_.queries.extents[3]; }
  int64_t group(int64_t head) const { return head / (p_.queries.extents[1] / p_.keys.extents[1]); }

  /// cuDNN keeps keys with key + left bound > query.
  int64_t first_key(int64_t query) const { return p_.window == 0 ? 0 : std::max<int64_t>(query - p_.window + 1, 0); }
  size_t index(int64_t query, int64_t key) const { return static_cast<size_t>(key - first_key(query)); }

  float& log_sum_at(int64_t batch, int64_t head, int64_t query) const {
    const auto& s = p_.log_sums.strides;
    return a_.log_sums[batch * s[0] + head * s[1] + query * s[2]];
  }

  std::vector<double> scores_of(int64_t batch, int64_t head, int64_t query) const {
    std::vector<double> scores;
    for (int64_t key = first_key(query); key <= query; ++key) {
      double sum = 0;
      for (int64_t e = 0; e < width(); ++e)
        sum += queries().load(batch, head, query, e) * keys().load(batch, group(head), key, e);
      scores.push_back(sum * p_.scale);
    }
    return scores;
  }

  template <class Body>
  void for_each_query(Body&& body) const {
    const auto& extents = p_.queries.extents;
    for (int64_t b = 0; b < extents[0]; ++b) {
      for (int64_t h = 0; h < extents[1]; ++h) {
        for (int64_t query = 0; query < extents[2]; ++query) body(b, h, query);
      }
    }
  }

  static size_t count(const AttentionTensor& t) {
    return static_cast<size_t>(t.extents[0] * t.extents[1] * t.extents[2] * t.extents[3]);
  }
  static size_t dense(const AttentionTensor& t, int64_t b, int64_t h, int64_t position, int64_t e) {
    return static_cast<size_t>(((b * t.extents[1] + h) * t.extents[2] + position) * t.extents[3] + e);
  }
  static void store(const std::vector<double>& gradient, const Tensor& to) {
    const auto& extents = to.place.extents;
    for (int64_t b = 0; b < extents[0]; ++b) {
      for (int64_t h = 0; h < extents[1]; ++h) {
        for (int64_t position = 0; position < extents[2]; ++position) {
          for (int64_t e = 0; e < extents[3]; ++e)
            to.store(b, h, position, e, gradient[dense(to.place, b, h, position, e)]);
        }
      }
    }
  }

  const FusedAttentionProblem& p_;
  const FusedAttentionArrays& a_;
};

class SimulatedPlan final : public FusedAttentionPlan {
 public:
  SimulatedPlan(const FusedAttentionProblem& problem, int64_t workspace_bytes)
      : problem_(problem), workspace_bytes_(workspace_bytes) {}

  int64_t workspace_bytes() const override { return workspace_bytes_; }

  void run(Stream& stream, const FusedAttentionArrays& arrays) override {
    for (const void* address :
         {arrays.queries, arrays.keys, arrays.values, static_cast<const void*>(arrays.output), arrays.output_gradient,
          static_cast<const void*>(arrays.query_gradient), static_cast<const void*>(arrays.key_gradient),
          static_cast<const void*>(arrays.value_gradient)})
      require_aligned(address);
    ++enqueued;
    simulated::launch(static_cast<CudaStream&>(stream).get(), [problem = problem_, arrays, bytes = workspace_bytes_] {
      std::memset(arrays.workspace, 0xff, static_cast<size_t>(bytes));
      const PlainAttention attention(problem, arrays);
      problem.pass == AttentionPass::kForward ? attention.forward() : attention.backward();
    });
  }

 private:
  FusedAttentionProblem problem_;
  int64_t workspace_bytes_;
};

class SimulatedCudnn final : public FusedAttentionLibrary {
 public:
  std::string describe() const override { return "simulated cuDNN"; }
  std::unique_ptr<FusedAttentionPlan> plan(const FusedAttentionProblem& problem, std::string& reason) override {
    ++planned;
    const simulated::CudnnBehavior& behavior = simulated::cudnn_behavior();
    if (problem.queries.extents[3] > behavior.widest_head) {
      reason = "the head is too wide";
      return nullptr;
    }
    return std::make_unique<SimulatedPlan>(problem,
                                           problem.pass == AttentionPass::kForward ? 0 : behavior.workspace_bytes);
  }
};

}  // namespace

std::unique_ptr<FusedAttentionLibrary> make_cudnn_attention(const CudaDevice&) {
  return std::make_unique<SimulatedCudnn>();
}

namespace simulated {

CudnnBehavior& cudnn_behavior() {
  static CudnnBehavior behavior;
  return behavior;
}

int64_t planned_attention_passes() { return planned; }
int64_t enqueued_attention_passes() { return enqueued; }

}  // namespace simulated
}  // namespace aliquot
