#include "apps/inference/generator.h"

#include <algorithm>
#include <fmt/format.h>

#include "apps/train/wrap.h"
#include "kernels/system/error.h"

namespace aliquot {
namespace {

/// The first rank of the last pipeline stage has the logits.
bool has_logits(const TrainContext& context) {
  const int ranks = context.world().rank_count(), stages = context.options().engine.pipeline;
  return context.world().rank() == ranks - ranks / stages;
}

}  // namespace

Generator::Generator(const TrainContext& context, int64_t capacity)
    : context_(context),
      cache_(context.world().device(), model_shape(context.options()), capacity, *context.options().precision) {}

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
