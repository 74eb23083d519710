#pragma once
// Objects of all ranks that are threads of one process.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sharding/exchange.h"

namespace aliquot {

/// Every rank's pointer, in rank order: each object lives as long as any rank holds it. Collective and blocking.
template <typename T>
std::vector<std::shared_ptr<T>> gather_from_threads(Exchange& exchange, std::shared_ptr<T> own) {
  // The pointers lie on their ranks' stacks until all have been copied: the second round holds them there.
  const auto addresses = exchange.all(std::to_string(reinterpret_cast<uintptr_t>(&own)));
  std::vector<std::shared_ptr<T>> all;
  for (const auto& address : addresses) all.push_back(*reinterpret_cast<std::shared_ptr<T>*>(std::stoull(address)));
  exchange.all("copied");
  return all;
}

}  // namespace aliquot
