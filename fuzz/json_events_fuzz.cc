// JSON as a stream of events: what opens is closed, keys are not repeated, depth is bounded.
#include "io/json_events.h"

#include <set>
#include <vector>

#include "support.h"

using namespace headwise;

namespace {

constexpr std::size_t kMaxDepth = 8;

class Checker final : public io::JsonHandler {
 public:
  void start(bool is_object) override {
    open_.push_back(is_object);
    keys_.emplace_back();
    fuzz::require(open_.size() <= kMaxDepth);
  }
  void end(bool is_object) override {
    fuzz::require(!open_.empty() && open_.back() == is_object);
    open_.pop_back();
    keys_.pop_back();
  }
  void key(std::string& name) override {
    fuzz::require(!open_.empty() && open_.back() && keys_.back().insert(name).second);
  }
  void scalar(const io::JsonScalar& value) override {
    if (value.kind == io::JsonScalar::Kind::string)
      fuzz::require(!io::find_invalid_utf8(*value.text));
  }
  bool all_closed() const { return open_.empty(); }

 private:
  std::vector<bool> open_;
  std::vector<std::set<std::string>> keys_;
};

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  fuzz::try_parse([&] {
    Checker checker;
    io::parse_json(text, kMaxDepth, checker);
    fuzz::require(checker.all_closed());
  });
  const std::string shown = printable(text);
  fuzz::check_message(shown);
  return 0;
}
