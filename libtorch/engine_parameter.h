#pragma once
// A LibTorch parameter whose memory belongs to the engine.

#include <string>
#include <torch/torch.h>
#include <utility>

#include "kernels/formats/dtype.h"
#include "kernels/system/error.h"

#pragma GCC visibility push(default)
namespace aliquot {

/// Converts a dtype to LibTorch's type. Throws UsageError for types in which LibTorch modules cannot compute.
inline at::ScalarType torch_dtype(DType dtype) {
  switch (dtype) {
    case DType::kFloat32: return at::kFloat;
    case DType::kBFloat16: return at::kBFloat16;
    case DType::kFloat16: return at::kHalf;
    default:
      throw UsageError("LibTorch modules cannot compute in " + std::string(name(dtype)) +
                       ": expected float32, bfloat16 or float16");
  }
}

/// A parameter and its gradient, as tensors. While a scope of the unit is open, the storages of both point to the
/// engine's memory. Otherwise they point to guard addresses (engine/run/memory/guard_range.h). Tensors that autograd
/// saved share these storages, so their address changes too. Not movable, because the engine writes to the pointers in
/// this object. Not thread-safe.
class EngineParameter {
 public:
  EngineParameter(std::string full_name, at::Tensor parameter)
      : name_(std::move(full_name)), parameter_(std::move(parameter)) {}
  EngineParameter(const EngineParameter&) = delete;
  EngineParameter& operator=(const EngineParameter&) = delete;

  const std::string& name() const { return name_; }
  const at::Tensor& parameter() const { return parameter_; }
  /// Return the addresses of the pointers that the engine sets (see Unit::add()).
  void** value_slot() { return &value_; }
  void** gradient_slot() { return &gradient_; }

  /// Throws UsageError unless the parameter is on the host and has type `dtype`.
  void check(at::ScalarType dtype) const {
    if (!parameter_.device().is_cpu())
      throw UsageError("parameter " + name_ + " is on " + parameter_.device().str() +
                       ": only modules on the CPU can be sharded");
    if (parameter_.scalar_type() != dtype) {
      throw UsageError("parameter " + name_ + " is " + toString(parameter_.scalar_type()) +
                       " but the engine computes in " + toString(dtype) +
                       ": convert the module with to(), or set EngineOptions::precision");
    }
  }

  /// Frees the parameter's own memory and makes its storage point to the engine's memory. A trainable parameter also
  /// gets a gradient tensor of type `gradients`.
  void move_in(at::ScalarType gradients) {
    const at::ScalarType dtype = parameter_.scalar_type();
    parameter_.set_data(tensor_over(value_, dtype));
    if (parameter_.requires_grad()) gradient_tensor_ = tensor_over(gradient_, gradients);
  }

  /// Makes the storages point to the addresses that the engine has set.
  void follow() {
    set_data_pointer(parameter_, value_);
    if (gradient_tensor_.defined()) set_data_pointer(gradient_tensor_, gradient_);
  }
  /// Makes autograd add to the engine's gradient, until end_gradient().
  void begin_gradient() const {
    if (gradient_tensor_.defined()) parameter_.mutable_grad() = gradient_tensor_;
  }
  /// Ends the access that begin_gradient() began. Returns false if grad() has been replaced by another tensor since
  /// then.
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

  /// Returns a contiguous tensor of the parameter's shape over the memory at `at`, which the tensor does not own.
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
