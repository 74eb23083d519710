#include "sharding/flight/flight_world.h"

#include <atomic>
#include <filesystem>
#include <fmt/format.h>
#include <map>
#include <mutex>
#include <utility>

namespace aliquot {
namespace {

/// Returns the same text for all spellings of a directory, such as "runs/a", "./runs/a" and "runs/a/".
std::string canonical(const std::string& directory) {
  std::error_code error;
  std::filesystem::path path = std::filesystem::absolute(directory, error);
  if (error) return directory;
  if (const auto resolved = std::filesystem::weakly_canonical(path, error); !error) path = resolved;
  path = path.lexically_normal();
  return (path.has_filename() ? path : path.parent_path()).string();
}

}  // namespace

struct FlightWorld::Use {
  using Key = std::pair<std::string, std::string>;  // canonical directory and name
  /// The names in use. A kept name has a pointer that may be expired.
  struct Registry {
    std::mutex mutex;
    std::map<Key, std::weak_ptr<Use>> uses;
  };
  static Registry& registry() {
    static auto* all = new Registry;  // never destroyed: a world may exist while static objects are destroyed
    return *all;
  }

  explicit Use(Key given) : key(std::move(given)) {}
  Use(const Use&) = delete;
  Use& operator=(const Use&) = delete;
  ~Use() {
    if (kept) return;
    const std::lock_guard lock(registry().mutex);
    const auto own = registry().uses.find(key);
    if (own != registry().uses.end() && own->second.expired()) registry().uses.erase(own);
  }

  Key key;
  std::atomic<bool> kept{false};
};

FlightWorld FlightWorld::reserve(const std::string& directory, int process) {
  if (directory.empty()) return {};
  const std::string place = canonical(directory);
  Use::Registry& all = Use::registry();
  const std::lock_guard lock(all.mutex);
  for (int number = 0;; ++number) {
    const Use::Key key{place, process == 0 && number == 0 ? "" : fmt::format("{}-{}", process, number)};
    if (all.uses.contains(key)) continue;
    auto use = std::make_shared<Use>(key);
    all.uses.emplace(key, use);
    return FlightWorld(std::move(use));
  }
}

FlightWorld FlightWorld::join(const std::string& directory, const std::string& name) {
  if (directory.empty()) return {};
  const Use::Key key{canonical(directory), name};
  Use::Registry& all = Use::registry();
  const std::lock_guard lock(all.mutex);
  std::weak_ptr<Use>& known = all.uses[key];
  std::shared_ptr<Use> use = known.lock();
  if (use == nullptr) {  // rank 0 is in another process
    use = std::make_shared<Use>(key);
    known = use;
  }
  return FlightWorld(std::move(use));
}

const std::string& FlightWorld::name() const {
  static const std::string none;
  return use_ == nullptr ? none : use_->key.second;
}

void FlightWorld::keep() const {
  if (use_ != nullptr) use_->kept = true;
}

}  // namespace aliquot
