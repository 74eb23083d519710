#pragma once
// The tensors of the adapters of one block.

#include <cstdint>
#include <string>
#include <vector>

#include "apps/models/model.h"
#include "apps/models/shape.h"
#include "apps/models/tensor_part.h"

namespace aliquot {

/// One matrix of an adapter, with the declaration that every block repeats.
struct AdapterMatrix {
  Projection projection;
  bool is_b;         // whether it is B, else A
  std::string name;  // without the name of the unit: "attn.c_attn.lora_A.weight"
  std::vector<int64_t> shape;
  Initializer initial;
  TensorDeclaration over_tensor;
};

/// Returns the matrices of the adapters of a block: A, then B, for each adapted linear layer. Empty if the shape has no
/// adapters. A has the values of a uniform distribution within 1 / sqrt(inputs), as kaiming_uniform_(a=sqrt(5)) gives
/// it, and B is zero, so that adapters do not change the model before the first update.
///
/// The ranks of a tensor group divide the dimension that an adapter shares with the divided dimension of its linear
/// layer: the rows of B if they divide the outputs, and the columns of A if they divide the inputs. Every rank has all
/// of the other matrix. The ranks compute parts of its gradient, which the engine sums.
std::vector<AdapterMatrix> adapter_matrices(const ModelShape& shape, const TensorGroup& tensor);

/// Returns whether the ranks of a tensor group divide the inputs of the linear layer. Otherwise they divide its
/// outputs.
bool divides_inputs(Projection p);

}  // namespace aliquot
