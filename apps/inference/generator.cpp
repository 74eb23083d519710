#include "apps/inference/generator.h"

#include <algorithm>
#include <cstring>
#include <fmt/format.h>
#include <string>

#include "apps/train/wrap.h"
#include "kernels/system/error.h"
#include "sharding/comm/collective_purpose.h"

namespace aliquot {
namespace {

/// The first tensor group of the last pipeline stage has the logits. Returns whether the rank is in that group.
bool has_logits(const TrainContext& context) {
  const EngineOptions& engine = context.options().engine;
  const int ranks = context.world().rank_count(), first = ranks - ranks / engine.pipeline;
  const int rank = context.world().rank();
  return rank >= first && rank < first + engine.tensor;
}

/// Returns the logits of the whole vocabulary, of which each rank of a tensor group has a part. Collective.
std::vector<float> gathered_logits(const TrainContext& context) {
  const ScopedCollectivePurpose purpose("gather logits");
  const std::span<const float> own = has_logits(context) ? context.model().logits() : std::span<const float>();
  const auto bytes = std::as_bytes(own);
  const std::vector<std::string> parts = context.world().communicator().gather_objects(
      std::string_view(reinterpret_cast<const char*>(bytes.data()), bytes.size()));
  std::string all;
  for (const std::string& part : parts) all += part;  // the parts are in the order of the ranks
  std::vector<float> logits(all.size() / sizeof(float));
  std::memcpy(logits.data(), all.data(), logits.size() * sizeof(float));
  return logits;
}

}  // namespace

Generator::Generator(const TrainContext& context, int64_t capacity)
    : context_(context),
      cache_(context.world().device(), model_shape(context.options()), capacity, *context.options().precision,
             tensor_group(context.options(), context.options().engine, context.world().rank())) {}

/// Runs the model over the next tokens of the sequence, and returns the token after them.
int32_t Generator::next(std::span<const int32_t> tokens, const TokenChoice& choice, int64_t index) {
  Model& model = context_.model();
  const auto rows = static_cast<size_t>(*context_.options().sequence);
  while (!tokens.empty()) {
    const std::span<const int32_t> part = tokens.first(std::min(rows, tokens.size()));
    const DecodingPass pass{part, &cache_};
    model.set_decoding(pass);
    run_evaluation(context_.engine(), model);
    cache_.set_length(pass.end_position());
    tokens = tokens.subspan(part.size());
  }
  if (context_.world().rank_count() == 1) return choose_token(model.logits(), choice, index);
  if (context_.options().engine.tensor > 1) return choose_token(gathered_logits(context_), choice, index);
  double token = has_logits(context_) ? choose_token(model.logits(), choice, index) : 0;
  context_.all_reduce({&token, 1}, Reduction::kSum, {"next token", context_.engine().step_count()});
  return static_cast<int32_t>(token);
}

bool Generator::generate(const Generation& what, const std::function<void(int32_t)>& take) {
  const auto prompt = static_cast<int64_t>(what.prompt.size());
  if (prompt >= cache_.capacity()) {
    throw UsageError(fmt::format("the prompt has {} tokens, and the longest sequence has {}: use a shorter prompt.",
                                 prompt, cache_.capacity()));
  }
  cache_.set_length(0);
  std::vector<int32_t> tokens = what.prompt;
  for (int64_t index = 0; index < what.tokens; ++index) {
    const int32_t token = next(tokens, what.choice, index);
    if (std::ranges::find(what.stop, token) != what.stop.end()) return false;
    take(token);
    if (cache_.length() + 1 >= cache_.capacity()) return index + 1 < what.tokens;
    tokens = {token};
  }
  return false;
}

}  // namespace aliquot
