#pragma once
// Exchange of objects between ranks that are threads of one process.

#include <memory>
#include <utility>
#include <vector>

#include "sharding/comm/bootstrap.h"

namespace aliquot {

/// Returns every rank's object, in rank order. Collective; blocks.
template <typename T>
std::vector<std::shared_ptr<T>> gather_from_threads(Bootstrap& bootstrap, std::shared_ptr<T> own) {
  std::vector<std::shared_ptr<T>> all;
  for (auto& object : bootstrap.all_gather_objects(std::move(own)))
    all.push_back(std::static_pointer_cast<T>(std::move(object)));
  return all;
}

/// Returns the object of `rank`. Each rank may name another one. Collective; blocks.
template <typename T>
std::shared_ptr<T> object_from_thread(Bootstrap& bootstrap, int rank, std::shared_ptr<T> own) {
  return std::static_pointer_cast<T>(bootstrap.object_of(rank, std::move(own)));
}

}  // namespace aliquot
