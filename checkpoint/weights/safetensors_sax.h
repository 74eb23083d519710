#pragma once
// The events of a safetensors header, taken as they come, so that a hostile header never becomes a tree in memory.
// Included by safetensors.cpp and its parts alone.

#include <nlohmann/json.hpp>
#include <set>
#include <stdexcept>
#include <string>

#include "checkpoint/weights/safetensors.h"

namespace aliquot {

/// What is wrong with a header: the end of a sentence that begins with the file's name.
struct SafetensorsDefect : std::runtime_error {
  using std::runtime_error::runtime_error;
};

/// Handed to nlohmann's parser. Every callback throws SafetensorsDefect for what does not belong where it stands.
class SafetensorsSax {
 public:
  using Json = nlohmann::json;

  /// The tensors in the file's order, once the parser has come to the end.
  SafetensorsHeader take();

  bool null() { refuse(); }
  bool boolean(bool) { refuse(); }
  bool number_float(Json::number_float_t, const std::string&) { refuse(); }
  bool binary(Json::binary_t&) { refuse(); }
  bool number_integer(Json::number_integer_t) { throw SafetensorsDefect("holds a negative number"); }
  bool number_unsigned(Json::number_unsigned_t value);
  bool string(std::string& value);
  bool start_object(size_t);
  bool key(std::string& name);
  bool end_object();
  bool start_array(size_t);
  bool end_array();
  bool parse_error(size_t position, const std::string& token, const Json::exception&);

 private:
  enum class Place { kBefore, kTop, kMetadata, kTensor, kShape, kOffsets, kAfter };
  enum Field : unsigned { kNone = 0, kType = 1, kShapeField = 2, kOffsetsField = 4, kAllFields = 7 };

  [[noreturn]] static void refuse();
  void begin_tensor();

  Place place_ = Place::kBefore;
  bool in_metadata_next_ = false;  // the last key at the top was the metadata's
  std::string key_;
  Field field_ = kNone;       // what the value to come is
  unsigned fields_seen_ = 0;  // of the tensor that is open
  size_t offset_count_ = 0;
  std::set<std::string> names_;
  SafetensorsEntry tensor_;
  SafetensorsHeader header_;
};

}  // namespace aliquot
