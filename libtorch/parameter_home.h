#pragma once
// A LibTorch parameter whose memory is the engine's.

#include <string>
#include <torch/torch.h>
#include <utility>

#include "kernels/formats/dtype.h"
#include "kernels/system/error.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// LibTorch's name of a dtype that models compute in. Throws UsageError for any other.
inline at::ScalarType torch_dtype(DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return at::kFloat;
    case DType::kBFloat16: return at::kBFloat16;
    case DType::kFloat16: return at::kHalf;
    default: throw UsageError("LibTorch's modules do not compute in " + std::string(name(dtype)));
  }
}

/// A parameter and its gradient, as tensors over storages whose address is changed: to where the engine has the unit while
/// it is live, and to where a touch faults (engine/run/memory/guard_range.h) when it is not. Autograd's saved tensors share these
/// storages, so they follow. Stays where it is: the engine writes to its slots. One thread.
class ParameterHome {
 public:
  ParameterHome(std::string full_name, at::Tensor parameter)
      : name_(std::move(full_name)), parameter_(std::move(parameter)) {}
  ParameterHome(const ParameterHome&) = delete;
  ParameterHome& operator=(const ParameterHome&) = delete;

  const std::string& name() const { return name_; }
  const at::Tensor& parameter() const { return parameter_; }
  /// Where the engine is to write its pointers.
  void** value_slot() { return &value_; }
  void** gradient_slot() { return &gradient_; }

  /// Throws UsageError for a parameter that cannot live in an engine's memory.
  void check(at::ScalarType dtype) const {
    if (!parameter_.device().is_cpu())
      throw UsageError("parameter " + name_ + " is not on the host, and LibTorch's modules are sharded there alone");
    if (parameter_.scalar_type() != dtype) {
      throw UsageError("parameter " + name_ + " is in " + toString(parameter_.scalar_type()) +
                       " and the engine computes in " + toString(dtype) +
                       ": convert the module with to(), or set .precision");
    }
  }

  /// Gives the parameter's own memory back and has it live in the engine's; of one that is trained the gradient too.
  void move_in(at::ScalarType gradients) {
    const at::ScalarType dtype = parameter_.scalar_type();
    parameter_.set_data(tensor_over(value_, dtype));
    if (parameter_.requires_grad()) gradient_tensor_ = tensor_over(gradient_, gradients);
  }

  /// Follows what the engine wrote to the slots.
  void follow() {
    set_data_pointer(parameter_, value_);
    if (gradient_tensor_.defined()) set_data_pointer(gradient_tensor_, gradient_);
  }
  /// Autograd adds to the engine's gradient from now on ...
  void begin_gradient() const {
    if (gradient_tensor_.defined()) parameter_.mutable_grad() = gradient_tensor_;
  }
  /// ... until here. False if it was put elsewhere.
  bool end_gradient() const {
    if (!gradient_tensor_.defined()) return true;
    const bool stayed = parameter_.grad().is_same(gradient_tensor_);
    parameter_.mutable_grad() = at::Tensor();
    return stayed;
  }

 private:
  static at::DataPtr non_owning(void* at) { return {at, at::Device(at::kCPU)}; }

  static void set_data_pointer(const at::Tensor& tensor, void* to) {
    tensor.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(non_owning(to));
  }

  /// Of the parameter's shape, contiguous.
  at::Tensor tensor_over(void* at, at::ScalarType dtype) const {
    const auto size_bytes = static_cast<size_t>(parameter_.numel()) * at::elementSize(dtype);
    const at::Storage storage(at::Storage::use_byte_size_t(), size_bytes, non_owning(at), nullptr, false);
    at::Tensor tensor = at::empty({0}, at::TensorOptions().dtype(dtype));
    return tensor.set_(storage, 0, parameter_.sizes());
  }

  std::string name_;
  at::Tensor parameter_, gradient_tensor_;
  void *value_ = nullptr, *gradient_ = nullptr;
};

}  // namespace aliquot
#pragma GCC visibility pop
