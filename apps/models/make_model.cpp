#include "apps/models/make_model.h"

#include "apps/models/gpt2.h"
#include "apps/models/llama.h"

namespace aliquot {

std::unique_ptr<Model> make_model(const ModelShape& shape, const ModelOptions& options, Backend& backend) {
  if (shape.family == ModelFamily::kLlama) return std::make_unique<Llama>(shape, options, backend);
  return std::make_unique<Gpt2>(shape, options, backend);
}

}  // namespace aliquot
